"""Kafka clusters of the settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bindings.kafka.addresses import Brokers, brokers_of
from bindings.kafka.client import KafkaClient
from router.settings import Settings, event_sinks
from router.settings.clusters import kafka_client
from router.settings.inward import KafkaInboxSettings
from router.sources.sources import REST, Source


def source_client(source: Source) -> KafkaClient:
    """Return how to reach the cluster of a Kafka source."""
    client = kafka_client(Brokers(source.servers, source.security), source.settings, source.settings.kafka)
    # Spark assigns partitions and commits nothing, so that queries and tasks of one group do not disturb each other.
    return replace(client, options={**client.options, "group.id": source.group}) if source.group else client


def inbox_client(inbox: KafkaInboxSettings) -> KafkaClient:
    """Return how to reach the cluster of an inbox topic."""
    return kafka_client(brokers_of([inbox.bootstrap_servers]), inbox, inbox.options)


def rest_client(settings: Settings) -> KafkaClient:
    """Return how to reach the cluster that has the rest topic: that of the first Kafka sink of events.

    The settings have a rest topic, and so were refused without such a sink.
    """
    sinks = (settings.sinks[name].topics for name in event_sinks(settings))
    return next(sink.cluster() for sink in sinks if sink is not None)


def query_client(settings: Settings, query: str, sources: Sequence[Source]) -> KafkaClient | None:
    """Return how to reach the cluster that a query reads; without *sources* it is that of the inbox or the rest topic.

    None for the local inbox.
    """
    if query == REST:
        return rest_client(settings)
    if sources:
        return source_client(sources[0])
    return None if settings.inbox.kafka is None else inbox_client(settings.inbox.kafka)
