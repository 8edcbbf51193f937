"""A catalog that judges beside the active one, in the workers, and only counts: what it would change, and for how many.

It may use a share of the processor time that judging takes in a worker. It judges as many rows as that allows, chosen
at random. When it has used too much time, it pauses until that is made up for.
Its failures are counted as well; the outcomes of the batch never depend on it.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa

from router.judging.chunk import Chunk
from router.judging.comparing import Comparison, Ints, Ways, compare_outcomes, count_groups
from router.judging.judging import JUDGING
from router.judging.kinds import Kind
from router.judging.outputs import Decided

if TYPE_CHECKING:
    from router.judging.plan import Judge, Plan

SAME: Final = "unchanged"
CHANGED: Final = "changed"
FAILED: Final = "failed"
"""The result of records that the shadow catalog could not judge or compare; beside it stands the kind of error."""
GROUPS: Final = 1_000
"""Differences of one look that are counted apart, by what became of records before and after."""
OTHERS: Final = "others"
FIRST: Final = 100
"""Rows of the first look, before it is known how long one takes."""
LEAST: Final = 50
"""Rows that are worth a look, where there are as many."""
MOST: Final = 5_000
CountKey = tuple[str, str, str, str]
"""Endpoint, result or difference, and what became of records by both catalogs."""
_SHUFFLED: Final = np.random.default_rng(0)
KEPT_SECONDS: Final = 1.0
"""Time that is saved up at most, besides what the batch at hand gives."""


class Allowance:
    """What a worker may spend on the shadow: a share of the time of judging. What was overdrawn is saved up first."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._seconds = 0.0
        self._each: float | None = None

    def earn(self, seconds: float) -> None:
        """Take in how long judging took."""
        self._seconds = min(self._seconds, KEPT_SECONDS) + seconds * self._share

    def rows(self, given: int) -> int:
        """Return how many of the rows at hand may be looked at."""
        if self._seconds <= 0:
            return 0
        affordable = FIRST if self._each is None else int(self._seconds / self._each)
        rows = min(given, affordable, MOST)
        return rows if rows >= min(given, LEAST) else 0

    def spend(self, seconds: float, rows: int) -> None:
        """Take in how long a look at so many rows took."""
        self._seconds -= seconds
        each = max(seconds / rows, 1e-9)
        self._each = each if self._each is None else (self._each + each) / 2


@dataclass(frozen=True, slots=True)
class Shadow:
    """The shadow catalog as workers have it, beside the active one: ``before`` and ``after`` are the epochs of both."""

    judge: Judge
    ways: Ways
    before: str
    after: str
    share: float

    @classmethod
    def of(cls, active: Plan, shadow: Plan) -> Shadow:
        """Return that of two plans, compiled, which have the same settings."""
        settings = active.settings
        ways, share = Ways.of(settings), settings.catalog.shadow_share
        return cls(shadow.judge, ways, active.epoch, shadow.epoch, share)

    def beside(self, kind: Kind, judge: Judge, rows: pa.RecordBatch) -> Decided:
        """Judge an Arrow batch by the active plan's *judge*; what the shadow would change goes into its counts."""
        began = time.thread_time()
        decided = JUDGING[kind](judge, rows)
        allowance = _allowance_of(self)
        allowance.earn(time.thread_time() - began)
        counts: Counter[CountKey] = Counter()
        left = _SHUFFLED.permutation(rows.num_rows)
        while number := allowance.rows(len(left)):
            began = time.thread_time()
            chosen, left = np.sort(left[:number]), left[number:]
            try:
                counts.update(self._compared(kind, rows, decided, chosen))
            except Exception as error:  # The counts report it: the faults of a new catalog stop no stream.
                counts.update(self._failed(decided, chosen, type(error).__name__))
            allowance.spend(time.thread_time() - began, number)
        if not counts or decided.counts is None:
            return decided
        tally = msgspec.json.decode(decided.counts)
        tally["shadow"] = [[self.before, self.after, *key, count] for key, count in counts.items()]
        return replace(decided, counts=msgspec.json.encode(tally).decode())

    def _compared(self, kind: Kind, rows: pa.RecordBatch, decided: Decided, chosen: Ints) -> Counter[CountKey]:
        looked_at = rows if len(chosen) == rows.num_rows else rows.take(pa.array(chosen))
        after = JUDGING[kind](self.judge, looked_at)
        return counts_of(compare_outcomes(Chunk(kind, rows), decided, after, self.ways, chosen))

    def _failed(self, decided: Decided, chosen: Ints, error: str) -> Counter[CountKey]:
        rows = decided.order[np.isin(decided.sources[decided.order], chosen)]
        endpoints = Counter(each or "" for each in decided.columns["endpoint"].take(pa.array(rows)).to_pylist())
        return Counter({(endpoint, FAILED, error, ""): count for endpoint, count in endpoints.items()})


def counts_of(compared: Comparison) -> Counter[CountKey]:
    """Count outcomes by endpoint and result, and differences by endpoint, kind, and what became of records."""
    counts: Counter[CountKey] = Counter()
    changed = Counter(each.endpoint for each in compared.changed)
    for endpoint, number in compared.endpoints.items():
        counts[endpoint, SAME, "", ""] = number - changed[endpoint]
        counts[endpoint, CHANGED, "", ""] = changed[endpoint]
    groups: Counter[CountKey] = Counter()
    for endpoint in changed:
        mine = [each for each in compared.changed if each.endpoint == endpoint]
        groups.update({(endpoint, *group): number for group, number in count_groups(mine).items()})
    for place, ((endpoint, kind, before, after), number) in enumerate(groups.most_common()):
        labels = (before, after) if place < GROUPS else (OTHERS, OTHERS)
        counts[endpoint, kind, *labels] += number
    return +counts


_allowances: dict[tuple[str, str], Allowance] = {}


def _allowance_of(shadow: Shadow) -> Allowance:
    """Return what this worker may spend; it begins anew with another catalog."""
    key = (shadow.before, shadow.after)
    if key not in _allowances:
        _allowances.clear()
        _allowances[key] = Allowance(shadow.share)
    return _allowances[key]
