"""The decoder of AMQP values against proton's encoder, and against bytes that are no values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st
from proton import Data, Described, symbol, ulong

from bindings.amqp.values import MAX_DEPTH, MAX_EMPTY_ELEMENTS, AmqpValue, MalformedValue, read_value, to_row
from tests.support.cases import read_cases

CASES = read_cases(Path(__file__).parents[3] / "cases" / "values" / "amqp.yaml")

ASCII = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=300)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "ubyte": st.integers(0, 2**8 - 1).map(proton.ubyte),
    "ushort": st.integers(0, 2**16 - 1).map(proton.ushort),
    "uint": st.integers(0, 2**32 - 1).map(proton.uint),
    "ulong": st.integers(0, 2**64 - 1).map(ulong),
    "byte": st.integers(-(2**7), 2**7 - 1).map(proton.byte),
    "short": st.integers(-(2**15), 2**15 - 1).map(proton.short),
    "int": st.integers(-(2**31), 2**31 - 1).map(proton.int32),
    "long": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False),
    "timestamp": st.integers(-(2**63), 2**63 - 1).map(proton.timestamp),
    "uuid": st.uuids(),
    "binary": st.binary(max_size=300),
    "string": st.text(max_size=300),
    "symbol": ASCII.map(symbol),
}


def encoded(value: Any) -> bytes:
    data = Data()
    data.put_object(value)
    return bytes(data.encode())


def expected(kind: str, value: Any) -> AmqpValue:
    return AmqpValue(kind, str(value) if kind == "uuid" else value)


@st.composite
def scalars(draw: st.DrawFn) -> tuple[Any, AmqpValue]:
    kind = draw(st.sampled_from(sorted(SCALARS)))
    value = draw(SCALARS[kind])
    return value, expected(kind, value)


def compounds(inner: st.SearchStrategy[tuple[Any, AmqpValue]]) -> st.SearchStrategy[tuple[Any, AmqpValue]]:
    def listed(items: list[tuple[Any, AmqpValue]]) -> tuple[Any, AmqpValue]:
        return [value for value, _ in items], AmqpValue("list", [typed for _, typed in items])

    def mapped(items: dict[str, tuple[Any, AmqpValue]]) -> tuple[Any, AmqpValue]:
        pairs = [(AmqpValue("string", key), typed) for key, (_, typed) in items.items()]
        return {key: value for key, (value, _) in items.items()}, AmqpValue("map", pairs)

    def described(item: tuple[Any, AmqpValue]) -> tuple[Any, AmqpValue]:
        return Described(ulong(300), item[0]), AmqpValue("described", (AmqpValue("ulong", 300), item[1]))

    return st.one_of(
        st.lists(inner, max_size=5).map(listed),
        st.dictionaries(st.text(max_size=5), inner, max_size=5).map(mapped),
        inner.map(described),
    )


@given(st.recursive(scalars(), compounds, max_leaves=20))
def test_what_proton_encodes_is_read_as_it_was(pair: tuple[Any, AmqpValue]) -> None:
    value, typed = pair
    data = encoded(value)
    assert read_value(b"\xff" + data + b"\xff", 1, len(data) + 1) == (typed, len(data) + 1)


def test_floats_are_the_shortest_that_their_sender_may_have_written() -> None:
    assert read_value(b"\x72\x3d\xcc\xcc\xcd", 0, 5)[0].value == 0.1
    assert math.isnan(read_value(b"\x72\x7f\xc0\x00\x00", 0, 5)[0].value)
    assert read_value(b"\x72\xff\x80\x00\x00", 0, 5)[0].value == -math.inf


def test_maps_keep_repeated_and_odd_keys() -> None:
    raw = b"\xc1\x0a\x06\xa1\x01a\x54\x01\xa1\x01a\x40" + b"\x45\x41"
    raw = bytes([0xC1, len(raw) - 2]) + raw[2:]
    a = AmqpValue("string", "a")
    assert read_value(raw, 0, len(raw))[0].value == [
        (a, AmqpValue("int", 1)),
        (a, AmqpValue("null", None)),
        (AmqpValue("list", []), AmqpValue("boolean", True)),
    ]


def test_text_that_is_no_utf8_stays_bytes() -> None:
    assert read_value(b"\xa1\x02\xff\xfe", 0, 4)[0] == AmqpValue("string", b"\xff\xfe")


def test_arrays_of_described_values_carry_the_descriptor() -> None:
    raw = b"\xe0\x07\x02\x00\xa3\x01x\x50\x01\x02"
    raw = bytes([0xE0, len(raw) - 2]) + raw[2:]
    descriptor = AmqpValue("symbol", "x")
    values = [AmqpValue("described", (descriptor, AmqpValue("ubyte", each))) for each in (1, 2)]
    assert read_value(raw, 0, len(raw))[0] == AmqpValue("array", values)


@pytest.mark.parametrize(("raw", "says"), [*CASES["no value"], ("00" * 1000, "deep")])
def test_bytes_that_are_no_value_say_where(raw: str, says: str) -> None:
    data = bytes.fromhex(raw)
    with pytest.raises(MalformedValue, match=says):
        read_value(data, 0, len(data))


def test_depth_and_empty_elements_are_bounded() -> None:
    deep = b"\x45"
    for _ in range(MAX_DEPTH):
        deep = b"\xd0" + (len(deep) + 4).to_bytes(4, "big") + b"\0\0\0\1" + deep
    assert read_value(deep, 0, len(deep))[1] == len(deep)
    deeper = b"\xd0" + (len(deep) + 4).to_bytes(4, "big") + b"\0\0\0\1" + deep
    deeper = b"\xd0" + (len(deeper) + 4).to_bytes(4, "big") + b"\0\0\0\1" + deeper
    with pytest.raises(MalformedValue, match="deep"):
        read_value(deeper, 0, len(deeper))
    many = b"\xf0\x00\x00\x00\x05" + MAX_EMPTY_ELEMENTS.to_bytes(4, "big") + b"\x43"
    assert len(read_value(many, 0, len(many))[0].value) == MAX_EMPTY_ELEMENTS


def test_a_message_needs_no_more_memory_than_its_bytes_explain() -> None:
    array = b"\xf0\x00\x00\x00\x05\x00\x01\x00\x00\x40"  # 65,536 nulls in ten bytes
    items = array * 50
    row = to_row(b"\0\x53\x77\xd0" + (len(items) + 4).to_bytes(4, "big") + b"\0\0\0\x32" + items, "e", 0, 2**20)
    assert [part.key for part in row.properties] == ["undecodable"]


def test_types_need_no_more_memory_than_the_bytes_of_a_message_explain() -> None:
    nulls = b"\xd0" + (10_004).to_bytes(4, "big") + (10_000).to_bytes(4, "big") + b"\x40" * 10_000
    named = b"\xb1" + (10_000).to_bytes(4, "big") + b"k" * 10_000 + nulls
    row = to_row(b"\0\x53\x77\xd1" + (len(named) + 4).to_bytes(4, "big") + b"\0\0\0\2" + named, "e", 0, 2**20)
    (types,) = row.properties
    assert types.value is not None and len(types.value) < 20_000 and row.body is not None and len(row.body) < 70_000


@given(st.binary(max_size=200))
def test_no_bytes_do_worse_than_be_malformed(raw: bytes) -> None:
    try:
        _, behind = read_value(raw, 0, len(raw))
    except MalformedValue:
        return
    assert behind <= len(raw)
