"""What gateways of brokers have in common: how their connections are described, and what they promise.

A gateway is a client of one broker that takes messages and stores them in the inbox. It acknowledges a message after it
is on disk, never before; what it has not acknowledged the broker delivers again. HTTP, whose gateway is a server, has
:mod:`bindings.http.gateway`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bindings.parts import InboxRow


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificates, PEM files. Verification and host names are always checked; ``ca`` None trusts the system's."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class Login:
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
    login: Login = Login()
    tls: Tls | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Subscription:
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
class Limits:
    """What one message, and all of them together, may cost.

    No protocol of brokers can refuse a message for its size, so one of more than ``max_body_bytes`` is stored whole all
    the same, with a part ``oversized`` whose value is the number of bytes as text; the router dead-letters it.
    ``max_in_flight`` messages are held between arrival and disk; past them the broker has to wait (receive maximum,
    credit, pull size).
    """

    max_body_bytes: int = 2**20
    max_in_flight: int = 1000


@dataclass(frozen=True, slots=True)
class Terms:
    """What a gateway is made of.

    ``client_id`` is our name at the broker. What the broker keeps for us (a session, durable subscriptions, consumers)
    belongs to it, so it has to stay the same from run to run and differ between gateways that run side by side.
    """

    connection: Connection
    subscriptions: Sequence[Subscription]
    store: RowStore
    client_id: str
    limits: Limits
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

    def replace(self, subscriptions: Sequence[Subscription]) -> None:
        """Take other subscriptions from now on; what is in flight is finished."""
        ...

    def stop(self, grace: float) -> None:
        """Take nothing more, store and acknowledge what is in flight for up to *grace* seconds, and disconnect."""
        ...


class GatewayError(Exception):
    """A gateway that can never work with its settings; the message names what is wrong, and the remedy."""
