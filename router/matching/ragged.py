"""Lists of different lengths as flat arrays: the device that keeps Python loops off the rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from router.matching.columns import Int


class Ragged:
    """Lists of numbers per item, flat: item *i* has ``values[starts[i]:starts[i] + counts[i]]``."""

    def __init__(self, lists: Sequence[Sequence[int]]) -> None:
        self.counts = np.array([len(entry) for entry in lists], np.int64)
        self.starts = np.concatenate(([0], np.cumsum(self.counts)))[:-1] if len(lists) else np.zeros(0, np.int64)
        self.values = np.array([number for entry in lists for number in entry], np.int64)

    def expand(self, items: Int) -> tuple[Int, Int]:
        """Return, for a list of items, the position of each value's item in the list, and the value."""
        counts = self.counts[items]
        owners = np.repeat(np.arange(len(items)), counts)
        within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        return owners, self.values[self.starts[items][owners] + within] if len(owners) else owners
