"""PUBLISH packets built with paho and read by ours, topics and their filters, and pauses between connections."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes

from bindings.background import Backoff
from bindings.gateways import Connection, GatewayError
from bindings.mqtt import messages
from bindings.mqtt.binding import session_options
from bindings.mqtt.client import LinkConnector, LinkError, LinkOwner, build_properties
from bindings.mqtt.messages import MalformedPublish, read_publish, to_row
from tests.support.ports import free_ports

TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=20)


def packet(topic: str, payload: bytes, mid: int | None = None, **values: Any) -> bytes:
    name = topic.encode()
    identifier = b"" if mid is None else struct.pack("!H", mid)
    packed: bytes = build_properties(PacketTypes.PUBLISH, **values).pack()  # type: ignore[no-untyped-call]
    return struct.pack("!H", len(name)) + name + identifier + packed + payload


def test_an_old_client_has_no_properties() -> None:
    delivery = read_publish(0x30, b"\x00\x01a{}", "MQTT/3.1.1")
    assert (delivery.topic, delivery.payload, delivery.qos, delivery.mid) == ("a", b"{}", 0, 0)
    assert to_row(delivery, "e", "MQTT/3.1.1", 5, 10).body == b"{}"


def test_an_empty_payload_is_a_body_and_a_large_one_is_marked() -> None:
    empty = to_row(read_publish(0x32, packet("a", b"", 1), "MQTT/5.0"), "e", "MQTT/5.0", 1, 3)
    assert empty.body == b""
    assert "oversized" not in {part.key for part in empty.properties}
    large = to_row(read_publish(0x32, packet("a", b"1234", 1), "MQTT/5.0"), "e", "MQTT/5.0", 1, 3)
    assert large.body == b"1234"
    assert [part.value for part in large.properties if part.key == "oversized"] == [b"4"]


@given(
    TEXTS, st.binary(max_size=300), st.lists(st.tuples(TEXTS, TEXTS), max_size=5), st.lists(st.integers(1, 2**28 - 1))
)
def test_what_paho_writes_is_read(
    topic: str, payload: bytes, users: list[tuple[str, str]], subscriptions: list[int]
) -> None:
    data = packet(topic, payload, 7, UserProperty=users, SubscriptionIdentifier=subscriptions)
    delivery = read_publish(0x32, bytearray(data), "MQTT/5.0")
    assert (delivery.topic, delivery.payload, delivery.mid) == (topic, payload, 7)
    assert [(part.key, (part.value or b"").decode()) for part in delivery.properties] == [
        (f"user_properties.{name}", value) for name, value in users
    ]
    assert delivery.subscriptions == tuple(subscriptions)


@given(st.integers(0, 255), st.binary(max_size=60))
def test_noise_is_malformed_or_a_message(header: int, data: bytes) -> None:
    try:
        delivery = read_publish(header, data, "MQTT/5.0")
    except MalformedPublish:
        return
    assert len(delivery.payload) <= len(data)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00", b"\x00\x05a", b"\x00\x01a\x00", b"\x00\x01a\x00\x01\x05\x26", b"\x00\x01a\x00\x01\x03\x23\x00\x01"],
)
def test_what_is_cut_off_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedPublish):
        read_publish(0x32, data, "MQTT/5.0")


# Topic filters against the tables of MQTT 5.0 section 4.7.


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a/#/b",
        "a#",
        "a/b+",
        "+a",
        "a\0b",
        "\ud800",
        "x" * 65_536,
        "$share/g",
        "$share/g/",
        "$share//a",
        "$share/+/a",
    ],
)
def test_no_filters(text: str) -> None:
    with pytest.raises(messages.TopicFilterError):
        messages.check_filter(text)


@pytest.mark.parametrize("options", [{"topic": 7}, {"topic": "a#"}])
def test_options_that_name_none(options: dict[str, object]) -> None:
    with pytest.raises(messages.TopicFilterError):
        messages.filter_of_options(options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, "a/+"), ({"consumer-group": "g"}, "$share/g/a/+"), ({"group": 3}, None), ({"group": "x/y"}, None)],
)
def test_options_share_a_filter(options: dict[str, object], expected: str | None) -> None:
    if expected is not None:
        assert messages.share_filter("a/+", options) == expected
        assert messages.share_filter("$share/h/a/+", options) == "$share/h/a/+"
        return
    with pytest.raises(messages.TopicFilterError):
        messages.share_filter("a/+", options)


@pytest.mark.parametrize(("topic", "fault"), [("a/b", ""), ("a/+", "wildcards"), ("", "empty"), ("a\0", "U+0000")])
def test_topics_to_publish_to(topic: str, fault: str) -> None:
    found = messages.topic_fault(topic)
    assert fault in found
    assert bool(found) == bool(fault)


# Where to connect and on what terms, and what is said of wrong ones.


def test_pauses_grow_to_a_bound() -> None:
    backoff = Backoff(1.0, 8.0)
    pauses = [backoff.next_pause() for _ in range(6)]
    assert all(each / 2 <= pause <= each for pause, each in zip(pauses, (1, 2, 4, 8, 8, 8), strict=True))
    backoff.reset()
    assert backoff.next_pause() <= 1.0


def test_after_an_address_that_refuses_comes_the_next() -> None:
    ports = free_ports(2)
    uris = tuple(f"mqtt://127.0.0.1:{port}" for port in ports)
    connector = LinkConnector(Connection(uris), "MQTT/5.0", "c", clean=True)
    for port in (*ports, *ports):
        with pytest.raises(LinkError, match=f"cannot connect to 127.0.0.1:{port}"):
            connector.open_link(LinkOwner())


def test_options() -> None:
    assert (session_options({}).expiry, session_options({}).keepalive) == (86_400, 60)
    told = session_options({"session-expiry-interval": 5, "keepAlive": "7"})
    assert (told.expiry, told.keepalive) == (5, 7)
    for value in (0, -1, "x", True, 2**32):
        with pytest.raises(GatewayError):
            session_options({"sessionexpiryinterval": value})
