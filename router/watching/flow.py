"""What went through, in the log: one line a minute while something does, with the counts of each endpoint."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from router.judging.tally import DEAD_LETTER
from router.logs import get_logger

EVERY_SECONDS: Final = 60.0
SHOWN: Final = 20
"""Endpoints that are named; those with the most records."""
_log = get_logger()


class Flow:
    """Counts between two lines; from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._records: Counter[tuple[str, str, str]] = Counter()
        self._since = clock()

    def add(self, records: Mapping[tuple[str, str, str], int]) -> None:
        """Count outcomes, by endpoint, outcome and reason."""
        with self._lock:
            self._records.update(records)

    def log(self, *, last: bool = False) -> None:
        """Log a line if it is time and something went through; called every now and then, and at the *last*."""
        now = self._clock()
        if now - self._since < EVERY_SECONDS and not last:
            return
        with self._lock:
            records, self._records = self._records, Counter()
            seconds, self._since = now - self._since, now
        if records.total():
            _log_records(records, seconds)


def by_endpoint(records: Mapping[tuple[str, str, str], int]) -> dict[str, dict[str, int]]:
    """Return counts of outcomes as lines have them: the busiest endpoints first, and ``other`` for those past them."""
    endpoints: dict[str, Counter[str]] = {}
    for (endpoint, outcome, reason), count in records.items():
        if count:
            endpoints.setdefault(endpoint or "none", Counter())[reason or outcome] += count
    busiest = sorted(endpoints, key=lambda name: (-endpoints[name].total(), name))
    counts = {name: dict(endpoints[name]) for name in busiest[:SHOWN]}
    if rest := busiest[SHOWN:]:
        counts["other"] = {"records": sum(endpoints[name].total() for name in rest)}
    return counts


def _log_records(records: Counter[tuple[str, str, str]], seconds: float) -> None:
    dead = sum(count for (_, outcome, _), count in records.items() if outcome == DEAD_LETTER)
    facts = {"records": records.total(), "dead_letters": dead, "seconds": round(seconds)}
    _log.info("records went through", **facts, endpoints=by_endpoint(records))
