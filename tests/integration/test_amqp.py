"""What only AMQP has, with a real broker or a peer: sections and types, outcomes, filters, durable subscriptions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import proton
import pytest
from proton import symbol, timestamp, ulong

from bindings.amqp import binding
from bindings.amqp.publisher import AmqpSender
from bindings.gateways import Connection, EndpointSubscription
from bindings.inbox import InboxFull
from bindings.parts import InboxRow
from bindings.protocols import BINDINGS
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
from tests.support.gateways import ENDPOINT, SECONDS, Rows, connected, running, started
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


def taken(broker: str, payloads: list[bytes]) -> list[InboxRow]:
    """Return the rows of messages in the order in which they were sent."""
    queue, rows = queue_name(), Rows()
    send_bytes(broker, queue, payloads)
    with running(AMQP, broker, {ENDPOINT: queue}, rows):
        rows.wait(len(payloads))
    assert depth(broker, queue) == 0
    return rows.stored


def test_every_section_and_type_arrives(broker: str) -> None:
    values = {
        "ubyte": proton.ubyte(1),
        "ushort": proton.ushort(2),
        "uint": proton.uint(3),
        "ulong": ulong(2**64 - 1),
        "byte": proton.byte(-1),
        "short": proton.short(-2),
        "int": proton.int32(-3),
        "long": -(2**63),
        "float": proton.float32(0.1),
        "double": 0.25,
        "boolean": True,
        "char": proton.char("€"),
        "timestamp": timestamp(1767323045678),
        "symbol": symbol("s"),
        "string": "täxt",
        "binary": b"\xff\x00",
    }
    payload = b"".join(
        (
            section("header", [True, proton.ubyte(7)]),
            section("message-annotations", {symbol("x-opt-a"): 1, symbol("x-opt-b"): symbol("s")}),
            section(
                "properties",
                [
                    *(ulong(9), b"me", "to", "sub", "back", "cor", symbol("text/plain"), symbol("gzip")),
                    *(timestamp(32503680000000), timestamp(1767323045000000), "g", proton.uint(4), "rg"),
                ],
            ),
            section("application-properties", values),
            section("data", b"one"),
            section("data", b"\xfftwo"),
            section("footer", {symbol("sum"): proton.ubyte(1)}),
        )
    )
    (row,) = taken(broker, [payload])
    native = binding.build(list(row.properties))
    assert (row.endpoint, row.protocol, row.body) == (ENDPOINT, "AMQP/1.0", b"one\xfftwo")
    assert native["properties"] == {
        "message-id": 9,
        "user-id": {"base64": "bWU="},
        "to": "to",
        "subject": "sub",
        "reply-to": "back",
        "correlation-id": "cor",
        "content-type": "text/plain",
        "content-encoding": "gzip",
        "absolute-expiry-time": "3000-01-01T00:00:00Z",
        "creation-time": 1767323045000000,
        "group-id": "g",
        "group-sequence": 4,
        "reply-to-group-id": "rg",
    }
    properties = native["application-properties"]
    assert properties == {
        "ubyte": 1,
        "ushort": 2,
        "uint": 3,
        "ulong": 2**64 - 1,
        "byte": -1,
        "short": -2,
        "int": -3,
        "long": -(2**63),
        "float": 0.1,
        "double": 0.25,
        "boolean": True,
        "char": "€",
        "symbol": "s",
        "timestamp": "2026-01-02T03:04:05.678Z",
        "string": "täxt",
        "binary": {"base64": "/wA="},
    }
    obvious = {"long", "double", "boolean", "string", "binary"}
    types = {path: kind for path, kind in native["types"].items() if path.startswith("application-properties.")}
    assert types == {f"application-properties.{kind}": kind for kind in values if kind not in obvious}
    assert native["types"]["properties.message-id"] == "ulong"
    assert {"x-opt-a": 1, "x-opt-b": "s"}.items() <= native["message-annotations"].items()
    assert native["footer"] == {"sum": 1}
    assert native["header"]["durable"] is True and native["header"]["priority"] == 7


def test_every_kind_of_body_arrives(broker: str) -> None:
    bodies: list[tuple[list[tuple[str, Any]], bytes | None]] = [
        ([("amqp-value", "täxt")], "täxt".encode()),
        ([("amqp-value", b"\xff")], b"\xff"),
        ([("amqp-value", {"a": [1, True, b"x"]})], b'{"a":[1,true,{"base64":"eA=="}]}'),
        ([("amqp-value", ulong(5))], b"5"),
        ([("amqp-value", None)], None),
        ([("amqp-sequence", [1, "a"]), ("amqp-sequence", [2.5])], b'[1,"a",2.5]'),
        ([("data", b"")], b""),
    ]
    payloads = [
        section("properties", [str(number)]) + b"".join(section(name, value) for name, value in sections)
        for number, (sections, _) in enumerate(bodies)
    ]
    rows = {tuple(ids([row])): row.body for row in taken(broker, payloads)}
    assert rows == {(number,): body for number, (_, body) in enumerate(bodies)}


@pytest.mark.parametrize("prefix", ["cloudEvents:", "cloudEvents_"])
def test_binary_events_arrive(broker: str, prefix: str) -> None:
    names = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "time": timestamp(0), "n": proton.int32(5)}
    payload = section("properties", [None] * 6 + [symbol("application/json")])
    payload += section("application-properties", {f"{prefix}{name}": value for name, value in names.items()})
    (row,) = taken(broker, [payload + section("data", b"{}")])
    envelope = BINDINGS["AMQP/1.0"].read_envelope(row.properties, row.body, lambda: False)
    assert (envelope.mode, envelope.faults, envelope.data) == ("binary", (), b"{}")
    assert envelope.attributes == {
        "specversion": "1.0",
        "id": "1",
        "source": "/s",
        "type": "t",
        "n": "5",
        "time": "1970-01-01T00:00:00Z",
        "datacontenttype": "application/json",
    }


@pytest.mark.parametrize("value", ["amqp-value", "data"])
def test_structured_events_arrive(broker: str, value: str) -> None:
    text = json.dumps({"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "data": {"a": 1.0}})
    payload = section("properties", [None] * 6 + [symbol("application/cloudevents+json; charset=utf-8")])
    body = section(value, text if value == "amqp-value" else text.encode())
    (row,) = taken(broker, [payload + body])
    envelope = BINDINGS["AMQP/1.0"].read_envelope(row.properties, row.body, lambda: False)
    assert (envelope.mode, envelope.attributes["type"], envelope.data) == ("structured", "t", b'{"a": 1.0}')


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
    return closing(AmqpSender(Connection((uri,)), container_id="s", timeout=SECONDS, max_in_flight=50))


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
