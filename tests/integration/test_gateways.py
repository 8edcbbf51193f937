"""What every gateway of a broker promises, with real brokers: MQTT 5 and 3.1.1, AMQP 1.0, NATS JetStream."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Iterator

import pytest

from bindings.gateways import Connection, EndpointSubscription, GatewayError, GatewayLimits
from bindings.inbox.space import InboxFull
from tests.support.gateways import (
    ENDPOINT,
    PEERS,
    SECONDS,
    Peer,
    Rows,
    connected,
    make_gateway,
    peer_for_tests,
    record_of,
    running,
    started,
)
from tests.support.ports import free_ports
from tests.support.shop import Counts
from tests.support.waiting import wait_until


@pytest.fixture(scope="module", params=sorted(PEERS))
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    with peer_for_tests(request.param, tmp_path_factory.mktemp("peer")) as each:
        yield each


@pytest.fixture
def name() -> str:
    """A channel that no other test has."""
    return uuid.uuid4().hex[:12]


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def texts(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last)]


def test_what_is_not_stored_comes_again_and_what_is_stored_does_not(peer: Peer, name: str) -> None:
    rows, counts = Rows(held=True), Counts()
    terms = peer.protocol, peer.uri, [peer.wanted(name)]
    with running(*terms, rows, client_id=name, counts=counts) as gateway:
        peer.send(name, numbered(0, 20))
        wait_until(lambda: counts.arrived[ENDPOINT] == 20, SECONDS, "the messages")
        assert counts.stored[ENDPOINT] == 0
        gateway.stop(0.2)  # it does not wait for ever
        assert not gateway.alive and not gateway.connected
        rows.release()
    again, counts = Rows(), Counts()
    with running(*terms, again, client_id=name, counts=counts) as gateway:
        wait_until(lambda: {*texts(0, 20)} <= {*again.bodies()}, SECONDS, "what was never stored")
        wait_until(lambda: counts.stored[ENDPOINT] == len(again.stored), SECONDS, "the acknowledgements")
        assert (gateway.connected, gateway.alive, gateway.trouble) == (True, True, "")
    # A broker that waits a second for acknowledgements sends some again to a busy machine.
    assert sorted({*again.bodies()}, key=int) == texts(0, 20)
    assert {row.protocol for row in again.stored} == {peer.protocol}
    last = Rows()
    with running(*terms, last, client_id=name):
        peer.send(name, [b"last"])
        last.wait(1)
    assert last.bodies() == ["last"]


def test_a_stop_stores_and_acknowledges_what_is_in_flight(peer: Peer, name: str) -> None:
    rows = Rows(held=True)
    terms = peer.protocol, peer.uri, [peer.wanted(name)]
    with running(*terms, rows, client_id=name) as gateway:
        peer.send(name, numbered(0, 100))
        wait_until(lambda: rows.offered, SECONDS, "a first group")
        stopper = threading.Thread(target=gateway.stop, args=(SECONDS,))
        stopper.start()
        rows.held = False
        rows.release()
        stopper.join(SECONDS)
        assert not gateway.alive
    with running(*terms, rows, client_id=name):
        rows.wait(100)
    assert Counter(rows.bodies()) == Counter(texts(0, 100))


def test_a_full_inbox_leaves_messages_with_the_broker(peer: Peer, name: str) -> None:
    rows, counts = Rows(), Counts()
    rows.failing = InboxFull("no room; make some")
    terms = peer.protocol, peer.uri, [peer.wanted(name)]
    with running(*terms, rows, client_id=name, counts=counts, limits=GatewayLimits(max_in_flight=10)) as gateway:
        peer.send(name, numbered(0, 50))
        wait_until(lambda: "no room" in gateway.trouble, SECONDS, "the trouble")
        assert gateway.alive and counts.stored[ENDPOINT] == 0
        if peer.protocol != "AMQP/1.0":  # which releases messages, and gets them again
            assert counts.arrived[ENDPOINT] <= 11
        rows.failing = None
        wait_until(lambda: counts.stored[ENDPOINT] == 50, SECONDS, lambda: f"all rows; {gateway.trouble}")
        wait_until(lambda: gateway.trouble == "", SECONDS, "the end of the trouble")
    assert sorted(rows.bodies(), key=int) == texts(0, 50)


def test_a_row_that_cannot_be_stored_stops_no_other(peer: Peer, name: str, caplog: pytest.LogCaptureFixture) -> None:
    rows, counts = Rows(never=b"5"), Counts()
    with running(peer.protocol, peer.uri, [peer.wanted(name)], rows, client_id=name, counts=counts):
        peer.send(name, numbered(0, 10))
        wait_until(lambda: counts.stored[ENDPOINT] == 9, SECONDS, "the others")
    assert sorted(rows.bodies()) == [text for text in texts(0, 10) if text != "5"]
    assert "ERROR" in {record.levelname for record in caplog.records if "cannot be stored" in record.message}


def test_a_body_past_the_limit_arrives_whole_and_marked(peer: Peer, name: str) -> None:
    rows = Rows()
    limits = GatewayLimits(max_body_bytes=1000)
    with running(peer.protocol, peer.uri, [peer.wanted(name)], rows, client_id=name, limits=limits):
        peer.send(name, [b"x" * 1_000_000, b"y"])
        large, small = sorted(rows.wait(2), key=lambda row: -len(row.body or b""))
    assert (str(record_of(large).native["oversized"]), large.body) == ("1000000", b"x" * 1_000_000)
    assert "oversized" not in record_of(small).native


def test_subscriptions_are_replaced_while_it_runs(peer: Peer, name: str) -> None:
    rows = Rows()
    one, two, three = (peer.wanted(f"{name}{each}", f"/endpoints/{each}") for each in "abc")
    with running(peer.protocol, peer.uri, [one, two], rows, client_id=name) as gateway:
        peer.send(f"{name}a", [b"before"])
        rows.wait(1)
        gateway.replace_subscriptions([two, three])

        # Asked for again and again: nothing tells from outside when the broker granted the new one.
        def arrives() -> bool:
            peer.send(f"{name}c", [b"new"])
            return len(rows.stored) > 1

        wait_until(arrives, SECONDS, "the new subscription")
        connected(gateway)
        peer.send(f"{name}a", [b"nobody's"])
        peer.send(f"{name}b", [b"stays"])
        wait_until(lambda: "stays" in rows.bodies(), SECONDS, "the subscription that stays")
        with pytest.raises(GatewayError):
            gateway.replace_subscriptions([EndpointSubscription(ENDPOINT, "")])
    found = {(row.endpoint, row.body) for row in rows.stored}
    assert found == {("/endpoints/a", b"before"), ("/endpoints/b", b"stays"), ("/endpoints/c", b"new")}


def test_a_broker_that_is_away_is_waited_for(peer: Peer, name: str) -> None:
    rows = Rows()
    # Nobody is ever at the first address: the next one is tried.
    nowhere = f"{peer.uri.partition('://')[0]}://127.0.0.1:{free_ports(1)[0]}"
    terms = Connection((nowhere, peer.uri)), [peer.wanted(name)]
    peer.broker.kill()
    with started(peer.protocol, *terms, rows, client_id=name) as gateway:
        for number in range(2):
            wait_until(lambda: gateway.trouble and not gateway.connected, SECONDS, "the trouble")
            assert gateway.alive
            peer.start()
            connected(gateway)
            wait_until(lambda: gateway.trouble == "", SECONDS, lambda: gateway.trouble)
            peer.send(name, [b"%d" % number])
            rows.wait(number + 1)
            if not number:
                peer.broker.kill()
    assert set(rows.bodies()) == {"0", "1"}


def test_what_can_never_work_is_said_at_once(peer: Peer) -> None:
    with pytest.raises(GatewayError):
        make_gateway(peer.protocol, "http://host", [peer.wanted("a")], Rows()).start()
    with pytest.raises(GatewayError):
        make_gateway(peer.protocol, peer.uri, [EndpointSubscription(ENDPOINT, "")], Rows()).start()
