"""The contract of broker gateways: configuration, and guarantees.

A gateway is a client of one broker that receives messages and stores them in the inbox. It acknowledges a message only
after it is on disk; the broker redelivers what was not acknowledged. HTTP, whose gateway is a server, has
:mod:`bindings.http.gateway`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from bindings.parts import InboxRow
from catalog.model import Catalog, Endpoint
from catalog.values import to_text

CONNECT_SECONDS: Final = 15.0
"""How long a broker may take to accept a connection."""
CLOSE_SECONDS: Final = 2.0
"""How long a broker may take to end a connection."""
JOIN_SECONDS: Final = 10.0
"""How long a thread may take to end after the time that it was given for its work."""
LOG_SECONDS: Final = 10.0
"""The log has what repeats with every message at these intervals only."""
MAX_REASON: Final = 300
"""Maximum characters of a peer's own text in a message of ours."""


def to_line(text: str) -> str:
    """Return a peer's text as one line of limited length."""
    return " ".join(text.split())[:MAX_REASON]


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files for TLS. Chains and host names are always verified; ``ca`` None uses the system's authorities."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class BrokerLogin:
    """Our login at a broker. Secrets are not in its representation.

    ``token`` and the files ``credentials`` (a ``.creds`` file) and ``seed`` (an nkey seed) are for NATS.
    """

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    credentials: Path | None = None
    seed: Path | None = None


@dataclass(frozen=True, slots=True)
class Connection:
    """A broker. ``uris`` are tried in turn (``mqtt://host:1883``, ``amqps://…``, ``nats://…``); user and password in
    them are used if ``login`` has none. ``options`` are the endpoint's, under their xRegistry 1.0 names.
    """

    uris: tuple[str, ...]
    login: BrokerLogin = BrokerLogin()
    tls: Tls | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndpointSubscription:
    """What to receive for an endpoint: a topic filter, node or subject, and the endpoint's options for it."""

    endpoint: str
    address: str
    options: Mapping[str, Any] = field(default_factory=dict)


class RowStore(Protocol):
    """Where gateways store rows: the inbox, or a Kafka topic in its place."""

    def append_many(self, rows: Sequence[InboxRow]) -> Future[None]:
        """Store rows; the future completes when they are durable, or fails with an ``InboxError``."""
        ...


class GatewayCounters(Protocol):
    """A gateway's counters by endpoint; called on the gateway's own thread."""

    def received(self, endpoint: str) -> None:
        """Count a received message."""

    def acknowledged(self, endpoint: str) -> None:
        """Count a message that is stored and was acknowledged."""


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Limits of one message, and of all messages in flight.

    Brokers' protocols cannot reject a message for its size. So one of more than ``max_body_bytes`` is stored whole,
    with a part ``oversized`` whose value is the number of bytes as text; the router dead-letters it. ``max_in_flight``
    messages are held between arrival and disk; beyond that the broker must wait (receive maximum, credit, pull size).
    """

    max_body_bytes: int = 2**20
    max_in_flight: int = 1000


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """The configuration of a gateway.

    ``client_id`` is our name at the broker, which keeps our session, durable subscriptions and consumers under it. So
    it must stay the same across runs, and differ between gateways that run at the same time.
    """

    connection: Connection
    subscriptions: Sequence[EndpointSubscription]
    store: RowStore
    client_id: str
    limits: GatewayLimits
    counters: GatewayCounters


class Gateway(Protocol):
    """A client that receives from one broker. All methods are called from one thread; it works on its own threads."""

    @property
    def connected(self) -> bool:
        """Whether it is connected and subscribed. It reconnects automatically."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it runs; False after an internal error."""
        ...

    @property
    def trouble(self) -> str:
        """The reason why it is not connected, in one line without secrets; empty if it is."""
        ...

    def start(self) -> None:
        """Start connecting without waiting; an unreachable broker is retried with backoff and jitter.

        Raises:
            GatewayError: a fault that waiting does not fix: an unreadable certificate, a malformed address.
        """
        ...

    def replace_subscriptions(self, subscriptions: Sequence[EndpointSubscription]) -> None:
        """Switch to these subscriptions; messages in flight are finished."""
        ...

    def stop(self, grace: float) -> None:
        """Stop receiving, store and acknowledge messages in flight within *grace* seconds, and disconnect."""
        ...


class GatewayError(Exception):
    """The settings of a gateway are wrong; the message says what is wrong and how to fix it."""


# Receiving from brokers: what to subscribe to for an endpoint, and how to create the gateway.
#
# Each protocol's folder implements it, and :data:`bindings.protocols.BINDINGS` lists it.


@dataclass(frozen=True, slots=True)
class ReceivingBinding:
    """How messages of one protocol are received from brokers.

    ``list_addresses`` returns what to subscribe to for an endpoint (topic filters, nodes, subjects), the broadest ones
    only: what the endpoint's options name, else the path of its address, else a filter per definition of the endpoint
    (MATCHING.md#sources), else nothing. It raises ValueError, with what is wrong, for a malformed option or path.
    ``addresses_overlap`` returns whether one message may arrive through both of two addresses. ``create_gateway``
    builds a gateway, which does not connect before its start, and raises GatewayError for a subscription that can never
    work. ``check_subscriptions`` raises the same for the subscriptions of one connection, without the client's library.
    """

    list_addresses: Callable[[Endpoint, Catalog], tuple[str, ...]]
    addresses_overlap: Callable[[str, str], bool]
    create_gateway: Callable[[GatewayConfig], Gateway]
    check_subscriptions: Callable[[Sequence[EndpointSubscription]], object]


def drop_covered(addresses: Iterable[str], covers: Callable[[str, str], bool]) -> list[str]:
    """Return the addresses that no other one covers, each once, in order."""
    distinct = list(dict.fromkeys(addresses))
    return [each for each in distinct if not any(other != each and covers(other, each) for other in distinct)]


def iter_paths(endpoint: Endpoint) -> Iterator[str]:
    """Yield the paths of an endpoint's URIs, which are addresses."""
    for uri in endpoint.uris:
        path = unquote(urlsplit(uri).path).strip("/")
        if path:
            yield path


def templates_of(endpoint: Endpoint, catalog: Catalog, name: str) -> Iterator[str]:
    """Yield the values of the option *name*, such as a topic, of the endpoint's definitions of its protocol."""
    for xid in endpoint.candidates:
        definition = catalog.definitions.get(xid)
        if definition is None or definition.protocol not in (None, endpoint.protocol):
            continue
        for prop in definition.protocoloptions:
            if prop.name == name and prop.value is not None:
                yield to_text(prop.value)
