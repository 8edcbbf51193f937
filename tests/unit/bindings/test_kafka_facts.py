"""What columns say of Kafka rows is what the exact codec says of each, for header lists that no sane client sends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bindings.columns.entries import Entries
from bindings.kafka.binding import split_row
from bindings.kafka.record_columns import SOURCE_SCHEMA, KafkaColumnReader
from bindings.protocols import BINDINGS
from router.matching.record_columns import RawRow, RecordColumns, RecordColumnsBuilder
from tests.support.cases import examples
from tests.support.kafka import batch_of, rows

EVENT = ("e.id", "e.type", "e.datacontenttype")
HEADERS = ("p.headers.a", "b.headers.a", "p.headers.content-type", "d")
KEYS = (*EVENT, *HEADERS, "p.key", "p.key_base64", "b.key", "p.topic", "p.partition", "b.partition")


def exactly(row: dict[str, Any]) -> RecordColumns:
    """The facts of one row as the exact codec reads it."""
    raw = RecordColumnsBuilder(KEYS)
    raw.add(RawRow(0, BINDINGS["KAFKA"], split_row(row), row["value"], 0, lambda: True, "", None))
    return raw.build()


@pytest.mark.slow
@settings(max_examples=examples(400), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(rows(), min_size=1, max_size=12))
def test_columns_say_what_the_codec_says(made: list[tuple[Any, ...]]) -> None:
    batch = batch_of(made)
    read = KafkaColumnReader(KEYS, sniffs=True).read_columns(batch)
    for number, row in enumerate(batch.to_pylist()):
        if read.odd[number]:
            continue
        facts = exactly(row)
        envelope = facts.readings[0].envelope
        assert (envelope.mode, facts.faults) == ("binary" if read.events[number] else "native", {})
        assert read.content[number].as_py() == envelope.content_type
        for key in KEYS:
            if key.startswith("e.") and not read.events[number]:
                continue
            text = read.texts[key][number].as_py()
            assert ([] if text is None else [text]) == facts.values(0, key), key


@pytest.mark.slow
@given(st.lists(rows(), min_size=1, max_size=12))
def test_slices_of_a_batch_are_read_alike(made: list[tuple[Any, ...]]) -> None:
    reader, batch = KafkaColumnReader(KEYS, sniffs=True), batch_of(made)
    whole = reader.read_columns(batch)
    for at in range(len(made)):
        one = reader.read_columns(batch.slice(at, 1))
        assert (one.odd[0], one.events[0]) == (whole.odd[at], whole.events[at])
        assert all(one.texts[key][0] == whole.texts[key][at] for key in KEYS)


@pytest.mark.parametrize(
    ("headers", "odd"),
    [
        ([("ce_specversion", b"1.0"), ("ce_id", b"1"), ("ce_type", b"t"), ("ce_source", b"s")], False),
        ([("a", b"\xff"), ("trace", b"\xff\xfe")], True),
        ([("b", b"\xff"), ("trace", b"\xff\xfe")], False),
        ([("b", b"1"), ("b", b"2")], False),
        ([("a", b"1"), ("a", b"2")], True),
        ([("Content-Type", b"text/plain")], True),
        ([("ce_type", b"t")], True),
    ],
)
def test_few_rows_are_odd(headers: list[tuple[str, bytes]], odd: bool) -> None:
    batch = batch_of([(b"k", b"v", "in", 0, 0, 0, headers)])
    assert KafkaColumnReader(("p.headers.a",), sniffs=False).read_columns(batch).odd.tolist() == [odd]


def test_ever_new_names_cost_no_more_than_their_number() -> None:
    """A hostile producer may give every header a name of its own."""
    headers = [[(f"ce_x{row}x{place}", b"1") for place in range(50)] for row in range(200)]
    batch = batch_of([(None, None, "in", 0, 0, 0, each) for each in headers])
    entries = Entries(batch.column(SOURCE_SCHEMA.names[-1]))
    assert len(entries.names) == 10_000
    assert not entries.rows_with_repeats(slice(None), entries.codes).any()
    twice = batch_of(
        [(None, None, "in", 0, 0, 0, [*headers[0], headers[0][7]]), (None, None, "in", 0, 0, 0, headers[1])]
    )
    entries = Entries(twice.column(SOURCE_SCHEMA.names[-1]))
    assert entries.rows_with_repeats(slice(None), entries.codes).tolist() == [True, False]
    assert KafkaColumnReader((), sniffs=False).read_columns(batch).odd.all()
