"""Gateways of brokers when things die: what a sender was told is taken, is in the inbox; what is not, comes again.

Run as a script, this file is the gateway that gets killed: see ``serve``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bindings.gateways import EndpointSubscription, GatewayLimits
from bindings.inbox.format import InboxPosition
from bindings.inbox.log import Inbox
from bindings.inbox.source import InboxView
from bindings.inbox.space import InboxLimits
from tests.support.gateways import ENDPOINT, PEERS, Peer, make_gateway, peer_for_tests, rows_in, running
from tests.support.senders import Sender
from tests.support.shop import Counts
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
SECONDS = 600.0
LIMITS = GatewayLimits(max_in_flight=200)
SIZES = pytest.mark.parametrize(("count", "deaths"), [(1500, 2), pytest.param(50_000, 4, marks=pytest.mark.full)])


@pytest.fixture(scope="module", params=sorted(PEERS))
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    with peer_for_tests(request.param, tmp_path_factory.mktemp("peer")) as each:
        yield each


def serve(protocol: str, uri: str, address: str, options: str, inbox: str) -> None:
    """Run a gateway for ever; it says how many messages it has acknowledged."""
    counts, said = Counts(), 0
    wanted = [EndpointSubscription(ENDPOINT, address, json.loads(options))]
    gateway = make_gateway(protocol, uri, wanted, Inbox(Path(inbox)), client_id="killed", limits=LIMITS, counts=counts)
    gateway.start()
    wait_until(lambda: gateway.connected, SECONDS, lambda: gateway.trouble)
    os.write(1, b"up\n")
    while True:
        before = said
        wait_until(lambda before=before: counts.stored[ENDPOINT] > before, 3600, "messages")  # type: ignore[misc]
        said = counts.stored[ENDPOINT]
        os.write(1, b"%d\n" % said)


@contextmanager
def killed_after(peer: Peer, name: str, inbox: Path, count: int) -> Iterator[None]:
    """Run a gateway in a process of its own, and kill it when it has acknowledged that many messages."""
    wanted = peer.wanted(name)
    arguments = [peer.protocol, peer.uri, wanted.address, json.dumps(dict(wanted.options)), str(inbox)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield
        while int(process.stdout.readline() or count) < count:
            pass
        process.kill()


def numbers(inbox: Path) -> list[int]:
    return [int((row.body or b"").split()[0]) for row in rows_in(inbox)]


@contextmanager
def sending(peer: Peer, name: str, count: int) -> Iterator[Sender]:
    sender = peer.sender(name, count)
    sender.start()
    try:
        yield sender
    finally:
        sender.end()
    assert sender.failure is None and sender.confirmed == set(range(count))


def everything_is_there(inbox: Path, count: int) -> None:
    wait_until(lambda: len(set(numbers(inbox))) == count, SECONDS, lambda: f"{count}, there are {len(numbers(inbox))}")


@SIZES
def test_a_killed_gateway_loses_nothing(peer: Peer, tmp_path: Path, count: int, deaths: int) -> None:
    path = tmp_path / "inbox"
    share = count // (deaths + 1)
    terms = peer.protocol, peer.uri, [peer.wanted("killed")]
    subscribed = Inbox(path)
    with running(*terms, subscribed, client_id="killed"):
        pass  # its session has what comes from now on
    subscribed.close()
    with sending(peer, "killed", count) as sender:
        for number in range(deaths):
            sender.allow(share * (number + 1))
            with killed_after(peer, "killed", path, share // 2):
                pass
        inbox = Inbox(path)
        with running(*terms, inbox, client_id="killed"):
            sender.allow(count)
            sender.join(SECONDS)
            everything_is_there(path, count)
        inbox.close()
    if peer.protocol != "MQTT/3.1.1":  # which cannot tell a broker how many messages it takes
        # One more each: at its limit a gateway reads on, since pings come between the messages.
        assert len(numbers(path)) - count <= deaths * (LIMITS.max_in_flight + 1)


@pytest.mark.parametrize(("count", "deaths"), [(1500, 1), pytest.param(50_000, 4, marks=pytest.mark.full)])
def test_a_broker_that_dies_loses_nothing_that_it_acknowledged(
    peer: Peer, tmp_path: Path, count: int, deaths: int
) -> None:
    path = tmp_path / "inbox"
    inbox = Inbox(path)
    # mosquitto writes what it has at an orderly end.
    end = peer.broker.stop if peer.protocol.startswith("MQTT") else peer.broker.kill
    with (
        running(peer.protocol, peer.uri, [peer.wanted("stays")], inbox, client_id="stays") as gateway,
        sending(peer, "stays", count) as sender,
    ):
        for number in range(deaths):
            sender.allow(count * (number + 1) // (deaths + 1))
            before = count * number // (deaths + 1)
            wait_until(lambda before=before: len(sender.confirmed) > before, SECONDS, "messages")  # type: ignore[misc]
            end()
            wait_until(lambda: not gateway.connected and gateway.trouble, SECONDS, "the gateway's notice")
            assert gateway.alive
            peer.broker.start()
            wait_until(lambda: gateway.connected, SECONDS, lambda: gateway.trouble)
        sender.allow(count)
        sender.join(SECONDS)
        everything_is_there(path, count)
    inbox.close()


def test_a_full_inbox_holds_and_goes_on(peer: Peer, tmp_path: Path) -> None:
    path, count, counts = tmp_path / "inbox", 600, Counts()
    inbox = Inbox(path, partitions=1, limits=InboxLimits(segment_bytes=20_000, max_bytes=150_000, min_free_bytes=0))
    read: set[int] = set()
    terms = peer.protocol, peer.uri, [peer.wanted("full")], inbox
    with running(*terms, client_id="full", counts=counts, limits=GatewayLimits(max_in_flight=50)) as gateway:
        peer.send("full", [b"%d " % number + b"x" * 500 for number in range(count)])
        wait_until(lambda: "max_bytes" in gateway.trouble, SECONDS, "a full inbox")
        assert gateway.alive and counts.stored[ENDPOINT] < count

        def all_there() -> bool:
            """Read and delete, as the router would, until everything went through."""
            view = InboxView(path)
            # Where it ends before it is read: what comes meanwhile, and the segments that it fills, stay.
            end = view.end_position(0)
            read.update(numbers(path))
            view.trim_segments(0, InboxPosition(end.segment, 0))
            return len(read) == count

        wait_until(all_there, SECONDS, lambda: f"all messages, {len(read)} are there")
        wait_until(lambda: not gateway.trouble, SECONDS, "the end of the trouble")
    inbox.close()


if __name__ == "__main__":
    serve(*sys.argv[1:])
