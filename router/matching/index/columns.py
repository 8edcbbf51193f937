"""Columns as the matcher reads them: string arrays, split at a separator without copying a byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bindings.columns.texts import raw

Int = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Segments:
    """The segments of a column, over its own bytes.

    ``entries`` holds segments and the separators between them, in turn, so that its offsets cover the data without
    a gap: segment *k* of row *r* is ``entries[starts[r] + 2 * k]``. ``counts`` are segments per row, 0 for a null.
    """

    entries: pa.StringArray
    starts: Int
    counts: Int
    lengths: Int32
    """Bytes of every entry."""
    has_empty: bool
    """Whether a segment may be empty."""


class SplitColumn:
    """One string column, and lazily its segments; shared by matching and by extraction."""

    def __init__(self, values: pa.StringArray) -> None:
        self.values = values
        self._segments: dict[str, Segments] = {}

    @cached_property
    def valid(self) -> Bool | None:
        """Which rows have a value; None when all have."""
        return self.values.is_valid().to_numpy(zero_copy_only=False) if self.values.null_count else None

    @cached_property
    def lengths(self) -> Int32:
        """Bytes of every value; those of a null mean nothing."""
        return np.diff(raw(self.values)[1])

    @cached_property
    def has_percent(self) -> bool:
        """Whether any value may hold a percent sign, which decoding would change."""
        return self.has("%")

    def has(self, character: str) -> bool:
        """Tell whether any value may hold that ASCII character."""
        data, offsets = raw(self.values)
        return bool((data[offsets[0] : offsets[-1]] == ord(character)).any())

    def segments(self, separator: str) -> Segments:
        """Return the column's segments between that ASCII character; found once."""
        known = self._segments.get(separator)
        if known is None:
            known = self._segments[separator] = self._split(separator)
        return known

    def _split(self, separator: str) -> Segments:
        data, offsets = raw(self.values)
        marks = np.flatnonzero(data[offsets[0] : offsets[-1]] == ord(separator))
        marks += offsets[0]
        filled = self.lengths > 0
        rows = np.flatnonzero(filled)
        begins = offsets[rows]
        marked = _marks_per_row(marks, begins)
        first, bounds = _bounds(marks, marked, begins, int(offsets[-1]))
        lengths = np.diff(bounds)
        entries = pa.StringArray.from_buffers(len(lengths), pa.py_buffer(bounds), self.values.buffers()[2])
        # A value may be empty and still be there: it is one segment, and all such share the last entry.
        blank = int(np.count_nonzero(~filled if self.valid is None else self.valid & ~filled))
        empty = blank > 0 or int(np.count_nonzero(lengths)) < len(lengths) - 1
        if len(rows) == len(filled):
            starts, counts = first, marked + 1
        else:
            starts, counts = np.full(len(filled), len(lengths) - 1, np.int64), np.ones(len(filled), np.int64)
            starts[rows], counts[rows] = first, marked + 1
        if self.valid is not None:
            counts *= self.valid
        return Segments(entries, starts, counts, lengths, empty)


@dataclass(slots=True)
class Columns:
    """The columns of one batch, by property key, and the properties that occur more than once in a row.

    ``repeats`` maps row and key to all values in order (None: no text), for rows where a constrained name repeats.
    """

    rows: int
    by_key: Mapping[str, SplitColumn]
    repeats: Mapping[tuple[int, str], Sequence[str | None]] = field(default_factory=dict)
    matched: dict[tuple[int, str], Mapping[str, str] | None] = field(default_factory=dict)
    """Placeholder values that only a template can find, by constraint and value."""


def _marks_per_row(marks: Int, begins: Int32) -> Int:
    """Count the separators from each of these places to the next.

    Mostly all values have as many, which is cheap to see and spares the search.
    """
    rows = len(begins)
    each, rest = divmod(len(marks), rows) if rows else (0, 0)
    if not rest and each:
        # They ascend, so when the first and the last of every group are between the right two, all are.
        firsts, lasts = marks[::each], marks[each - 1 :: each]
        if (firsts >= begins).all() and (lasts[:-1] < begins[1:]).all():
            return np.full(rows, each)
    return np.diff(np.searchsorted(marks, begins), append=len(marks))


def _bounds(marks: Int, marked: Int, begins: Int32, end: int) -> tuple[Int, Int32]:
    """Return the first entry of every row, and the offsets of all entries, the last of which is an empty one."""
    rows, size = len(begins), len(begins) + 2 * len(marks)
    bounds = np.full(size + 2, end, np.int32)
    if rows and (marked == marked[0]).all():
        grid = bounds[:size].reshape(rows, -1)
        grid[:, 0] = begins
        grid[:, 1::2] = marks.reshape(rows, -1)
        grid[:, 2::2] = grid[:, 1::2] + 1
        return np.arange(rows) * grid.shape[1], bounds
    first = np.arange(rows) + 2 * (np.cumsum(marked) - marked)
    places = 2 * np.arange(len(marks)) + np.repeat(np.arange(1, rows + 1), marked)
    bounds[first] = begins
    bounds[places] = marks
    bounds[places + 1] = marks + 1
    return first, bounds
