"""The array devices under the matcher, each against the plain Python it stands for."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from router.matching.index.classes import KeyTable, NumberTable, Ragged, SplitColumn

# Few letters, many slashes: rows with as many segments as their neighbours, and such without, come often.
TEXTS = st.one_of(st.none(), st.text("ab/%ü", max_size=6), st.sampled_from(["a/b", "b/a", "a/", "/"]))
KEYS = st.integers(-(1 << 62), 1 << 62)


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


def test_segments_of_values_of_one_depth_have_no_empty_one() -> None:
    assert not SplitColumn(pa.array(["a/b", None, "c/d"])).segments("/").has_empty
    assert SplitColumn(pa.array(["a/b", None, ""])).segments("/").has_empty


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


def test_a_number_table_asks_once() -> None:
    asked: list[int] = []
    table = NumberTable(lambda number: asked.append(number) or 2 * number)  # type: ignore[func-returns-value]
    for numbers in ([3, 1, 3], [5000, 1], []):
        assert table.look_up(np.array(numbers, np.int64)).tolist() == [2 * number for number in numbers]
    assert asked == [1, 3, 5000]


@given(st.lists(st.lists(KEYS, max_size=4), min_size=1, max_size=5), st.data())
def test_ragged_lists_are_lists(lists: list[list[int]], data: st.DataObject) -> None:
    items = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=8))
    owners, values = Ragged(lists).expand(np.array(items, np.int64))
    wanted = [(place, value) for place, item in enumerate(items) for value in lists[item]]
    assert list(zip(owners.tolist(), values.tolist(), strict=True)) == wanted
