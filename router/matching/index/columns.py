"""Columns as the matcher reads them: string arrays, split at a separator without copying a byte."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bindings.columns.texts import raw

IntArray = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Segments:
    """The segments of a column, over its own bytes.

    ``entries`` holds segments and the separators between them, in turn, so that its offsets cover the data without
    a gap: segment *k* of row *r* is ``entries[starts[r] + 2 * k]``. ``counts`` are segments per row, 0 for a null.
    """

    entries: pa.StringArray
    starts: IntArray
    counts: IntArray
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
    def valid(self) -> BoolArray | None:
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
class BatchColumns:
    """The columns of one batch, by property key, and the properties that occur more than once in a row.

    ``repeats`` maps row and key to all values in order (None: no text), for rows where a constrained name repeats.
    """

    rows: int
    by_key: Mapping[str, SplitColumn]
    repeats: Mapping[tuple[int, str], Sequence[str | None]] = field(default_factory=dict)
    matched: dict[tuple[int, str], Mapping[str, str] | None] = field(default_factory=dict)
    """Placeholder values that only a template can find, by constraint and value."""


def _marks_per_row(marks: IntArray, begins: Int32) -> IntArray:
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


def _bounds(marks: IntArray, marked: IntArray, begins: Int32, end: int) -> tuple[IntArray, Int32]:
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


# Tables from integers to integers, looked up for whole columns: what keeps Python off the rows.
#
# Both grow as they meet new keys, by asking a function once per key; a key's value never changes.

_MULTIPLIER: Final = 0x9E3779B97F4A7C15
_WORD: Final = (1 << 64) - 1
_EMPTY: Final = np.iinfo(np.int64).min
Fill = Callable[[int, int], int]
"""Gives the value of a key; its second argument is a row of the batch that has that key."""


class KeyTable:
    """A hash table from any int64 but the least to int64: open addressing, linear probing, at most a quarter full."""

    def __init__(self, limit: int) -> None:
        """``limit`` bounds the keys that are kept; past it the table starts anew."""
        self._limit = limit
        self._clear(10)

    def look_up(self, keys: IntArray, fill: Fill) -> IntArray:
        """Return the value of every key; *fill* is asked for new keys, with the first row that has each."""
        values, known = self.probe(keys)
        if not known.all():
            rows = np.flatnonzero(~known)
            fresh, first, inverse = np.unique(keys[rows], return_index=True, return_inverse=True)
            new = [fill(key, row) for key, row in zip(fresh.tolist(), rows[first].tolist(), strict=True)]
            for key, value in zip(fresh.tolist(), new, strict=True):
                self._insert(key, value)
            values[rows] = np.array(new, np.int64)[inverse]
        return values

    def _clear(self, bits: int) -> None:
        self._shift = 64 - bits
        self._mask = (1 << bits) - 1
        self._keys = np.full(1 << bits, _EMPTY, np.int64)
        self._values = np.zeros(1 << bits, np.int64)
        self._size = 0

    def probe(self, keys: IntArray) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """Return the values of the keys that are known, and which those are."""
        # A shift of at least one leaves no sign bit, so the homes are the same numbers as signed ones.
        places = (keys.view(np.uint64) * np.uint64(_MULTIPLIER) >> np.uint64(self._shift)).view(np.int64)
        values, known = self._values[places], np.ones(len(keys), np.bool_)
        searching = np.flatnonzero(self._keys[places] != keys)
        places, keys = places[searching], keys[searching]
        while len(searching):
            going = self._keys[places] != _EMPTY
            if not going.all():
                known[searching[~going]] = False
                searching, places, keys = searching[going], places[going], keys[going]
            places = (places + 1) & self._mask
            hits = self._keys[places] == keys
            values[searching[hits]] = self._values[places[hits]]
            searching, places, keys = searching[~hits], places[~hits], keys[~hits]
        return values, known

    def put(self, keys: Iterable[int], values: Iterable[int]) -> None:
        """Give new keys their values."""
        for key, value in zip(keys, values, strict=True):
            self._insert(key, value)

    def _insert(self, key: int, value: int) -> None:
        if 4 * (self._size + 1) > len(self._keys):
            self._grow()
        place = (key * _MULTIPLIER & _WORD) >> self._shift
        while self._keys[place] != _EMPTY:
            place = (place + 1) & self._mask
        self._keys[place], self._values[place] = key, value
        self._size += 1

    def _grow(self) -> None:
        if self._size >= self._limit:
            self._clear(10)
            return
        used = self._keys != _EMPTY
        keys, values = self._keys[used], self._values[used]
        self._clear(len(self._keys).bit_length())
        self.put(keys.tolist(), values.tolist())


class NumberTable:
    """An array from small numbers (0, 1, 2, …) to integers, filled as numbers are met."""

    def __init__(self, fill: Callable[[int], int]) -> None:
        self._fill = fill
        self._values = np.full(1024, _EMPTY, np.int64)

    def of(self, numbers: IntArray) -> IntArray:
        """Return the value of every number."""
        if not len(numbers):
            return numbers
        top = int(numbers.max())
        if top >= len(self._values):
            grown = np.full(2 * (top + 1), _EMPTY, np.int64)
            grown[: len(self._values)] = self._values
            self._values = grown
        values: IntArray = self._values[numbers]
        new = values == _EMPTY
        if new.any():
            for number in np.unique(numbers[new]).tolist():
                self._values[number] = self._fill(number)
            values = self._values[numbers]
        return values


# Lists of different lengths as flat arrays: the device that keeps Python loops off the rows.


class Ragged:
    """Lists of numbers per item, flat: item *i* has ``values[starts[i]:starts[i] + counts[i]]``."""

    def __init__(self, lists: Sequence[Sequence[int]]) -> None:
        self.counts = np.array([len(entry) for entry in lists], np.int64)
        self.starts = np.concatenate(([0], np.cumsum(self.counts)))[:-1] if len(lists) else np.zeros(0, np.int64)
        self.values = np.array([number for entry in lists for number in entry], np.int64)

    def expand(self, items: IntArray) -> tuple[IntArray, IntArray]:
        """Return, for a list of items, the position of each value's item in the list, and the value."""
        owners, places = spread(self.starts[items], self.counts[items])
        return owners, self.values[places] if len(owners) else owners


def spread(starts: IntArray, counts: IntArray) -> tuple[IntArray, IntArray]:
    """Return the numbers ``starts[i]``, ``starts[i] + 1``, … of every stretch *i*, in order, with the *i* of each.

    Stretches of one length, as rows of alike definitions give, take half the passes of mixed ones.
    """
    owners = np.repeat(np.arange(len(counts)), counts)
    if len(counts) and (counts == counts[0]).all():
        return owners, (starts[:, None] + np.arange(int(counts[0]))).ravel()
    return owners, np.arange(len(owners)) + (starts - (np.cumsum(counts) - counts))[owners]
