"""What gateways of brokers have in common: how their connections are described, and what they promise.

A gateway is a client of one broker that takes messages and stores them in the inbox. It acknowledges a message after it
is on disk, never before; what it has not acknowledged the broker delivers again. HTTP, whose gateway is a server, has
:mod:`bindings.http.gateway`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from bindings.parts import InboxRow
from catalog.model import Catalog, Endpoint
from catalog.values import text_of


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificates, PEM files. Verification and host names are always checked; ``ca`` None trusts the system's."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class BrokerLogin:
    """Who we are. Secrets are not in the representation.

    ``token`` and the files ``credentials`` (a ``.creds`` file) and ``seed`` (an nkey seed) are for NATS.
    """

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    credentials: Path | None = None
    seed: Path | None = None


@dataclass(frozen=True, slots=True)
class Connection:
    """One broker. ``uris`` are tried in turn (``mqtt://host:1883``, ``amqps://…``, ``nats://…``); user and password in
    them count when ``login`` has none. ``options`` are those of the endpoint, under their names in xRegistry 1.0.
    """

    uris: tuple[str, ...]
    login: BrokerLogin = BrokerLogin()
    tls: Tls | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndpointSubscription:
    """What is taken for one endpoint: a topic filter, node or subject, and the endpoint's options about it."""

    endpoint: str
    address: str
    options: Mapping[str, Any] = field(default_factory=dict)


class RowStore(Protocol):
    """Where gateways put rows: the inbox, or a Kafka topic that stands for it."""

    def append_many(self, rows: Sequence[InboxRow]) -> Future[None]:
        """Store rows; the future is done when they survive a crash, or fails with an ``InboxError``."""
        ...


class GatewayCounters(Protocol):
    """What gateways count, by endpoint; called on the gateway's own thread."""

    def received(self, endpoint: str) -> None:
        """Count a message that arrived."""

    def acknowledged(self, endpoint: str) -> None:
        """Count a message that is stored and was acknowledged."""


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """What one message, and all of them together, may cost.

    No protocol of brokers can refuse a message for its size, so one of more than ``max_body_bytes`` is stored whole all
    the same, with a part ``oversized`` whose value is the number of bytes as text; the router dead-letters it.
    ``max_in_flight`` messages are held between arrival and disk; past them the broker has to wait (receive maximum,
    credit, pull size).
    """

    max_body_bytes: int = 2**20
    max_in_flight: int = 1000


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """What a gateway is made of.

    ``client_id`` is our name at the broker. What the broker keeps for us (a session, durable subscriptions, consumers)
    belongs to it, so it has to stay the same from run to run and differ between gateways that run side by side.
    """

    connection: Connection
    subscriptions: Sequence[EndpointSubscription]
    store: RowStore
    client_id: str
    limits: GatewayLimits
    counters: GatewayCounters


class Gateway(Protocol):
    """A running client. All methods are called from one thread; its own work is on threads of its own."""

    @property
    def connected(self) -> bool:
        """Whether it is connected and subscribed now. It reconnects by itself for as long as it runs."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it runs at all; False when it ended by a fault of its own."""
        ...

    @property
    def trouble(self) -> str:
        """What keeps it from being connected, in one line without secrets; empty when nothing does."""
        ...

    def start(self) -> None:
        """Begin to connect, and return at once: a broker that is away is waited for, with backoff and jitter.

        Raises:
            GatewayError: something that waiting does not repair: a certificate that cannot be read, a malformed
            address.
        """
        ...

    def replace(self, subscriptions: Sequence[EndpointSubscription]) -> None:
        """Take other subscriptions from now on; what is in flight is finished."""
        ...

    def stop(self, grace: float) -> None:
        """Take nothing more, store and acknowledge what is in flight for up to *grace* seconds, and disconnect."""
        ...


class GatewayError(Exception):
    """A gateway that can never work with its settings; the message names what is wrong, and the remedy."""


# The receiving side of protocols with brokers: what to subscribe to for an endpoint, and the gateway that does.
#
# Each protocol has it in its folder, and :data:`bindings.protocols.BINDINGS` names it. How gateways of brokers behave
# is in :mod:`bindings.gateways`.


def _any_fits(_subscriptions: Sequence[EndpointSubscription]) -> None:
    """Accept all subscriptions."""


@dataclass(frozen=True, slots=True)
class Receiving:
    """How messages of one protocol are taken from brokers.

    ``addresses`` returns what to subscribe to for an endpoint (topic filters, nodes, subjects), the widest ones only:
    what the endpoint's options name, else the path of its address, else a filter for each definition expected there
    (JUDGING.md#sources), else nothing. It raises ValueError, with what is wrong, for a malformed option or path.
    ``overlap`` tells whether one message may come by both of two addresses. ``gateway`` makes what does not connect
    before its start, and raises GatewayError for a subscription that can never work. ``check`` raises the same for the
    subscriptions of one connection, without the client's library.
    """

    addresses: Callable[[Endpoint, Catalog], tuple[str, ...]]
    overlap: Callable[[str, str], bool]
    gateway: Callable[[GatewayConfig], Gateway]
    check: Callable[[Sequence[EndpointSubscription]], None] = _any_fits


def paths_of(endpoint: Endpoint) -> Iterator[str]:
    """Give the addresses that stand in the path of a URI."""
    for uri in endpoint.uris:
        path = unquote(urlsplit(uri).path).strip("/")
        if path:
            yield path


def templates_of(endpoint: Endpoint, catalog: Catalog, name: str) -> Iterator[str]:
    """Give the values of the option *name*, such as a topic, that the endpoint's definitions of its protocol have."""
    for xid in endpoint.candidates:
        definition = catalog.definitions.get(xid)
        if definition is None or definition.protocol not in (None, endpoint.protocol):
            continue
        for prop in definition.protocoloptions:
            if prop.name == name and prop.value is not None:
                yield text_of(prop.value)
