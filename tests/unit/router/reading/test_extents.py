"""Cutting a batch into ranges: every place in exactly one part, in order."""

from __future__ import annotations

import msgspec
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from router.reading.backlogs import BYTES, CHANNEL, NUMBERS, Range, cut

PLACES = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 2**60)), st.integers(0, 2**30), min_size=2
)


@given(PLACES, st.integers(2, 12), st.booleans())
def test_each_place_is_in_one_part_in_order(
    places: dict[tuple[str, int, int], int], pieces: int, by_bytes: bool
) -> None:
    ordered = sorted(places)
    columns = zip(*ordered, strict=True)
    table = pa.table({**dict(zip((CHANNEL, *NUMBERS), columns, strict=True)), BYTES: [places[p] for p in ordered]})
    parts = cut(table, pieces, by_bytes=by_bytes)
    assert 2 <= len(parts) <= pieces
    owners = [[n for n, part in enumerate(parts) for r in part if _holds(r, place)] for place in ordered]
    assert all(len(owner) == 1 for owner in owners)
    assert owners == sorted(owners)
    assert {owner[0] for owner in owners} == set(range(len(parts)))
    assert all(msgspec.json.decode(msgspec.json.encode(r), type=Range) == r for part in parts for r in part)


def _holds(range_: Range, place: tuple[str, int, int]) -> bool:
    return range_.channel == place[0] and range_.first <= place[1:] <= range_.last
