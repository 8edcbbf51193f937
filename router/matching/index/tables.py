"""Tables from integers to integers, looked up for whole columns: what keeps Python off the rows.

Both grow as they meet new keys, by asking a function once per key; a key's value never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from router.matching.index.columns import Int

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

    def look_up(self, keys: Int, fill: Fill) -> Int:
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

    def probe(self, keys: Int) -> tuple[Int, npt.NDArray[np.bool_]]:
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

    def of(self, numbers: Int) -> Int:
        """Return the value of every number."""
        if not len(numbers):
            return numbers
        top = int(numbers.max())
        if top >= len(self._values):
            grown = np.full(2 * (top + 1), _EMPTY, np.int64)
            grown[: len(self._values)] = self._values
            self._values = grown
        values: Int = self._values[numbers]
        new = values == _EMPTY
        if new.any():
            for number in np.unique(numbers[new]).tolist():
                self._values[number] = self._fill(number)
            values = self._values[numbers]
        return values
