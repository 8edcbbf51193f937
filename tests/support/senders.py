"""Senders of numbered events that go on through absences of whoever takes them, and know which were confirmed.

Each is the client that users of the protocol have, in a thread of its own. An event is a CloudEvent in binary mode
whose id and body are its number; one in fifty is of a type that no definition has.
"""

from __future__ import annotations

import asyncio
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import nats
from nats.aio.client import Client as NatsClient
from nats.js.errors import Error as StreamError
from paho.mqtt.client import MQTTMessageInfo

from bindings.amqp.publisher import AmqpSender
from bindings.gateways import Connection
from bindings.protocols import BINDINGS
from bindings.sending import Outbound, Unsettled
from registry.delivery.subscriptions import DELIVERED, DeliveryResult, EventFilter, EventMessages, SubscriberDelivery
from tests.support.amqp import amqp_message
from tests.support.mqtt import Client as MqttClient

CHUNK: Final = 500
SECONDS: Final = 120.0
PAUSE_SECONDS: Final = 0.5
CLIENTS: Final = 16
STRANGE: Final = 50
"""One event in so many conforms to nothing."""


def is_strange(number: int) -> bool:
    """Whether no definition takes that event."""
    return number % STRANGE == STRANGE - 1


def attributes(protocol: str, number: int) -> dict[str, str]:
    """Return what the event says of itself."""
    kind = "strange" if is_strange(number) else "counted"
    return {"specversion": "1.0", "id": str(number), "source": f"/plants/{protocol}", "type": kind}


class Sender(threading.Thread, ABC):
    """Sends events 0 to *count* once each, and again whenever it is not told that one was taken.

    ``confirmed`` grows as they are; an event may arrive more often than once, and one that is not confirmed as well.
    It sends no further than it is allowed to, which at first is nowhere.
    """

    def __init__(self, protocol: str, count: int) -> None:
        super().__init__(daemon=True, name=f"sender-{protocol}")
        self.protocol = protocol
        self.count = count
        self.confirmed: set[int] = set()
        self.failure: Exception | None = None
        self._changed = threading.Condition()
        self._allowed = 0
        self._resting = True
        self._ended = threading.Event()

    def run(self) -> None:
        """Send all of them."""
        try:
            for start in range(0, self.count, CHUNK):
                left = set(range(start, min(start + CHUNK, self.count)))
                while left and self._may_send(start):
                    taken = self.send(sorted(left))
                    self.confirmed |= taken
                    left -= taken
                    if not taken:
                        self._ended.wait(PAUSE_SECONDS)
        except Exception as error:
            self.failure = error  # for the test, which looks at it whenever it waits for confirmations
        finally:
            self._rest()
            self.close()

    def allow(self, number: int) -> None:
        """Send up to that event, or a little further."""
        with self._changed:
            self._allowed = number
            self._changed.notify_all()

    def hold(self) -> None:
        """Return once nothing is on its way; nothing more is sent before it is allowed."""
        self.allow(0)
        with self._changed:
            assert self._changed.wait_for(lambda: self._resting, SECONDS), f"{self.name} does not come to rest"

    def end(self) -> None:
        """Give up whatever is left, and wait for the thread."""
        self._ended.set()
        self.allow(self.count)
        if self.is_alive():
            self.join(SECONDS)

    def _may_send(self, start: int) -> bool:
        """Wait until events from *start* on are allowed, for as long as the test takes; False when all is given up."""
        with self._changed:
            self._rest()
            self._changed.wait_for(lambda: start < self._allowed)
            self._resting = False
        return not self._ended.is_set()

    def _rest(self) -> None:
        with self._changed:
            self._resting = True
            self._changed.notify_all()

    @abstractmethod
    def send(self, numbers: list[int]) -> AbstractSet[int]:
        """Send these, and return which of them were confirmed; the others are sent again."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect."""


class MqttSender(Sender):
    """paho at QoS 1, which keeps what is not acknowledged and sends it again on its next connection."""

    def __init__(self, count: int, uri: str, topic: str) -> None:
        super().__init__("mqtt", count)
        self._topic = topic
        self._client = MqttClient(uri)
        self._client.__enter__()

    def send(self, numbers: list[int]) -> AbstractSet[int]:
        self._client.wait_connected()
        infos = [
            self._client.begin(
                f"{self._topic}/{number % 7}",
                b"%d" % number,
                UserProperty=list(attributes(self.protocol, number).items()),
            )
            for number in numbers
        ]
        return {number for number, info in zip(numbers, infos, strict=True) if _published(info)}

    def close(self) -> None:
        self._client.__exit__()


def _published(info: MQTTMessageInfo) -> bool:
    try:
        info.wait_for_publish(SECONDS)
    except RuntimeError:
        return False  # begun between two connections: paho sends it all the same, but will not say when
    return info.is_published()


