"""The parts of many records: numbers for their names, and the first of a name in every row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from bindings.columns.entries import PartEntries
from bindings.inbox.format import SCHEMA

Row = list[tuple[str, bytes | None, str | None]]


@pytest.mark.slow
def test_names_may_be_many() -> None:
    rows: list[Row] = [[(f"n{number}", b"%d" % number, None), ("last", b"", None)] for number in range(70_000)]
    listed = [[{"key": key, "value": value, "type": kind} for key, value, kind in row] for row in rows]
    lists = pa.array(listed, SCHEMA.field("properties").type)
    entries = PartEntries(lists, np.zeros(len(rows), np.int64))
    assert len(entries.pairs) == 70_001
    places, more = entries.first_and_repeats(entries.entries_of_pairs([entries.pairs.index((0, "n69999"))]))
    assert (np.flatnonzero(places >= 0).tolist(), len(more)) == ([69_999], 0)
    assert len(entries.entries_of_pairs([entries.pairs.index((0, "last"))])) == len(rows)
