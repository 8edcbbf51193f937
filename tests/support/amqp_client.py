"""An AMQP 1.0 client of the tests, independent of everything under test: proton's own, or bytes encoded by hand."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from proton import Data, Described, Message, ulong
from proton.handlers import MessagingHandler
from proton.reactor import Container
from proton.utils import BlockingConnection

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
