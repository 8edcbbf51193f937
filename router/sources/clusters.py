"""Kafka clusters of the settings, and whether they answer."""

from __future__ import annotations

from bindings.kafka.addresses import Brokers, brokers_of
from bindings.kafka.client import KafkaClient, KafkaUnreachable
from bindings.kafka.login import SaslLogin
from router.errors import BrokerUnreachable
from router.settings import KafkaSink, Settings, revealed
from router.settings.inward import KafkaInboxSettings
from router.settings.security import KafkaLogin
from router.settings.values import Options
from router.sources.sources import Source


def source_client(source: Source) -> KafkaClient:
    """Return how to reach the cluster of a Kafka source."""
    return _client(Brokers(source.servers, source.security), source.settings, source.settings.kafka)


def sink_client(sink: KafkaSink) -> KafkaClient:
    """Return how to reach the cluster of a Kafka sink."""
    return _client(brokers_of([sink.bootstrap_servers]), sink, sink.options)


def inbox_client(inbox: KafkaInboxSettings) -> KafkaClient:
    """Return how to reach the cluster of an inbox topic."""
    return _client(brokers_of([inbox.bootstrap_servers]), inbox, inbox.options)


def _client(brokers: Brokers, settings: KafkaLogin, options: Options) -> KafkaClient:
    tls = settings.tls
    return KafkaClient(
        brokers.servers,
        _login(settings),
        tls=tls is not None or brokers.tls,
        security=brokers.security,
        ca=tls.ca if tls else None,
        cert=tls.cert if tls else None,
        key=tls.key if tls else None,
        options=revealed(options),
    )


def _login(settings: KafkaLogin) -> SaslLogin | None:
    if settings.username is None:
        return None
    return SaslLogin(
        settings.username,
        settings.password.get_secret_value() if settings.password else "",
        settings.sasl or "plain",
        settings.token_endpoint or "",
        settings.token_scope,
        settings.token_ca,
    )


def check_reachable(sources: tuple[Source, ...], settings: Settings) -> None:
    """Make sure, before anything starts, that every broker of sources and sinks answers.

    Raises:
        BrokerUnreachable: one does not; names the source or sink and its servers.
    """
    clients = [(f"source {source.endpoint}", source_client(source)) for source in sources if source.kind == "kafka"]
    clients += [
        (f"sink {name}", sink_client(sink))
        for name, sink in settings.sinks.items()
        if isinstance(sink, KafkaSink) and sink.bootstrap_servers
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
