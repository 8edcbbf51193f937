"""The array devices under the matcher, each against the plain Python it stands for."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from router.matching.index.classes import KeyTable, SplitColumn

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
