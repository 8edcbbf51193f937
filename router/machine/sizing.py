"""How many records a batch may have so that its bytes stay within bounds, and when a batch must be looked at first.

Spark's Kafka source counts records alone, and its limit stands for as long as a query runs. So the limit is an
estimate: from a sample of what is unread when the query starts, and from the batches that were seen since. A batch that
may still be too large is measured before its first write (:mod:`router.reading.extents`) and, if it is, written in
parts. The local inbox needs no estimate: its source knows bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from router.machine.memory import divided
from router.settings import Settings

SURE: Final = 2.0
"""Batches may be larger than their bound by this factor before they are cut: there is room for it in the heap, and
an estimate that is a little off must not cost a second reading."""
STALE: Final = 4.0
"""The factor by which an estimate must be off for the query to be started again with a better one."""
LARGEST: Final = 2**20
"""Bytes that a record is taken for while nothing is known of its topic: what brokers take unless told otherwise."""
LEAST_RECORDS: Final = 10
_FORGET: Final = 0.9


@dataclass(slots=True)
class BatchSizing:
    """What one query knows of its records' size. ``bound`` is in bytes, ``most`` the records that settings allow.

    Written by the thread of the query's batches, read by the one that starts queries.
    """

    bound: int
    most: int
    mean: float | None = None
    exact: bool = False
    """Whether the source bounds bytes itself, so that records need no other limit than that of the settings."""
    limit: int = field(init=False)
    relimit: bool = field(default=False, init=False)
    """Whether the limit that the query runs with is too far off."""

    @classmethod
    def of(cls, settings: Settings) -> BatchSizing:
        """Return what is known before anything was seen."""
        return cls(divided(settings).batch, settings.max_records_per_batch)

    def __post_init__(self) -> None:
        self.limit = self.most

    def begin(self, sampled: float | None) -> int:
        """Return the most records of a batch for a query that starts now.

        *sampled* is the mean size of what it will read. What batches have taught goes before it.
        """
        if self.mean is None:
            self.mean = sampled
        self.limit = self._limit()
        self.relimit = False
        return self.limit

    def suspects(self, records: int) -> bool:
        """Tell whether so many records may be too large a batch, so that they must be measured."""
        size = LARGEST if self.mean is None else self.mean
        return records * size > self.bound * SURE

    def pieces(self, size: int) -> int:
        """Return in how many parts a batch of so many bytes is written; 1 is whole."""
        return 1 if size <= self.bound * SURE else -(-size // self.bound)

    def learn(self, records: int, size: int) -> None:
        """Take in what a batch or a part was."""
        if not records:
            return
        mean = size / records
        # A larger size counts at once, a smaller one little by little.
        self.mean = mean if self.mean is None else max(mean, self.mean * _FORGET + mean * (1 - _FORGET))
        better = self._limit()
        binds = records >= self.limit // 2
        self.relimit |= better * STALE < self.limit or (binds and self.limit * STALE < better)

    def _limit(self) -> int:
        if self.exact or self.mean is None:
            return self.most
        return max(min(LEAST_RECORDS, self.most), min(self.most, int(self.bound / max(1.0, self.mean))))
