"""The parts of many records as columns, one behind the other (:mod:`bindings.entries`).

What a name means depends on the protocol, so rows are in groups, and each distinct pair of a group and a name has a
number. What a pair means is asked once; from then on rows are looked at through arrays of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.texts import valid
from bindings.entries import Bool, Entries, Int


class PartEntries(Entries):
    """The parts of a batch: ``key``, ``value`` and ``type`` as in :class:`bindings.parts.Part`.

    ``pairs`` are the distinct pairs of a row's group and a name; ``numbers`` give the place there of every entry's
    pair.
    """

    def __init__(self, lists: pa.ListArray, groups: Int) -> None:
        super().__init__(lists)
        flat = lists.flatten()
        self._kinds: pa.StringArray = flat.field("type")
        self._are: dict[str, Bool] = {}
        self.broken = ~valid(lists)
        """Rows that are no list of named entries."""
        nameless = ~valid(flat) | ~valid(flat.field("key"))
        self.broken[self.owners[nameless]] = True
        self.pairs, self.numbers = _pairs(self, groups)

    @cached_property
    def filled(self) -> Bool | None:
        """Which entries have a value; None when all have."""
        return valid(self.values) if self.values.null_count else None

    def called(self, numbers: Sequence[int], *, empty: bool = False) -> Int:
        """Return the entries of these pairs, ascending; *empty* ones without a value as well."""
        if not len(numbers):
            return np.zeros(0, np.int64)
        if len(numbers) == 1:
            entries = np.flatnonzero(self.numbers == numbers[0])
        else:
            wanted = np.zeros(len(self.pairs), bool)
            wanted[numbers] = True
            entries = np.flatnonzero(wanted[self.numbers])
        return entries if empty or self.filled is None else entries[self.filled[entries]]

    def leading(self, entries: Int) -> tuple[Int, Int]:
        """Return the first of these ascending entries in every row (-1: none), and the rows that have more of them."""
        owners = self.owners[entries]
        places = np.full(self.rows, -1, np.int64)
        leads = np.diff(owners, prepend=-1) != 0
        if leads.all():
            places[owners] = entries
            return places, owners[:0]
        places[owners[leads]] = entries[leads]
        return places, owners[~leads]

    def are(self, kind: str) -> Bool:
        """Tell which entries are of a kind."""
        known = self._are.get(kind)
        if known is None:
            known = self._are[kind] = pc.fill_null(pc.equal(self._kinds, kind), False).to_numpy(zero_copy_only=False)
        return known


def _pairs(entries: Entries, groups: Int) -> tuple[list[tuple[int, str]], Int]:
    present = np.unique(groups).tolist()
    if len(present) > 1:
        return entries.meanings(groups)
    return [(group, name) for group in present for name in entries.names], entries.codes.astype(np.int64)
