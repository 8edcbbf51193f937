"""The AMQP gateway and sender with a real broker: what arrives, and when it is acknowledged."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import proton
import pytest
from proton import symbol, timestamp, ulong

from bindings.amqp import binding
from bindings.amqp.publisher import AmqpSender
from bindings.gateways import Connection, EndpointSubscription
from bindings.inbox import Inbox
from bindings.parts import InboxRow
from bindings.protocols import BINDINGS
from bindings.sending import Unsettled
from tests.support.amqp import (
    ENDPOINT,
    SECONDS,
    FillingStore,
    HeldStore,
    Peer,
    amqp_message,
    create_queue,
    delete_queue,
    depth,
    numbered,
    queue_name,
    receive_all,
    running,
    section,
    send_bytes,
    stored,
)
from tests.support.ports import free_ports
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


def ids(rows: list[InboxRow]) -> list[int]:
    return sorted(int(part.value or b"") for row in rows for part in row.properties if part.key.endswith("message-id"))


def taken(broker: str, inbox: Inbox, payloads: list[bytes]) -> list[InboxRow]:
    """Return the rows of messages in the order in which they were sent."""
    queue = queue_name()
    send_bytes(broker, queue, payloads)
    with running(broker, queue, inbox) as (gateway, counts):
        wait_until(lambda: counts.stored[ENDPOINT] == len(payloads), SECONDS, lambda: f"rows; {gateway.trouble}")
        assert (gateway.connected, gateway.alive, gateway.trouble) == (True, True, "")
    assert depth(broker, queue) == 0
    return stored(inbox.path)


def test_every_section_and_type_arrives(broker: str, inbox: Inbox) -> None:
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
    (row,) = taken(broker, inbox, [payload])
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


def test_every_kind_of_body_arrives(broker: str, inbox: Inbox) -> None:
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
    rows = {tuple(ids([row])): row.body for row in taken(broker, inbox, payloads)}
    assert rows == {(number,): body for number, (_, body) in enumerate(bodies)}


@pytest.mark.parametrize("prefix", ["cloudEvents:", "cloudEvents_"])
def test_binary_events_arrive(broker: str, inbox: Inbox, prefix: str) -> None:
    names = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "time": timestamp(0), "n": proton.int32(5)}
    payload = section("properties", [None] * 6 + [symbol("application/json")])
    payload += section("application-properties", {f"{prefix}{name}": value for name, value in names.items()})
    (row,) = taken(broker, inbox, [payload + section("data", b"{}")])
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
def test_structured_events_arrive(broker: str, inbox: Inbox, value: str) -> None:
    text = json.dumps({"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "data": {"a": 1.0}})
    payload = section("properties", [None] * 6 + [symbol("application/cloudevents+json; charset=utf-8")])
    body = section(value, text if value == "amqp-value" else text.encode())
    (row,) = taken(broker, inbox, [payload + body])
    envelope = BINDINGS["AMQP/1.0"].read_envelope(row.properties, row.body, lambda: False)
    assert (envelope.mode, envelope.attributes["type"], envelope.data) == ("structured", "t", b'{"a": 1.0}')


def test_nothing_is_accepted_before_it_is_stored(broker: str) -> None:
    queue, store = queue_name(), HeldStore()
    send_bytes(broker, queue, numbered(25))
    with running(broker, queue, store, max_in_flight=10) as (_, counts):
        # The credit is the bound: no more arrive while nothing is stored.
        wait_until(lambda: len(store.rows) == 10, SECONDS, "ten rows at the store")
        assert depth(broker, queue) == 25
        assert (counts.arrived[ENDPOINT], counts.stored[ENDPOINT]) == (10, 0)
        first = ids(store.rows)
        store.answer()
        wait_until(lambda: depth(broker, queue) == 15, SECONDS, "ten messages to be gone")
        wait_until(lambda: len(store.rows) == 10, SECONDS, "ten more rows")
        assert not set(first) & set(ids(store.rows))
    assert depth(broker, queue) == 15
    assert sorted(int(str(message.id)) for message in receive_all(broker, queue, 15)) == sorted(
        set(range(25)) - set(first)
    )


def test_a_stop_waits_for_what_is_in_flight(broker: str) -> None:
    queue, store = queue_name(), HeldStore()
    send_bytes(broker, queue, numbered(5))
    with running(broker, queue, store) as (gateway, counts):
        wait_until(lambda: len(store.rows) == 5, SECONDS, "the rows")
        stopping = threading.Thread(target=gateway.stop, args=(SECONDS,))
        stopping.start()
        store.answer()
        stopping.join(SECONDS)
        assert (gateway.alive, gateway.connected, counts.stored[ENDPOINT]) == (False, False, 5)
    assert depth(broker, queue) == 0


def test_a_full_inbox_leaves_messages_with_the_broker(broker: str, inbox: Inbox) -> None:
    queue, store = queue_name(), FillingStore(inbox)
    send_bytes(broker, queue, numbered(50))
    with running(broker, queue, store, max_in_flight=20) as (gateway, counts):
        wait_until(lambda: "no room" in gateway.trouble, SECONDS, "the trouble")
        # A few probes: each is one message, not a window of them.
        before = store.refused
        wait_until(lambda: store.refused >= before + 2, SECONDS, "two probes")
        assert store.refused < before + 10
        assert (depth(broker, queue), counts.stored[ENDPOINT], gateway.alive) == (50, 0, True)
        store.full = False
        wait_until(lambda: counts.stored[ENDPOINT] == 50, SECONDS, lambda: f"all rows; {gateway.trouble}")
        wait_until(lambda: gateway.trouble == "", SECONDS, "the end of the trouble")
    assert depth(broker, queue) == 0
    assert ids(stored(inbox.path)) == list(range(50))


def test_a_peer_that_settles_by_itself_and_one_that_sends_no_message(inbox: Inbox) -> None:
    payloads = [*numbered(3), b"no message"]
    with Peer(payloads, settled=True) as peer:
        store = FillingStore(inbox)
        with running(peer.uri, "anything", store) as (gateway, counts):
            # They will not come again: what the store refuses is kept, and stored when there is room.
            wait_until(lambda: store.refused >= 4, SECONDS, lambda: f"the messages; {gateway.trouble}")
            store.full = False
            wait_until(lambda: counts.stored[ENDPOINT] == 4, SECONDS, "the rows")
    with Peer(payloads, settled=False) as peer, running(peer.uri, "anything", inbox) as (_, counts):
        wait_until(lambda: peer.outcomes == ["accepted"] * 4, SECONDS, lambda: f"the outcomes; {peer.outcomes}")
    rows = stored(inbox.path)
    assert ids(rows) == [0, 0, 1, 1, 2, 2]
    odd = [row for row in rows if row.body == b"no message"]
    assert [[part.key for part in row.properties] for row in odd] == [["undecodable"]] * 2


def test_a_body_past_the_limit_arrives_whole_and_marked(broker: str, inbox: Inbox) -> None:
    queue, large = queue_name(), bytes(range(256)) * 8000
    send_bytes(broker, queue, [section("data", large)])
    with running(broker, queue, inbox, max_body_bytes=1000) as (_, counts):
        wait_until(lambda: counts.stored[ENDPOINT] == 1, SECONDS, "the row")
    (row,) = stored(inbox.path)
    assert row.body == large
    assert binding.build(list(row.properties))["oversized"] == str(len(large))


def test_other_subscriptions_can_be_taken(broker: str, inbox: Inbox) -> None:
    one, two, three = (EndpointSubscription(f"/endpoints/{each}", queue_name()) for each in "abc")
    with running(broker, [one, two], inbox) as (gateway, counts):
        wait_until(lambda: gateway.connected, SECONDS, "the links")
        gateway.replace_subscriptions([two, three])
        for each in (one, two, three):
            send_bytes(broker, each.address, numbered(3))
        wait_until(lambda: counts.stored == {two.endpoint: 3, three.endpoint: 3}, SECONDS, "the rows")
        assert gateway.connected
    assert [depth(broker, each.address) for each in (one, two, three)] == [3, 0, 0]


def test_a_node_that_is_not_there_is_trouble_and_no_more(broker: str, inbox: Inbox) -> None:
    good, bad = EndpointSubscription(ENDPOINT, queue_name()), EndpointSubscription("/endpoints/bad", "missing")
    with running(broker, [good, bad], inbox) as (gateway, counts):
        wait_until(lambda: "/endpoints/bad, node missing: amqp:not-found" in gateway.trouble, SECONDS, "the trouble")
        assert gateway.alive and not gateway.connected
        send_bytes(broker, good.address, numbered(3))
        wait_until(lambda: counts.stored[ENDPOINT] == 3, SECONDS, "the rows")
        create_queue(broker, "missing")
        wait_until(lambda: gateway.connected, SECONDS, "the node to be found")
        assert gateway.trouble == ""
    delete_queue(broker, "missing")


def test_a_deleted_node_is_taken_again_when_it_is_back(broker: str, inbox: Inbox) -> None:
    queue = queue_name()
    with running(broker, queue, inbox) as (gateway, counts):
        wait_until(lambda: gateway.connected, SECONDS, "the link")
        delete_queue(broker, queue)
        send_bytes(broker, queue, numbered(3))
        wait_until(lambda: counts.stored[ENDPOINT] == 3, SECONDS, lambda: f"the rows; {gateway.trouble}")


def test_copies_stay_where_they_are(broker: str, inbox: Inbox) -> None:
    queue = queue_name()
    send_bytes(broker, queue, numbered(4))
    with running(broker, [EndpointSubscription(ENDPOINT, queue, {"distribution-mode": "copy"})], inbox) as (_, counts):
        wait_until(lambda: counts.stored[ENDPOINT] == 4, SECONDS, "the rows")
    assert depth(broker, queue) == 4


def coloured(*colours: str) -> list[bytes]:
    return [
        message + section("application-properties", {"colour": colour}) + section("data", colour.encode())
        for colour in colours
        for message in [section("header", [True])]
    ]


@pytest.mark.parametrize(
    "filters",
    [
        {"selector": "colour = 'red'"},
        {"apache.org:selector-filter:string": "colour = 'red'"},
        {"mine": {"descriptor": "apache.org:selector-filter:string", "value": "colour = 'red'"}},
    ],
)
def test_source_filters_decide_what_comes(broker: str, inbox: Inbox, filters: dict[str, Any]) -> None:
    queue = queue_name()
    send_bytes(broker, queue, coloured("red", "blue", "red", "blue", "blue"))
    wanted = [EndpointSubscription(ENDPOINT, queue, {"source-filters": filters})]
    with running(broker, wanted, inbox) as (gateway, counts):
        wait_until(lambda: counts.stored[ENDPOINT] == 2, SECONDS, lambda: f"the rows; {gateway.trouble}")
        assert gateway.connected
    assert [row.body for row in stored(inbox.path)] == [b"red", b"red"]
    assert depth(broker, queue) == 3


def test_a_filter_that_is_not_applied_is_trouble_and_takes_nothing(broker: str, inbox: Inbox) -> None:
    queue = queue_name()
    create_queue(broker, queue)
    send_bytes(broker, queue, numbered(2))
    wanted = [EndpointSubscription(ENDPOINT, queue, {"sourcefilters": {"example.com:colour": "red"}})]
    with running(broker, wanted, inbox) as (gateway, counts):  # a broker that says so
        wait_until(lambda: "filter" in gateway.trouble, SECONDS, "the trouble")
        assert not gateway.connected and "example.com:colour" in gateway.trouble
    assert depth(broker, queue) == 2
    with Peer(numbered(2), settled=False) as peer:  # and one that would send everything
        with running(peer.uri, wanted, inbox) as (gateway, counts):
            wait_until(lambda: "does not apply the source filter" in gateway.trouble, SECONDS, "the trouble")
            assert not gateway.connected and counts.stored[ENDPOINT] == 0
        assert peer.outcomes == []


def test_a_durable_subscription_outlives_the_gateway(broker: str, inbox: Inbox) -> None:
    options = {"durable": True, "link-properties": {"purpose": "test"}}
    wanted = [EndpointSubscription(ENDPOINT, "amq.topic/news", options)]
    connection = Connection((broker,), options={"connection-properties": {"purpose": "test"}})
    with running(connection, wanted, inbox, container_id="durable") as (gateway, _):
        wait_until(lambda: gateway.connected, SECONDS, lambda: f"the link; {gateway.trouble}")
    send_bytes(broker, "amq.topic/news", numbered(3))
    with running(connection, wanted, inbox, container_id="durable") as (_, counts):
        wait_until(lambda: counts.stored[ENDPOINT] == 3, SECONDS, "what was sent meanwhile")


@pytest.mark.parametrize(("host", "says"), [("127.0.0.1", "refused"), ("no-such-host.invalid", "no-such-host.invalid")])
def test_a_broker_that_is_away_is_waited_for(host: str, says: str, inbox: Inbox) -> None:
    (port,) = free_ports(1)
    uri = f"amqp://{host}:{port}"
    with running(uri, "anything", inbox) as (gateway, _):
        wait_until(lambda: gateway.trouble, SECONDS, "the trouble")
        assert says in gateway.trouble
        assert gateway.alive and not gateway.connected
    assert not gateway.alive
    sender = AmqpSender(Connection((uri,)), container_id="s", timeout=SECONDS)
    with pytest.raises(Unsettled, match=says):
        sender.send([amqp_message("q.x", b"x")])
    sender.close()


def test_the_next_uri_is_tried_when_one_does_not_answer(broker: str, inbox: Inbox) -> None:
    (port,) = free_ports(1)
    queue = queue_name()
    send_bytes(broker, queue, numbered(2))
    with running(Connection((f"amqp://127.0.0.1:{port}", broker)), [EndpointSubscription(ENDPOINT, queue)], inbox) as (
        _,
        counts,
    ):
        wait_until(lambda: counts.stored[ENDPOINT] == 2, SECONDS, "the rows")
