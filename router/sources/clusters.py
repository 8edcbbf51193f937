"""Kafka clusters of the settings, and whether they answer."""

from __future__ import annotations

from bindings.kafka.addresses import Brokers, brokers_of
from bindings.kafka.client import KafkaClient, KafkaUnreachable
from router.errors import BrokerUnreachable
from router.settings import Settings, event_sinks
from router.settings.clusters import kafka_client
from router.settings.inward import KafkaInboxSettings
from router.sources.sources import Source


def source_client(source: Source) -> KafkaClient:
    """Return how to reach the cluster of a Kafka source."""
    return kafka_client(Brokers(source.servers, source.security), source.settings, source.settings.kafka)


def inbox_client(inbox: KafkaInboxSettings) -> KafkaClient:
    """Return how to reach the cluster of an inbox topic."""
    return kafka_client(brokers_of([inbox.bootstrap_servers]), inbox, inbox.options)


def rest_client(settings: Settings) -> KafkaClient:
    """Return how to reach the cluster that has the rest topic: that of the first Kafka sink of events.

    The settings have a rest topic, and so were refused without such a sink.
    """
    sinks = (settings.sinks[name].topics for name in event_sinks(settings))
    return next(sink.cluster() for sink in sinks if sink is not None)


def check_reachable(sources: tuple[Source, ...], settings: Settings) -> None:
    """Make sure, before anything starts, that every broker of sources and sinks answers.

    Raises:
        BrokerUnreachable: one does not; names the source or sink and its servers.
    """
    clients = [(f"source {source.endpoint}", source_client(source)) for source in sources if not source.pushed]
    clients += [
        (f"sink {name}", client)
        for name, sink in settings.sinks.items()
        if sink.remote is not None and (client := sink.remote.own_cluster()) is not None
    ]
    if settings.inbox.kafka is not None:
        clients.append(("inbox", inbox_client(settings.inbox.kafka)))
    answered: list[KafkaClient] = []
    for name, client in clients:
        if client in answered:
            continue
        try:
            client.partitions(())
        except KafkaUnreachable as error:
            raise BrokerUnreachable(
                f"{name}: {error}", hint="start the broker, or correct bootstrap_servers and credentials"
            ) from error
        answered.append(client)
