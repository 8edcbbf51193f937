"""What does it cost to store before acknowledging? ``make bench-gateways``

Per protocol: messages a second that the gateway acknowledges, with the inbox on disk, against the same client library
receiving, acknowledging and dropping the same backlog. Both take turns within one run; medians and their ratio count.
HTTP has no client of the router's: there the same server answers 202 without storing.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import nats
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from proton.handlers import MessagingHandler
from proton.reactor import Container

from bindings.amqp.gateway import AmqpGateway
from bindings.amqp.publisher import AmqpSender
from bindings.gateways import Connection, EndpointSubscription, Gateway, GatewayConfig, GatewayLimits, RowStore
from bindings.http.gateway import HttpGateway, HttpGatewayConfig
from bindings.http.request import HttpRoute
from bindings.inbox.format import iter_frames, map_segment
from bindings.inbox.log import Inbox
from bindings.inbox.space import InboxLimits
from bindings.mqtt.gateway import MqttGateway
from bindings.mqtt.publisher import MqttPublisher
from bindings.nats.gateway import NatsGateway
from bindings.nats.publisher import NatsPublisher
from bindings.parts import InboxRow, Part
from bindings.sending import Outbound, Publisher
from tests.benchmarks.http_load import Load, load
from tests.benchmarks.machine import machine, options, say
from tests.support.amqp import amqp_message, queue_name
from tests.support.mqtt import Mosquitto
from tests.support.nats import NatsServer
from tests.support.qpid import amqp_for_tests
from tests.support.waiting import wait_until

BODY: Final = b"x" * 200
ATTRIBUTES: Final = {"specversion": "1.0", "type": "com.example.measured", "source": "/plants/7/lines/3", "id": "1"}
ENDPOINT: Final = "/endpoints/bench"
SECONDS: Final = 120.0
MOST: Final = GatewayLimits(max_in_flight=2000)


class Counts:
    """Counts acknowledged messages, and when the first and the last came."""

    def __init__(self) -> None:
        self.count = 0
        self.first = self.last = 0.0

    def received(self, endpoint: str) -> None:
        """Note the first."""
        self.first = self.first or time.perf_counter()

    def acknowledged(self, endpoint: str) -> None:
        """Count one."""
        self.count += 1
        self.last = time.perf_counter()

    def rate(self) -> float:
        """Return messages a second between the first and the last."""
        return self.count / (self.last - self.first)


def stored(folder: Path, count: int, make: Callable[[RowStore, Counts], Gateway]) -> float:
    """Return the rate of a gateway that stores *count* messages in an inbox of its own."""
    inbox, counts = Inbox(folder, limits=InboxLimits(min_free_bytes=0)), Counts()
    gateway = make(inbox, counts)
    gateway.start()
    wait_until(lambda: counts.count >= count, SECONDS, lambda: f"{count} messages; {counts.count} so far")
    gateway.stop(5.0)
    inbox.close()
    return counts.rate()


def publish(publisher: Publisher, address: str, prefix: str, count: int) -> None:
    """Send events by a publisher of ours, and close it."""
    parts = tuple(Part(f"{prefix}{name}", text.encode()) for name, text in ATTRIBUTES.items())
    publisher.send([Outbound(address, parts, BODY, "", str(number)) for number in range(count)])
    publisher.close()


class Mqtt:
    """MQTT 5: a persistent session collects the backlog while nobody is there."""

    def __init__(self, folder: Path) -> None:
        self._broker = Mosquitto(folder, extra="\nmax_queued_messages 0\n", in_flight=2000)
        self._broker.start()
        self._session = 0

    def prepare(self, count: int) -> None:
        """Leave a session behind, and publish to it."""
        self._session += 1
        client = self._client()
        done = threading.Event()
        client.on_subscribe = lambda *_: done.set()
        client.subscribe("bench", qos=1)
        assert done.wait(20)
        client.disconnect()
        client.loop_stop()
        publisher = MqttPublisher(
            Connection((self._broker.uri,)), protocol="MQTT/5.0", client_id="bench-sender", timeout=SECONDS
        )
        publish(publisher, "bench", "user_properties.", count)

    def drop(self, count: int) -> float:
        """Receive and drop."""
        counts = Counts()

        def taken(*_: Any) -> None:
            counts.received("")
            counts.acknowledged("")

        client = self._client(taken)
        wait_until(lambda: counts.count >= count, SECONDS, "paho to receive")
        client.disconnect()
        client.loop_stop()
        return counts.rate()

    def gateway(self, store: RowStore, counts: Counts) -> Gateway:
        """Return the gateway on the session that was prepared."""
        connection, subscriptions = Connection((self._broker.uri,)), [EndpointSubscription(ENDPOINT, "bench")]
        return MqttGateway(
            GatewayConfig(connection, subscriptions, store, f"bench{self._session}", MOST, counts), "MQTT/5.0"
        )

    def close(self) -> None:
        """Stop the broker."""
        self._broker.stop()

    def _client(self, taken: Callable[..., None] | None = None) -> paho.Client:
        client = paho.Client(CallbackAPIVersion.VERSION2, client_id=f"bench{self._session}", protocol=paho.MQTTv5)
        client.on_message = taken
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 3600
        properties.ReceiveMaximum = 2000
        client.connect("127.0.0.1", self._broker.port, clean_start=False, properties=properties)
        client.loop_start()
        wait_until(client.is_connected, 20, "paho to connect")
        return client


class Amqp:
    """AMQP 1.0: a queue collects the backlog."""

    def __init__(self, folder: Path) -> None:
        self._context = amqp_for_tests(folder)
        self._uri = self._context.__enter__()
        self._queue = ""

    def prepare(self, count: int) -> None:
        """Fill a fresh queue."""
        self._queue = queue_name()
        sender = AmqpSender(Connection((self._uri,)), container_id="bench-sender")
        attributes = {f"cloudEvents:{name}": text for name, text in ATTRIBUTES.items()}
        message = amqp_message(self._queue, BODY, application_properties=attributes, header={"durable": False})
        sender.send([message] * count)
        sender.close()

    def drop(self, count: int) -> float:
        """Receive and drop."""
        counts = Counts()
        uri, queue = self._uri, self._queue

        class Dropper(MessagingHandler):
            def __init__(self) -> None:
                super().__init__(prefetch=MOST.max_in_flight)

            def on_start(self, event: Any) -> None:
                event.container.create_receiver(event.container.connect(uri), queue)

            def on_message(self, event: Any) -> None:
                counts.received("")
                counts.acknowledged("")
                if counts.count == count:
                    event.connection.close()

        Container(Dropper()).run()
        return counts.rate()

    def gateway(self, store: RowStore, counts: Counts) -> Gateway:
        """Return the gateway on that queue."""
        subscriptions = [EndpointSubscription(ENDPOINT, self._queue)]
        return AmqpGateway(GatewayConfig(Connection((self._uri,)), subscriptions, store, "bench", MOST, counts))

    def close(self) -> None:
        """Stop the broker."""
        self._context.__exit__(None, None, None)


class Nats:
    """NATS JetStream: a stream collects the backlog, a durable consumer for each round takes it."""

    def __init__(self, folder: Path) -> None:
        self._server = NatsServer(folder).start()
        self._round = 0

    def prepare(self, count: int) -> None:
        """Fill a fresh stream."""
        self._round += 1

        async def made() -> None:
            client = await nats.connect(self._server.uri)
            await client.jetstream().add_stream(name=f"S{self._round}", subjects=[f"bench{self._round}"])
            await client.close()

        asyncio.run(made())
        publisher = NatsPublisher(Connection((self._server.uri,)), sink="bench", timeout=30, stream=True)
        publish(publisher, f"bench{self._round}", "headers.ce-", count)

    def drop(self, count: int) -> float:
        """Receive and drop."""
        counts = Counts()

        async def taken() -> None:
            client = await nats.connect(self._server.uri)
            pull = await client.jetstream().pull_subscribe(
                f"bench{self._round}", durable="drop", stream=f"S{self._round}"
            )
            while counts.count < count:
                for message in await pull.fetch(min(1000, count - counts.count), timeout=10):
                    counts.received("")
                    await message.ack()
                    counts.acknowledged("")
            await client.close()

        asyncio.run(taken())
        return counts.rate()

    def gateway(self, store: RowStore, counts: Counts) -> Gateway:
        """Return the gateway on that stream."""
        options = {"stream": f"S{self._round}", "durable": "gateway"}
        subscriptions = [EndpointSubscription(ENDPOINT, f"bench{self._round}", options)]
        return NatsGateway(GatewayConfig(Connection((self._server.uri,)), subscriptions, store, "bench", MOST, counts))

    def close(self) -> None:
        """Stop the server."""
        self._server.stop()


class _Nowhere:
    """A store that keeps nothing."""

    def append_many(self, rows: Sequence[InboxRow]) -> Future[None]:
        """Say that it is done."""
        done: Future[None] = Future()
        done.set_result(None)
        return done


def commits(folder: Path) -> int:
    """Return how many commits an inbox of few messages took, whose segments are not yet compacted."""
    segments = [map_segment(path) for path in folder.glob("*/*.log")]
    return sum(1 for data in segments for _ in iter_frames(data, 0, data.size))


def http(folder: Path, count: int, *, keep: bool) -> tuple[Load, float]:
    """Let 32 clients of another process send to the HTTP gateway, with an inbox or nothing behind it.

    Returns what came of it, and the microseconds of processor time that each message took in this process.
    """
    inbox = Inbox(folder, limits=InboxLimits(min_free_bytes=0)) if keep else None
    gateway = HttpGateway(
        [HttpRoute(ENDPOINT, "/bench")], inbox or _Nowhere(), HttpGatewayConfig(port=0), counters=Counts()
    )
    gateway.start()
    headers = {f"ce-{name}": text for name, text in ATTRIBUTES.items()}
    before = time.process_time()
    found = load(gateway.port, "/bench", headers, BODY, count=count, clients=32)
    cost = (time.process_time() - before) / count * 1e6
    gateway.stop()
    if inbox is not None:
        inbox.close()
    return found, cost


def main() -> None:
    """Run the benchmark and print a table."""
    only = ("", "one protocol instead of all", "mqtt", "amqp", "nats", "http")
    chosen = options(__doc__, messages=20_000, rounds=3, only=only)
    lines = [machine(), "protocol    gateway /s    dropping /s    ratio", "-" * 48]
    with tempfile.TemporaryDirectory(prefix="xrouter-bench-") as name:
        for kind in (Mqtt, Amqp, Nats):
            if chosen.only in ("", kind.__name__.lower()):
                lines.append(_brokered(kind, Path(name), chosen.messages, chosen.rounds))
        if chosen.only in ("", "http"):
            lines += _served(Path(name), max(32, chosen.messages // 2), chosen.rounds)
    say("\n".join(lines))


def _brokered(kind: type[Mqtt] | type[Amqp] | type[Nats], folder: Path, messages: int, rounds: int) -> str:
    side = kind(folder / kind.__name__)
    found: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds + 1):  # the first warms up: a broker's compiler, and our imports
        for keep in (False, True):
            side.prepare(messages)
            inbox = folder / f"{kind.__name__}-inbox{number}"
            rate = stored(inbox, messages, side.gateway) if keep else side.drop(messages)
            found[keep] += [rate] if number else []
    side.close()
    return _line(kind.__name__.upper(), found)


def _served(folder: Path, requests: int, rounds: int) -> list[str]:
    loads: dict[bool, list[tuple[Load, float]]] = {True: [], False: []}
    for number in range(rounds):
        for keep, each in loads.items():
            each.append(http(folder / f"http{keep}{number}", requests, keep=keep))
    kept, dropped = (statistics.median(cost for _, cost in loads[keep]) for keep in (True, False))
    busy = max(run.busy for run, _ in loads[True])
    together = requests * rounds / sum(commits(folder / f"httpTrue{number}") for number in range(rounds))
    return [
        _line("HTTP", {keep: [run.rate for run, _ in each] for keep, each in loads.items()}),
        f"HTTP clients, in a process of their own, took {busy:.0%} of a core; the gateway's process took {kept:.0f} µs "
        f"of a core for each message, {dropped:.0f} when dropping; {together:.1f} messages had a commit in common",
    ]


def _line(protocol: str, found: dict[bool, list[float]]) -> str:
    kept, dropped = statistics.median(found[True]), statistics.median(found[False])
    return f"{protocol:8s} {kept:13,.0f} {dropped:14,.0f} {kept / dropped:8.2f}"


if __name__ == "__main__":
    main()
