"""What must hold inside the settings of a sink that sends messages: where to, how, and as whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, get_args
from urllib.parse import urlsplit

from router.settings.addresses import TargetKind, parse_address
from router.settings.model import AmqpSink, HttpSink, KafkaSink, MessageSink, MqttSink, NatsSink
from router.settings.names import NameTemplateError

SCHEMES: Final = {
    "mqtt": ("mqtt", "mqtts", "tcp", "ssl"),
    "amqp": ("amqp", "amqps"),
    "nats": ("nats", "tls"),
}


def target_faults(key: str, sink: MessageSink) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for each contradiction in the sink at *key*; a fault names the remedy."""
    name, template = address_of(sink)
    if (template is None) == (sink.endpoint is None):
        fault = "is required; add it, or name a producer endpoint" if template is None else _EITHER
        yield f"{key}.{name}", fault
    if template is not None:
        try:
            parse_address(template, kind_of(sink))
        except NameTemplateError as error:
            yield f"{key}.{name}", str(error)
    if isinstance(sink, HttpSink):
        yield from _http(key, sink)
        return
    assert isinstance(sink, MqttSink | AmqpSink | NatsSink)
    if not sink.uri and sink.endpoint is None:
        yield f"{key}.uri", "is required; add the broker's address, or name a producer endpoint"
    for uri in sink.uri:
        yield from _uri(f"{key}.uri", uri, SCHEMES[sink.type])
    if isinstance(sink, MqttSink) and sink.version == "3.1.1" and sink.mode == "binary":
        yield f"{key}.mode", "binary needs properties, which MQTT 3.1.1 lacks; use structured, or version 5.0"
    if isinstance(sink, NatsSink):
        ways = [name for name in ("username", "token", "credentials", "seed") if getattr(sink, name) is not None]
        if len(ways) > 1:
            yield f"{key}.{ways[1]}", f"is one way to log in and {ways[0]} another; keep one"


def kafka_faults(key: str, sink: KafkaSink) -> Iterator[tuple[str, str]]:
    """Yield what is missing or too much in a Kafka sink."""
    if sink.endpoint is None:
        for name in ("bootstrap_servers", "topic"):
            if not getattr(sink, name):
                yield f"{key}.{name}", "is required; add it"
        return
    for name in ("topic", "key"):
        if getattr(sink, name):
            yield f"{key}.{name}", _EITHER


def address_of(sink: MessageSink) -> tuple[str, str | None]:
    """Return the name of the key with the sink's destination, and what it says."""
    if isinstance(sink, MqttSink):
        return "topic", sink.topic
    if isinstance(sink, AmqpSink):
        return "node", sink.node
    if isinstance(sink, NatsSink):
        return "subject", sink.subject
    assert isinstance(sink, HttpSink)
    return "url", sink.url


def kind_of(sink: MessageSink) -> TargetKind:
    """Return the kind of target that a sink has."""
    kind = str(getattr(sink, "type", ""))
    return next(each for each in get_args(TargetKind) if each == kind)


_EITHER: Final = "and endpoint exclude each other; leave out one"


def _http(key: str, sink: HttpSink) -> Iterator[tuple[str, str]]:
    ways = [name for name in ("username", "bearer") if getattr(sink, name) is not None]
    if len(ways) > 1:
        yield f"{key}.bearer", "and username both make an Authorization header; keep one"
    if sink.url is not None:
        yield from _uri(f"{key}.url", sink.url.partition("{")[0], ("http", "https"))
        if sink.tls is not None and sink.url.lower().startswith("http:"):
            yield f"{key}.tls", "has no use with http://; write https:// or leave out tls"
    for name in sink.headers:
        if name.lower().startswith("ce-") or name.lower() in ("content-type", "content-length", "host"):
            yield f"{key}.headers.{name}", "is set from each event; leave it out"


def _uri(key: str, uri: str, schemes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    try:
        parts = urlsplit(uri)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        yield key, f"is no address: {error}"
        return
    if parts.scheme.lower() not in schemes or not host:
        yield key, f"must be {' or '.join(f'{scheme}://' for scheme in schemes)} and a host"
    if parts.password is not None:
        yield key, "holds a password; write username and password of the sink instead"
