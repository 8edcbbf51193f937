"""The NATS gateway and publisher with a real server: what arrives, what is acknowledged, and who is let in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig

from bindings.gateways import Connection, EndpointSubscription, GatewayLimits
from bindings.nats import gateway as pulling
from bindings.nats.publisher import NatsMessage, NatsPublisher
from bindings.protocols import BINDINGS
from tests.support.nats import (
    DURABLE,
    SECONDS,
    STREAM,
    Held,
    Kept,
    NatsServer,
    RawSender,
    consumer,
    core,
    made,
    make_stream,
    natives,
    running,
    stream,
    with_client,
)
from tests.support.shop import Counts
from tests.support.waiting import wait_until

HEADERS = b"NATS/1.0\r\nce-id: 1\r\nX: \xff\r\nx: 2\r\nX:3\r\n\r\n"
HEADER_LIST = [
    {"name": "ce-id", "value": "1"},
    {"name": "X", "value_base64": "/w=="},
    {"name": "x", "value": "2"},
    {"name": "X", "value": "3"},
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats") as started:
        yield started


@pytest.fixture
def sender(server: NatsServer) -> Iterator[RawSender]:
    raw = RawSender(server.port)
    yield raw
    raw.close()


def arrived(store: Kept, count: int) -> None:
    wait_until(lambda: len(store.rows) >= count, SECONDS, lambda: f"{count} rows, there are {len(store.rows)}")


def test_every_member_arrives(server: NatsServer, sender: RawSender) -> None:
    make_stream(server)
    store = Kept()
    with running(server, store, core("core.>"), stream()):
        sender.publish(b"core.a", b"\x00\xffbody", HEADERS, b"answers.here")
        arrived(store, 1)
        sender.publish(b"js.b", b"text", HEADERS)
        arrived(store, 2)
        sender.publish(b"core.bare", b"")
        arrived(store, 3)
        sender.publish(b"core.\xff\xfe", b"odd subject")
        arrived(store, 4)
    assert natives(store.rows[:3]) == [
        {"subject": "core.a", "reply-to": "answers.here", "headers": HEADER_LIST},
        {"subject": "js.b", "headers": HEADER_LIST, "stream": STREAM, "sequence": 1},
        {"subject": "core.bare"},
    ]
    assert [row.body for row in store.rows] == [b"\x00\xffbody", b"text", None, b"odd subject"]
    assert store.rows[3].properties[0].value == b"core.\xff\xfe"
    assert [row.endpoint for row in store.rows[:2]] == ["/endpoints/core", "/endpoints/stream"]
    assert {row.protocol for row in store.rows} == {"NATS"}


def test_odd_bytes_of_a_sender_end_nothing(server: NatsServer, sender: RawSender) -> None:
    store = Kept()
    with running(server, store, core(">")) as gateway:
        # Each of these ends the reading of nats-py's own client.
        sender.publish(b"\xff", b"1")
        sender.publish(b"a", b"2", b"NATS/1.0 \xff\xff\xff\r\n\r\n")
        sender.publish(b"a", b"3", b"NATS/1.0\r\n\xff: 1\r\n\r\n", b"\xff")
        sender.publish(b"a", b"4")
        arrived(store, 4)
        assert gateway.connected
    assert [row.body for row in store.rows] == [b"1", b"2", b"3", b"4"]


def test_time_is_that_of_the_stream(server: NatsServer, sender: RawSender) -> None:
    make_stream(server)
    sender.publish(b"js.a", b"")
    kept = with_client(server, lambda client: client.jetstream().stream_info(STREAM)).state.messages
    assert kept == 1
    store, again = Kept(), Kept()
    with running(server, store, stream()):
        arrived(store, 1)
    with running(server, again, stream(durable="other")):
        arrived(again, 1)
    assert store.rows == again.rows  # a redelivery makes the same record, whenever it comes


def test_cloudevents_binary_and_structured(server: NatsServer) -> None:
    store = Kept()
    attributes = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "subject": "a%20b%C3%A9"}
    binary = NatsMessage("core.binary", b"{}", [(f"ce-{name}", value.encode()) for name, value in attributes.items()])
    event = b'{"specversion":"1.0","id":"2","source":"/s","type":"t","data":{"a": 1}}'
    structured = NatsMessage("core.structured", event, [("Content-Type", b"application/cloudevents+json")])
    publisher = NatsPublisher(Connection((server.uri,)), name="test", timeout=10, stream=False)
    with running(server, store, core("core.>")):
        assert publisher.send([binary, structured]) == [None, None]
        arrived(store, 2)
    publisher.close()
    binding = BINDINGS["NATS"]
    envelopes = [binding.read_envelope(row.properties, row.body, lambda: False) for row in store.rows]
    assert [envelope.attributes["id"] for envelope in envelopes] == ["1", "2"]
    assert envelopes[0].attributes["subject"] == "a b\u00e9"
    assert [envelope.mode for envelope in envelopes] == ["binary", "structured"]
    assert [envelope.data for envelope in envelopes] == [b"{}", b'{"a": 1}']


def test_stream_is_acknowledged_only_after_the_store(server: NatsServer, sender: RawSender) -> None:
    make_stream(server)
    store, counts = Held(), Counts()
    with running(server, store, stream(), counts=counts):
        sender.publish(b"js.a", b"1")
        arrived(store, 1)
        sender.publish(b"js.a", b"2")
        wait_until(lambda: counts.arrived.total() == 2, SECONDS, "the second message")
        info = consumer(server)
        assert (info.num_ack_pending, info.ack_floor.stream_seq, counts.stored.total()) == (2, 0, 0)
        store.release()
        wait_until(lambda: consumer(server).num_ack_pending == 1, SECONDS, "the first acknowledgement")
        assert consumer(server).ack_floor.stream_seq == 1
        wait_until(lambda: len(store.futures) == 2, SECONDS, "the second group")
        store.release()
        wait_until(lambda: consumer(server).num_ack_pending == 0, SECONDS, "the second acknowledgement")


def test_a_message_that_is_held_for_long_is_not_delivered_again(server: NatsServer, sender: RawSender) -> None:
    async def answers(client: Client) -> set[bytes]:
        seen = await client.subscribe(f"$JS.ACK.{STREAM}.{DURABLE}.>")
        return {(await seen.next_msg(SECONDS)).data for _ in range(9)}  # three times the server's patience

    make_stream(server)
    store = Held()
    with running(server, store, stream(ackwait=1)):
        sender.publish(b"js.a", b"1")
        arrived(store, 1)
        assert with_client(server, answers) == {b"+WPI"}
        assert consumer(server).num_redelivered == 0
        store.release()
        wait_until(lambda: consumer(server).num_ack_pending == 0, SECONDS, "the acknowledgement")
    assert len(store.rows) == 1


def test_a_full_inbox_holds_the_stream_and_drops_core_counted(server: NatsServer, sender: RawSender) -> None:
    make_stream(server)
    store, counts = Kept(), Counts()
    store.full = True
    with running(
        server, store, core("core.>"), stream(), counts=counts, limits=GatewayLimits(max_in_flight=20)
    ) as gateway:
        for number in range(50):
            sender.publish(b"js.a", b"%d" % number)
        wait_until(lambda: counts.arrived.total() == 10, SECONDS, "as many messages as may be held")
        for number in range(15):
            sender.publish(b"core.a", b"%d" % number)
        wait_until(lambda: gateway.dropped == 5, SECONDS, lambda: f"5 dropped messages, there are {gateway.dropped}")
        info = consumer(server)
        assert (info.num_ack_pending, info.num_pending, counts.stored.total()) == (10, 40, 0)
        assert "disk is full" in gateway.trouble
        assert "5 messages of core NATS were dropped" in gateway.trouble
        store.full = False
        wait_until(lambda: counts.stored.total() == 60, SECONDS, "all that was held")
        wait_until(lambda: consumer(server).num_ack_pending == 0, SECONDS, "the acknowledgements")
        assert gateway.trouble == ""
    by_subject = [row.body for row in store.rows if row.endpoint == "/endpoints/stream"]
    assert by_subject == [b"%d" % number for number in range(50)]  # in order, too


def test_oversized_is_told_and_its_body_kept(server: NatsServer, sender: RawSender) -> None:
    store = Kept()
    with running(server, store, core("a"), limits=GatewayLimits(max_body_bytes=10)):
        sender.publish(b"a", b"x" * 11)
        arrived(store, 1)
    assert natives(store.rows) == [{"subject": "a", "oversized": 11}]
    assert store.rows[0].body == b"x" * 11


def test_queue_groups_share(server: NatsServer, sender: RawSender) -> None:
    first, second, alone = Kept(), Kept(), Kept()
    taken = core("a", queue="workers")
    with running(server, first, taken), running(server, second, taken), running(server, alone, core("a")):
        for number in range(200):
            sender.publish(b"a", b"%d" % number)
        wait_until(lambda: len(first.rows) + len(second.rows) >= 200, SECONDS, "the shared messages")
        arrived(alone, 200)
    assert sorted(row.body or b"" for row in first.rows + second.rows) == sorted(row.body or b"" for row in alone.rows)
    assert first.rows
    assert second.rows


def test_queue_groups_share_a_stream_too(server: NatsServer, sender: RawSender) -> None:
    make_stream(server)
    first, second = Kept(), Kept()
    taken = EndpointSubscription("/endpoints/stream", "js.>", {"stream": STREAM, "queuegroup": "workers"})
    with running(server, first, taken), running(server, second, taken):
        for number in range(200):
            sender.publish(b"js.a", b"%d" % number)
        wait_until(lambda: len(first.rows) + len(second.rows) >= 200, SECONDS, "the shared messages")
    assert sorted(int(row.body or b"") for row in first.rows + second.rows) == list(range(200))
    assert consumer(server, "workers").ack_floor.stream_seq == 200


def test_other_subscriptions_are_taken_over(server: NatsServer, sender: RawSender) -> None:
    make_stream(server)
    store, counts = Held(), Counts()
    with running(server, store, core("a"), stream(), counts=counts) as gateway:
        sender.publish(b"js.a", b"before")
        arrived(store, 1)
        gateway.replace_subscriptions([core("b")])
        wait_until(lambda: subscribed(sender, store, b"b"), SECONDS, "the new subscription")
        sender.publish(b"a", b"gone")
        sender.publish(b"js.a", b"later")
        store.release()
        wait_until(lambda: counts.stored.total() >= 1, SECONDS, "what was in flight")
        wait_until(lambda: consumer(server).ack_floor.stream_seq == 1, SECONDS, "its acknowledgement")
        assert gateway.connected
    assert {row.body for row in store.rows} == {b"before", b"probe"}


def subscribed(sender: RawSender, store: Held, subject: bytes) -> bool:
    sender.publish(subject, b"probe")
    store.release()
    return any(row.body == b"probe" for row in store.rows)


def test_a_missing_stream_is_waited_for(server: NatsServer, sender: RawSender) -> None:
    store = Kept()
    gateway = made(server, store, core("a"), stream(), counts=Counts(), limits=GatewayLimits())
    gateway.start()
    try:
        wait_until(lambda: "stream S does not exist" in gateway.trouble, SECONDS, lambda: gateway.trouble)
        assert not gateway.connected
        sender.publish(b"a", b"core goes on")
        arrived(store, 1)
        make_stream(server)
        wait_until(lambda: gateway.connected, SECONDS, lambda: gateway.trouble)
        assert gateway.trouble == ""
    finally:
        gateway.stop(1)


def test_requests_that_run_out_are_made_again(
    server: NatsServer, sender: RawSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "EXPIRES_SECONDS", 0.4)
    monkeypatch.setattr(pulling, "HEARTBEAT_SECONDS", 0.1)
    make_stream(server)
    store = Kept()

    async def requests(client: Client) -> list[bytes]:
        seen = await client.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{DURABLE}")
        return [(await seen.next_msg(SECONDS)).data for _ in range(5)]

    with running(server, store, stream(), limits=GatewayLimits(max_in_flight=4)) as gateway:
        for request in with_client(server, requests):
            assert json.loads(request)["batch"] == 4  # the server told that all of the last request was left
        assert gateway.trouble == ""
        for number in range(20):
            sender.publish(b"js.a", b"%d" % number)
        arrived(store, 20)
        assert gateway.connected


def test_a_consumer_that_is_deleted_is_made_again(server: NatsServer, sender: RawSender) -> None:
    make_stream(server)
    store = Kept()
    with running(server, store, stream(deliver="new")):
        with_client(server, lambda client: client.jetstream().delete_consumer(STREAM, DURABLE))

        def again() -> bool:
            sender.publish(b"js.a", b"again")
            return bool(store.rows)

        wait_until(again, SECONDS, "a message by the new consumer")


def test_a_consumer_of_another_kind_is_left_alone_and_told(server: NatsServer) -> None:
    make_stream(server)

    async def make(client: Client) -> None:
        config = ConsumerConfig(durable_name=DURABLE, ack_policy=AckPolicy.EXPLICIT, filter_subject="js.other")
        await client.jetstream().add_consumer(STREAM, config)

    with_client(server, make)
    gateway = made(server, Kept(), stream(), counts=Counts(), limits=GatewayLimits())
    gateway.start()
    try:
        wait_until(lambda: "pull consumer of js.other" in gateway.trouble, SECONDS, lambda: gateway.trouble)
    finally:
        gateway.stop(1)


def test_stop_stores_and_acknowledges_what_is_in_flight(server: NatsServer, sender: RawSender) -> None:
    make_stream(server)
    store = Kept()
    with running(server, store, core("a"), stream()):
        for number in range(100):
            sender.publish(b"a", b"%d" % number)
            sender.publish(b"js.a", b"%d" % number)
        arrived(store, 1)
    taken = [row for row in store.rows if row.endpoint == "/endpoints/stream"]
    assert len(store.rows) - len(taken) == 100
    info = consumer(server)
    assert info.ack_floor.stream_seq == len(taken)
