"""Lists of different lengths as flat arrays: the device that keeps Python loops off the rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from router.matching.index.columns import Int


class Ragged:
    """Lists of numbers per item, flat: item *i* has ``values[starts[i]:starts[i] + counts[i]]``."""

    def __init__(self, lists: Sequence[Sequence[int]]) -> None:
        self.counts = np.array([len(entry) for entry in lists], np.int64)
        self.starts = np.concatenate(([0], np.cumsum(self.counts)))[:-1] if len(lists) else np.zeros(0, np.int64)
        self.values = np.array([number for entry in lists for number in entry], np.int64)

    def expand(self, items: Int) -> tuple[Int, Int]:
        """Return, for a list of items, the position of each value's item in the list, and the value."""
        owners, places = spread(self.starts[items], self.counts[items])
        return owners, self.values[places] if len(owners) else owners


def spread(starts: Int, counts: Int) -> tuple[Int, Int]:
    """Return the numbers ``starts[i]``, ``starts[i] + 1``, … of every stretch *i*, in order, with the *i* of each.

    Stretches of one length, as rows of alike definitions give, take half the passes of mixed ones.
    """
    owners = np.repeat(np.arange(len(counts)), counts)
    if len(counts) and (counts == counts[0]).all():
        return owners, (starts[:, None] + np.arange(int(counts[0]))).ravel()
    return owners, np.arange(len(owners)) + (starts - (np.cumsum(counts) - counts))[owners]
