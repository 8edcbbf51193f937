"""Every push protocol through SIGKILL of the router and of brokers, and through a full disk: nothing sent is missing.

What was confirmed to its sender must have an outcome, routed or dead letter; the sinks are exactly once, so that no
position is there twice. The small run takes all protocols at once through everything, the full ones (``make
test-kill``) take one protocol through one thing.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support import plain
from tests.support.gateways import Peer, peer_for_tests
from tests.support.mqtt import Mosquitto
from tests.support.ports import free_ports
from tests.support.router import RouterProcess
from tests.support.senders import HttpSender, Sender, is_strange
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker
BROKERED = ("mqtt", "amqp", "nats")
ALL = (*BROKERED, "http")
SMALL, FULL = 1_000, 50_000
Test = TypeVar("Test", bound=Callable[..., None])
DISK_FULL = os.strerror(errno.ENOSPC)


def full(protocols: Sequence[str]) -> Callable[[Test], Test]:
    """Run a test for each of these protocols, at full size only."""
    marks = (pytest.mark.full, pytest.mark.timeout(2400))
    return pytest.mark.parametrize("protocol", [pytest.param(each, marks=marks) for each in protocols])


class Outcomes:
    """What has come out so far; only files that are new are read."""

    def __init__(self, folder: Path) -> None:
        self.out, self.dead = folder / "out", folder / "dead"
        self.routed: set[tuple[str, int]] = set()
        self.letters: set[tuple[str, int]] = set()
        self.positions: set[str] = set()
        self._seen: set[Path] = set()

    def read(self) -> int:
        """Read on, and return how many different events have an outcome."""
        for line in self._new(self.out):
            event = line["cloudevent"]
            self._take(self.routed, event["source"].rsplit("/", 1)[-1], int(event["id"]), line)
        for line in self._new(self.dead):
            body = b64decode(line["body"])
            self._take(self.letters, line["endpoint"].rsplit("/", 1)[-1], int(body), line)
        return len(self.routed) + len(self.letters)

    def _new(self, folder: Path) -> Iterator[dict[str, Any]]:
        for path in sorted({*folder.rglob("*.jsonl")} - self._seen):
            self._seen.add(path)
            yield from map(json.loads, path.read_bytes().splitlines())

    def _take(self, into: set[tuple[str, int]], protocol: str, number: int, line: dict[str, Any]) -> None:
        assert line["position"] not in self.positions, f"written twice: {line}"
        self.positions.add(line["position"])
        into.add((protocol, number))


class Run:
    """One router, and senders into it."""

    def __init__(self, router: RouterProcess, peers: Mapping[str, Peer], count: int, *, http: bool) -> None:
        self.router, self.peers = router, peers
        self.count, self.total = count, count * (len(peers) + http)
        self.outcomes = Outcomes(router.folder)
        (port,) = free_ports(1)
        endpoints = {
            kind: plain.endpoint(peer.protocol, peer.options("in"), "plant", uri=peer.uri)
            for kind, peer in peers.items()
        }
        endpoints |= {"http": plain.endpoint("HTTP", {"path": "/plants"}, "plant")} if http else {}
        source = plain.write(router.folder, plain.catalog(endpoints, plant=plain.events("counted")))
        more = {
            "http": {"port": port},
            "inbox": {"min_free_bytes": 0, "segment_bytes": 500_000},
            "gateways": {"max_in_flight": 400},
            "max_records_per_batch": self.total // 5,
        }
        router.configure(plain.routed(source, plain.lines(router.folder, "out", "dead"), **more))
        self.senders: dict[str, Sender] = {kind: peer.sender("in", count) for kind, peer in peers.items()}
        self.senders |= {"http": HttpSender(count, port, "/plants")} if http else {}

    def confirmed(self, *, least: int) -> bool:
        """Whether every sender was told that so many of its events are taken."""
        for sender in self.senders.values():
            assert sender.failure is None, sender.failure
        return all(len(sender.confirmed) >= least for sender in self.senders.values())

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait, and say how far everybody is when it takes too long."""

        def state() -> str:
            sent = {name: len(sender.confirmed) for name, sender in self.senders.items()}
            return (
                f"{what}; confirmed {sent}, with an outcome {self.outcomes.read()}; {self.router.readiness()}\n"
                f"{self.router.log[-3000:]}"
            )

        wait_until(lambda: condition() or None, 150 + self.total / 50, state)

    def start(self) -> None:
        """Start the router, and once it takes messages the senders, which are allowed nothing yet."""
        self.start_router()
        for sender in self.senders.values():
            sender.start()

    def start_router(self) -> None:
        """Start the router, or start it again, and wait until all gateways are connected."""
        self.router.start()
        self.wait(lambda: all(told.get("up") for told in self.gateways().values()), "all gateways")

    def gateways(self) -> dict[str, dict[str, Any]]:
        """What the router says of each gateway of a broker, by protocol."""
        told: dict[str, dict[str, Any]] = self.router.readiness().get("gateways", {})
        return {kind: told.get(f"/endpoints/{kind}", {"reason": ""}) for kind in self.peers}

    def allow(self, number: int) -> None:
        """Let every sender send up to that event."""
        for sender in self.senders.values():
            sender.allow(number)

    def account(self) -> None:
        """Wait until every event has its outcome, and check that it is the right one."""
        self.wait(lambda: self.confirmed(least=self.count), "all confirmations")
        self.wait(lambda: self.outcomes.read() >= self.total, "all outcomes")
        assert self.router.stop() == 0, self.router.log[-3000:]
        self.outcomes.read()
        sent = {(name, number) for name, sender in self.senders.items() for number in sender.confirmed}
        assert self.outcomes.routed == {(name, number) for name, number in sent if not is_strange(number)}
        assert self.outcomes.letters == {(name, number) for name, number in sent if is_strange(number)}


