"""The AMQP sender with a real broker: what became of each message, and what arrives of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bindings.amqp import binding
from bindings.amqp.publisher import AmqpSender
from bindings.amqp.values import AmqpValue
from bindings.gateways import Connection
from bindings.inbox import Inbox
from bindings.sending import MessageRefusal, Unsettled
from tests.support.amqp import (
    ENDPOINT,
    SECONDS,
    SILENT,
    TOLD,
    UNREADABLE,
    ChoosyPeer,
    amqp_message,
    create_queue,
    queue_name,
    receive_all,
    running,
    stored,
)
from tests.support.qpid import amqp_for_tests
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with amqp_for_tests(tmp_path_factory.mktemp("qpid")) as uri:
        yield uri


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    opened = Inbox(tmp_path / "inbox")
    try:
        yield opened
    finally:
        opened.close()


def test_the_sender_tells_what_became_of_each_message(broker: str) -> None:
    queue, small = queue_name(), queue_name()
    create_queue(broker, small, maximumQueueDepthMessages=2, overflowPolicy="REJECT")
    sender = AmqpSender(Connection((broker,)), container_id="s", timeout=SECONDS, max_in_flight=50)
    try:
        many = [amqp_message(queue, str(each).encode(), properties={"message-id": str(each)}) for each in range(500)]
        assert sender.send(many) == [None] * 500
        assert [int(str(message.id)) for message in receive_all(broker, queue, 500)] == list(range(500))
        answers = sender.send([amqp_message(small, b"x"), amqp_message(queue, b"y"), *[amqp_message(small, b"x")] * 3])
        refused = [answer for answer in answers if answer is not None]
        assert len(refused) == 2 and answers[:2] == [None, None]
        said = "the broker rejected it: amqp:resource-limit-exceeded "
        assert all(answer.reason.startswith(said) and len(answer.reason) > len(said) for answer in refused)
        bad = amqp_message(queue, b"x", properties={"colour": "red"})
        assert sender.send([bad, amqp_message(queue, b"z")]) == [
            MessageRefusal("the broker rejected it: amqp:encode-error AMQP messages have no property colour"),
            None,
        ]
        with pytest.raises(Unsettled, match="node nowhere: amqp:not-found"):
            sender.send([amqp_message("nowhere", b"x"), amqp_message(queue, b"x")])
        assert sender.send([amqp_message(queue, b"x"), amqp_message(queue, None)]) == [None, None]
        assert sender.send([]) == []
        sender.close()
        assert sender.send([amqp_message(queue, b"x")]) == [None]
    finally:
        sender.close()


def test_a_message_at_which_the_broker_ends_the_connection_is_refused() -> None:
    bodies = [b"1", TOLD, b"2", SILENT, b"3"]
    with ChoosyPeer() as peer:
        sender = AmqpSender(Connection((peer.uri,)), container_id="s", timeout=SECONDS)
        answers = sender.send([amqp_message("q", body) for body in bodies])
        # What it says itself needs no other message to compare with.
        (alone,) = sender.send([amqp_message("q", TOLD)])
        with pytest.raises(Unsettled, match="connection"):
            sender.send([amqp_message("q", SILENT)])
        sender.close()
    assert [place for place, answer in enumerate(answers) if answer is not None] == [1, 3]
    assert alone is not None
    assert "amqp:decode-error: no message at all" in alone.reason
    assert list(dict.fromkeys(peer.taken)) == [b"1", b"2", b"3"]


def test_a_message_whose_answer_cannot_be_read_is_refused_and_no_other_answer_counts_for_it() -> None:
    with ChoosyPeer() as peer:
        sender = AmqpSender(Connection((peer.uri,)), container_id="s", timeout=SECONDS)
        first, unreadable, *others = sender.send([amqp_message("q", body) for body in (b"1", UNREADABLE, b"2", b"3")])
        assert (first, *others, *sender.send([amqp_message("q", b"4")])) == (None,) * 4
        sender.close()
    assert unreadable is not None
    assert list(dict.fromkeys(peer.taken)) == [b"1", b"2", b"3", b"4"]


def test_what_the_sender_sends_is_what_the_gateway_takes(broker: str, inbox: Inbox) -> None:
    queue = queue_name()
    message = amqp_message(
        queue,
        b"\xffbody",
        {
            "message-id": AmqpValue("ulong", 7),
            "subject": "s",
            "to": "/x",
            "content-type": AmqpValue("symbol", "text/plain"),
        },
        {"cloudEvents:id": "1", "n": AmqpValue("int", 5), "t": AmqpValue("timestamp", 0)},
        {"x-opt": "a"},
    )
    sender = AmqpSender(Connection((broker,)), container_id="s", timeout=SECONDS)
    assert sender.send([message]) == [None]
    sender.close()
    with running(broker, queue, inbox) as (_, counts):
        wait_until(lambda: counts.stored[ENDPOINT] == 1, SECONDS, "the row")
    (row,) = stored(inbox.path)
    native = binding.build(list(row.properties))
    assert row.body == b"\xffbody"
    assert native["properties"] == {"message-id": 7, "to": "/x", "subject": "s", "content-type": "text/plain"}
    assert native["application-properties"] == {"cloudEvents:id": "1", "n": 5, "t": "1970-01-01T00:00:00Z"}
    assert native["message-annotations"]["x-opt"] == "a"
    assert native["header"]["durable"] is True
