"""What only AMQP has, with a real broker or a peer: sections and types, outcomes, filters, durable subscriptions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from bindings.amqp.publisher import AmqpSender
from bindings.gateways import Connection, EndpointSubscription
from bindings.inbox.space import InboxFull
from bindings.parts import InboxRow
from bindings.sending import MessageRefusal, Unsettled
from tests.support.amqp import (
    TOLD,
    UNREADABLE,
    ChoosyPeer,
    Peer,
    amqp_message,
    create_queue,
    delete_queue,
    depth,
    numbered,
    queue_name,
    receive_all,
    section,
    send_bytes,
)
from tests.support.gateways import ENDPOINT, SECONDS, Rows, connected, make_gateway, running, started
from tests.support.qpid import amqp_for_tests
from tests.support.shop import Counts
from tests.support.waiting import wait_until

AMQP = "AMQP/1.0"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with amqp_for_tests(tmp_path_factory.mktemp("qpid")) as uri:
        yield uri


def ids(rows: list[InboxRow]) -> list[int]:
    return sorted(int(part.value or b"") for row in rows for part in row.properties if part.key.endswith("message-id"))


def test_a_peer_that_settles_by_itself_and_one_that_sends_no_message() -> None:
    payloads, rows, counts = [*numbered(3), b"no message"], Rows(), Counts()
    rows.failing = InboxFull("no room")
    with Peer(payloads, settled=True) as peer, started(AMQP, peer.uri, {ENDPOINT: "any"}, rows, counts=counts):
        # They will not come again: what the store refuses is kept, and stored when there is room.
        wait_until(lambda: rows.offered >= 4, SECONDS, "the messages")
        rows.failing = None
        rows.wait(4)
    with Peer(payloads, settled=False) as peer, started(AMQP, peer.uri, {ENDPOINT: "any"}, rows):
        wait_until(lambda: peer.outcomes == ["accepted"] * 4, SECONDS, lambda: f"the outcomes; {peer.outcomes}")
    assert ids(rows.stored) == [0, 0, 1, 1, 2, 2]
    odd = [row for row in rows.stored if row.body == b"no message"]
    assert [[part.key for part in row.properties] for row in odd] == [["undecodable"]] * 2


def test_the_log_says_what_a_stop_loses(caplog: pytest.LogCaptureFixture) -> None:
    rows = Rows(held=True)
    with Peer(numbered(3), settled=True) as peer, started(AMQP, peer.uri, {ENDPOINT: "any"}, rows) as gateway:
        wait_until(lambda: rows.offered >= 1, SECONDS, "the messages")
        gateway.stop(0.2)
    assert [each.message for each in caplog.records if "lost" in each.message] == ["3 pre-settled messages are lost"]


def test_a_gateway_that_never_ran_stops_at_once() -> None:
    idle = make_gateway(AMQP, "amqp://h", {ENDPOINT: "any"}, Rows())
    idle.stop(5.0)
    assert (idle.alive, idle.connected, idle.trouble) == (False, False, "")


def test_a_node_that_is_not_there_is_trouble_and_no_more(broker: str) -> None:
    good, rows = queue_name(), Rows()
    with started(AMQP, broker, {ENDPOINT: good, "/endpoints/bad": "missing"}, rows) as gateway:
        wait_until(lambda: "/endpoints/bad, node missing: amqp:not-found" in gateway.trouble, SECONDS, "the trouble")
        assert gateway.alive and not gateway.connected
        send_bytes(broker, good, numbered(3))
        rows.wait(3)
        create_queue(broker, "missing")
        connected(gateway)
        assert gateway.trouble == ""
        delete_queue(broker, good)  # one that is deleted is taken again when it is back
        send_bytes(broker, good, numbered(3))
        rows.wait(6)
    delete_queue(broker, "missing")


def test_copies_stay_where_they_are(broker: str) -> None:
    queue, rows = queue_name(), Rows()
    send_bytes(broker, queue, numbered(4))
    with running(AMQP, broker, [EndpointSubscription(ENDPOINT, queue, {"distribution-mode": "copy"})], rows):
        rows.wait(4)
    assert depth(broker, queue) == 4


@pytest.mark.parametrize(
    "filters",
    [
        {"selector": "colour = 'red'"},
        {"apache.org:selector-filter:string": "colour = 'red'"},
        {"mine": {"descriptor": "apache.org:selector-filter:string", "value": "colour = 'red'"}},
    ],
)
def test_source_filters_decide_what_comes(broker: str, filters: dict[str, Any]) -> None:
    queue, rows = queue_name(), Rows()
    colours = [
        section("application-properties", {"colour": colour}) + section("data", colour.encode())
        for colour in ("red", "blue", "red", "blue", "blue")
    ]
    send_bytes(broker, queue, colours)
    with running(AMQP, broker, [EndpointSubscription(ENDPOINT, queue, {"source-filters": filters})], rows):
        rows.wait(2)
    assert rows.bodies() == ["red", "red"]
    assert depth(broker, queue) == 3


def test_a_filter_that_is_not_applied_is_trouble_and_takes_nothing(broker: str) -> None:
    queue, rows = queue_name(), Rows()
    send_bytes(broker, queue, numbered(2))
    wanted = [EndpointSubscription(ENDPOINT, queue, {"sourcefilters": {"example.com:colour": "red"}})]
    with started(AMQP, broker, wanted, rows) as gateway:  # a broker that says so
        wait_until(lambda: "filter" in gateway.trouble, SECONDS, "the trouble")
        assert not gateway.connected and "example.com:colour" in gateway.trouble
    assert depth(broker, queue) == 2
    with Peer(numbered(2), settled=False) as peer:  # and one that would send everything
        with started(AMQP, peer.uri, wanted, rows) as gateway:
            wait_until(lambda: "does not apply the source filter" in gateway.trouble, SECONDS, "the trouble")
            assert not gateway.connected and not rows.offered
        assert peer.outcomes == []


def test_a_durable_subscription_outlives_the_gateway(broker: str) -> None:
    options = {"durable": True, "link-properties": {"purpose": "test"}}
    wanted, rows = [EndpointSubscription(ENDPOINT, "amq.topic/news", options)], Rows()
    connection = Connection((broker,), options={"connection-properties": {"purpose": "test"}})
    with running(AMQP, connection, wanted, rows, client_id="durable"):
        pass
    send_bytes(broker, "amq.topic/news", numbered(3))
    with running(AMQP, connection, wanted, rows, client_id="durable"):
        rows.wait(3)


def sender(uri: str) -> closing[AmqpSender]:
    return closing(AmqpSender(Connection((uri,)), container_id="s", timeout=SECONDS))


def test_the_sender_tells_what_became_of_each_message(broker: str) -> None:
    queue, small = queue_name(), queue_name()
    create_queue(broker, small, maximumQueueDepthMessages=2, overflowPolicy="REJECT")
    with sender(broker) as out:
        many = [amqp_message(queue, str(each).encode(), properties={"message-id": str(each)}) for each in range(100)]
        assert out.send(many) == [None] * 100
        assert [int(str(message.id)) for message in receive_all(broker, queue, 100)] == list(range(100))
        answers = out.send([amqp_message(small, b"x"), amqp_message(queue, b"y"), *[amqp_message(small, b"x")] * 3])
        refused = [answer for answer in answers if answer is not None]
        assert len(refused) == 2 and answers[:2] == [None, None]
        said = "the broker rejected it: amqp:resource-limit-exceeded "
        assert all(answer.reason.startswith(said) and len(answer.reason) > len(said) for answer in refused)
        bad = amqp_message(queue, b"x", properties={"colour": "red"})
        assert out.send([bad, amqp_message(queue, None)]) == [
            MessageRefusal("the broker rejected it: amqp:encode-error AMQP messages have no property colour"),
            None,
        ]
        with pytest.raises(Unsettled, match="node nowhere: amqp:not-found"):
            out.send([amqp_message("nowhere", b"x"), amqp_message(queue, b"x")])


def test_a_message_whose_answer_cannot_be_read_is_refused_and_no_other_answer_counts_for_it() -> None:
    with ChoosyPeer() as peer, sender(peer.uri) as out:
        first, unreadable, *others = out.send([amqp_message("q", body) for body in (b"1", UNREADABLE, b"2", b"3")])
        assert (first, *others, *out.send([amqp_message("q", b"4")])) == (None,) * 4
        # What a broker says itself needs no other message to compare with.
        (told,) = out.send([amqp_message("q", TOLD)])
    assert unreadable is not None
    assert told is not None and "amqp:decode-error: no message at all" in told.reason
    assert list(dict.fromkeys(peer.taken)) == [b"1", b"2", b"3", b"4"]
