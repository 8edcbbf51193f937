"""Placeholders taken out of many values together are those that a template takes out of each."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from catalog.definitions.constraints import Constraint
from catalog.templates import parse_template
from router.matching.context import extract_placeholder
from router.matching.inbox_columns import arrival_times, to_rfc3339
from router.matching.index.classes import KeyTable, PropertyClasses, Ragged, SplitColumn

LITERALS = st.sampled_from(
    ["-", "/", ".", "a", "-a", "--", "é", "\\", "$", "^", " ", "\n", "\0", "{", "(?", "|", "[^/]"]
)
PIECES = st.one_of(LITERALS, st.sampled_from(["{x}", "{y}", "{z.1}"]))


@given(st.lists(PIECES, min_size=1, max_size=8), st.booleans(), st.data())
def test_captured_is_what_the_template_takes(pieces: list[str], dots: bool, data: st.DataObject) -> None:
    template = parse_template("".join(pieces), dots=dots)
    if template.is_literal or template.is_bare:
        return
    filled = st.tuples(*(LITERALS if piece.endswith("}") else st.just(piece) for piece in pieces)).map("".join)
    texts = data.draw(st.lists(st.one_of(filled, st.lists(LITERALS, max_size=8).map("".join), st.none()), max_size=20))
    expected = [None if text is None else template.match(text) for text in texts]
    for name in dict.fromkeys(template.names):
        taken = extract_placeholder(template, name, pa.array(texts, pa.string()))
        if len(set(template.names)) < len(template.names):
            assert taken is None
        else:
            assert taken is not None
            assert taken.to_pylist() == [None if each is None else each[name] for each in expected]


# Instants of whole columns as RFC 3339 text.


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(st.lists(st.none() | st.datetimes(), max_size=6), st.sampled_from(("UTC", "Europe/Berlin", "+05:30")))
def test_arrivals_are_told_in_utc_to_the_microsecond(given: list[datetime | None], zone: str) -> None:
    moments = [
        None if each is None else (each.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1) for each in given
    ]
    texts = [None if each is None else f"{each.isoformat(timespec='microseconds')}Z" for each in given]
    assert arrival_times(pa.array(moments, pa.timestamp("us", tz=zone))).to_pylist() == texts


def test_milliseconds_keep_their_unit() -> None:
    stamps = pa.array([0, None, 1_700_000_000_123], pa.timestamp("ms"))
    assert to_rfc3339(stamps).to_pylist() == ["1970-01-01T00:00:00.000Z", None, "2023-11-14T22:13:20.123Z"]


def test_what_is_no_time_of_the_calendar_is_none() -> None:
    given = pa.array([-(2**62), 2**62, 253_402_300_800_000_000, 253_402_300_799_999_999], pa.timestamp("us", tz="UTC"))
    assert arrival_times(given).to_pylist() == [None, None, None, "9999-12-31T23:59:59.999999Z"]


# The array devices under the matcher, each against the plain Python it stands for.


KEYS = st.integers(-(1 << 62), 1 << 62)


def test_segments_under_a_null_are_none() -> None:
    # Arrow allows bytes under a null.
    column = pa.StringArray.from_buffers(
        2, pa.py_buffer(np.array([0, 3, 6], np.int32)), pa.py_buffer(b"a/bc/d"), pa.py_buffer(b"\x02")
    )
    assert SplitColumn(column).segments("/").counts.tolist() == [0, 2]


@given(st.lists(st.lists(KEYS, max_size=30), max_size=6))
def test_a_key_table_is_a_dictionary(batches: list[list[int]]) -> None:
    table, known = KeyTable(1000), dict[int, int]()
    for keys in batches:
        found = table.look_up(np.array(keys, np.int64), lambda key, _: key % 1000)
        known.update((key, key % 1000) for key in keys)
        assert found.tolist() == [key % 1000 for key in keys]
        again, met = table.probe(np.array([*known, 1 << 62], np.int64))
        assert met.tolist()[:-1] == [True] * len(known)
        assert again.tolist()[:-1] == list(known.values())


def test_a_key_table_past_its_limit_starts_anew_and_stays_right() -> None:
    table = KeyTable(500)
    for start in range(0, 4000, 250):
        keys = np.arange(start, start + 300)
        assert (table.look_up(keys, lambda key, _: -key) == -keys).all()


TEXTS = st.one_of(st.none(), st.text("ab/%ü", max_size=6), st.sampled_from(["a/b", "b/a", "a/", "/"]))


@given(st.lists(TEXTS, max_size=12), st.integers(0, 3))
def test_segments_are_those_of_split(texts: list[str | None], skipped: int) -> None:
    column = SplitColumn(pa.array(texts, pa.string())[skipped:])
    segments, kept = column.segments("/"), texts[skipped:]
    found = [
        None if not count else segments.entries.take(pa.array(start + 2 * np.arange(count))).to_pylist()
        for start, count in zip(segments.starts.tolist(), segments.counts.tolist(), strict=True)
    ]
    assert found == [None if text is None else text.split("/") for text in kept]
    assert segments.lengths.tolist() == [len(entry.encode()) for entry in segments.entries.to_pylist()]
    assert segments.has_empty or not any("" in text.split("/") for text in kept if text is not None)
    assert column.has_percent == any("%" in text for text in kept if text is not None)


@given(st.lists(st.lists(KEYS, max_size=4), min_size=1, max_size=5), st.data())
def test_ragged_lists_are_lists(lists: list[list[int]], data: st.DataObject) -> None:
    items = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=8))
    owners, values = Ragged(lists).expand(np.array(items, np.int64))
    wanted = [(place, value) for place, item in enumerate(items) for value in lists[item]]
    assert list(zip(owners.tolist(), values.tolist(), strict=True)) == wanted


# Classes of whole columns against the constraints they stand for, asked one value at a time.


VALUES = st.one_of(
    st.none(),
    st.text("ab./-", max_size=7),
    st.sampled_from(["a.b", "a/b", "a.b.a", "a/b/a", "a.b/a", "1", "1.0", "2024-02-29T00:00:00Z"]),
)
PLAIN_LITERALS = st.text("ab./-", max_size=3)


@st.composite
def templates(draw: st.DrawFn) -> str:
    """Texts with placeholders between; a name never occurs twice, for that is not decided by classes."""
    parts = [draw(PLAIN_LITERALS)]
    for number in range(draw(st.integers(0, 3))):
        parts += ["{n" + str(number) + "}", draw(st.one_of(st.sampled_from(["/", ".", "", "-"]), PLAIN_LITERALS))]
    return "".join(parts)


CONSTRAINTS = st.one_of(
    st.builds(
        Constraint, st.just("literal"), st.sampled_from(["string", "number"]), st.sampled_from(["a", "a.b", "1"])
    ),
    st.builds(
        Constraint, st.sampled_from(["present", "optional"]), st.sampled_from(["string", "timestamp", "integer"])
    ),
    st.builds(
        Constraint, st.just("template"), st.sampled_from(["string", "timestamp"]), templates(), dots=st.booleans()
    ),
)


@given(st.lists(CONSTRAINTS, min_size=1, max_size=8, unique=True), st.lists(st.lists(VALUES, max_size=8), max_size=3))
def test_a_class_satisfies_what_each_of_its_values_does(
    constraints: list[Constraint], batches: list[list[str | None]]
) -> None:
    classes: PropertyClasses = pickle.loads(pickle.dumps(PropertyClasses(constraints)))
    for values in batches:
        numbers = classes.classify(SplitColumn(pa.array(values, pa.string()))).tolist()
        for value, number in zip(values, numbers, strict=True):
            satisfied = [each.satisfied(value, present=value is not None) for each in constraints]
            found = [bool(classes.bits[number] >> place & 1) for place in range(len(constraints))]
            assert found == satisfied, value
            assert classes.class_of([] if value is None else [value]) == number
