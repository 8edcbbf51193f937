"""JetStream through crashes of the gateway and of the server: what a publisher was told is stored, is in the inbox.

Run as a script, this file is a gateway process that gets killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest
from nats.js.errors import Error as StreamError

from bindings.gateways import Connection, GatewayLimits
from bindings.inbox import Inbox, InboxLimits
from bindings.inbox.source import InboxView
from tests.support.nats import NatsServer, consumer, make_stream, running, stream
from tests.support.shop import Counts
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
SECONDS = 300
READY = b"ready\n"
sizes = pytest.mark.parametrize("count", [3000, pytest.param(50_000, marks=pytest.mark.full)])


class Publisher(threading.Thread):
    """nats-py sending numbered messages, each until the server says that it is stored, through its absences."""

    def __init__(self, server: NatsServer, count: int) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._count = count
        self.stored: set[bytes] = set()

    def run(self) -> None:
        """Send all."""
        asyncio.run(self._run())

    def past(self, share: float) -> bool:
        """Tell whether that share of the messages is stored."""
        return len(self.stored) >= share * self._count

    async def _run(self) -> None:
        async def quiet(_: Exception) -> None:
            """The server's absences are meant."""

        client = await nats.connect(
            self._server.uri, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=quiet
        )
        context = client.jetstream()

        async def send(number: int) -> None:
            body = b"%d" % number
            while body not in self.stored:
                with contextlib.suppress(StreamError, nats.errors.Error, TimeoutError):
                    await context.publish(f"js.{number % 7}", body, timeout=2, headers={"Nats-Msg-Id": str(number)})
                    self.stored.add(body)

        for start in range(0, self._count, 100):
            await asyncio.gather(*(send(number) for number in range(start, min(start + 100, self._count))))
        await client.close()


class GatewayProcess:
    """A gateway with its inbox, in a process of its own."""

    def __init__(self, server: NatsServer, inbox: Path) -> None:
        self._arguments = [sys.executable, str(Path(__file__)), server.uri, str(inbox)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and return when it is connected."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            self._arguments, stdout=subprocess.PIPE, stdin=subprocess.PIPE, env=environment
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == READY

    def end(self, by: signal.Signals) -> None:
        """End it, at once or in good order."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(by)
            process.communicate(timeout=SECONDS)


def bodies(inbox: Path) -> list[bytes]:
    view = InboxView(inbox)
    return [
        body
        for each in view.partitions
        for batch in view.read_spans(each, view.plan_spans(each, view.first_position(each), view.end_position(each)))
        for body in batch.column("body").to_pylist()
    ]


def taken(server: NatsServer) -> bool:
    """Tell whether everything in the stream was delivered and acknowledged."""
    info = consumer(server)
    return bool(info.num_pending == 0 and info.num_ack_pending == 0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats") as started:
        make_stream(started)
        yield started


@sizes
def test_a_killed_gateway_loses_nothing(server: NatsServer, tmp_path: Path, count: int) -> None:
    inbox = tmp_path / "inbox"
    gateway, publisher = GatewayProcess(server, inbox), Publisher(server, count)
    gateway.start()
    publisher.start()
    try:
        for share in (0.2, 0.5, 0.8):
            wait_until(lambda share=share: publisher.past(share), SECONDS, "the publisher")  # type: ignore[misc]
            gateway.end(signal.SIGKILL)
            gateway.start()
        publisher.join(SECONDS)
        wait_until(lambda: taken(server), SECONDS, lambda: f"the last acknowledgement: {consumer(server)}")
    finally:
        gateway.end(signal.SIGTERM)
    found = bodies(inbox)
    assert set(found) == publisher.stored
    assert len(publisher.stored) == count


@sizes
def test_a_killed_server_loses_nothing_that_it_acknowledged(server: NatsServer, tmp_path: Path, count: int) -> None:
    path = tmp_path / "inbox"
    inbox, counts = Inbox(path, limits=InboxLimits(min_free_bytes=0)), Counts()
    publisher = Publisher(server, count)
    try:
        with running(server, inbox, stream(ackwait=2), counts=counts) as gateway:
            publisher.start()
            for share in (0.3, 0.6):
                wait_until(lambda share=share: publisher.past(share), SECONDS, "the publisher")  # type: ignore[misc]
                server.kill()
                wait_until(lambda: not gateway.connected and gateway.trouble, SECONDS, "the gateway's notice")
                server.start()
                wait_until(lambda: gateway.connected, SECONDS, lambda: gateway.trouble)
            publisher.join(SECONDS)
            wait_until(lambda: taken(server), SECONDS, lambda: f"the last acknowledgement: {consumer(server)}")
    finally:
        inbox.close()
    assert publisher.stored - set(bodies(path)) == set()
    assert len(publisher.stored) == count


def test_a_full_disk_holds_the_stream_until_there_is_room(server: NatsServer, tmp_path: Path) -> None:
    count, path = 2000, tmp_path / "inbox"
    publisher, counts = Publisher(server, count), Counts()
    publisher.start()
    publisher.join(SECONDS)
    small = Inbox(path, limits=InboxLimits(min_free_bytes=0, max_bytes=40_000))
    with running(server, small, stream(ackwait=2), counts=counts, limits=GatewayLimits(max_in_flight=100)) as gateway:
        wait_until(lambda: "raise max_bytes" in gateway.trouble, SECONDS, lambda: f"a full inbox: {counts.stored}")
        assert 0 < counts.stored.total() < count
        assert consumer(server).num_ack_pending <= 100
    small.close()
    assert len(bodies(path)) >= counts.stored.total()
    large = Inbox(path, limits=InboxLimits(min_free_bytes=0))
    with running(server, large, stream()):
        wait_until(lambda: taken(server), SECONDS, lambda: f"the last acknowledgement: {consumer(server)}")
    large.close()
    assert set(bodies(path)) == publisher.stored == {b"%d" % number for number in range(count)}


def serve(uri: str, path: Path) -> None:
    """Be a gateway until SIGTERM."""
    inbox = Inbox(path, limits=InboxLimits(min_free_bytes=0))
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    with running(Connection((uri,)), inbox, stream(ackwait=2)):
        sys.stdout.buffer.write(READY)
        sys.stdout.flush()
        ending.wait()
    inbox.close()


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]))
