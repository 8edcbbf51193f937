"""The MQTT gateway against a real broker, fed by a client that is not ours."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bindings.gateways import BrokerLogin, Connection, EndpointSubscription, GatewayError, GatewayLimits, Tls
from bindings.mqtt.client import LinkOwner, MqttLink, create_connector
from bindings.mqtt.gateway import SubscriptionTable
from bindings.mqtt.messages import MqttDelivery, Version
from bindings.parts import InboxRow
from bindings.protocols import BINDINGS
from tests.support.mqtt import (
    LIMIT_SECONDS,
    Client,
    Mosquitto,
    Rows,
    Security,
    access_rules,
    connected,
    gateway,
    record_of,
    running,
)
from tests.support.ports import Authority
from tests.support.shop import Counts
from tests.support.waiting import wait_until

SECRET = "not-for-logs"
E = "/endpoints/e"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path_factory.mktemp("mosquitto")) as each:
        yield each


def stored(rows: Rows, count: int) -> list[InboxRow]:
    wait_until(lambda: len(rows.stored) >= count, LIMIT_SECONDS, lambda: f"{count} rows, {len(rows.stored)} are there")
    return rows.stored


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
        full, empty, last = stored(rows, 3)
        wait_until(lambda: counts.stored[E] == 3, LIMIT_SECONDS, "three acknowledgements")
        client.send("native/7", b"", retain=True)
    record = record_of(full)
    native = dict(record.native)
    # the broker counts down while it holds a message
    assert 2_000_000_000 - LIMIT_SECONDS <= native.pop("message_expiry_interval") <= 2_000_000_000
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
    assert abs(full.received / 1e6 - time.time()) < LIMIT_SECONDS


def test_an_old_client_and_an_old_gateway(broker: Mosquitto) -> None:
    rows = Rows()
    with running(broker.uri, {E: "old/#"}, rows, protocol="MQTT/3.1.1", client_id="old"):
        with Client(broker.uri, version="MQTT/3.1.1") as client:
            client.send("old/a", b"one")
            client.send("old/b/c", b"", qos=0)
        first, second = stored(rows, 2)
    assert record_of(first).native == {"topic_name": "old/a", "qos": 1, "retain": False}
    assert (first.body, first.protocol, second.body) == (b"one", "MQTT/3.1.1", b"")


def test_cloudevents_arrive_as_such(broker: Mosquitto) -> None:
    rows = Rows()
    attributes = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "subject": "ä"}
    event = json.dumps({**attributes, "data": {"a": 1}}).encode()
    with running(broker.uri, {E: "events"}, rows), Client(broker.uri) as client:
        client.send("events", b"{}", ContentType="application/json", UserProperty=list(attributes.items()))
        client.send("events", event, ContentType="application/cloudevents+json; charset=utf-8")
        client.send("events", b"[" + event + b"]", ContentType="application/cloudevents-batch+json")
        rows_of_events = stored(rows, 3)
    binding = BINDINGS["MQTT/5.0"]
    binary, structured, batch = (
        binding.read_envelope(list(row.properties), row.body, lambda: False) for row in rows_of_events
    )
    assert [each.mode for each in (binary, structured, batch)] == ["binary", "structured", "batch"]
    assert binary.attributes == {**attributes, "datacontenttype": "application/json"}
    assert structured.attributes == binary.attributes
    assert (binary.data, structured.data) == (b"{}", b'{"a": 1}')


def test_a_large_message_is_stored_whole_and_marked(broker: Mosquitto) -> None:
    rows = Rows()
    with (
        running(broker.uri, {E: "large"}, rows, limits=GatewayLimits(max_body_bytes=1000)),
        Client(broker.uri) as client,
    ):
        client.send("large", b"x" * 2_000_000)
        client.send("large", b"y")
        large, small = stored(rows, 2)
    assert (record_of(large).native["oversized"], len(large.body or b"")) == ("2000000", 2_000_000)
    assert "oversized" not in record_of(small).native


@pytest.mark.parametrize("protocol", ["MQTT/5.0", "MQTT/3.1.1"])
def test_covered_subscriptions_bring_a_message_once(broker: Mosquitto, protocol: Version) -> None:
    rows = Rows()
    filters = {"/endpoints/one": "over/+", "/endpoints/two": "over/#", "/endpoints/same": "over/+"}
    with running(broker.uri, filters, rows, protocol=protocol), Client(broker.uri) as client:
        client.send_all("over/x", [b"1", b"1"])
        client.send_all("over/x/y", [b"2"])
        client.send_all("over/z", [b"end"])
        found = [(row.endpoint, row.body) for row in stored(rows, 4)]
    one, two = "/endpoints/one", "/endpoints/two"
    assert found == [(one, b"1"), (one, b"1"), (two, b"2"), (one, b"end")]


def test_overlapping_subscriptions_bring_a_message_once(broker: Mosquitto) -> None:
    rows = Rows()
    filters = {"/endpoints/left": "left/+", "/endpoints/right": "+/right"}
    with running(broker.uri, filters, rows), Client(broker.uri) as client:
        client.send_all("left/right", [b"1", b"2", b"1", b"1"])
        client.send_all("other/right", [b"3"])
        client.send_all("left/end", [b"end"])
        found = [(row.endpoint, row.body) for row in stored(rows, 6)]
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
        wait_until(lambda: len(first.stored) + len(second.stored) >= 200, LIMIT_SECONDS, "all messages")
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
            wait_until(lambda: "end" in rows.bodies(), LIMIT_SECONDS, "the last message")
    assert rows.bodies() == expected


def test_other_options_of_a_subscription_are_asked_for_while_it_runs(broker: Mosquitto) -> None:
    rows = Rows()
    with Client(broker.uri) as client:
        client.send("option/x", b"kept", retain=True)
        with running(broker.uri, {E: "option/x"}, rows, client_id="options", options={"retainhandling": 2}) as gateway:
            client.send("option/x", b"first")
            stored(rows, 1)
            gateway.replace_subscriptions([EndpointSubscription(E, "option/x", {"retainhandling": 0})])
            stored(rows, 2)
            wait_until(lambda: gateway.connected, LIMIT_SECONDS, "the subscription")
            client.send("option/x", b"last")
            stored(rows, 3)
    assert rows.bodies() == ["first", "kept", "last"]


class Echo(LinkOwner):
    """The owner of a link that subscribes to what it publishes itself."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.answers = 0

    def on_message(self, _link: MqttLink, delivery: MqttDelivery) -> None:
        self.bodies.append(delivery.payload)

    def on_subscribed(self, _link: MqttLink, _mid: int, fault: str) -> None:
        assert not fault
        self.answers += 1

    def on_published(self, _link: MqttLink, _mid: int, _code: int, fault: str) -> None:
        assert not fault
        self.answers += 1


