"""How many records a batch may have so that its bytes and its time stay within bounds, and when to look at it first.

Spark's Kafka source counts records alone, and its limit stands for as long as a query runs. So the limit is an
estimate: from a sample of what is unread when the query starts, and from the batches that were seen since. A batch that
may still be too large is measured before its first write (:mod:`router.reading.extents`) and, if it is, written in
parts. The local inbox needs no estimate: its source knows bytes.

While a query is behind, a batch is as large as its limits allow, unless its work takes long: then it has what was done
in :data:`AIM` seconds lately. While it is not behind, batches are smaller than any limit, and only the trigger counts.
A limit changes by a factor that a steady pace does not ask for twice, so that it does not swing. What Spark has planned
stays as it is: a limit is for batches to come.
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
"""Bytes that a record is taken for while nothing is known of its topic: what brokers take by default."""
LEAST_RECORDS: Final = 10
AIM: Final = 20.0
"""Seconds of work that a full batch is meant to take at most: so much is repeated after a crash."""
OFF: Final = 2.0
"""The factor by which the time of full batches must be off for the query to be started again."""
_FORGET: Final = 0.9
_OLD_PACE: Final = 0.5


@dataclass(slots=True)
class BatchSizing:
    """What one query knows of its records' size, and of its ``pace`` in records a second.

    ``bound`` is in bytes, ``most`` the records that settings allow, ``aim`` the seconds that a full batch may take.
    Written by the thread of the query's batches, read by the one that starts queries.
    """

    bound: int
    most: int
    mean: float | None = None
    aim: float = AIM
    pace: float | None = None
    exact: bool = False
    """Whether the source bounds bytes itself, so that their size does not limit records."""
    limit: int = field(init=False)
    relimit: bool = field(default=False, init=False)
    """Whether the limit that the query runs with is too far off."""

    @classmethod
    def of(cls, settings: Settings) -> BatchSizing:
        """Return what is known before anything was seen."""
        aim, limit = max(AIM, settings.between_batches.total_seconds()), settings.batch_limit.total_seconds()
        aim = min(aim, limit / 2) if limit else aim
        return cls(divided(settings).batch, settings.max_records_per_batch, aim=aim)

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

    def worked(self, records: int, seconds: float) -> None:
        """Take in how long a batch took; one that is far from full shows nothing, since every batch takes a moment."""
        if records < self.limit // 2 or seconds <= 0:
            return
        pace = records / seconds
        self.pace = pace if self.pace is None else self.pace * _OLD_PACE + pace * (1 - _OLD_PACE)
        better = self._limit()
        self.relimit |= better * OFF < self.limit or self.limit * OFF <= better

    def learn(self, records: int, size: int) -> None:
        """Take in the size of a batch or a part."""
        if not records:
            return
        mean = size / records
        # A larger size counts at once, a smaller one little by little.
        self.mean = mean if self.mean is None else max(mean, self.mean * _FORGET + mean * (1 - _FORGET))
        better = self._limit()
        binds = records >= self.limit // 2
        self.relimit |= better * STALE < self.limit or (binds and self.limit * STALE < better)

    def _limit(self) -> int:
        limits = [float(self.most)]
        if self.mean is not None and not self.exact:
            limits.append(self.bound / max(1.0, self.mean))
        if self.pace is not None:
            limits.append(self.pace * self.aim)
        return max(min(LEAST_RECORDS, self.most), int(min(limits)))
