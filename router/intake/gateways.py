"""The gateways of brokers: one client for each connection, opened, watched, changed by reload and stopped together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from bindings.background import count_fault
from bindings.backoff import Retries
from bindings.gateways import (
    Connection,
    Gateway,
    GatewayCounters,
    GatewayError,
    Limits,
    Login,
    RowStore,
    Subscription,
    Terms,
)
from bindings.protocols import BINDINGS
from router.errors import ConfigError
from router.logs import few, get_logger
from router.settings import Settings, SourceSettings
from router.settings.logins import path_of, tls_of
from router.sources.sources import Source, by_connection, connection_options, subscriptions_of
from router.watching.status import Status

_log = get_logger()


@dataclass(frozen=True, slots=True)
class BrokerConnection:
    """One connection and what is taken by it. ``key`` is equal for sources that can share a connection."""

    key: str
    name: str
    protocol: str
    connection: Connection
    subscriptions: tuple[Subscription, ...]
    client_id: str


def connections_of(sources: Iterable[Source], identity: str) -> list[BrokerConnection]:
    """Group sources into connections. ``identity`` distinguishes this router from others, in names that must last."""
    return [_connection(key, members, identity) for key, members in by_connection(sources).items()]


CONNECTING: Final = "connecting"


def _connection(key: str, members: Sequence[Source], identity: str) -> BrokerConnection:
    first = members[0]
    chosen = first.settings
    return BrokerConnection(
        key,
        ", ".join(source.endpoint for source in members),
        first.protocol,
        Connection(first.uris, _login(chosen), tls_of(chosen.tls), connection_options(first.options)),
        subscriptions_of(members),
        chosen.client_id or f"xrouter-{identity}-{key}",
    )


def _login(chosen: SourceSettings) -> Login:
    return Login(
        chosen.username,
        chosen.password.get_secret_value() if chosen.password else None,
        chosen.token.get_secret_value() if chosen.token else None,
        path_of(chosen.credentials),
        path_of(chosen.seed),
    )


Opener = Callable[[BrokerConnection, RowStore, Limits, GatewayCounters], Gateway]


def open_gateway(broker: BrokerConnection, store: RowStore, limits: Limits, counters: GatewayCounters) -> Gateway:
    """Make the gateway of a connection; it does not connect before its start."""
    receiving = BINDINGS[broker.protocol].receiving
    assert receiving is not None
    return receiving.gateway(Terms(broker.connection, broker.subscriptions, store, broker.client_id, limits, counters))


class BrokerGateways:
    """All gateways of a router. Not for concurrent use."""

    def __init__(
        self,
        store: RowStore,
        settings: Settings,
        counters: GatewayCounters,
        status: Status,
        identity: str,
        opener: Opener = open_gateway,
    ) -> None:
        self._store = store
        self._limits = Limits(settings.gateways.max_body, settings.gateways.max_in_flight)
        self._counters = _Watched(counters)
        self._status = status
        self._identity = identity
        self._open = opener
        self._running: dict[str, tuple[BrokerConnection, Gateway]] = {}
        self._retries = Retries()
        self._connected: dict[str, bool] = {}

    def take(self, sources: Iterable[Source]) -> None:
        """Run the gateways of these sources from now on: new ones start, those of none stop, others change live.

        Raises:
            ConfigError: a gateway can never work with its settings.
        """
        wanted = {broker.key: broker for broker in connections_of(sources, self._identity)}
        for key in [key for key in self._running if key not in wanted]:
            broker, gateway = self._running.pop(key)
            gateway.stop(5.0)
            self._connected.pop(key, None)
            self._status.no_gateway(broker.name)
        for key, broker in wanted.items():
            known = self._running.get(key)
            if known is None:
                self._start(broker)
            elif known[0].subscriptions != broker.subscriptions:
                known[1].replace(broker.subscriptions)
                self._running[key] = (broker, known[1])

    def _start(self, broker: BrokerConnection) -> None:
        try:
            gateway = self._open(broker, self._store, self._limits, self._counters)
            gateway.start()
        except GatewayError as error:
            raise ConfigError(f"gateway of {broker.name}: {error}", key="sources") from error
        self._running[broker.key] = (broker, gateway)
        # Not ready before it is connected, also when nobody has looked yet.
        self._status.gateway(broker.name, False, CONNECTING)
        addresses = [each.address for each in broker.subscriptions]
        _log.info("gateway started", protocol=broker.protocol, endpoints=broker.name, addresses=addresses)

    def check(self) -> None:
        """Report to the status what each gateway does, and open one again that ended by its own fault.

        What it held and had not stored was never acknowledged, so that its broker delivers it again.
        """
        for broker, gateway in list(self._running.values()):
            if gateway.alive:
                up = gateway.connected
                self._status.gateway(broker.name, up, gateway.trouble or ("" if up else CONNECTING))
                self._say(broker, up, gateway.trouble)
            else:
                self._reopen(broker, gateway)

    def _say(self, broker: BrokerConnection, up: bool, trouble: str) -> None:
        """Say once that a connection is there, that it is lost, and that it is there again."""
        before = self._connected.get(broker.key)
        if up == bool(before):
            return
        self._connected[broker.key] = up
        addresses = few([each.address for each in broker.subscriptions])
        connection = {"protocol": broker.protocol, "endpoints": broker.name, "addresses": addresses}
        if up:
            _log.info("connected" if before is None else "connected again", **connection)
        else:
            _log.warning("connection lost", **connection, problem=trouble or CONNECTING)

    def _reopen(self, broker: BrokerConnection, ended: Gateway) -> None:
        if not self._retries.due(broker.key):
            return
        count_fault("gateway")
        trouble = ended.trouble or "it ended by itself"
        _log.error("gateway ended by itself and is opened again", endpoints=broker.name, problem=trouble)
        ended.stop(0.0)
        try:
            self._start(broker)
        except ConfigError as error:
            # It could be opened once, so that a file or name may be back at the next try.
            trouble = error.message
        self._status.gateway(broker.name, False, trouble)

    @property
    def count(self) -> int:
        """How many gateways run."""
        return len(self._running)

    @property
    def idle_seconds(self) -> float:
        """Seconds since a message last arrived, or since the gateways were made."""
        return time.monotonic() - self._counters.last

    def stop(self, grace: float) -> None:
        """Stop all gateways; together they take *grace* seconds at most."""
        deadline = time.monotonic() + grace
        for _, gateway in self._running.values():
            gateway.stop(max(0.5, deadline - time.monotonic()))
        self._running.clear()


class _Watched:
    """Counters that remember when something last arrived."""

    def __init__(self, counters: GatewayCounters) -> None:
        self._counters = counters
        self.last = time.monotonic()

    def received(self, endpoint: str) -> None:
        """Count a message that arrived."""
        self.last = time.monotonic()
        self._counters.received(endpoint)

    def acknowledged(self, endpoint: str) -> None:
        """Count a message that is stored and was acknowledged."""
        self._counters.acknowledged(endpoint)
