"""Gateways under test, over stores that tests decide about, and a peer per protocol: a real broker and its senders."""

from __future__ import annotations

import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final

import httpx

from bindings.amqp.publisher import AmqpSender
from bindings.gateways import Connection, EndpointSubscription, Gateway, GatewayConfig, GatewayLimits, RowStore
from bindings.http.gateway import HttpGateway, HttpGatewayConfig
from bindings.http.request import HttpRoute
from bindings.inbox.source import InboxView
from bindings.inbox.space import InboxRowError
from bindings.mqtt.publisher import MqttPublisher
from bindings.nats.publisher import NatsPublisher
from bindings.parts import InboxRow, Part
from bindings.protocols import BINDINGS
from bindings.sending import Publisher
from catalog.record import Record
from tests.support.amqp import section, send_bytes
from tests.support.mqtt import Client, Mosquitto, Security
from tests.support.nats import NatsServer, RawSender, make_stream
from tests.support.ports import LOOPBACK, Pair
from tests.support.processes import BrokerProcess
from tests.support.qpid import Certificates, QpidBroker
from tests.support.senders import AmqpEventSender, MqttSender, NatsSender, Sender
from tests.support.shop import Counts
from tests.support.waiting import wait_until

SECONDS: Final = 120.0
ENDPOINT: Final = "/endpoints/e"


class Rows:
    """A store in memory. While *held*, no future is done before :meth:`release`; *failing* is what they fail with.

    A row whose body is *never* can never be stored.
    """

    def __init__(self, *, held: bool = False, never: bytes | None = None) -> None:
        self._lock = threading.Lock()
        self._futures: list[tuple[Future[None], Sequence[InboxRow]]] = []
        self.held = held
        self.never = never
        self.failing: Exception | None = None
        self.offered = 0
        self.groups: list[Sequence[InboxRow]] = []
        self.stored: list[InboxRow] = []

    def append_many(self, rows: Sequence[InboxRow]) -> Future[None]:
        done: Future[None] = Future()
        with self._lock:
            self.offered += len(rows)
            self.groups.append(rows)
            self._futures.append((done, rows))
        if not self.held:
            self.release()
        return done

    def release(self) -> None:
        """Let all that is on its way be stored, or fail."""
        with self._lock:
            futures, self._futures = self._futures, []
        for done, rows in futures:
            if self.failing is not None:
                done.set_exception(self.failing)
            elif self.never is not None and any(row.body == self.never for row in rows):
                done.set_exception(InboxRowError("not a row that can be stored"))
            else:
                self.stored.extend(rows)
                done.set_result(None)

    def bodies(self) -> list[str]:
        """Return the bodies stored, in order."""
        return [(row.body or b"").decode() for row in self.stored]

    def wait(self, count: int) -> list[InboxRow]:
        """Wait for that many rows, and return all."""
        wait_until(lambda: len(self.stored) >= count, SECONDS, lambda: f"{count} rows, {len(self.stored)} are there")
        return self.stored


def make_gateway(
    protocol: str,
    where: str | Connection,
    wanted: Mapping[str, str] | Sequence[EndpointSubscription],
    store: RowStore,
    *,
    client_id: str = "xrouter-tests",
    limits: GatewayLimits | None = None,
    counts: Counts | None = None,
) -> Gateway:
    """Return a gateway that is not started; subscriptions may be ``{endpoint: address}``."""
    if isinstance(wanted, Mapping):
        wanted = [EndpointSubscription(endpoint, address) for endpoint, address in wanted.items()]
    connection = Connection((where,)) if isinstance(where, str) else where
    receiving = BINDINGS[protocol].receiving
    assert receiving is not None
    more = client_id, limits or GatewayLimits(), counts or Counts()
    return receiving.create_gateway(GatewayConfig(connection, wanted, store, *more))


@contextmanager
def serving(
    routes: Sequence[HttpRoute], store: RowStore, *, counts: Counts | None = None, **settings: Any
) -> Iterator[HttpGateway]:
    """Run a gateway of HTTP for the time of the block."""
    gateway = HttpGateway(routes, store, HttpGatewayConfig(**{"port": 0, **settings}), counters=counts or Counts())
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.stop(grace=1)


