"""Kafka clusters of the settings, and whether they answer."""

from __future__ import annotations

from bindings.kafka.client import KafkaClient, KafkaUnreachable
from router.errors import BrokerUnreachable
from router.settings import KafkaSink, Settings
from router.sources import Source


def source_client(source: Source) -> KafkaClient:
    """Return how to reach the cluster of a Kafka source."""
    settings = source.settings
    return KafkaClient(
        source.servers,
        settings.username,
        settings.password.get_secret_value() if settings.password else None,
        tls=settings.tls is not None,
        ca=settings.tls.ca if settings.tls else None,
        cert=settings.tls.cert if settings.tls else None,
        key=settings.tls.key if settings.tls else None,
        options={name: value.get_secret_value() for name, value in settings.kafka.items()},
    )


def sink_client(sink: KafkaSink) -> KafkaClient:
    """Return how to reach the cluster of a Kafka sink."""
    return KafkaClient(
        sink.bootstrap_servers,
        sink.username,
        sink.password.get_secret_value() if sink.password else None,
        tls=sink.tls is not None,
        ca=sink.tls.ca if sink.tls else None,
        cert=sink.tls.cert if sink.tls else None,
        key=sink.tls.key if sink.tls else None,
        options={name: value.get_secret_value() for name, value in sink.options.items()},
    )


def check_reachable(sources: tuple[Source, ...], settings: Settings) -> None:
    """Make sure, before anything starts, that every broker of sources and sinks answers.

    Raises:
        BrokerUnreachable: one does not; names the source or sink and its servers.
    """
    clients = [(f"source {source.endpoint}", source_client(source)) for source in sources if source.kind == "kafka"]
    clients += [
        (f"sink {name}", sink_client(sink)) for name, sink in settings.sinks.items() if isinstance(sink, KafkaSink)
    ]
    answered: set[str] = set()
    for name, client in clients:
        if repr(client) in answered:
            continue
        try:
            client.partitions(())
        except KafkaUnreachable as error:
            raise BrokerUnreachable(
                f"{name}: {error}", hint="start the broker, or correct bootstrap_servers and credentials"
            ) from error
        answered.add(repr(client))
