"""An AMQP 1.0 client of the tests, independent of everything under test: proton's own, or bytes encoded by hand."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, Self, TypeVar

from proton import Condition, Data, Delivery, Described, Link, Message, ulong
from proton.handlers import MessagingHandler
from proton.reactor import ApplicationEvent, Container, EventInjector
from proton.utils import BlockingConnection

from bindings.amqp.binding import FIELD_TYPES
from bindings.amqp.values import TYPES_KEY, AmqpValue, to_part
from bindings.parts import JSON_KIND, Part
from bindings.sending import Outbound
from tests.support.ports import LOOPBACK, free_ports
from tests.support.processes import BrokerFailed

CODES = {
    "header": 0x70,
    "delivery-annotations": 0x71,
    "message-annotations": 0x72,
    "properties": 0x73,
    "application-properties": 0x74,
    "data": 0x75,
    "amqp-sequence": 0x76,
    "amqp-value": 0x77,
    "footer": 0x78,
}


def section(name: str, value: Any) -> bytes:
    """Return one section of a message, encoded by proton; *value* has proton's types."""
    data = Data()
    data.put_object(Described(ulong(CODES[name]), value))
    return bytes(data.encode())


KINDS = {str: "string", bytes: "binary", bool: "boolean", int: "long", float: "double"}


def amqp_message(
    address: str,
    body: bytes | None = None,
    properties: Mapping[str, Any] = MappingProxyType({}),
    application_properties: Mapping[str, Any] = MappingProxyType({}),
    message_annotations: Mapping[str, Any] = MappingProxyType({}),
    header: Mapping[str, Any] = MappingProxyType({}),
) -> Outbound:
    """Return a message to send; an :class:`AmqpValue` names the type of a value."""
    types: dict[str, str] = {}
    parts: list[Part] = []
    named = {"properties": properties, "application-properties": application_properties}
    named |= {"message-annotations": message_annotations, "header": header}
    for section_name, values in named.items():
        for name, value in values.items():
            path = f"{section_name}.{name}"
            typed = value if isinstance(value, AmqpValue) else AmqpValue(KINDS[type(value)], value)
            part = to_part(path, typed, types, FIELD_TYPES.get(path))
            assert part is not None
            parts.append(part)
    parts.append(Part(TYPES_KEY, json.dumps(types).encode(), JSON_KIND))
    return Outbound(address, tuple(parts), body, "", "")


def numbered(count: int) -> list[bytes]:
    """Return durable messages whose message-ids are the numbers from 0."""
    durable = section("header", [True])
    return [durable + section("properties", [str(each)]) + section("data", b"x") for each in range(count)]


class _BytesSender(MessagingHandler):
    """Sends encoded messages as they are, each as one delivery, and waits for what becomes of them."""

    def __init__(self, uri: str, node: str, payloads: Sequence[bytes]) -> None:
        super().__init__()
        self._uri, self._node, self._payloads = uri, node, payloads
        self._sent = 0
        self.outcomes: list[str] = []

    def on_start(self, event: Any) -> None:
        event.container.create_sender(event.container.connect(self._uri, reconnect=False), self._node)

    def on_sendable(self, event: Any) -> None:
        while event.sender.credit and self._sent < len(self._payloads):
            event.sender.delivery(str(self._sent))
            event.sender.stream(self._payloads[self._sent])
            event.sender.advance()
            self._sent += 1

    def on_accepted(self, event: Any) -> None:
        self._answered("accepted", event)

    def on_rejected(self, event: Any) -> None:
        self._answered("rejected", event)

    def on_released(self, event: Any) -> None:
        self._answered("released", event)

    def _answered(self, outcome: str, event: Any) -> None:
        self.outcomes.append(outcome)
        if len(self.outcomes) == len(self._payloads):
            event.connection.close()


def send_bytes(uri: str, node: str, payloads: Sequence[bytes]) -> None:
    """Send messages that are encoded already; independent of everything under test.

    Raises:
        BrokerFailed: the broker did not accept all of them.
    """
    handler = _BytesSender(uri, node, payloads)
    Container(handler).run()
    if handler.outcomes != ["accepted"] * len(payloads):
        raise BrokerFailed(f"{node}: of {len(payloads)} messages these were answered: {set(handler.outcomes)}")


def receive_all(uri: str, node: str, count: int, limit: float = 20.0) -> list[Message]:
    """Return and accept that many messages of a queue."""
    connection = BlockingConnection(uri, timeout=limit)
    try:
        receiver = connection.create_receiver(node, credit=count)
        messages = []
        for _ in range(count):
            messages.append(receiver.receive(limit))
            receiver.accept()
        return messages
    finally:
        connection.close()


def depth(uri: str, queue: str) -> int:
    """Return how many messages a queue holds, settled ones left out; asks the broker's management node."""
    asked = {"operation": "getStatistics", "type": "org.apache.qpid.Queue", "index": "object-path", "key": queue}
    return int(_manage(uri, asked)["queueDepthMessages"])


def create_queue(uri: str, queue: str, **attributes: Any) -> None:
    """Make a durable queue, with attributes of Qpid's own names."""
    body = {"name": queue, "durable": True, **attributes}
    _manage(uri, {"operation": "CREATE", "type": "org.apache.qpid.Queue", "object-path": queue}, body)


