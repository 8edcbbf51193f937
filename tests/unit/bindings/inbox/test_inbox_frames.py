"""Frames: what goes in comes out, and nothing that is not whole counts as whole."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bindings.inbox.format import (
    checksum_seed,
    decode_frame,
    encode_frame,
    find_intact_frame,
    is_intact,
    iter_frames,
    read_frame,
    rows_to_batch,
)
from bindings.inbox.space import InboxRowError
from bindings.parts import InboxRow, Part

SEED = checksum_seed("inbox", 0, 0)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PARTS = st.lists(st.builds(Part, TEXT, st.none() | st.binary(max_size=12), st.none() | TEXT), max_size=5)
ROWS = st.lists(
    st.builds(
        InboxRow,
        TEXT,
        TEXT,
        st.integers(0, 2**52),
        PARTS,
        st.none() | st.binary(max_size=40),
    ),
    min_size=1,
    max_size=6,
)


def rows_of(batch: pa.RecordBatch) -> list[InboxRow]:
    """Read a batch back into rows."""
    received = batch.column("received").cast(pa.int64()).to_pylist()
    return [
        InboxRow(
            form["endpoint"],
            form["protocol"],
            micros,
            [Part(part["key"], part["value"], part["type"]) for part in form["properties"]],
            form["body"],
        )
        for form, micros in zip(batch.drop_columns("received").to_pylist(), received, strict=True)
    ]


@settings(deadline=None)
@given(ROWS, st.integers(0, 2**40))
def test_rows_survive_a_frame(rows: list[InboxRow], first: int) -> None:
    data = pa.py_buffer(encode_frame(rows_to_batch(rows), first, SEED))
    (frame,) = iter_frames(data, 0, data.size)
    assert (frame.first, frame.last, frame.end) == (first, first + len(rows), data.size)
    assert is_intact(data, frame, SEED)
    assert rows_of(decode_frame(data, frame)) == rows


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(ROWS, st.data())
def test_no_changed_byte_goes_unnoticed(rows: list[InboxRow], data: st.DataObject) -> None:
    whole = bytearray(encode_frame(rows_to_batch(rows), 7, SEED))
    at = data.draw(st.integers(0, len(whole) - 1).filter(lambda index: not 24 <= index < 32))  # 24-31 is padding
    whole[at] ^= data.draw(st.integers(1, 255))
    buffer = pa.py_buffer(bytes(whole))
    frame = read_frame(buffer, 0, buffer.size)
    assert frame is None or frame.end > buffer.size or not is_intact(buffer, frame, SEED)


def test_a_frame_of_another_segment_is_not_intact() -> None:
    data = pa.py_buffer(encode_frame(rows_to_batch([InboxRow("e", "HTTP", 1, [])]), 0, SEED))
    (frame,) = iter_frames(data, 0, data.size)
    assert not is_intact(data, frame, checksum_seed("inbox", 0, 1))


def test_an_intact_frame_is_found_behind_damage() -> None:
    frame = encode_frame(rows_to_batch([InboxRow("e", "HTTP", 1, [], b"XRF1XRF1")]), 5, SEED)
    data = pa.py_buffer(b"XRF1 rubbish" + frame)
    found = find_intact_frame(data, 0, data.size, SEED)
    assert found is not None and found.first == 5
    assert find_intact_frame(data, 0, data.size, SEED + 1) is None


@pytest.mark.parametrize(
    "row",
    [
        InboxRow("\ud800", "HTTP", 1, []),
        InboxRow("e", "HTTP", 2**80, []),
    ],
)
def test_a_row_that_cannot_be_stored_is_named_so(row: Any) -> None:
    with pytest.raises(InboxRowError):
        rows_to_batch([row])
