"""The gateways of brokers: one client for each connection, opened, watched, changed by reload and stopped together."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

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
from catalog.protocols.properties import squash
from router.errors import ConfigError
from router.logs import get_logger
from router.settings import Settings, SourceSettings
from router.settings.logins import path_of, tls_of
from router.sources.sources import Source
from router.watching.status import Status

_log = get_logger()


@dataclass(frozen=True, slots=True)
class Link:
    """One connection and what is taken by it. ``key`` is equal for sources that can share a connection."""

    key: str
    name: str
    protocol: str
    connection: Connection
    subscriptions: tuple[Subscription, ...]
    client_id: str


def links_of(sources: Iterable[Source], identity: str) -> list[Link]:
    """Group sources into connections. ``identity`` tells this router from others, in names that must last."""
    groups: dict[str, list[Source]] = {}
    for source in sources:
        if source.brokered:
            groups.setdefault(_key(source), []).append(source)
    return [_link(key, members, identity) for key, members in groups.items()]


def _key(source: Source) -> str:
    chosen = source.settings
    who = (chosen.username, chosen.client_id, chosen.credentials, chosen.seed, chosen.token is not None, chosen.tls)
    link = sorted((name, repr(value)) for name, value in _of_connection(source.options).items())
    return hashlib.sha256(repr((source.protocol, source.uris, who, link)).encode()).hexdigest()[:12]


CONNECTING: Final = "connecting"
_OF_CONNECTIONS: Final = frozenset({"connectionproperties", "cleansession", "sessionexpiryinterval", "keepalive"})
"""Endpoint options that belong to a connection, so that endpoints which differ in them need one each."""


def _of_connection(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a connection is made with; what else one endpoint says must not count for the others."""
    return {name: value for name, value in options.items() if squash(name) in _OF_CONNECTIONS}


def _link(key: str, members: Sequence[Source], identity: str) -> Link:
    first = members[0]
    chosen = first.settings
    return Link(
        key,
        ", ".join(source.endpoint for source in members),
        first.protocol,
        Connection(first.uris, _login(chosen), tls_of(chosen.tls), _of_connection(first.options)),
        tuple(
            Subscription(source.endpoint, address, source.options) for source in members for address in source.addresses
        ),
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


Opener = Callable[[Link, RowStore, Limits, GatewayCounters], Gateway]


def open_gateway(link: Link, store: RowStore, limits: Limits, counters: GatewayCounters) -> Gateway:
    """Make the gateway of a connection; it does not connect before its start."""
    receiving = BINDINGS[link.protocol].receiving
    assert receiving is not None
    return receiving.gateway(Terms(link.connection, link.subscriptions, store, link.client_id, limits, counters))


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
        self._running: dict[str, tuple[Link, Gateway]] = {}
        self._retries = Retries()

    def take(self, sources: Iterable[Source]) -> None:
        """Run the gateways of these sources from now on: new ones start, those of none stop, others change live.

        Raises:
            ConfigError: a gateway can never work as it is told.
        """
        wanted = {link.key: link for link in links_of(sources, self._identity)}
        for key in [key for key in self._running if key not in wanted]:
            link, gateway = self._running.pop(key)
            gateway.stop(5.0)
            self._status.no_gateway(link.name)
        for key, link in wanted.items():
            known = self._running.get(key)
            if known is None:
                self._start(link)
            elif known[0].subscriptions != link.subscriptions:
                known[1].replace(link.subscriptions)
                self._running[key] = (link, known[1])

    def _start(self, link: Link) -> None:
        gateway = self._open(link, self._store, self._limits, self._counters)
        try:
            gateway.start()
        except GatewayError as error:
            raise ConfigError(f"gateway of {link.name}: {error}", key="sources") from error
        self._running[link.key] = (link, gateway)
        # Not ready before it is connected, also when nobody has looked yet.
        self._status.gateway(link.name, False, CONNECTING)
        addresses = [each.address for each in link.subscriptions]
        _log.info("gateway started", protocol=link.protocol, endpoints=link.name, addresses=addresses)

    def check(self) -> None:
        """Tell the status what each gateway is about, and open one that ended by a fault of its own again.

        What it held and had not stored was never acknowledged, so that its broker delivers it again.
        """
        for link, gateway in list(self._running.values()):
            if gateway.alive:
                up = gateway.connected
                self._status.gateway(link.name, up, gateway.trouble or ("" if up else CONNECTING))
            else:
                self._reopen(link, gateway)

    def _reopen(self, link: Link, ended: Gateway) -> None:
        if not self._retries.due(link.key):
            return
        count_fault("gateway")
        trouble = ended.trouble or "it ended by itself"
        _log.error("gateway ended by itself and is opened again", endpoints=link.name, problem=trouble)
        ended.stop(0.0)
        try:
            self._start(link)
        except ConfigError as error:
            # It could be opened once, so that a file or name may be back at the next try.
            trouble = error.message
        self._status.gateway(link.name, False, trouble)

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
