"""From the settings of a message sink, and its endpoint in the catalog, to a connection that is kept for reuse.

A plan makes its own sinks, and a new catalog a new plan. Connections outlive both: a sink of the same name, settings
and endpoint goes on with the one there is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bindings.gateways import Connection, Login, Tls
from catalog.model import Catalog, Endpoint
from router.errors import SinkError
from router.settings.model import AmqpSink, KafkaSink, MessageSink, MqttSink, NatsSink, TlsSettings
from router.sinks.messages.events import Outbound
from router.sinks.messages.sink import Target

PROTOCOLS: Final = {
    "mqtt": ("MQTT/5.0", "MQTT/3.1.1"),
    "amqp": ("AMQP/1.0",),
    "nats": ("NATS",),
    "http": ("HTTP",),
    "kafka": ("KAFKA",),
}
"""Protocols of the endpoints that a type of sink can send to."""
_targets: dict[str, Target] = {}
_lock: Final = threading.Lock()


def endpoint_of(name: str, settings: MessageSink | KafkaSink, kind: str, catalog: Catalog) -> Endpoint | None:
    """Return the endpoint that a sink names; None when it names none.

    Raises:
        SinkError: the catalog lacks it, or it is none that this type of sink can send to. A later catalog may mend it.
    """
    if settings.endpoint is None:
        return None
    endpoint = catalog.endpoints.get(settings.endpoint)
    if endpoint is None:
        raise SinkError(name, f"the catalog has no endpoint {settings.endpoint}", hint="add it, or correct the name")
    if endpoint.usage and "producer" not in endpoint.usage:
        used = ", ".join(endpoint.usage)
        raise SinkError(name, f"{endpoint.xid} is for {used}", hint="name an endpoint with usage producer")
    if endpoint.protocol not in PROTOCOLS[kind]:
        spoken = endpoint.protocol or "no protocol"
        raise SinkError(name, f"{endpoint.xid} has {spoken}, the sink is {kind}", hint="change the type of the sink")
    return endpoint


def connection_of(name: str, settings: MqttSink | AmqpSink | NatsSink, endpoint: Endpoint | None) -> Connection:
    """Return where and as whom to connect; addresses of the settings go before those of the endpoint.

    Raises:
        SinkError: neither has an address.
    """
    uris = settings.uri or (endpoint.uris if endpoint else ())
    if not uris:
        raise SinkError(name, "no address is known", hint="set uri, or protocoloptions.endpoints in the catalog")
    secret = settings.password.get_secret_value() if settings.password else None
    login = Login(settings.username, secret)
    if isinstance(settings, NatsSink):
        token = settings.token.get_secret_value() if settings.token else None
        login = Login(settings.username, secret, token, path_of(settings.credentials), path_of(settings.seed))
    return Connection(uris, login, tls_of(settings.tls), endpoint.options if endpoint else {})


def tls_of(settings: TlsSettings | None) -> Tls | None:
    """Return the certificates of a connection."""
    if settings is None:
        return None
    return Tls(path_of(settings.ca), path_of(settings.cert), path_of(settings.key))


def path_of(text: str | None) -> Path | None:
    """Return a path of the settings, which are absolute by now."""
    return None if text is None else Path(text)


def kept(name: str, settings: MessageSink | KafkaSink, endpoint: Endpoint | None, make: Callable[[], Target]) -> Target:
    """Return the target of a sink, the one there is if nothing about its connection has changed."""
    reached = None if endpoint is None else (endpoint.uris, sorted(endpoint.options.items(), key=lambda item: item[0]))
    key = repr((name, settings, reached))
    with _lock:
        if key not in _targets:
            _targets[key] = _Shared(make)
        return _targets[key]


def close_targets() -> None:
    """Disconnect all targets; a sink that is used again connects again."""
    with _lock:
        for target in _targets.values():
            target.close()


class _Shared:
    """A target that is connected at its first use, and used by one thread at a time."""

    def __init__(self, make: Callable[[], Target]) -> None:
        self._make = make
        self._made: Target | None = None
        self._lock = threading.Lock()

    def send(self, messages: Sequence[Outbound]) -> list[str | None]:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made.send(messages)

    def close(self) -> None:
        if not self._lock.acquire(blocking=False):
            return  # A batch that was cut off still sends. Its connection ends with the process, which waits no more.
        try:
            if self._made is not None:
                self._made.close()
                self._made = None
        finally:
            self._lock.release()