def client_of(gateway: HttpGateway) -> httpx.Client:
    """Return a client of a gateway of HTTP."""
    return httpx.Client(base_url=f"http://{LOOPBACK}:{gateway.port}", timeout=SECONDS, trust_env=False)


@contextmanager
def started(*args: Any, **options: Any) -> Iterator[Gateway]:
    """Start a gateway, and stop it afterwards; see :func:`make_gateway`."""
    gateway = make_gateway(*args, **options)
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.stop(5.0)


@contextmanager
def running(*args: Any, **options: Any) -> Iterator[Gateway]:
    """Yield a gateway that is connected and subscribed."""
    with started(*args, **options) as gateway:
        connected(gateway)
        yield gateway


def connected(gateway: Gateway) -> None:
    """Wait until a gateway is connected and subscribed."""
    wait_until(lambda: gateway.connected, SECONDS, lambda: f"a connection; its trouble: {gateway.trouble}")


def record_of(row: InboxRow) -> Record:
    """Return the native record that a row is."""
    return Record(row.protocol, BINDINGS[row.protocol].build(list(row.properties)), row.body, row.endpoint)


def rows_in(path: Path) -> list[InboxRow]:
    """Return every durable row of an inbox."""
    view = InboxView(path)
    forms: list[dict[str, Any]] = [
        form
        for each in view.partitions
        for batch in view.read_spans(each, view.plan_spans(each, view.first_position(each), view.end_position(each)))
        for form in batch.to_pylist()
    ]
    return [
        InboxRow(
            form["endpoint"],
            form["protocol"],
            int(form["received"].timestamp() * 1e6),
            [Part(each["key"], each["value"], each["type"]) for each in form["properties"]],
            form["body"],
        )
        for form in forms
    ]


class Peer(ABC):
    """A real broker, and how one sends to it, receives from it, and publishes to it. Channels have names."""

    protocol: ClassVar[str]
    broker: BrokerProcess

    @property
    def uri(self) -> str:
        """Where it listens."""
        uri: str = self.broker.uri  # type: ignore[attr-defined]
        return uri

    def start(self) -> None:
        """Start the broker, whose channels a gateway can then subscribe to."""
        self.broker.start()

    @abstractmethod
    def address(self, name: str) -> str:
        """Return the address of a channel."""

    def place(self, name: str) -> str:
        """Return an address of the channel that one can send to."""
        return self.address(name).replace("+", "x").replace(">", "x")

    @abstractmethod
    def options(self, name: str) -> dict[str, Any]:
        """Return the options of an endpoint of a catalog that is the channel."""

    def wanted(self, name: str, endpoint: str = ENDPOINT) -> EndpointSubscription:
        """Return the subscription to a channel."""
        return EndpointSubscription(endpoint, self.address(name))

    @abstractmethod
    def send(self, name: str, bodies: Sequence[bytes]) -> None:
        """Send messages by a client that is not ours, and return when the broker has all."""

    @abstractmethod
    def sender(self, name: str, count: int) -> Sender:
        """Return a sender of numbered events that goes on through absences of the broker."""

    @abstractmethod
    def publisher(self, where: str | Connection, timeout: float = SECONDS) -> Publisher:
        """Return our publisher."""


def _pair(files: Certificates | None) -> Pair | None:
    return None if files is None else Pair(files.certificate, files.key)


class MqttPeer(Peer):
    """mosquitto, by MQTT 5."""

    protocol = "MQTT/5.0"

    def __init__(self, folder: Path, server: Certificates | None = None, user: str = "", password: str = "") -> None:
        self.broker = Mosquitto(folder, Security(_pair(server), username=user, password=password))

    def address(self, name: str) -> str:
        return f"many/{name}/+"

    def options(self, name: str) -> dict[str, Any]:
        return {"topicfilter": self.address(name)}

    def send(self, name: str, bodies: Sequence[bytes]) -> None:
        with Client(self.uri) as client:
            client.send_all(f"many/{name}/x", bodies)

    def sender(self, name: str, count: int) -> Sender:
        return MqttSender(count, self.uri, f"many/{name}")

    def publisher(self, where: str | Connection, timeout: float = SECONDS) -> Publisher:
        connection = Connection((where,)) if isinstance(where, str) else where
        return MqttPublisher(connection, protocol="MQTT/5.0", client_id=f"p-{uuid.uuid4().hex}", timeout=timeout)


