"""Sending to a real NATS server: what is confirmed, what is refused for good, and what is to be tried again."""

from __future__ import annotations

from pathlib import Path

import pytest

from bindings.gateways import BrokerLogin, Connection, EndpointSubscription
from bindings.nats.publisher import NatsMessage, NatsPublisher
from bindings.sending import Unsettled
from tests.support.nats import SECONDS, STREAM, Kept, NatsServer, make_stream, natives, running, stream, with_client
from tests.support.waiting import wait_until


def arrived(store: Kept, count: int) -> None:
    wait_until(lambda: len(store.rows) >= count, SECONDS, lambda: f"{count} rows, there are {len(store.rows)}")


def test_publisher_refuses_what_no_server_takes_and_sends_the_rest(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats", max_payload=1000) as server:
        make_stream(server, max_msg_size=500)
        store = Kept()
        publisher = NatsPublisher(Connection((server.uri,)), name="test", timeout=10, stream=True)
        messages = [
            NatsMessage("js.a", b"1", [("X", b"\xff"), ("x", b"2"), ("X", b"3")], id="first"),
            NatsMessage("js.a", b"x" * 1001),
            NatsMessage("js.a", b"x" * 600),
            NatsMessage("js.*", b""),
            NatsMessage("js.a b", b""),
            NatsMessage("js.a", b"", [("X", b"a\r\nb")]),
            NatsMessage("js.a", b"x" * 990, [("X", b"y" * 10)]),
            NatsMessage("js.a", b"2", id="first"),
            NatsMessage("js.a", b"3", id="second"),
        ]
        verdicts = publisher.send(messages)
        assert [verdict is None for verdict in verdicts] == [
            True, False, False, False, False, False, False, True, True,
        ]  # fmt: skip
        assert verdicts[1] is not None
        assert "1001 bytes" in verdicts[1].reason
        publisher.close()
        with running(server, store, stream()):
            arrived(store, 2)
    assert [row.body for row in store.rows] == [b"1", b"3"]  # the repeated id was dropped by JetStream
    headers = natives(store.rows)[0]["headers"]
    assert [(each["name"], each.get("value", each.get("value_base64"))) for each in headers] == [
        ("X", "/w=="), ("x", "2"), ("X", "3"), ("Nats-Msg-Id", "first"),
    ]  # fmt: skip


@pytest.mark.parametrize("jetstream", [True, False])
def test_a_message_at_which_the_server_ends_the_connection_is_refused(tmp_path: Path, jetstream: bool) -> None:
    with NatsServer(tmp_path / "nats", max_control_line=512) as server:
        make_stream(server)
        publisher = NatsPublisher(Connection((server.uri,)), name="test", timeout=SECONDS, stream=jetstream)
        subjects = ["js.1", f"js.{'x' * 600}", "js.2", "js.3"]
        verdicts = publisher.send([NatsMessage(subject, b"", id=subject) for subject in subjects])
        publisher.close()
    assert [place for place, verdict in enumerate(verdicts) if verdict is not None] == [1]
    assert verdicts[1] is not None
    # What the server said is lost when the connection is reset before it was read.
    assert "ends the connection at this message" in verdicts[1].reason


def test_publisher_asks_to_try_again_what_can_pass(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats")
    publisher = NatsPublisher(Connection((server.uri,)), name="test", timeout=5, stream=True)
    with pytest.raises(Unsettled, match=str(server.port)):
        publisher.send([NatsMessage("js.a")])
    with server:
        with pytest.raises(Unsettled, match="no stream"):
            publisher.send([NatsMessage("js.a")])
        make_stream(server, max_msgs=1, discard="new")
        assert publisher.send([NatsMessage("js.a")]) == [None]
        with pytest.raises(Unsettled, match="maximum messages"):
            publisher.send([NatsMessage("js.a")])
        server.kill()
        with pytest.raises(Unsettled):
            publisher.send([NatsMessage("js.a")])
        server.start()
        with_client(server, lambda client: client.jetstream().purge_stream(STREAM))
        assert publisher.send([NatsMessage("js.a")]) == [None]
    publisher.close()


def test_core_publisher_is_told_of_a_forbidden_subject_and_keeps_replies(tmp_path: Path) -> None:
    user = {"user": "u", "password": "p", "permissions": {"subscribe": [">"], "publish": ["open"]}}
    with NatsServer(tmp_path / "nats", authorization={"users": [user]}) as server:
        connection = Connection((server.uri,), BrokerLogin(username="u", password="p"))
        publisher = NatsPublisher(connection, name="test", timeout=10, stream=False)
        store = Kept()
        with running(connection, store, EndpointSubscription("/endpoints/core", "open")):
            with pytest.raises(Unsettled, match="shut"):
                publisher.send([NatsMessage("open", b"1"), NatsMessage("shut", b"2")])
            assert publisher.send([NatsMessage("open", b"3", reply="answers")]) == [None]
            arrived(store, 2)
        publisher.close()
    assert natives(store.rows)[-1] == {"subject": "open", "reply-to": "answers"}