@pytest.mark.parametrize("no_local", [True, False])
def test_no_local_keeps_away_what_the_client_publishes_itself(broker: Mosquitto, no_local: bool) -> None:
    topic, echo = f"own/{no_local}".lower(), Echo()
    (request,) = SubscriptionTable([EndpointSubscription(E, "own/+", {"nolocal": no_local})]).requests
    link = create_connector(Connection((broker.uri,)), "MQTT/5.0", f"own-{no_local}", clean=True).open_link(0, echo)

    def served(count: int) -> bool:
        link.serve_once(0.05, lambda: True)
        return echo.answers >= count

    try:
        wait_until(lambda: served(0) and link.accepted, LIMIT_SECONDS, "the connection")
        link.subscribe(request, 1)
        wait_until(lambda: served(1), LIMIT_SECONDS, "the subscription")
        link.publish(topic, b"mine", 1, False, None)
        wait_until(lambda: served(2), LIMIT_SECONDS, "the broker to have it")
        with Client(broker.uri) as client:
            client.send(topic, b"other")
            wait_until(lambda: served(2) and b"other" in echo.bodies, LIMIT_SECONDS, "the message of another client")
    finally:
        link.close("the test ended")
    assert echo.bodies == ([b"other"] if no_local else [b"mine", b"other"])


def test_subscriptions_are_replaced_while_it_runs(broker: Mosquitto) -> None:
    rows = Rows()
    with running(broker.uri, {E: "first", "/endpoints/stays": "stays"}, rows) as each, Client(broker.uri) as client:
        client.send("first", b"1")
        stored(rows, 1)
        each.replace_subscriptions(
            [EndpointSubscription("/endpoints/f", "second"), EndpointSubscription("/endpoints/stays", "stays")]
        )

        # Asked for again and again: nothing tells from outside when the broker granted the new one.
        def arrives() -> bool:
            client.send("second", b"2")
            return len(rows.stored) > 1

        wait_until(arrives, LIMIT_SECONDS, "the new subscription")
        connected(each)
        client.send("first", b"nobody's")
        client.send("stays", b"3")
        wait_until(lambda: "3" in rows.bodies(), LIMIT_SECONDS, "the subscription that stays")
        with pytest.raises(GatewayError, match="a/#/b"):
            each.replace_subscriptions([EndpointSubscription(E, "a/#/b")])
    assert "nobody's" not in rows.bodies()
    assert next(row.endpoint for row in rows.stored if row.body == b"2") == "/endpoints/f"


