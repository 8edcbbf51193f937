"""The MQTT gateway when things die: what the broker was told is taken, is stored; what is not, comes again.

Run as a script, this file is the gateway that gets killed: see ``serve``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

from bindings.gateways import GatewayLimits
from bindings.inbox import Inbox, InboxFull, InboxLimits, InboxRowError
from bindings.inbox.format import InboxPosition
from bindings.inbox.source import InboxView
from bindings.mqtt.messages import Version
from bindings.parts import InboxRow
from tests.support.mqtt import LIMIT_SECONDS, Client, Mosquitto, Rows, bodies_in, connected, gateway, running
from tests.support.shop import Counts
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
E = "/endpoints/e"
TOPICS = 10
BOTH = pytest.mark.parametrize("protocol", ["MQTT/5.0", "MQTT/3.1.1"])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path / "mosquitto") as each:
        yield each


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def send(client: Client, first: int, last: int) -> None:
    """Send numbered messages over some topics, and return when the broker has all of them."""
    infos = [client.begin(f"many/{number % TOPICS}", b"%d" % number) for number in range(first, last)]
    for info in infos:
        info.wait_for_publish(LIMIT_SECONDS)
        assert info.is_published()


def serve(uri: str, inbox: str, protocol: Version) -> None:
    """Run a gateway for ever; it says ``up`` when connected. Without an inbox it stores nothing, and counts aloud."""
    counts = Counts()
    store = Inbox(Path(inbox)) if inbox else Rows(held=True)
    each = gateway(uri, {E: "many/+"}, store, protocol=protocol, counts=counts)
    each.start()
    connected(each)
    os.write(1, b"up\n")
    said: list[int] = [0]
    while True:
        said.append(wait_until(lambda: counts.arrived[E] if counts.arrived[E] > said[-1] else None, 3600, "messages"))
        os.write(1, b"%d\n" % said[-1])


class Child:
    """A gateway in a process of its own."""

    def __init__(self, uri: str, inbox: Path | None, protocol: Version = "MQTT/5.0") -> None:
        arguments = [sys.executable, __file__, uri, str(inbox or ""), protocol]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(arguments, stdout=subprocess.PIPE, env=environment, cwd=ROOT)
        assert self._process.stdout is not None
        self._output = self._process.stdout
        assert self._output.readline() == b"up\n"

    def wait_for(self, arrived: int) -> None:
        """Wait until that many messages arrived."""
        while True:
            line = self._output.readline()
            assert line, "the gateway ended"
            if int(line) >= arrived:
                return

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.kill()
        self._process.wait(LIMIT_SECONDS)
        self._output.close()


@BOTH
def test_nothing_is_acknowledged_before_it_is_stored(broker: Mosquitto, tmp_path: Path, protocol: Version) -> None:
    child = Child(broker.uri, None, protocol)
    with Client(broker.uri) as client:
        send(client, 0, 100)
        child.wait_for(100)
    child.kill()
    rows = Rows()
    with running(broker.uri, {E: "many/+"}, rows, protocol=protocol):
        wait_until(lambda: len(rows.stored) >= 100, LIMIT_SECONDS, "what was never stored")
    assert sorted(rows.bodies()) == sorted(body.decode() for body in numbered(0, 100))


@BOTH
def test_what_is_stored_is_acknowledged_once_for_all(broker: Mosquitto, protocol: Version) -> None:
    rows, counts = Rows(held=True), Counts()
    with Client(broker.uri) as client, running(broker.uri, {E: "many/+"}, rows, protocol=protocol, counts=counts):
        send(client, 0, 100)
        wait_until(lambda: counts.arrived[E] == 100, LIMIT_SECONDS, "the messages")
        assert counts.stored[E] == 0
        rows.held = False
        rows.release()
        wait_until(lambda: counts.stored[E] == 100, LIMIT_SECONDS, "the acknowledgements")
    again = Rows()
    with Client(broker.uri) as client, running(broker.uri, {E: "many/+"}, again, protocol=protocol):
        send(client, 100, 101)
        wait_until(lambda: again.stored, LIMIT_SECONDS, "the next message")
    assert again.bodies() == ["100"]


def test_a_stop_stores_and_acknowledges_what_is_held(broker: Mosquitto) -> None:
    rows = Rows(held=True)
    each = gateway(broker.uri, {E: "many/+"}, rows)
    each.start()
    connected(each)
    with Client(broker.uri) as client:
        send(client, 0, 500)
    wait_until(lambda: rows.offered, LIMIT_SECONDS, "a first group")
    stopper = threading.Thread(target=each.stop, args=(LIMIT_SECONDS,))
    stopper.start()
    rows.held = False
    rows.release()
    stopper.join(LIMIT_SECONDS)
    assert not each.alive
    with running(broker.uri, {E: "many/+"}, rows):
        wait_until(lambda: len(rows.stored) >= 500, LIMIT_SECONDS, "the rest")
    assert Counter(rows.bodies()) == Counter(body.decode() for body in numbered(0, 500))


def test_a_stop_does_not_wait_for_ever(broker: Mosquitto) -> None:
    rows = Rows(held=True)
    each = gateway(broker.uri, {E: "many/+"}, rows)
    each.start()
    connected(each)
    with Client(broker.uri) as client:
        send(client, 0, 10)
    wait_until(lambda: rows.offered, LIMIT_SECONDS, "a first group")
    each.stop(0.2)
    assert not each.alive
    rows.release()


@BOTH
def test_a_broker_that_crashes_and_comes_back(broker: Mosquitto, protocol: Version) -> None:
    """No acknowledgement of the first connection reaches the second, whose packet identifiers are the same."""
    rows, counts = Rows(held=True), Counts()
    with running(broker.uri, {E: "many/+"}, rows, protocol=protocol, counts=counts) as each:
        with Client(broker.uri) as client:
            send(client, 0, 300)
            wait_until(lambda: counts.arrived[E] == 300, LIMIT_SECONDS, "the messages")
            broker.save()
        broker.kill()
        wait_until(lambda: not each.connected and each.trouble, LIMIT_SECONDS, "the gateway to notice")
        rows.failing = InboxFull("no room")
        rows.release()  # the first group: it belongs to a connection that is gone
        broker.start()
        connected(each)
        wait_until(lambda: counts.arrived[E] >= 600, LIMIT_SECONDS, "all messages once more")
        assert counts.stored[E] == 0
        rows.failing, rows.held = None, False
        rows.release()
        wait_until(lambda: counts.stored[E] == 300, LIMIT_SECONDS, "the acknowledgements")
        assert each.trouble == ""
        with Client(broker.uri) as client:
            send(client, 300, 400)
        wait_until(lambda: len(set(rows.bodies())) == 400, LIMIT_SECONDS, "what was sent later")
    assert set(rows.bodies()) == {body.decode() for body in numbered(0, 400)}


def test_a_broker_that_forgot_the_session_is_subscribed_to_again(broker: Mosquitto) -> None:
    rows = Rows()
    with running(broker.uri, {E: "many/+"}, rows) as each:
        broker.kill()  # nothing was saved
        wait_until(lambda: not each.connected, LIMIT_SECONDS, "the gateway to notice")
        broker.start()
        connected(each)
        with Client(broker.uri) as client:
            send(client, 0, 10)
        wait_until(lambda: len(rows.stored) == 10, LIMIT_SECONDS, "the messages")


@BOTH
def test_restarts_of_the_broker_lose_nothing(broker: Mosquitto, tmp_path: Path, protocol: Version) -> None:
    inbox = Inbox(tmp_path / "inbox")
    with running(broker.uri, {E: "many/+"}, inbox, protocol=protocol), Client(broker.uri) as client:
        for first in (0, 500, 1000):
            for body in numbered(first, first + 500):
                client.begin("many/1", body)  # while the broker is away, paho keeps it
            broker.restart()
            wait_until(partial(client.has_confirmed, first + 500), LIMIT_SECONDS, "all confirmations")
        wait_until(lambda: len(set(bodies_in(inbox.path))) == 1500, LIMIT_SECONDS, "all messages")
    inbox.close()


def crash_in_the_middle(broker: Mosquitto, inbox: Path, messages: int, kills: int, protocol: Version) -> None:
    """Kill the gateway several times in a run, and check that what was sent is what is stored."""
    share = messages // (kills + 1)
    with Client(broker.uri) as client:
        for round_ in range(kills):
            child = Child(broker.uri, inbox, protocol)
            sender = threading.Thread(target=send, args=(client, share * round_, share * (round_ + 1)))
            sender.start()
            child.wait_for(share // 2)
            child.kill()
            sender.join(LIMIT_SECONDS * 5)
        store, counts = Inbox(inbox), Counts()
        with running(broker.uri, {E: "many/+"}, store, protocol=protocol, counts=counts):
            send(client, share * kills, messages)
            wait_until(
                lambda: len(set(bodies_in(inbox))) >= messages,
                LIMIT_SECONDS * 5,
                lambda: f"all; {counts.stored[E]} now",
            )
        store.close()
    assert set(bodies_in(inbox)) == set(numbered(0, messages))


@BOTH
def test_a_killed_gateway_loses_nothing(broker: Mosquitto, tmp_path: Path, protocol: Version) -> None:
    crash_in_the_middle(broker, tmp_path / "inbox", 3_000, 2, protocol)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_a_killed_gateway_loses_nothing_in_a_long_run(broker: Mosquitto, tmp_path: Path) -> None:
    crash_in_the_middle(broker, tmp_path / "inbox", 50_000, 4, "MQTT/5.0")


@BOTH
def test_a_full_inbox_holds_and_goes_on(broker: Mosquitto, tmp_path: Path, protocol: Version) -> None:
    path = tmp_path / "inbox"
    limits = InboxLimits(segment_bytes=20_000, max_bytes=150_000, min_free_bytes=0)
    inbox, counts = Inbox(path, partitions=1, limits=limits), Counts()
    read: list[bytes] = []
    body = b"x" * 500
    with (
        running(
            broker.uri, {E: "many/+"}, inbox, protocol=protocol, counts=counts, limits=GatewayLimits(max_in_flight=50)
        ) as each,
        Client(broker.uri) as client,
    ):
        client.send_all("many/1", [b"%d " % number + body for number in range(1_000)])
        trouble = wait_until(lambda: each.trouble, LIMIT_SECONDS, "a full inbox")
        assert "max_bytes" in trouble
        assert each.connected
        assert counts.stored[E] < 1_000
        assert counts.arrived[E] - counts.stored[E] <= 51

        def all_there() -> bool:
            """Read and delete, as the router would, until everything went through."""
            view = InboxView(path)
            # Where it ends before it is read: what comes meanwhile, and the segments that it fills, stay.
            end = view.end_position(0)
            read.extend(bodies_in(path))
            view.trim_segments(0, InboxPosition(end.segment, 0))
            return len(set(read)) == 1_000

        wait_until(all_there, LIMIT_SECONDS, lambda: f"all messages, {len(set(read))} of 1000 are there")
        wait_until(lambda: counts.stored[E] == 1_000 and not each.trouble, LIMIT_SECONDS, "the acknowledgements")
    inbox.close()
    assert {int(each.split()[0]) for each in read} == set(range(1_000))


class Picky(Rows):
    """Refuses a row, and with it its whole group, as the inbox would one that fits no frame."""

    def append_many(self, rows: Sequence[InboxRow]) -> Future[None]:
        if all(row.body != b"5" for row in rows):
            return super().append_many(rows)
        refused: Future[None] = Future()
        refused.set_exception(InboxRowError("not a row that can be stored"))
        return refused


def test_a_row_that_cannot_be_stored_stops_no_other(broker: Mosquitto, caplog: pytest.LogCaptureFixture) -> None:
    rows, counts = Picky(), Counts()
    with running(broker.uri, {E: "many/+"}, rows, counts=counts), Client(broker.uri) as client:
        send(client, 0, 10)
        wait_until(lambda: len(rows.stored) == 9, LIMIT_SECONDS, "the others")
        wait_until(lambda: counts.stored[E] == 9, LIMIT_SECONDS, "their acknowledgements")
    assert [record.levelname for record in caplog.records if "cannot be stored" in record.message] == ["ERROR"]
    everything = Rows()
    with running(broker.uri, {E: "many/+"}, everything):
        wait_until(lambda: everything.stored, LIMIT_SECONDS, "the message that the broker still has")
    assert everything.bodies() == ["5"]


if __name__ == "__main__":
    version: Version = "MQTT/5.0" if sys.argv[3] == "MQTT/5.0" else "MQTT/3.1.1"
    serve(sys.argv[1], sys.argv[2], version)
