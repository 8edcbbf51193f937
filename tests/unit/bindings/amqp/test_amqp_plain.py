"""The short way through AMQP sections says what the long way says, of messages and of bytes that are none."""

from __future__ import annotations

import uuid
from typing import Any

import proton
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from proton import symbol, ulong

from bindings.amqp import values
from bindings.amqp.values import HEADER_FIELDS, PROPERTY_FIELDS, DecodedMessage, MalformedMessage, decode_message
from tests.support.amqp import section

TEXTS = st.text(max_size=20) | st.text(st.characters(max_codepoint=127), max_size=300)
VALUES = st.one_of(
    TEXTS,
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**32 - 1).map(proton.uint),
    st.integers(0, 2**64 - 1).map(ulong),
    st.floats(allow_nan=False),
    st.binary(max_size=20),
    st.just(symbol("sym")),
    st.just(uuid.UUID(int=7)),
    st.lists(st.integers(0, 9) | TEXTS, max_size=3),
    st.dictionaries(TEXTS, st.integers(0, 9), max_size=3),
)
KEYS = TEXTS | st.sampled_from([symbol("key"), ulong(5), "a", "cloudEvents:id"])
SECTIONS = st.one_of(
    st.lists(VALUES, max_size=len(HEADER_FIELDS) + 1).map(lambda each: section("header", each)),
    st.lists(VALUES, max_size=len(PROPERTY_FIELDS) + 1).map(lambda each: section("properties", each)),
    st.dictionaries(KEYS, VALUES, max_size=5).map(lambda each: section("application-properties", each)),
    st.dictionaries(KEYS, VALUES, max_size=2).map(lambda each: section("message-annotations", each)),
    st.binary(max_size=300).map(lambda each: section("data", each)),
    VALUES.map(lambda each: section("amqp-value", each)),
)
MESSAGES = st.lists(SECTIONS, max_size=4).map(b"".join)


def said(data: bytes, *, short: bool) -> DecodedMessage | str:
    try:
        return decode_message(data, plain=short)
    except MalformedMessage as error:
        return str(error)


@given(MESSAGES)
def test_of_messages(data: bytes) -> None:
    assert said(data, short=True) == said(data, short=False)


@given(MESSAGES, st.integers(0, 10**6), st.integers(0, 255), st.booleans())
@example(section("application-properties", {"a": "1", "b": "2"}), 15, 0x61, False)
def test_of_messages_with_a_byte_changed_or_an_end_cut_off(data: bytes, place: int, byte: int, cut: bool) -> None:
    at = place % (len(data) + 1)
    broken = data[:at] if cut else data[:at] + bytes([byte]) + data[at + 1 :]
    assert said(broken, short=True) == said(broken, short=False)


@pytest.mark.parametrize(
    "broken",
    [
        b"\x00\x53\x74\xc1\x0d\x04\xa1\x01a\xa1\x01x\xa1\x01a\xa1\x01y",  # a key twice: the first counts
        b"\x00\x53\x74\xc1\x04\x01\xa1\x01a",  # a key without a value
        b"\x00\x53\x74\xc1\x07\x04\xa1\x01a\xa1\x01x",  # fewer than it says
        b"\x00\x53\x74\xc1\x08\x02\xa1\x01a\xa1\x01x\x40",  # more than it says
        b"\x00\x53\x74\xd1\x00\x00\x00\x0a\x00\x00\x00\x02\xa1\x01a\xa1\x01x",
        b"\x00\x53\x70\xc0\x03\x01\x00\x00",  # descriptors where a field should be
        b"\x00\x53\x73\xc0\x02\x01\x40",
        b"\x00\x53\x73\xc0\x01\x02",  # fields that are not there
        b"\x00\x53\x73\x45",
        b"\x00\x53\x75\xa0",
        b"\x00\x53\x75\xa0\x05abc",
        b"\x00\x53\x75\xb0\x00\x00\x00\x03abc",
        b"\x00\x53\x75\x40",
        b"\x00\x53",
        b"\x00",
    ],
)
def test_of_bytes_made_by_hand(broken: bytes) -> None:
    assert said(broken, short=True) == said(broken, short=False)


def test_the_short_way_is_taken() -> None:
    event = {f"cloudEvents:{name}": "text" for name in ("specversion", "id", "type", "source")}
    mapped: Any = section("application-properties", {**event, "count": 5})
    taken = values.read_text_map(mapped, 3, len(mapped), "application-properties")
    assert taken is not None and len(taken[0]) == 5 and taken[2] == len(mapped)
    listed = section("properties", ["m-1", None, "to", "sub", None, ulong(9), symbol("text/plain")])
    found = values.read_fields(listed, 3, len(listed), "properties", PROPERTY_FIELDS)
    assert found is not None
    assert [each.key.partition(".")[2] for each in found[0]] == [
        *("message-id", "to", "subject", "correlation-id", "content-type")
    ]
    assert found[1:] == ({"properties.correlation-id": "ulong"}, len(listed))
