"""Columns as the matcher reads them: string arrays, split at ``/`` without copying a byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int = npt.NDArray[np.int64]
_SLASH: Final = ord("/")
_PERCENT: Final = ord("%")


@dataclass(frozen=True, slots=True)
class Segments:
    """The segments of a column, over its own bytes.

    ``entries`` holds segments and the slashes between them, in turn, so that its offsets cover the data without
    a gap: segment *k* of row *r* is ``entries[starts[r] + 2 * k]``. ``counts`` are segments per row, 0 for a null.
    """

    entries: pa.StringArray
    starts: Int
    counts: Int
    lengths: Int
    """Bytes of every entry."""


class SplitColumn:
    """One string column, and lazily its segments; shared by matching and by extraction."""

    def __init__(self, values: pa.StringArray) -> None:
        self.values = values

    @cached_property
    def valid(self) -> npt.NDArray[np.bool_] | None:
        """Which rows have a value; None when all have."""
        return self.values.is_valid().to_numpy(zero_copy_only=False) if self.values.null_count else None

    @cached_property
    def has_percent(self) -> bool:
        """Whether any value may hold a percent sign, which decoding would change."""
        data, offsets = _bytes(self.values)
        return bool((data[offsets[0] : offsets[-1]] == _PERCENT).any())

    @cached_property
    def segments(self) -> Segments:
        """The column's segments."""
        data, offsets = _bytes(self.values)
        rows = len(self.values)
        slashes = np.flatnonzero(data[offsets[0] : offsets[-1]] == _SLASH) + offsets[0]
        before = np.searchsorted(slashes, offsets)
        starts = np.arange(rows + 1) + 2 * before
        bounds = np.empty(int(starts[-1]) + 1, np.int32)
        bounds[starts] = offsets
        places = np.arange(len(slashes)) * 2 + np.repeat(np.arange(rows), np.diff(before)) + 1
        bounds[places] = slashes
        bounds[places + 1] = slashes + 1
        entries = pa.StringArray.from_buffers(int(starts[-1]), pa.py_buffer(bounds), self.values.buffers()[2])
        counts = np.diff(before) + 1
        if self.valid is not None:
            counts = np.where(self.valid, counts, 0)
        return Segments(entries, starts[:-1], counts, np.diff(bounds))


@dataclass(slots=True)
class Columns:
    """The columns of one batch, by property key, and the properties that occur more than once in a row.

    ``repeats`` maps row and key to all values in order (None: no text), for rows where a constrained name repeats.
    """

    rows: int
    by_key: Mapping[str, SplitColumn]
    repeats: Mapping[tuple[int, str], Sequence[str | None]] = field(default_factory=dict)


def _bytes(values: pa.StringArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Return the data and the offsets of a string array."""
    _, offsets, data = values.buffers()
    if offsets is None or not len(values):
        return np.zeros(0, np.uint8), np.zeros(len(values) + 1, np.int32)
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8), bounds
