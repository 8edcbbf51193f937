"""Named entries of many records at once: header lists as columns, read without a look at each row.

A record has a list of entries, each with a name and bytes. Producers share their names. So what depends on a name alone
is computed once for each distinct name of a batch, and looked up for its entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Int = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
_SMALL: Final = 1 << 20
_FEW: Final = 64
"""Names that are looked for one by one, which is quicker than sorting the entries."""


class Entries:
    """The entries of a batch: a list column of structs whose first members are ``key`` (text) and ``value`` (bytes).

    A null list has no entries, a null name is the empty one.
    """

    def __init__(self, lists: pa.ListArray) -> None:
        self.rows = len(lists)
        entries = lists.flatten()
        self.owners: Int = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False).astype(np.int64)
        """Per entry, its row; ascending."""
        self.values: pa.BinaryArray = entries.field("value")
        names = entries.field("key")
        names = (pc.fill_null(names, "") if names.null_count else names).dictionary_encode()
        self.names: list[str] = names.dictionary.to_pylist()
        """The distinct names."""
        self.codes: npt.NDArray[np.int32] = names.indices.to_numpy(zero_copy_only=False)
        """Per entry, the place of its name among the distinct ones."""
        self._numbers = {name: number for number, name in enumerate(self.names)}

    @property
    def offsets(self) -> Int:
        """Per row, where its entries begin, and then where the last row's end."""
        return np.searchsorted(self.owners, np.arange(self.rows + 1))

    def meanings(self, numbers: Int) -> tuple[list[tuple[int, str]], Int]:
        """Return the distinct pairs of a row's number and a name in it, and per entry the place of its pair.

        It serves where what a name means depends on its row too, such as on the protocol: ask once for each pair.
        """
        pairs = numbers[self.owners] * len(self.names) + self.codes
        distinct, places = numbered(pairs)
        parted = (divmod(pair, len(self.names)) for pair in distinct.tolist())
        return [(number, self.names[code]) for number, code in parted], places

    def named(self, condition: Callable[[str], object]) -> Int:
        """Return the entries whose names meet a condition, ascending."""
        flags = np.fromiter((bool(condition(name)) for name in self.names), bool, len(self.names))
        return np.flatnonzero(flags[self.codes]) if flags.any() else np.zeros(0, np.int64)

    def of(self, name: str) -> Int:
        """Return the entries of that name, ascending."""
        number = self._numbers.get(name)
        return np.zeros(0, np.int64) if number is None else np.flatnonzero(self.codes == number)

    def first(self, name: str) -> Int:
        """Return per row its first entry of that name, -1 where it has none."""
        places = np.full(self.rows, -1, np.int64)
        mine = self.of(name)[::-1]
        places[self.owners[mine]] = mine
        return places

    def bytes_of(self, places: Int) -> pa.BinaryArray:
        """Return the values of these entries; null for -1 as for an entry without one."""
        return self.values.take(pa.array(places, mask=places < 0))

    def rows_of(self, entries: Int) -> Bool:
        """Return which rows have one of these entries."""
        rows = np.zeros(self.rows, bool)
        rows[self.owners[entries]] = True
        return rows

    def repeated(self, condition: Callable[[str], object]) -> Bool:
        """Return which rows have two entries of one name that meets a condition."""
        rows = np.zeros(self.rows, bool)
        names = [name for name in self.names if condition(name)]
        if len(names) <= _FEW:
            for name in names:
                owners = self.owners[self.of(name)]
                rows[owners[1:][owners[1:] == owners[:-1]]] = True
            return rows
        entries = self.named(condition)
        pairs = np.sort(self.owners[entries] * len(self.names) + self.codes[entries])
        rows[pairs[1:][pairs[1:] == pairs[:-1]] // len(self.names)] = True
        return rows


def numbered(codes: Int) -> tuple[Int, Int]:
    """Return the distinct ones of these numbers, ascending, and the place of each number among them.

    Small numbers that are not negative take no sorting.
    """
    if not len(codes) or int(codes.min()) < 0 or int(codes.max()) >= _SMALL:
        return np.unique(codes, return_inverse=True)
    there = np.zeros(int(codes.max()) + 1, bool)
    there[codes] = True
    distinct = np.flatnonzero(there)
    places = np.zeros(len(there), np.int64)
    places[distinct] = np.arange(len(distinct))
    return distinct, places[codes]


def distinct(values: pa.StringArray, condition: Callable[[pa.StringArray], pa.BooleanArray]) -> Bool:
    """Return which values meet a condition, asked once for each distinct one; a null meets none."""
    encoded = values.dictionary_encode()
    met = pc.fill_null(condition(encoded.dictionary), False).take(encoded.indices)
    answer: Bool = pc.fill_null(met, False).to_numpy(zero_copy_only=False)
    return answer


def any_of(conditions: Iterable[Bool], rows: int) -> Bool:
    """Return which rows meet one of the conditions."""
    met = np.zeros(rows, bool)
    for each in conditions:
        met |= each
    return met
