"""What only MQTT has, with a real broker and a client that is not ours: properties, sessions, overlapping filters."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest

from bindings.gateways import Connection, EndpointSubscription, Gateway, GatewayLimits
from bindings.inbox.space import InboxFull
from bindings.mqtt.messages import Version
from bindings.mqtt.publisher import MqttPublisher
from bindings.parts import BINARY_KIND, JSON_KIND, Part
from bindings.sending import Outbound
from tests.support.gateways import ENDPOINT as E
from tests.support.gateways import SECONDS, Rows, connected, record_of, started
from tests.support.gateways import running as run_gateway
from tests.support.mqtt import Client, Mosquitto, access_rules
from tests.support.shop import Counts
from tests.support.waiting import wait_until

BOTH = pytest.mark.parametrize("protocol", ["MQTT/5.0", "MQTT/3.1.1"])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path_factory.mktemp("mosquitto")) as each:
        yield each


def running(
    uri: str,
    filters: Mapping[str, str],
    rows: Rows,
    *,
    protocol: str = "MQTT/5.0",
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> AbstractContextManager[Gateway]:
    wanted = [EndpointSubscription(endpoint, address, options or {}) for endpoint, address in filters.items()]
    return run_gateway(protocol, uri, wanted, rows, **more)


def test_every_native_member_arrives(broker: Mosquitto) -> None:
    rows, counts = Rows(), Counts()
    users = [("b", "1"), ("a", "2"), ("b", "\ufeff3"), ("empty", "")]
    with running(broker.uri, {E: "native/+"}, rows, counts=counts), Client(broker.uri) as client:
        client.send(
            "native/7",
            b"\xff\x00body",
            retain=True,
            PayloadFormatIndicator=0,
            MessageExpiryInterval=2_000_000_000,
            ContentType="application/x-any",
            ResponseTopic="answers/7",
            CorrelationData=b"\x00\xff",
            UserProperty=users,
        )
        client.send("native/7", b"", qos=0)
        client.send("native/7", b"twice acknowledged", qos=2)
        full, empty, last = rows.wait(3)
        wait_until(lambda: counts.stored[E] == 3, SECONDS, "three acknowledgements")
        client.send("native/7", b"", retain=True)
    record = record_of(full)
    native = dict(record.native)
    # the broker counts down while it holds a message
    assert 2_000_000_000 - SECONDS <= native.pop("message_expiry_interval") <= 2_000_000_000
    assert native == {
        "topic_name": "native/7",
        "qos": 1,
        "retain": True,
        "payload_format": 0,
        "response_topic": "answers/7",
        "correlation_data": "AP8=",
        "content_type": "application/x-any",
        "user_properties": [{"name": name, "value": value} for name, value in users],
    }
    assert (record.body, record.protocol, record.endpoint) == (b"\xff\x00body", "MQTT/5.0", E)
    assert record_of(empty).native == {"topic_name": "native/7", "qos": 0, "retain": False}
    assert (empty.body, last.body, record_of(last).native["qos"]) == (b"", b"twice acknowledged", 1)
    assert abs(full.received / 1e6 - time.time()) < SECONDS


@BOTH
def test_covered_subscriptions_bring_a_message_once(broker: Mosquitto, protocol: Version) -> None:
    rows = Rows()
    filters = {"/endpoints/one": "over/+", "/endpoints/two": "over/#", "/endpoints/same": "over/+"}
    with running(broker.uri, filters, rows, protocol=protocol), Client(broker.uri) as client:
        client.send_all("over/x", [b"1", b"1"])
        client.send_all("over/x/y", [b"2"])
        client.send_all("over/z", [b"end"])
        found = [(row.endpoint, row.body) for row in rows.wait(4)]
    one, two = "/endpoints/one", "/endpoints/two"
    assert found == [(one, b"1"), (one, b"1"), (two, b"2"), (one, b"end")]


def test_nolocal_is_asked_of_the_broker(broker: Mosquitto, monkeypatch: pytest.MonkeyPatch) -> None:
    subscribe = paho.Client.subscribe
    asked: list[bool] = []

    def noted(self: paho.Client, topic: str, options: Any, properties: Any) -> Any:
        asked.append(options.noLocal)
        return subscribe(self, topic, options=options, properties=properties)

    monkeypatch.setattr(paho.Client, "subscribe", noted)
    for wanted in (True, False):
        with running(broker.uri, {E: "echo/#"}, Rows(), options={"nolocal": wanted}):
            pass
    assert asked == [True, False]


def test_overlapping_subscriptions_bring_a_message_once(broker: Mosquitto) -> None:
    rows = Rows()
    filters = {"/endpoints/left": "left/+", "/endpoints/right": "+/right"}
    with running(broker.uri, filters, rows), Client(broker.uri) as client:
        client.send_all("left/right", [b"1", b"2", b"1", b"1"])
        client.send_all("other/right", [b"3"])
        client.send_all("left/end", [b"end"])
        found = [(row.endpoint, row.body) for row in rows.wait(6)]
    assert [body for _, body in found] == [b"1", b"2", b"1", b"1", b"3", b"end"]
    assert Counter(endpoint for endpoint, _ in found) == {"/endpoints/left": 5, "/endpoints/right": 1}


def test_a_group_shares_messages(broker: Mosquitto) -> None:
    first, second = Rows(), Rows()
    options = {"sharedsubscriptiongroup": "routers"}
    wanted = [f"{number}".encode() for number in range(200)]
    with (
        running(broker.uri, {E: "shared/+"}, first, client_id="member-1", options=options),
        running(broker.uri, {E: "shared/+"}, second, client_id="member-2", options=options),
        Client(broker.uri) as client,
    ):
        client.send_all("shared/x", wanted)
        wait_until(lambda: len(first.stored) + len(second.stored) >= 200, SECONDS, "all messages")
    assert sorted(first.bodies() + second.bodies()) == sorted(body.decode() for body in wanted)
    assert first.stored and second.stored


@pytest.mark.parametrize(("handling", "expected"), [(None, ["kept", "end"]), (0, ["kept", "end"]), (2, ["end"])])
def test_retained_messages_come_as_the_options_say(
    broker: Mosquitto, handling: int | None, expected: list[str]
) -> None:
    topic, rows = f"retained/{handling}", Rows()
    with Client(broker.uri) as client:
        client.send(topic, b"kept", retain=True)
        options = {} if handling is None else {"retainhandling": handling}
        with running(broker.uri, {E: topic}, rows, client_id=f"retained-{handling}", options=options):
            client.send(topic, b"end")
            wait_until(lambda: "end" in rows.bodies(), SECONDS, "the last message")
    assert rows.bodies() == expected


def test_other_options_of_a_subscription_are_asked_for_while_it_runs(broker: Mosquitto) -> None:
    rows = Rows()
    with Client(broker.uri) as client:
        client.send("option/x", b"kept", retain=True)
        with running(broker.uri, {E: "option/x"}, rows, client_id="options", options={"retainhandling": 2}) as gateway:
            client.send("option/x", b"first")
            rows.wait(1)
            gateway.replace_subscriptions([EndpointSubscription(E, "option/x", {"retainhandling": 0})])
            rows.wait(2)
            wait_until(lambda: gateway.connected, SECONDS, "the subscription")
            client.send("option/x", b"last")
            rows.wait(3)
    assert rows.bodies() == ["first", "kept", "last"]


def test_a_session_of_other_settings_does_not_hold_it_up(broker: Mosquitto, caplog: pytest.LogCaptureFixture) -> None:
    with running(broker.uri, {E: "was/+"}, Rows(), client_id="session"):
        pass
    rows = Rows()
    with Client(broker.uri) as client:
        client.send_all("was/x", [b"1"] * 3)
        with running(broker.uri, {E: "is"}, rows, client_id="session", limits=GatewayLimits(max_in_flight=1)):
            client.send("is", b"2")
            rows.wait(1)
    assert rows.bodies() == ["2"]
    assert [record.levelno for record in caplog.records if "was/x" in record.getMessage()] == [logging.WARNING]


def test_a_refused_subscription_is_told_and_the_others_work(tmp_path: Path) -> None:
    rows = Rows()
    with (
        Mosquitto(tmp_path / "m", extra=access_rules(tmp_path)) as broker,
        started("MQTT/5.0", broker.uri, {"/endpoints/closed": "closed/#", E: "open/x"}, rows) as each,
    ):
        wait_until(lambda: "closed/#" in each.trouble, SECONDS, "a trouble")
        with Client(broker.uri) as client:
            client.send("open/x", b"1")
        rows.wait(1)
        assert not each.connected
        each.replace_subscriptions([EndpointSubscription(E, "open/x")])
        connected(each)
        assert each.trouble == ""


@BOTH
def test_a_broker_that_crashes_and_comes_back(tmp_path: Path, protocol: Version) -> None:
    """No acknowledgement of the first connection reaches the second, whose packet identifiers are the same."""
    rows, counts = Rows(held=True), Counts()
    with (
        Mosquitto(tmp_path) as broker,
        running(broker.uri, {E: "many"}, rows, protocol=protocol, counts=counts) as each,
    ):
        with Client(broker.uri) as client:
            client.send_all("many", [b"%d" % number for number in range(300)])
            wait_until(lambda: counts.arrived[E] == 300, SECONDS, "the messages")
            broker.save()
        broker.kill()
        wait_until(lambda: not each.connected and each.trouble, SECONDS, "the gateway to notice")
        rows.failing = InboxFull("no room")
        rows.release()  # the first group: it belongs to a connection that is gone
        broker.start()
        connected(each)
        wait_until(lambda: counts.arrived[E] >= 600, SECONDS, "all messages once more")
        assert counts.stored[E] == 0
        rows.failing, rows.held = None, False
        rows.release()
        wait_until(lambda: counts.stored[E] == 300, SECONDS, "the acknowledgements")
        broker.kill()  # nothing was saved since: it has forgotten the session
        wait_until(lambda: not each.connected, SECONDS, "the gateway to notice")
        (tmp_path / "mosquitto.db").unlink()
        broker.start()
        connected(each)
        with Client(broker.uri) as client:
            client.send("many", b"300")
        wait_until(lambda: set(rows.bodies()) == {str(number) for number in range(301)}, SECONDS, "what was sent later")


@BOTH
@pytest.mark.parametrize("qos", [0, 1])
def test_a_full_inbox_does_not_cost_the_connection(broker: Mosquitto, protocol: Version, qos: int) -> None:
    """What is beyond the limit stays unread for several keepalives, and then comes once and in order."""
    rows, counts = Rows(held=True), Counts()
    connection = Connection((broker.uri,), options={"keepalive": 2})
    wanted = [EndpointSubscription(E, "full")]
    limits = GatewayLimits(max_in_flight=10)
    sent = [b"%d" % number for number in range(200)]
    with (
        run_gateway(protocol, connection, wanted, rows, limits=limits, counts=counts, client_id=f"full-{qos}") as each,
        Client(broker.uri) as client,
    ):
        client.send_all("full", sent, qos=qos)
        wait_until(lambda: counts.arrived[E] >= 10, SECONDS, "a full gateway")
        end = time.monotonic() + 10
        wait_until(lambda: not each.connected or time.monotonic() > end, SECONDS, "five keepalives")
        assert (each.connected, each.trouble) == (True, "")
        rows.held = False
        rows.release()
        rows.wait(200)
        assert rows.bodies() == [body.decode() for body in sent]
        assert counts.arrived[E] == 200


def test_a_full_gateway_connects_again(tmp_path: Path) -> None:
    """Messages of QoS 0, which no broker sends again, still wait for the inbox when their connection has ended."""
    rows, counts = Rows(held=True), Counts()
    with (
        Mosquitto(tmp_path) as broker,
        run_gateway(
            "MQTT/3.1.1", broker.uri, {E: "full"}, rows, limits=GatewayLimits(max_in_flight=10), counts=counts
        ) as each,
    ):
        with Client(broker.uri) as client:
            client.send_all("full", [b"%d" % number for number in range(20)], qos=0)
            wait_until(lambda: counts.arrived[E] > 10, SECONDS, "a full gateway")
        broker.kill()
        wait_until(lambda: not each.connected, SECONDS, "the gateway to notice")
        broker.start()
        connected(each)


def message(topic: str, body: bytes = b"", *parts: Part) -> Outbound:
    return Outbound(topic, parts, body, "", topic)


def number(name: str, value: int) -> Part:
    return Part(name, b"%d" % value, JSON_KIND)


def user(name: str, value: str) -> Part:
    return Part(f"user_properties.{name}", value.encode())


RETAIN = Part("retain", b"true", JSON_KIND)


def publisher(uri: str, protocol: Version = "MQTT/5.0") -> closing[MqttPublisher]:
    return closing(MqttPublisher(Connection((uri,)), protocol=protocol, client_id="publisher", timeout=SECONDS))


def test_every_property_is_sent(broker: Mosquitto) -> None:
    users = [("b", "1"), ("a", "ä"), ("b", "")]
    first = message(
        "out/x",
        b"\xff",
        Part("content_type", b"application/x-any"),
        *(user(*each) for each in users),
        Part("response_topic", b"answers"),
        Part("correlation_data", b"\x00\xff", BINARY_KIND),
        number("message_expiry_interval", 1000),
        number("payload_format", 0),
    )
    with Client(broker.uri) as client, publisher(broker.uri) as out:
        client.subscribe("out/#")
        sent = [first, message("out/y", b"", number("qos", 0)), message("out/z", b"2", number("qos", 2))]
        assert out.send(sent) == [None] * 3
        wait_until(lambda: len(client.messages) == 3, SECONDS, "the messages")
    properties = client.messages[0].properties
    assert properties is not None
    told = properties.json()  # type: ignore[no-untyped-call]
    assert 1000 - SECONDS <= told.pop("MessageExpiryInterval") <= 1000
    assert told == {
        "PayloadFormatIndicator": 0,
        "ContentType": "application/x-any",
        "ResponseTopic": "answers",
        "CorrelationData": "00ff",
        "UserProperty": users,
    }
    found = [(each.topic, each.payload, each.qos) for each in client.messages]
    assert found == [("out/x", b"\xff", 1), ("out/y", b"", 0), ("out/z", b"2", 1)]


def test_a_retained_message_and_an_old_client(broker: Mosquitto) -> None:
    with publisher(broker.uri, "MQTT/3.1.1") as out:
        assert out.send([message("kept", b"1", RETAIN, user("a", "b"))]) == [None]
    with Client(broker.uri) as client:
        client.subscribe("kept")
        wait_until(lambda: client.messages, SECONDS, "the retained message")
        client.send("kept", b"", retain=True)
    assert (client.messages[0].payload, client.messages[0].retain) == (b"1", True)


def test_what_no_broker_takes_is_refused_and_the_rest_sent(tmp_path: Path) -> None:
    limits = "max_packet_size 5000\nretain_available false\n"
    bad = [
        message("a\0"),
        message("a", b"x" * 5_000),
        message("a", b"", RETAIN),
        message("a", b"", Part("content_type", b"x\0")),
        message("a", b"", user("x" * 70_000, "")),
        message("a", b"", Part("correlation_data", b"x" * 70_000, BINARY_KIND)),
        message("a", b"", number("message_expiry_interval", 2**32)),
        message("a", b"", number("payload_format", 7)),
    ]
    with Mosquitto(tmp_path, extra=limits) as broker, publisher(broker.uri) as out:
        *refused, good = out.send([*bad, message("a", b"good")])
        (told,) = out.send([message("said/\x01")])  # by a broker that says what is wrong: that needs no other message
    assert good is None
    assert all(each is not None and each.reason for each in refused)
    assert told is not None and "Malformed packet" in told.reason


def test_a_topic_that_is_not_allowed_is_refused(tmp_path: Path) -> None:
    with Mosquitto(tmp_path / "m", extra=access_rules(tmp_path)) as broker, publisher(broker.uri) as out:
        closed, opened = out.send([message("closed/x"), message("open/x")])
    assert closed is not None and "Not authorized" in closed.reason
    assert opened is None
