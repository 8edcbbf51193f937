"""What only NATS has, with a real server: core and streams, headers, queue groups, consumers, logins."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig

from bindings.gateways import BrokerLogin, Connection, EndpointSubscription, GatewayLimits
from bindings.inbox.space import InboxFull
from bindings.nats import gateway as pulling
from bindings.nats.gateway import NatsGateway
from bindings.nats.publisher import NatsPublisher
from bindings.parts import InboxRow, Part
from bindings.sending import Outbound, Unsettled
from tests.support.gateways import SECONDS, Rows, connected, record_of, running, started
from tests.support.nats import (
    DURABLE,
    STREAM,
    NatsServer,
    RawSender,
    accounts,
    consumer,
    core,
    key,
    make_stream,
    stream,
    with_client,
)
from tests.support.shop import Counts
from tests.support.waiting import wait_until

NATS = "NATS"
HEADERS = b"NATS/1.0\r\nce-id: 1\r\nX: \xff\r\nx: 2\r\nX:3\r\n\r\n"
HEADER_LIST = [
    {"name": "ce-id", "value": "1"},
    {"name": "X", "value_base64": "/w=="},
    {"name": "x", "value": "2"},
    {"name": "X", "value": "3"},
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats") as each:
        yield each


@pytest.fixture
def sender(server: NatsServer) -> Iterator[RawSender]:
    raw = RawSender(server.port)
    yield raw
    raw.close()


def natives(rows: Sequence[InboxRow]) -> list[Any]:
    return [record_of(row).native for row in rows]


def outbound(subject: str, body: bytes = b"", *parts: Part, key: str = "") -> Outbound:
    return Outbound(subject, parts, body, "", key or subject)


def publisher(where: str | Connection, *, stream: bool, timeout: float = SECONDS) -> closing[NatsPublisher]:
    connection = Connection((where,)) if isinstance(where, str) else where
    return closing(NatsPublisher(connection, sink="test", timeout=timeout, stream=stream))


def test_every_member_arrives(server: NatsServer, sender: RawSender) -> None:
    make_stream(server)
    store = Rows()
    with running(NATS, server.uri, [core("core.>"), stream()], store):
        sender.publish(b"core.a", b"\x00\xffbody", HEADERS, b"answers.here")
        store.wait(1)
        sender.publish(b"js.b", b"text", HEADERS)
        store.wait(2)
        sender.publish(b"core.bare", b"")
        store.wait(3)
        sender.publish(b"core.\xff\xfe", b"odd subject")
        store.wait(4)
    assert natives(store.stored[:3]) == [
        {"subject": "core.a", "reply-to": "answers.here", "headers": HEADER_LIST},
        {"subject": "js.b", "headers": HEADER_LIST, "stream": STREAM, "sequence": 1},
        {"subject": "core.bare"},
    ]
    assert [row.body for row in store.stored] == [b"\x00\xffbody", b"text", None, b"odd subject"]
    assert store.stored[3].properties[0].value == b"core.\xff\xfe"
    assert [row.endpoint for row in store.stored[:2]] == ["/endpoints/core", "/endpoints/stream"]
    assert {row.protocol for row in store.stored} == {"NATS"}


def test_odd_bytes_of_a_sender_end_nothing(server: NatsServer, sender: RawSender) -> None:
    store = Rows()
    with running(NATS, server.uri, [core(">")], store) as gateway:
        # Each of these ends the reading of nats-py's own client.
        sender.publish(b"\xff", b"1")
        sender.publish(b"a", b"2", b"NATS/1.0 \xff\xff\xff\r\n\r\n")
        sender.publish(b"a", b"3", b"NATS/1.0\r\n\xff: 1\r\n\r\n", b"\xff")
        sender.publish(b"a", b"4")
        store.wait(4)
        assert gateway.connected
    assert [row.body for row in store.stored] == [b"1", b"2", b"3", b"4"]


def test_time_is_that_of_the_stream(server: NatsServer, sender: RawSender) -> None:
    make_stream(server)
    sender.publish(b"js.a", b"")
    kept = with_client(server, lambda client: client.jetstream().stream_info(STREAM)).state.messages
    assert kept == 1
    store, again = Rows(), Rows()
    with running(NATS, server.uri, [stream()], store):
        store.wait(1)
    with running(NATS, server.uri, [stream(durable="other")], again):
        again.wait(1)
    assert store.stored == again.stored  # a redelivery makes the same record, whenever it comes


def test_a_message_that_is_held_for_long_is_not_delivered_again(server: NatsServer, sender: RawSender) -> None:
    async def answers(client: Client) -> set[bytes]:
        seen = await client.subscribe(f"$JS.ACK.{STREAM}.{DURABLE}.>")
        return {(await seen.next_msg(SECONDS)).data for _ in range(9)}  # three times the server's patience

    make_stream(server)
    store = Rows(held=True)
    with running(NATS, server.uri, [stream(ackwait=1)], store):
        sender.publish(b"js.a", b"1")
        wait_until(lambda: store.offered, SECONDS, "the message")
        assert with_client(server, answers) == {b"+WPI"}
        assert consumer(server).num_redelivered == 0
        store.release()
        wait_until(lambda: consumer(server).num_ack_pending == 0, SECONDS, "the acknowledgement")
    assert len(store.stored) == 1


def test_a_full_inbox_holds_the_stream_and_drops_core_counted(server: NatsServer, sender: RawSender) -> None:
    make_stream(server)
    rows, counts = Rows(), Counts()
    rows.failing = InboxFull("the disk is full; free some space")
    limits = GatewayLimits(max_in_flight=20)
    wanted = [core("core.>"), stream()]
    with running(NATS, server.uri, wanted, rows, counts=counts, limits=limits) as gateway:
        assert isinstance(gateway, NatsGateway)
        for number in range(50):
            sender.publish(b"js.a", b"%d" % number)
        wait_until(lambda: counts.arrived.total() == 10, SECONDS, "as many messages as may be held")
        for number in range(15):
            sender.publish(b"core.a", b"%d" % number)
        wait_until(lambda: gateway.dropped == 5, SECONDS, lambda: f"5 dropped messages, there are {gateway.dropped}")
        info = consumer(server)
        assert (info.num_ack_pending, info.num_pending, counts.stored.total()) == (10, 40, 0)
        assert "disk is full" in gateway.trouble and "5 messages of core NATS were dropped" in gateway.trouble
        rows.failing = None
        wait_until(lambda: counts.stored.total() == 60, SECONDS, "all that was held")
        wait_until(lambda: consumer(server).num_ack_pending == 0, SECONDS, "the acknowledgements")
        assert gateway.trouble == ""
    by_subject = [row.body for row in rows.stored if row.endpoint == "/endpoints/stream"]
    assert by_subject == [b"%d" % number for number in range(50)]  # in order, too


@pytest.mark.parametrize("streamed", [False, True])
def test_queue_groups_share(server: NatsServer, sender: RawSender, streamed: bool) -> None:
    make_stream(server)
    first, second = Rows(), Rows()
    group = EndpointSubscription("/endpoints/stream", "js.>", {"stream": STREAM, "queuegroup": "workers"})
    wanted = [group if streamed else core("js.>", queue="workers")]
    with running(NATS, server.uri, wanted, first), running(NATS, server.uri, wanted, second):
        for number in range(200):
            sender.publish(b"js.a", b"%d" % number)
        wait_until(lambda: len(first.stored) + len(second.stored) >= 200, SECONDS, "the shared messages")
    assert sorted(map(int, first.bodies() + second.bodies())) == list(range(200))
    assert first.stored and second.stored


def test_a_missing_stream_is_waited_for(server: NatsServer, sender: RawSender) -> None:
    rows = Rows()
    with started(NATS, server.uri, [core("a"), stream()], rows) as gateway:
        wait_until(lambda: "stream S does not exist" in gateway.trouble, SECONDS, lambda: gateway.trouble)
        assert not gateway.connected
        sender.publish(b"a", b"core goes on")
        rows.wait(1)
        make_stream(server)
        connected(gateway)
        assert gateway.trouble == ""


def test_requests_that_run_out_are_made_again(
    server: NatsServer, sender: RawSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "EXPIRES_SECONDS", 0.4)
    monkeypatch.setattr(pulling, "HEARTBEAT_SECONDS", 0.1)
    make_stream(server)
    store = Rows()

    async def requests(client: Client) -> list[bytes]:
        seen = await client.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{DURABLE}")
        return [(await seen.next_msg(SECONDS)).data for _ in range(5)]

    with running(NATS, server.uri, [stream()], store, limits=GatewayLimits(max_in_flight=4)) as gateway:
        for request in with_client(server, requests):
            assert json.loads(request)["batch"] == 4  # the server told that all of the last request was left
        assert gateway.trouble == ""
        for number in range(20):
            sender.publish(b"js.a", b"%d" % number)
        store.wait(20)
        assert gateway.connected


def test_a_consumer_that_is_deleted_is_made_again(server: NatsServer, sender: RawSender) -> None:
    make_stream(server)
    store = Rows()
    with running(NATS, server.uri, [stream(deliver="new")], store):
        with_client(server, lambda client: client.jetstream().delete_consumer(STREAM, DURABLE))

        def again() -> bool:
            sender.publish(b"js.a", b"again")
            return bool(store.stored)

        wait_until(again, SECONDS, "a message by the new consumer")


def test_a_consumer_of_another_kind_is_left_alone_and_told(server: NatsServer) -> None:
    make_stream(server)

    async def make(client: Client) -> None:
        config = ConsumerConfig(durable_name=DURABLE, ack_policy=AckPolicy.EXPLICIT, filter_subject="js.other")
        await client.jetstream().add_consumer(STREAM, config)

    with_client(server, make)
    with started(NATS, server.uri, [stream()], Rows()) as gateway:
        wait_until(lambda: "pull consumer of js.other" in gateway.trouble, SECONDS, lambda: gateway.trouble)


def test_jetstream_drops_repeats_and_refuses_what_it_never_takes(tmp_path: Path) -> None:
    headers = [Part("headers.X", b"\xff"), Part("headers.x", b"2"), Part("headers.X", b"3")]
    messages = [
        outbound("js.a", b"1", *headers, key="first"),
        outbound("js.a", b"x" * 1001),
        outbound("js.a", b"x" * 600),
        outbound("js.a", b"", Part("headers.X", b"a\r\nb")),
        outbound("js.a", b"x" * 990, Part("headers.X", b"y" * 10)),
        outbound("js.a", b"2", key="first"),
        outbound("js.a", b"3", key="second"),
    ]
    rows = Rows()
    with NatsServer(tmp_path / "nats", max_payload=1000) as server, publisher(server.uri, stream=True) as out:
        make_stream(server, max_msg_size=500)
        verdicts = out.send(messages)
        with running(NATS, server.uri, [stream()], rows):
            rows.wait(2)
    assert [place for place, verdict in enumerate(verdicts) if verdict is not None] == [1, 2, 3, 4]
    assert verdicts[1] is not None and "bytes with headers exceed" in verdicts[1].reason
    assert rows.bodies() == ["1", "3"]  # the repeated id was dropped by JetStream
    told = [(each["name"], each.get("value", each.get("value_base64"))) for each in natives(rows.stored)[0]["headers"]]
    assert told[:3] == [("X", "/w=="), ("x", "2"), ("X", "3")]
    assert [name for name, _ in told[3:]] == ["Nats-Msg-Id"]


def test_what_a_stream_may_take_later_is_to_be_tried_again(server: NatsServer) -> None:
    with publisher(server.uri, stream=True) as out:
        with pytest.raises(Unsettled, match="no stream"):
            out.send([outbound("js.a")])
        make_stream(server, max_msgs=1, discard="new")
        assert out.send([outbound("js.a")]) == [None]
        with pytest.raises(Unsettled, match="maximum messages"):
            out.send([outbound("js.b")])


def test_a_forbidden_subject_is_told(tmp_path: Path) -> None:
    permissions = {"subscribe": ["open", "_INBOX.>"], "publish": ["open"]}
    user = {"user": "u", "password": "p", "permissions": permissions}
    rows = Rows()
    with NatsServer(tmp_path / "nats", authorization={"users": [user]}) as server:
        connection = Connection((server.uri,), BrokerLogin(username="u", password="p"))
        with started(NATS, connection, [core("shut")], rows) as gateway:
            wait_until(lambda: "shut" in gateway.trouble, SECONDS, lambda: gateway.trouble)
            assert not gateway.connected
            gateway.replace_subscriptions([core("open")])
            connected(gateway)
            with publisher(connection, stream=False) as out:
                with pytest.raises(Unsettled, match="shut"):
                    out.send([outbound("open", b"1"), outbound("shut", b"2")])
                assert out.send([outbound("open", b"3", Part("reply-to", b"answers"))]) == [None]
            rows.wait(2)
    assert natives(rows.stored)[-1] == {"subject": "open", "reply-to": "answers"}


def refused(connection: Connection) -> str:
    """Return the trouble of a gateway that is not let in."""
    with started(NATS, connection, [core("a")], Rows()) as gateway:
        wait_until(lambda: gateway.trouble, SECONDS, "a trouble")
        assert not gateway.connected
        return gateway.trouble


def test_credentials_are_not_sent_in_the_clear_when_tls_is_asked_for(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats", authorization={"user": "u", "password": "hidden"}) as server:
        uri = server.uri.replace("nats:", "tls:")
        assert "does not offer TLS" in refused(Connection((uri,), BrokerLogin("u", "hidden")))


def logins(folder: Path) -> dict[str, tuple[dict[str, Any], BrokerLogin, str]]:
    """Server settings, what is let in by them, and user information that counts in place of the login."""
    user = key()
    seed = folder / "user.seed"
    seed.write_text(user.seed)
    held = accounts(folder)
    return {
        "token": ({"authorization": {"token": "t0ken"}}, BrokerLogin(token="t0ken"), "t0ken@"),
        "nkey": ({"authorization": {"users": [{"nkey": user.public}]}}, BrokerLogin(seed=seed), ""),
        "creds": ({**held.settings, "jetstream": False}, BrokerLogin(credentials=held.credentials), ""),
    }


@pytest.mark.parametrize("way", ["token", "nkey", "creds"])
def test_logins(tmp_path: Path, way: str) -> None:
    settings, login, information = logins(tmp_path)[way]
    with NatsServer(tmp_path / "nats", **settings) as server:
        with running(NATS, Connection((server.uri,), login), [core("a")], Rows()):
            pass
        if information:
            with running(NATS, server.uri.replace("//", f"//{information}"), [core("a")], Rows()):
                pass
        trouble = refused(Connection((server.uri.replace("//", "//u:hidden@"),), BrokerLogin("u", "hidden")))
        assert "authorization" in trouble.lower() and "hidden" not in trouble


def test_a_changed_password_needs_no_hand_here(tmp_path: Path) -> None:
    right = {"authorization": {"user": "u", "password": "old"}}
    with NatsServer(tmp_path / "nats", **right) as server:
        with running(NATS, Connection((server.uri,), BrokerLogin("u", "old")), [core("a")], Rows()) as gateway:
            for settings in ({"authorization": {"user": "u", "password": "new"}}, right):
                server.kill()
                server.configure(**settings)
                server.start()
                if settings is not right:
                    wait_until(lambda: "authorization" in gateway.trouble.lower(), SECONDS, lambda: gateway.trouble)
            connected(gateway)
            assert gateway.trouble == ""
