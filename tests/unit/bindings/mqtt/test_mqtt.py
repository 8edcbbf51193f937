"""PUBLISH packets built with paho and read by ours, topics and their filters, and pauses between connections."""

from __future__ import annotations

import struct
from pathlib import Path
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
from bindings.mqtt.messages import MalformedPublish, read_publish
from tests.support.cases import read_cases
from tests.support.ports import free_ports

CASES = read_cases(Path(__file__).parents[3] / "cases" / "values" / "mqtt.yaml")
TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=20)


def packet(topic: str, payload: bytes, mid: int | None = None, **values: Any) -> bytes:
    name = topic.encode()
    identifier = b"" if mid is None else struct.pack("!H", mid)
    packed: bytes = build_properties(PacketTypes.PUBLISH, **values).pack()  # type: ignore[no-untyped-call]
    return struct.pack("!H", len(name)) + name + identifier + packed + payload


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


@pytest.mark.parametrize("text", [*CASES["no filters"], "\ud800", "x" * 65_536])
def test_no_filters(text: str) -> None:
    with pytest.raises(messages.TopicFilterError):
        messages.check_filter(text)


@pytest.mark.parametrize("options", CASES["options of none"])
def test_options_that_name_none(options: dict[str, object]) -> None:
    with pytest.raises(messages.TopicFilterError):
        messages.filter_of_options(options)
        messages.share_filter("a/+", options)


@pytest.mark.parametrize(("text", "options", "expected"), CASES["shared"])
def test_options_share_a_filter(text: str, options: dict[str, object], expected: str) -> None:
    assert messages.share_filter(text, options) == expected


@pytest.mark.parametrize(("topic", "fault"), CASES["topics"])
def test_topics_to_publish_to(topic: str, fault: str) -> None:
    found = messages.topic_fault(topic)
    assert fault in found and bool(found) == bool(fault)


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
