"""The MQTT publisher against a real broker, seen by a client that is not ours."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from bindings.gateways import BrokerLogin, Connection, Tls
from bindings.mqtt.messages import Version
from bindings.mqtt.publisher import MqttMessage, MqttPublisher
from bindings.sending import Unsettled
from tests.support.mqtt import Client, Mosquitto, Security, access_rules
from tests.support.ports import Authority
from tests.support.waiting import wait_until

LIMIT_SECONDS = 300.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path_factory.mktemp("mosquitto")) as each:
        yield each


def publisher(uri: str, *, timeout: float = LIMIT_SECONDS) -> closing[MqttPublisher]:
    return closing(MqttPublisher(Connection((uri,)), protocol="MQTT/5.0", client_id="publisher", timeout=timeout))


def test_every_property_is_sent(broker: Mosquitto) -> None:
    users = (("b", "1"), ("a", "ä"), ("b", ""))
    message = MqttMessage(
        "out/x",
        b"\xff",
        content_type="application/x-any",
        user_properties=users,
        response_topic="answers",
        correlation_data=b"\x00\xff",
        message_expiry_interval=1000,
        payload_format=0,
    )
    with Client(broker.uri) as client, publisher(broker.uri) as out:
        client.subscribe("out/#")
        assert out.send([message, MqttMessage("out/y", b"", qos=0), MqttMessage("out/z", b"2", qos=2)]) == [None] * 3
        wait_until(lambda: len(client.messages) == 3, LIMIT_SECONDS, "the messages")
    first = client.messages[0]
    assert first.properties is not None
    told = first.properties.json()  # type: ignore[no-untyped-call]
    assert 1000 - LIMIT_SECONDS <= told.pop("MessageExpiryInterval") <= 1000
    assert told == {
        "PayloadFormatIndicator": 0,
        "ContentType": "application/x-any",
        "ResponseTopic": "answers",
        "CorrelationData": "00ff",
        "UserProperty": list(users),
    }
    assert [(each.topic, each.payload, each.qos) for each in client.messages] == [
        ("out/x", b"\xff", 1),
        ("out/y", b"", 0),
        ("out/z", b"2", 1),
    ]


def test_a_retained_message_and_an_old_client(broker: Mosquitto) -> None:
    with closing(MqttPublisher(Connection((broker.uri,)), protocol="MQTT/3.1.1", client_id="old")) as out:
        assert out.send([MqttMessage("kept", b"1", retain=True, user_properties=(("a", "b"),))]) == [None]
    with Client(broker.uri) as client:
        client.subscribe("kept")
        wait_until(lambda: client.messages, LIMIT_SECONDS, "the retained message")
        client.send("kept", b"", retain=True)
    assert (client.messages[0].payload, client.messages[0].retain) == (b"1", True)


def test_many_messages_keep_their_order(broker: Mosquitto) -> None:
    with Client(broker.uri) as client, publisher(broker.uri) as out:
        client.subscribe("many")
        for _ in range(2):
            assert out.send([MqttMessage("many", b"%d" % number) for number in range(2_000)]) == [None] * 2_000
        wait_until(lambda: len(client.messages) == 4_000, LIMIT_SECONDS, "the messages")
    assert [int(each.payload) for each in client.messages] == [*range(2_000), *range(2_000)]


def test_what_no_broker_takes_is_refused_and_the_rest_sent(tmp_path: Path) -> None:
    with (
        Mosquitto(tmp_path, extra="max_packet_size 5000\nretain_available false\n") as broker,
        publisher(broker.uri) as out,
    ):
        sent = [
            MqttMessage("a/+", b""),
            MqttMessage("", b""),
            MqttMessage("a\0", b""),
            MqttMessage("a", b"x" * 5_000),
            MqttMessage("a", b"", retain=True),
            MqttMessage("a", b"", content_type="x\0"),
            MqttMessage("a", b"", user_properties=(("x" * 70_000, ""),)),
            MqttMessage("a", b"", correlation_data=b"x" * 70_000),
            MqttMessage("a", b"", message_expiry_interval=2**32),
            MqttMessage("a", b"", payload_format=7),
            MqttMessage("a", b"", response_topic="\ud800"),
            MqttMessage("a", b"good"),
        ]
        results = out.send(sent)
    *refused, good = results
    assert good is None
    assert all(each is not None and each.reason for each in refused)


def test_a_topic_that_is_not_allowed_is_refused(tmp_path: Path) -> None:
    with Mosquitto(tmp_path / "m", extra=access_rules(tmp_path)) as broker, publisher(broker.uri) as out:
        closed, opened = out.send([MqttMessage("closed/x", b""), MqttMessage("open/x", b"")])
    assert closed is not None
    assert "Not authorized" in closed.reason
    assert opened is None


@pytest.mark.parametrize("version", ["MQTT/5.0", "MQTT/3.1.1"])
def test_a_message_at_which_the_broker_ends_the_connection_is_refused(broker: Mosquitto, version: Version) -> None:
    topics = ["ended/1", "ended/\x01", "ended/2", "ended/\ufffe", "ended" + 300 * "/", "ended/3"]
    sent = [MqttMessage(topic, topic.encode()) for topic in topics]
    connection = Connection((broker.uri,))
    with (
        Client(broker.uri) as client,
        # Far more than it takes: the first publisher of ours waited for a confirmation of what it never sent again.
        closing(
            MqttPublisher(connection, protocol=version, client_id=f"ended-{version[5]}", timeout=LIMIT_SECONDS)
        ) as out,
    ):
        client.subscribe("ended/+")
        results = out.send(sent)
        wait_until(lambda: len(client.messages) >= 3, LIMIT_SECONDS, "the messages")
    assert [place for place, result in enumerate(results) if result is not None] == [1, 3, 4]
    assert all("ends the connection" in result.reason for result in results if result is not None)
    assert list(dict.fromkeys(each.topic for each in client.messages)) == ["ended/1", "ended/2", "ended/3"]


def test_a_broker_that_says_what_is_wrong_needs_no_other_message(broker: Mosquitto) -> None:
    with publisher(broker.uri) as out:
        (refused,) = out.send([MqttMessage("said/\x01", b"")])
    assert refused is not None
    assert "Malformed packet" in refused.reason


def test_a_broker_that_is_away_is_waited_for_and_then_told_of(tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path)
    with publisher(broker.uri, timeout=0.5) as out:
        with pytest.raises(Unsettled, match=r"1 of 1 .* cannot connect"):
            out.send([MqttMessage("a", b"1")])

        def sent() -> bool:
            with suppress(Unsettled):  # Half a second may be too short for a busy machine.
                return out.send([MqttMessage("a", b"1")]) == [None]
            return False

        with broker:
            wait_until(sent, LIMIT_SECONDS, "the broker that came")
            broker.restart()
            wait_until(sent, LIMIT_SECONDS, "the broker that came again")


def test_a_broker_that_restarts_meanwhile_loses_nothing(tmp_path: Path) -> None:
    with Mosquitto(tmp_path) as broker, publisher(broker.uri) as out:
        results: list[object] = []
        with Client(broker.uri) as before:
            before.subscribe("a")
            work = [MqttMessage("a", b"%d" % number, retain=False) for number in range(10_000)]
            sender = threading.Thread(target=lambda: results.extend(out.send(work)))
            sender.start()
            wait_until(lambda: before.messages, LIMIT_SECONDS, "the first messages")
            broker.restart()
            sender.join(LIMIT_SECONDS)
    assert results == [None] * 10_000


def test_tls_and_a_login(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    server = authority.sign("server", alternatives="IP:127.0.0.1")
    with Mosquitto(tmp_path / "m", Security(server=server, username="u", password="right")) as broker:
        for password, trusted, expected in (
            ("right", authority.certificate, ""),
            ("wrong", authority.certificate, "refuses"),
            ("right", None, "certificate"),
        ):
            connection = Connection((broker.uri,), BrokerLogin("u", password), Tls(trusted))
            limit = 3.0 if expected else LIMIT_SECONDS
            with closing(MqttPublisher(connection, protocol="MQTT/5.0", client_id="c", timeout=limit)) as out:
                if not expected:
                    assert out.send([MqttMessage("a", b"")]) == [None]
                    continue
                with pytest.raises(Unsettled, match=expected) as caught:
                    out.send([MqttMessage("a", b"")])
                assert password not in str(caught.value)
