"""What does it cost to store before acknowledging? ``make bench-gateways``

Per protocol: messages a second that the gateway acknowledges, with the inbox on disk, against the same client library
receiving, acknowledging and dropping the same backlog. Both take turns within one run; medians and their ratio count.
HTTP has no client of the router's: there the same server answers 202 without storing.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import nats
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from proton.handlers import MessagingHandler
from proton.reactor import Container

from bindings.gateways import EndpointSubscription, GatewayLimits
from bindings.http.request import HttpRoute
from bindings.inbox.format import iter_frames, map_segment
from bindings.inbox.log import Inbox
from bindings.inbox.space import InboxLimits
from bindings.parts import InboxRow, Part
from bindings.sending import Outbound
from tests.benchmarks.http_load import Load, load
from tests.benchmarks.machine import machine, options, say
from tests.support.amqp import amqp_message
from tests.support.gateways import ENDPOINT, Peer, peer_for_tests, running, serving, started
from tests.support.mqtt import Mosquitto
from tests.support.shop import Counts
from tests.support.waiting import wait_until

BODY: Final = b"x" * 200
ATTRIBUTES: Final = {"specversion": "1.0", "type": "com.example.measured", "source": "/plants/7/lines/3", "id": "1"}
PREFIXES: Final = {"mqtt": "user_properties.", "nats": "headers.ce-"}
SECONDS: Final = 120.0
MOST: Final = GatewayLimits(max_in_flight=2000)


class Rate(Counts):
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

    def drop(self) -> None:
        """Count one that was received and acknowledged at once."""
        self.received("")
        self.acknowledged("")

    def until(self, count: int) -> float:
        """Wait for as many, and return messages a second between the first and the last."""
        wait_until(lambda: self.count >= count, SECONDS, lambda: f"{count} messages; {self.count} so far")
        return self.count / (self.last - self.first)


def wanted(peer: Peer, name: str) -> EndpointSubscription:
    """Return the subscription to a channel, of which nothing is delivered again meanwhile."""
    subscription = peer.wanted(name)
    return replace(subscription, options={**subscription.options, **({"ackwait": 30} if subscription.options else {})})


def prepare(kind: str, peer: Peer, name: str, count: int) -> None:
    """Send events to a channel; a session of MQTT that was left behind collects them while nobody is there."""
    if kind == "mqtt":
        with running(peer.protocol, peer.uri, [peer.wanted(name)], _Nowhere(), client_id=name):
            pass
    prefixed = {f"cloudEvents:{name}": text for name, text in ATTRIBUTES.items()}
    place = peer.place(name)
    if kind == "amqp":
        messages = [amqp_message(place, BODY, application_properties=prefixed, header={"durable": False})] * count
    else:
        parts = tuple(Part(f"{PREFIXES[kind]}{name}", text.encode()) for name, text in ATTRIBUTES.items())
        messages = [Outbound(place, parts, BODY, "", f"{name}-{number}") for number in range(count)]
    with closing(peer.publisher(peer.uri, SECONDS)) as publisher:
        publisher.send(messages)


def stored(folder: Path, peer: Peer, name: str, count: int) -> float:
    """Return the rate of a gateway that stores *count* messages in an inbox of its own."""
    rate = Rate()
    with closing(Inbox(folder, limits=InboxLimits(min_free_bytes=0))) as inbox:
        subscriptions = [wanted(peer, name)]
        with started(peer.protocol, peer.uri, subscriptions, inbox, client_id=name, limits=MOST, counts=rate):
            return rate.until(count)


def dropped_by_mqtt(peer: Peer, name: str, count: int) -> float:
    """Receive and drop by paho, in the session."""
    rate, place = Rate(), urlsplit(peer.uri)
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5)
    client.on_message = lambda *_: rate.drop()
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval, properties.ReceiveMaximum = 3600, 2000
    client.connect(place.hostname or "", place.port or 0, clean_start=False, properties=properties)
    client.loop_start()
    found = rate.until(count)
    client.disconnect()
    client.loop_stop()
    return found


def dropped_by_amqp(peer: Peer, name: str, count: int) -> float:
    """Receive and drop by proton."""
    rate = Rate()

    class Dropper(MessagingHandler):
        def __init__(self) -> None:
            super().__init__(prefetch=MOST.max_in_flight)

        def on_start(self, event: Any) -> None:
            event.container.create_receiver(event.container.connect(peer.uri), peer.address(name))

        def on_message(self, event: Any) -> None:
            rate.drop()
            if rate.count == count:
                event.connection.close()

    Container(Dropper()).run()
    return rate.until(count)


def dropped_by_nats(peer: Peer, name: str, count: int) -> float:
    """Receive and drop by nats-py."""
    rate = Rate()

    async def taken() -> None:
        client = await nats.connect(peer.uri)
        pull = await client.jetstream().pull_subscribe(peer.address(name), durable=f"{name}-drop", stream="S")
        while rate.count < count:
            for message in await pull.fetch(min(1000, count - rate.count), timeout=10):
                rate.received("")
                await message.ack()
                rate.acknowledged("")
        await client.close()

    asyncio.run(taken())
    return rate.until(count)


DROPPED: Final = {"mqtt": dropped_by_mqtt, "amqp": dropped_by_amqp, "nats": dropped_by_nats}


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
    headers = {f"ce-{name}": text for name, text in ATTRIBUTES.items()}
    with serving([HttpRoute(ENDPOINT, "/bench")], inbox or _Nowhere(), counts=Rate()) as gateway:
        before = time.process_time()
        found = load(gateway.port, "/bench", headers, BODY, count=count, clients=32)
        cost = (time.process_time() - before) / count * 1e6
    if inbox is not None:
        inbox.close()
    return found, cost


def main() -> None:
    """Run the benchmark and print a table."""
    only = ("", "one protocol instead of all", "mqtt", "amqp", "nats", "http")
    chosen = options(__doc__, messages=20_000, rounds=3, only=only)
    lines = [machine(), "protocol    gateway /s    dropping /s    ratio", "-" * 48]
    with tempfile.TemporaryDirectory(prefix="xrouter-bench-") as name:
        for kind in DROPPED:
            if chosen.only in ("", kind):
                lines.append(_brokered(kind, Path(name), chosen.messages, chosen.rounds))
        if chosen.only in ("", "http"):
            lines += _served(Path(name), max(32, chosen.messages // 2), chosen.rounds)
    say("\n".join(lines))


def _brokered(kind: str, folder: Path, messages: int, rounds: int) -> str:
    found: dict[bool, list[float]] = {True: [], False: []}
    with peer_for_tests(kind, folder, up=False) as peer:
        if kind == "mqtt":
            peer.broker = Mosquitto(folder / "mosquitto", extra="\nmax_queued_messages 0\n", in_flight=2000)
        peer.start()
        for number in range(rounds + 1):  # the first warms up: a broker's compiler, and our imports
            for keep in (False, True):
                name = f"{'keep' if keep else 'drop'}{number}"
                prepare(kind, peer, name, messages)
                inbox = folder / f"{kind}-inbox{number}"
                rate = stored(inbox, peer, name, messages) if keep else DROPPED[kind](peer, name, messages)
                found[keep] += [rate] if number else []
    return _line(kind.upper(), found)


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
