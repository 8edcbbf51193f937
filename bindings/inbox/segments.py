"""Segment files: their names, which exist, and how many rows lie in them.

``<inbox>/<partition>/<segment>.log`` holds frames, numbered without a gap from row 0 of the segment. The segment
with the highest number is *open*: rows count only up to the published durable end (:mod:`bindings.inbox.ends`).
All others are *sealed*: every byte is durable, and only compaction (same rows, same numbers, one atomic rename)
and trimming touch them. Segment numbers are never used twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from bindings.inbox.errors import InboxDamaged
from bindings.inbox.frames import Frame, decode, frame_at, frames, is_intact, row_bytes
from catalog.values import whole_number

SUFFIX: Final = ".log"
_DIGITS: Final = 12


def partition_directory(inbox: Path, partition: int) -> Path:
    """Return the directory of one partition log."""
    return inbox / str(partition)


def segment_path(directory: Path, segment: int) -> Path:
    """Return the file of one segment."""
    return directory / f"{segment:0{_DIGITS}d}{SUFFIX}"


def segments_in(directory: Path) -> list[int]:
    """Return the numbers of the segments that exist, ascending."""
    numbers = (whole_number(path.stem) for path in directory.glob(f"*{SUFFIX}"))
    return sorted(number for number in numbers if number is not None)


def map_segment(path: Path) -> pa.Buffer:
    """Map a segment as it is now.

    The mapping outlives compaction and trimming. The writer cuts a file only behind its durable end, so no reader
    that stays before that end ever touches a page that is taken away.

    Raises:
        FileNotFoundError: the segment was trimmed, or never was.
    """
    if path.stat().st_size == 0:
        return pa.py_buffer(b"")
    with pa.memory_map(str(path)) as file:
        return file.read_buffer()


def rows_in(path: Path) -> int:
    """Return the number of rows of a sealed segment, from its frames' headers.

    Raises:
        FileNotFoundError: the segment was trimmed, or never was.
        InboxDamaged: bytes are left over behind the last frame that could be made out.
    """
    data = map_segment(path)
    end = last = 0
    for frame in frames(data, 0, data.size):
        end, last = frame.end, frame.last
    if end != data.size:
        raise damaged(path, last)
    return last


def read_rows(path: Path, first: int, last: int, seed: int, hint: int = 0) -> Iterator[pa.RecordBatch]:
    """Yield rows *first* to *last* (exclusive) of a segment, each frame checked, cut to the range.

    *hint* is the byte where the frame of row *first* was seen to start. It is only a short cut: compaction may
    have moved the frame, then the search starts at the beginning of the segment.

    Raises:
        FileNotFoundError: the segment was trimmed, or never was.
        InboxDamaged: a row of the range is missing, or its frame fails the checksum.
    """
    data = map_segment(path)
    hinted = frame_at(data, hint, data.size)
    row = first
    start = hint if hinted is not None and hinted.first == first else 0
    for frame in frames(data, start, data.size):
        if frame.last <= row:
            continue
        if frame.first > row or not is_intact(data, frame, seed):
            raise damaged(path, row)
        stop = min(last, frame.last)
        yield _rows(data, frame, row, stop)
        row = stop
        if row >= last:
            return
    if row < last:
        raise damaged(path, row)


def rows_within(path: Path, first: int, last: int, size: int, seed: int, hint: int = 0) -> tuple[int, int]:
    """Return how many of the rows *first* to *last* have at most *size* bytes together, and what is left of *size*.

    Only the frame in which they end is read. *hint* is as for :func:`read_rows`.

    Raises:
        FileNotFoundError: the segment was trimmed, or never was.
        InboxDamaged: that frame is broken.
    """
    data = map_segment(path)
    hinted = frame_at(data, hint, data.size)
    start = hint if hinted is not None and hinted.first == first else 0
    row = first
    for frame in frames(data, start, data.size):
        if frame.last <= row:
            continue
        stop = min(last, frame.last)
        whole = frame.first == row and stop == frame.last
        if whole and frame.end - frame.start <= size:
            size -= frame.end - frame.start
            row = stop
        else:
            if not is_intact(data, frame, seed):
                raise damaged(path, row)
            sizes = np.cumsum(row_bytes(_rows(data, frame, row, stop)))
            taken = int(np.searchsorted(sizes, size, "right"))
            size -= int(sizes[taken - 1]) if taken else 0
            if row + taken < stop:
                return row + taken - first, size
            row = stop
        if row >= last:
            break
    return row - first, size


def _rows(data: pa.Buffer, frame: Frame, first: int, last: int) -> pa.RecordBatch:
    return decode(data, frame).slice(first - frame.first, last - first)


def damaged(path: Path, row: int) -> InboxDamaged:
    """Return the error for acknowledged rows that cannot be read."""
    return InboxDamaged(
        f"{path}: row {row} and what follows cannot be read though it was acknowledged; check the disk, restore the "
        f"file, or move it out of the inbox to go on without its rows",
        file=str(path),
        row=row,
    )