def delete_queue(uri: str, queue: str) -> None:
    """Delete a queue under whoever uses it."""
    _manage(uri, {"operation": "DELETE", "type": "org.apache.qpid.Queue", "index": "object-path", "key": queue})


def _manage(uri: str, properties: dict[str, str], body: Any = None) -> Any:
    connection = BlockingConnection(uri, timeout=120.0)
    try:
        receiver = connection.create_receiver(None, dynamic=True)
        reply_to = receiver.link.remote_source.address
        sender = connection.create_sender("$management")
        sender.send(Message(properties=properties, reply_to=reply_to, correlation_id="1", body=body or {}))
        answer = receiver.receive(20.0)
    finally:
        connection.close()
    said: Any = answer.properties
    if not 200 <= said["statusCode"] < 300:
        raise BrokerFailed(f"management of {properties}: {said}")
    return answer.body


def queue_name() -> str:
    """Return a name that no other test has; the broker makes the queue when it is first used."""
    return f"q.{uuid.uuid4().hex[:12]}"


SECONDS = 120.0


# AMQP peers without a broker, for what no broker does: one settles what it sends, and sends what is no message.


class Listener(MessagingHandler):
    """Listens at a free port; a subclass says what it does with those who connect."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        (port,) = free_ports(1)
        self.address = f"{LOOPBACK}:{port}"
        self.listening = threading.Event()
        self.acceptor: Any = None

    def on_start(self, event: Any) -> None:
        self.acceptor = event.container.listen(self.address)
        self.listening.set()


L = TypeVar("L", bound=Listener)


class Serving(Generic[L]):
    """Runs a listener on a thread of its own while the context lasts; ``end`` makes it end where nothing else does."""

    def __init__(self, listener: L, end: Callable[[], None] = lambda: None) -> None:
        self.uri = f"amqp://{listener.address}"
        self._listener = listener
        self._end = end
        self._thread = threading.Thread(target=Container(listener).run, name="amqp-peer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listener.listening.wait(SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._thread.join(SECONDS)


class _Sender(Listener):
    def __init__(self, payloads: Sequence[bytes], settled: bool) -> None:
        super().__init__()
        self._payloads, self._settled = list(payloads), settled
        self.outcomes: list[str] = []

    def on_link_opening(self, event: Any) -> None:
        if event.link.is_sender:
            event.link.source.address = event.link.remote_source.address
            event.link.snd_settle_mode = Link.SND_SETTLED if self._settled else Link.SND_UNSETTLED

    def on_sendable(self, event: Any) -> None:
        while event.sender.credit and self._payloads:
            delivery = event.sender.delivery(str(len(self._payloads)))
            event.sender.stream(self._payloads.pop(0))
            event.sender.advance()
            if self._settled:
                delivery.settle()

    def on_accepted(self, event: Any) -> None:
        self.outcomes.append("accepted")

    def on_rejected(self, event: Any) -> None:
        self.outcomes.append("rejected")

    def on_released(self, event: Any) -> None:
        self.outcomes.append("released")

    def on_connection_closed(self, event: Any) -> None:
        self.acceptor.close()


class Peer(Serving[_Sender]):
    """Serves one client, and sends it *payloads* as they are."""

    def __init__(self, payloads: Sequence[bytes], *, settled: bool) -> None:
        super().__init__(_Sender(payloads, settled))

    @property
    def outcomes(self) -> list[str]:
        """What the client said of the messages, in order."""
        return list(self._listener.outcomes)


# An AMQP peer that accepts messages, and ends the connection at some: what a broker does that cannot read one.

SILENT = b"end without a word"
TOLD = b"end with a condition"
UNREADABLE = b"reject with a condition that proton cannot read"


class _Receiver(Listener):
    def __init__(self) -> None:
        super().__init__(auto_accept=False)
        self._connections: list[Any] = []
        self._injector = EventInjector()
        self.taken: list[bytes] = []

    def end(self) -> None:
        self._injector.trigger(ApplicationEvent("over"))

    def on_start(self, event: Any) -> None:
        event.container.selectable(self._injector)
        super().on_start(event)

    def on_connection_opening(self, event: Any) -> None:
        self._connections.append(event.connection)

    def on_link_opening(self, event: Any) -> None:
        event.link.target.address = event.link.remote_target.address

    def on_message(self, event: Any) -> None:
        body = bytes(event.message.body or b"")
        if body == TOLD:
            event.connection.condition = Condition("amqp:decode-error", "no message at all")
            event.connection.close()
        elif body == SILENT:
            _hang_up(event.connection)
        elif body == UNREADABLE:
            info: Any = {("a", "list"): "as a key"}
            event.delivery.local.condition = Condition("amqp:not-allowed", "no", info)
            event.delivery.update(Delivery.REJECTED)
            event.delivery.settle()
        else:
            self.taken.append(body)
            self.accept(event.delivery)

    def on_over(self, event: Any) -> None:
        self.acceptor.close()
        self._injector.close()
        for connection in self._connections:
            _hang_up(connection)


def _hang_up(connection: Any) -> None:
    if connection.transport is not None:
        connection.transport.close_tail()
        connection.transport.close_head()


class ChoosyPeer(Serving[_Receiver]):
    """Accepts messages until the context ends."""

    def __init__(self) -> None:
        receiver = _Receiver()
        super().__init__(receiver, receiver.end)

    @property
    def taken(self) -> list[bytes]:
        """The bodies of the messages that it accepted, in order."""
        return list(self._listener.taken)