@contextmanager
def run(router: RouterProcess, protocols: Sequence[str], count: int, folder: Path) -> Iterator[Run]:
    """Yield a run that is under way; its senders and brokers are ended afterwards."""
    with ExitStack() as ending:
        brokered = [kind for kind in protocols if kind != "http"]
        peers = {kind: ending.enter_context(peer_for_tests(kind, folder)) for kind in brokered}
        under_way = Run(router, peers, count, http="http" in protocols)
        try:
            under_way.start()
            yield under_way
        finally:
            for sender in under_way.senders.values():
                sender.end()
            router.end()


def kill_the_router(under_way: Run, goal: int) -> None:
    """Kill it once *goal* events have an outcome, while others are on every stretch of the way, and start it again."""
    under_way.wait(lambda: under_way.outcomes.read() >= goal, f"{goal} outcomes")
    under_way.router.kill()
    under_way.start_router()


def kill_the_brokers(under_way: Run, after: int) -> None:
    """Kill all once every sender was told that *after* of its events are taken; start them when that was noticed."""
    under_way.wait(lambda: under_way.confirmed(least=after), f"{after} confirmations")
    brokers = [peer.broker for peer in under_way.peers.values()]
    for kind, peer in under_way.peers.items():
        if isinstance(peer.broker, Mosquitto):  # It confirms what it has in memory; of others a confirmation says all.
            under_way.senders[kind].hold()
            peer.broker.save()
    for broker in brokers:
        broker.kill()
    under_way.wait(lambda: not any(told.get("up") for told in under_way.gateways().values()), "the loss to be noticed")
    for broker in brokers:
        broker.start()


class SmallDisk:
    """A file system of its own with somebody else's file on it, which can take all the room that there is."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._other = place / "other"

    def fill(self) -> None:
        """Leave no room, whatever was freed since the last call."""
        try:
            with self._other.open("ab", buffering=0) as file:
                while True:
                    file.write(bytes(2**15))
        except OSError as error:
            assert error.errno == errno.ENOSPC, error

    def free(self) -> None:
        """Make room."""
        self._other.unlink()


@pytest.fixture
def disk(router: RouterProcess) -> Iterator[SmallDisk | None]:
    """A disk of 16 MiB where the inbox will be, by a link in the state folder; None where nothing can be mounted."""
    place = router.folder / "disk"
    place.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mounting, capture_output=True).returncode != 0:
        yield None
        return
    try:
        (router.folder / "state").mkdir()
        (router.folder / "state" / "inbox").symlink_to(place)
        yield SmallDisk(place)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


NO_DISK = "needs the right to mount a small tmpfs: run as root; what files that cannot grow do is tested everywhere"


def fill_the_disk(under_way: Run, disk: SmallDisk, upto: int) -> None:
    """Leave no room, send up to that event, and make room when the kernel refused every gateway with more to store.

    A gateway may get all its events into what the router frees before the disk is full again; not all can.
    """
    http = under_way.senders.get("http")
    before = http.refused if isinstance(http, HttpSender) else 0

    def all_refused() -> bool:
        disk.fill()  # again, for the router frees some by reading on
        refused = {name for name, told in under_way.gateways().items() if DISK_FULL in told["reason"]}
        if isinstance(http, HttpSender) and http.refused > before:
            refused.add("http")
        stored = {name for name, sender in under_way.senders.items() if len(sender.confirmed) >= upto}
        return bool(refused) and refused | stored == under_way.senders.keys()

    # What is read later is deleted later, and would make room for all that is sent.
    under_way.wait(lambda: under_way.router.total("xrouter_inbox_records") == 0, "the inbox to be read")
    disk.fill()
    under_way.allow(upto)
    under_way.wait(all_refused, "every gateway to be refused")
    disk.free()


def test_kills_and_a_full_disk(router: RouterProcess, disk: SmallDisk | None, tmp_path: Path) -> None:
    with run(router, ALL, SMALL, tmp_path) as under_way:
        under_way.allow(SMALL // 2)
        kill_the_router(under_way, under_way.total // 10)
        kill_the_brokers(under_way, SMALL // 2)
        if disk is not None:
            fill_the_disk(under_way, disk, SMALL)
        under_way.allow(SMALL)
        under_way.account()
    if disk is None:
        pytest.skip(f"of the disk only; the kills are done: {NO_DISK}")


@full(ALL)
def test_sigkill_of_the_router(router: RouterProcess, tmp_path: Path, protocol: str) -> None:
    with run(router, (protocol,), FULL, tmp_path) as under_way:
        under_way.allow(FULL)
        for goal in (FULL // 4, FULL // 2):
            kill_the_router(under_way, goal)
        under_way.account()


@full(BROKERED)
def test_sigkill_of_the_broker(router: RouterProcess, tmp_path: Path, protocol: str) -> None:
    with run(router, (protocol,), FULL, tmp_path) as under_way:
        for after in (FULL // 4, FULL // 2):
            under_way.allow(FULL)
            kill_the_brokers(under_way, after)
        under_way.allow(FULL)
        under_way.account()


@full(ALL)
def test_a_full_disk(router: RouterProcess, disk: SmallDisk | None, tmp_path: Path, protocol: str) -> None:
    if disk is None:
        pytest.skip(NO_DISK)
    with run(router, (protocol,), FULL, tmp_path) as under_way:
        under_way.allow(FULL // 3)
        under_way.wait(lambda: under_way.confirmed(least=FULL // 3), "the first third")
        fill_the_disk(under_way, disk, FULL)
        under_way.account()
