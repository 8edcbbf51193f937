"""Rows of Kafka that no sane client sends, for tests that hold two readings of them against each other."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from bindings.kafka.record_columns import SOURCE_SCHEMA

NAMES = [
    "a",
    "A",
    "",
    "content-type",
    "Content-Type",
    "ce_specversion",
    "ce_id",
    "ce_source",
    "ce_type",
    "ce_Odd",
    "ce_",
]
NAMES += ["a\nb", "\n", "xrouter-x", "x-xrouter-", "ce_a b", "contenT-type", "äöü", "a.b", "'\"\\"]
BYTES = [
    None,
    b"",
    b"1.0",
    b"1",
    b"a",
    b"\xff",
    b"a\xc3",
    b"\xa9",
    b"\xed\xa0\x80",
    "ä€😀".encode(),
    b"\x00",
    b"a\n",
    b"x" * 3000,
]
BYTES += [
    b"application/json",
    b" application/JSON ; a=b",
    b"application/cloudevents+json",
    b"\xc2\xa0application/cloudevents",
]
BYTES += [
    b'{"specversion":"1.0"}',
    b'{"\\u0073pecversion":"1.0"}',
    b"\x0bapplication/json;\n",
    bytes(range(256)),
    b"\r\n",
]

names = st.one_of(st.sampled_from(NAMES), st.text(max_size=6), st.none())
contents = st.one_of(st.sampled_from(BYTES), st.binary(max_size=90))
header_lists = st.one_of(st.none(), st.lists(st.tuples(names, contents), max_size=8))
times = st.sampled_from([0, 1, 999, 1_700_000_000_123, -1, 2**31])


@st.composite
def rows(draw: st.DrawFn) -> tuple[Any, ...]:
    return (
        draw(contents),
        draw(contents),
        draw(st.sampled_from(["in", "", "a.b", "ä"])),
        draw(st.sampled_from([0, 7, 2**31 - 1])),
        draw(st.sampled_from([0, 2**63 - 1])),
        draw(times),
        draw(header_lists),
    )


def batch_of(made: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = list(zip(*made, strict=True))
    headers = [None if h is None else [{"key": name, "value": value} for name, value in h] for h in columns[-1]]
    arrays = [
        pa.array(values, field.type) for values, field in zip((*columns[:-1], headers), SOURCE_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SOURCE_SCHEMA)