class AmqpEventSender(Sender):
    """Durable messages; a chunk of which it is not known what became of it is sent again."""

    def __init__(self, count: int, uri: str, node: str) -> None:
        super().__init__("amqp", count)
        self._node = node
        self._sender = AmqpSender(Connection((uri,)), container_id="load", timeout=SECONDS)

    def send(self, numbers: list[int]) -> AbstractSet[int]:
        try:
            answers = self._sender.send([self._message(number) for number in numbers])
        except Unsettled:
            return set()
        return {number for number, refusal in zip(numbers, answers, strict=True) if refusal is None}

    def _message(self, number: int) -> Outbound:
        properties = {f"cloudEvents:{name}": text for name, text in attributes(self.protocol, number).items()}
        return amqp_message(self._node, b"%d" % number, application_properties=properties)

    def close(self) -> None:
        self._sender.close()


class NatsSender(Sender):
    """nats-py, each message until JetStream says that it is stored; JetStream knows repeats by their id."""

    def __init__(self, count: int, uri: str, subject: str) -> None:
        super().__init__("nats", count)
        self._uri = uri
        self._subject = subject
        self._runner = asyncio.Runner()
        self._client: NatsClient | None = None

    def send(self, numbers: list[int]) -> AbstractSet[int]:
        return self._runner.run(self._send(numbers))

    async def _send(self, numbers: list[int]) -> set[int]:
        if self._client is None:
            self._client = await nats.connect(
                self._uri, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=_quiet
            )
        taken: set[int] = set()
        for start in range(0, len(numbers), 100):
            await asyncio.gather(*(self._one(self._client, number, taken) for number in numbers[start : start + 100]))
        return taken

    async def _one(self, client: NatsClient, number: int, taken: set[int]) -> None:
        headers = {f"ce-{name}": text for name, text in attributes(self.protocol, number).items()}
        headers["Nats-Msg-Id"] = f"{self._subject}-{number}"
        try:
            await client.jetstream().publish(
                f"{self._subject}.{number % 7}", b"%d" % number, timeout=2, headers=headers
            )
        except (StreamError, nats.errors.Error, TimeoutError):
            return  # the server is away: sent again
        taken.add(number)

    def close(self) -> None:
        if self._client is not None:
            self._runner.run(self._client.close())
        self._runner.close()


async def _quiet(_: Exception) -> None:
    """The server's absences are meant."""


class HttpSender(Sender):
    """Keep-alive connections with one request at a time. ``refused`` counts answers other than 202."""

    def __init__(self, count: int, port: int, path: str) -> None:
        super().__init__("http", count)
        self._port = port
        self._path = path
        self._runner = asyncio.Runner()
        self.refused = 0

    def send(self, numbers: list[int]) -> AbstractSet[int]:
        return self._runner.run(self._send(numbers))

    async def _send(self, numbers: list[int]) -> set[int]:
        waiting, taken, before = iter(numbers), set[int](), self.refused
        await asyncio.gather(*(self._client(waiting, taken) for _ in range(CLIENTS)))
        if self.refused > before:
            await asyncio.sleep(PAUSE_SECONDS)  # as asked to, if shorter: a sender that only repeats would slow all
        return taken

    async def _client(self, numbers: Iterator[int], taken: set[int]) -> None:
        """Send until there is nothing left, or the router says no to any of us."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            return
        try:
            before = self.refused
            for number in numbers:
                if self.refused > before:
                    return
                writer.write(self._request(number))
                head = await reader.readuntil(b"\r\n\r\n")
                if not head.startswith(b"HTTP/1.1 202 "):
                    assert head.startswith(b"HTTP/1.1 503 "), head
                    assert b"retry-after: " in head.lower()
                    self.refused += 1
                    return
                taken.add(number)
        except (OSError, asyncio.IncompleteReadError):
            return  # the router is gone: sent again
        finally:
            writer.close()

    def _request(self, number: int) -> bytes:
        body = b"%d" % number
        lines = [f"POST {self._path} HTTP/1.1", "host: 127.0.0.1", f"content-length: {len(body)}"]
        lines += [f"ce-{name}: {text}" for name, text in attributes(self.protocol, number).items()]
        return "\r\n".join([*lines, "", ""]).encode("ascii") + body

    def close(self) -> None:
        self._runner.close()


# A target without a network: a test says what becomes of each event.


class ScriptedSender:
    """Keeps :class:`registry.delivery.subscriptions.Sender`; *judge* gets the subject of an event. ``waves`` are
    subjects."""

    def __init__(self, judge: Callable[[str], DeliveryResult] = lambda _: DELIVERED, most: int = 16) -> None:
        self.judge = judge
        self.waves: list[list[str]] = []
        self.taken: list[str] = []
        self._most = most

    def send_allowance(self) -> tuple[int, float]:
        """Return how many at a time."""
        return self._most, 0.0

    def send(self, messages: Sequence[Outbound]) -> list[DeliveryResult]:
        """Ask the test."""
        subjects = [str(json.loads(each.body or b"{}")["subject"]) for each in messages]
        self.waves.append(subjects)
        verdicts = [self.judge(each) for each in subjects]
        self.taken += [each for each, verdict in zip(subjects, verdicts, strict=True) if verdict.kind == "delivered"]
        return verdicts

    def close(self) -> None:
        """Nothing is open."""

    def delivery(self, wants: EventFilter) -> SubscriberDelivery:
        """Return the delivery of a subscriber that is told here."""
        composer = EventMessages(BINDINGS["HTTP"], lambda _: "http://target.example/hook", "structured")
        return SubscriberDelivery(wants, composer, lambda: self)