class OldMqttPeer(MqttPeer):
    """mosquitto, by MQTT 3.1.1."""

    protocol = "MQTT/3.1.1"


class AmqpPeer(Peer):
    """Qpid, which makes a queue when it is first named."""

    protocol = "AMQP/1.0"

    def __init__(self, folder: Path, server: Certificates | None = None, user: str = "", password: str = "") -> None:
        self.broker = QpidBroker(folder, users={user: password} if user else None, certificates=server)

    def address(self, name: str) -> str:
        return f"q.{name}"

    def options(self, name: str) -> dict[str, Any]:
        return {"node": self.address(name)}

    def send(self, name: str, bodies: Sequence[bytes]) -> None:
        send_bytes(self.uri, f"q.{name}", [section("header", [True]) + section("data", body) for body in bodies])

    def sender(self, name: str, count: int) -> Sender:
        return AmqpEventSender(count, self.uri, f"q.{name}")

    def publisher(self, where: str | Connection, timeout: float = SECONDS) -> Publisher:
        connection = Connection((where,)) if isinstance(where, str) else where
        return AmqpSender(connection, container_id="publisher", timeout=timeout)


class NatsPeer(Peer):
    """nats-server with a stream, which redelivers what is not acknowledged within a second."""

    protocol = "NATS"
    broker: NatsServer

    def __init__(self, folder: Path, server: Certificates | None = None, user: str = "", password: str = "") -> None:
        told: dict[str, Any] = {"authorization": {"user": user, "password": password}} if user else {}
        if server is not None:
            told["tls"] = {"cert_file": str(server.certificate), "key_file": str(server.key)}
        self._open = not told
        self._made = False
        self.broker = NatsServer(folder, **told)

    def start(self) -> None:
        super().start()
        if self._open and not self._made:
            make_stream(self.broker)
            self._made = True

    def address(self, name: str) -> str:
        return f"js.{name}.>" if self._open else name

    def options(self, name: str) -> dict[str, Any]:
        return {"subject": self.address(name), "stream": "S", "durable": name, "ackwait": 2}

    def wanted(self, name: str, endpoint: str = ENDPOINT) -> EndpointSubscription:
        stream = {"stream": "S", "ackwait": 1} if self._open else {}
        return EndpointSubscription(endpoint, self.address(name), stream)

    def send(self, name: str, bodies: Sequence[bytes]) -> None:
        raw = RawSender(self.broker.port)
        for body in bodies:
            raw.publish(f"js.{name}.x".encode(), body)
        raw.close()

    def sender(self, name: str, count: int) -> Sender:
        return NatsSender(count, self.uri, f"js.{name}")

    def publisher(self, where: str | Connection, timeout: float = SECONDS) -> Publisher:
        connection = Connection((where,)) if isinstance(where, str) else where
        return NatsPublisher(connection, sink="tests", timeout=timeout, stream=self._open)


PEERS: Final[dict[str, type[MqttPeer | AmqpPeer | NatsPeer]]] = {
    "mqtt": MqttPeer,
    "mqtt3": OldMqttPeer,
    "amqp": AmqpPeer,
    "nats": NatsPeer,
}


@contextmanager
def peer_for_tests(kind: str, folder: Path, *, up: bool = True, **access: Any) -> Iterator[Peer]:
    """Yield the peer of a protocol, whose broker runs (*up*) and surely ends."""
    peer = PEERS[kind](folder / kind, **access)
    try:
        if up:
            peer.start()
        yield peer
    finally:
        peer.broker.kill()
