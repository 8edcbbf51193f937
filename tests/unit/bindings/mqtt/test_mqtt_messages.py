"""PUBLISH packets, built with paho, read by ours."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes

from bindings.mqtt.client import build_properties
from bindings.mqtt.messages import MalformedPublish, read_publish, to_row

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