def test_a_session_of_other_settings_does_not_hold_it_up(broker: Mosquitto, caplog: pytest.LogCaptureFixture) -> None:
    with running(broker.uri, {E: "was/+"}, Rows(), client_id="session"):
        pass
    rows = Rows()
    with Client(broker.uri) as client:
        client.send_all("was/x", [b"1"] * 3)
        with running(broker.uri, {E: "is"}, rows, client_id="session", limits=GatewayLimits(max_in_flight=1)):
            client.send("is", b"2")
            stored(rows, 1)
    assert rows.bodies() == ["2"]
    assert [record.levelno for record in caplog.records if "was/x" in record.message] == [logging.WARNING]


def test_tls_checks_who_answers(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "ca"), Authority(tmp_path / "ca", "other")
    server = authority.sign("server", alternatives="DNS:localhost,IP:127.0.0.1")
    client = authority.sign("client")
    with Mosquitto(tmp_path / "m", Security(server=server, clients=authority.certificate)) as broker:
        tls = Tls(authority.certificate, client.certificate, client.key)
        rows = Rows()
        with running(Connection((broker.uri,), tls=tls), {E: "t"}, rows) as each:
            assert each.trouble == ""
        wrong = Connection((broker.uri,), tls=Tls(other.certificate, client.certificate, client.key))
        assert "its certificate is not valid" in trouble_of(wrong)
        assert trouble_of(Connection((broker.uri,), tls=Tls(authority.certificate)))


def test_tls_checks_the_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    server = authority.sign("elsewhere", alternatives="DNS:elsewhere.example")
    with Mosquitto(tmp_path / "m", Security(server=server)) as broker:
        trouble = trouble_of(Connection((broker.uri,), tls=Tls(authority.certificate)))
    assert "its certificate is not valid: IP address mismatch" in trouble


@pytest.mark.parametrize("protocol", ["MQTT/5.0", "MQTT/3.1.1"])
def test_a_wrong_password_is_told_without_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, protocol: Version
) -> None:
    caplog.set_level(logging.DEBUG)
    with Mosquitto(tmp_path, Security(username="plant", password="right")) as broker:
        rows = Rows()
        place = broker.uri.removeprefix("mqtt://")
        with running(Connection((broker.uri,), BrokerLogin("plant", "right")), {E: "t"}, rows, protocol=protocol):
            pass
        with running(Connection((f"mqtt://plant:right@{place}",)), {E: "t"}, rows, protocol=protocol):
            pass
        for connection in (
            Connection((broker.uri,), BrokerLogin("plant", SECRET)),
            Connection((f"mqtt://plant:{SECRET}@{place}",)),
        ):
            trouble = trouble_of(connection, protocol)
            assert "refuses the connection" in trouble and "uthorized" in trouble
            assert SECRET not in trouble
    assert SECRET not in caplog.text


def trouble_of(connection: Connection, protocol: Version = "MQTT/5.0") -> str:
    """Return what keeps a gateway from being connected."""
    each = gateway(connection, {E: "t"}, Rows(), protocol=protocol)
    each.start()
    try:
        trouble = wait_until(lambda: each.trouble, LIMIT_SECONDS, "a trouble")
        assert not each.connected and each.alive
        return trouble
    finally:
        each.stop(1.0)


def test_a_refused_subscription_is_told_and_the_others_work(tmp_path: Path) -> None:
    rows = Rows()
    with Mosquitto(tmp_path / "m", extra=access_rules(tmp_path)) as broker:
        each = gateway(broker.uri, {"/endpoints/closed": "closed/#", E: "open/x"}, rows)
        each.start()
        try:
            wait_until(lambda: "closed/#" in each.trouble, LIMIT_SECONDS, "a trouble")
            with Client(broker.uri) as client:
                client.send("open/x", b"1")
            stored(rows, 1)
            assert not each.connected
            each.replace_subscriptions([EndpointSubscription(E, "open/x")])
            connected(each)
            assert each.trouble == ""
        finally:
            each.stop(1.0)


def test_a_broker_that_is_not_there_yet(tmp_path: Path) -> None:
    broker, rows = Mosquitto(tmp_path), Rows()
    each = gateway(broker.uri, {E: "t"}, rows)
    each.start()
    try:
        wait_until(lambda: "cannot connect" in each.trouble, LIMIT_SECONDS, "a trouble")
        with broker, Client(broker.uri) as client:
            connected(each)
            assert each.trouble == ""
            client.send("t", b"1")
            stored(rows, 1)
    finally:
        each.stop(1.0)
    assert not each.alive and not each.connected


def test_what_can_never_work_is_said_at_once(tmp_path: Path) -> None:
    for connection in (Connection(("http://host",)), Connection(("mqtts://host",), tls=Tls(tmp_path / "gone"))):
        with pytest.raises(GatewayError):
            gateway(connection, {E: "t"}, Rows()).start()
    with pytest.raises(GatewayError):
        gateway("mqtt://host", {E: "t"}, Rows(), client_id="").start()
    with pytest.raises(GatewayError):
        gateway("mqtt://host", {E: "#/t"}, Rows())
