"""Columns of many records: bodies that may be events, parts by their names, and bytes as their values have them."""

from __future__ import annotations

from base64 import b64encode

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bindings.columns.entries import PartEntries, encode_base64, find_containing, first_byte_of_each, raw_buffers
from bindings.columns.envelopes import may_be_events
from bindings.events import looks_like_event
from bindings.inbox.format import SCHEMA

EVENT = b'{"specversion":"1.0"}'
PIECES = (
    EVENT,
    b"{",
    b"}",
    b" \r\n\t",
    b'"specversion"',
    b":",
    b'"1.0"',
    b"\\u0073pecversion",
    b"spec",
    b"version",
    b"",
)
bodies = st.one_of(st.none(), st.binary(max_size=4), st.lists(st.sampled_from(PIECES), max_size=6).map(b"".join))


@given(st.lists(bodies, max_size=12), st.integers(0, 3))
def test_no_event_is_missed(given: list[bytes | None], begin: int) -> None:
    marked = may_be_events(pa.array(given, pa.binary())[begin:])
    assert len(marked) == len(given[begin:])
    for body, mark in zip(given[begin:], marked.tolist(), strict=True):
        assert mark or not looks_like_event(body)


def test_other_bodies_are_passed_over() -> None:
    given = [
        None,
        b"",
        b'{"a":1}',
        b"specversion",
        b"[" + EVENT + b"]",
        EVENT,
        b"\n" + EVENT,
        b'{"a":"\\u0041"}',
        b"{}",
    ]
    assert may_be_events(pa.array(given, pa.binary())).tolist() == [False] * 5 + [True] * 3 + [False]


# The parts of many records: numbers for their names, and the first of a name in every row.


LISTS = SCHEMA.field("properties").type
keys = st.sampled_from(("a", "b", "headers.a", "", "ä"))
values = st.one_of(st.none(), st.sampled_from((b"", b"%", b"a%", b'"', b"\xff", "ä".encode())))
kinds = st.sampled_from((None, "json", "binary"))
lists = st.lists(st.lists(st.tuples(keys, values, kinds), max_size=5), max_size=8)
Row = list[tuple[str, bytes | None, str | None]]


def entries_of(rows: list[Row], groups: list[int], begin: int = 0) -> PartEntries:
    listed = [[{"key": key, "value": value, "type": kind} for key, value, kind in row] for row in rows]
    return PartEntries(pa.array(listed, LISTS)[begin:], np.array(groups[begin:], np.int64))


@pytest.mark.slow
def test_names_may_be_many() -> None:
    rows: list[Row] = [[(f"n{number}", b"%d" % number, None), ("last", b"", None)] for number in range(70_000)]
    entries = entries_of(rows, [0] * len(rows))
    assert len(entries.pairs) == 70_001
    places, more = entries.first_and_repeats(entries.entries_of_pairs([entries.pairs.index((0, "n69999"))]))
    assert (np.flatnonzero(places >= 0).tolist(), len(more)) == ([69_999], 0)
    assert len(entries.entries_of_pairs([entries.pairs.index((0, "last"))])) == len(rows)


@given(st.lists(values, max_size=9), st.integers(0, 3))
def test_bytes_of_columns_are_those_of_their_values(given: list[bytes | None], begin: int) -> None:
    array = pa.array(given, pa.binary())[begin:]
    data, offsets = raw_buffers(array)
    there = [bytes(data[offsets[at] : offsets[at + 1]]) for at in range(len(array))]
    assert there == [value or b"" for value in given[begin:]]
    assert first_byte_of_each(array).tolist() == [value[0] if value else 0 for value in given[begin:]]
    encoded = encode_base64(array).to_pylist()
    assert encoded == [None if value is None else b64encode(value).decode() for value in given[begin:]]
    whole = array.drop_null()
    assert find_containing(whole, "%").tolist() == [at for at, value in enumerate(whole.to_pylist()) if b"%" in value]
