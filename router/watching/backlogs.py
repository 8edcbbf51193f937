"""The backlog of each source, as last reported by its broker or inbox.

A source that does not respond has no figures, since 0 would mean that there is no backlog. Figures disappear
:data:`STALE_SECONDS` after their last update. Everything here is thread-safe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

STALE_SECONDS: Final = 60.0
INBOX: Final = "inbox"
REST: Final = "rest"


@dataclass(frozen=True, slots=True)
class Backlog:
    """Records of a source that are not yet in all sinks, and when the oldest arrived (ms since 1970; None unknown).

    ``oldest`` is also None if there are no records.
    """

    records: int
    oldest: int | None = None
    arrived: int = field(default=0, compare=False)
    """Records that arrived since the connection was opened."""


@dataclass(frozen=True, slots=True)
class _BacklogAnswer:
    """The last backlogs of one query by endpoint (or :data:`INBOX`, :data:`REST`); None is unknown.

    Records that arrived before ``read_until`` (seconds since 1970) are in their sinks.
    """

    at: float
    read_until: float
    backlogs: Mapping[str, Backlog | None]


class Backlogs(Collector):
    """The current backlogs, as metrics; *label* returns the label of an endpoint."""

    def __init__(
        self,
        label: Callable[[str], str] = str,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._label = label
        self._clock = clock
        self._now = now
        self._lock = threading.Lock()
        self._answers: dict[str, _BacklogAnswer] = {}
        self._arrived: dict[str, tuple[int, int]] = {}
        """By endpoint: the last reported number of arrived records, and the total."""

    def update(self, query: str, backlogs: Mapping[str, Backlog | None], read_until: float = 0.0) -> None:
        """Replace the backlogs of a query.

        Records that arrived before *read_until* (seconds since 1970; 0 unknown) are in their sinks.
        """
        with self._lock:
            self._answers[query] = _BacklogAnswer(self._clock(), read_until, dict(backlogs))
            for name, backlog in backlogs.items():
                if backlog is not None:
                    last, total = self._arrived.get(name, (0, 0))
                    came = backlog.arrived - last if backlog.arrived >= last else backlog.arrived
                    self._arrived[name] = (backlog.arrived, total + came)

    def forget(self, query: str) -> None:
        """Remove a query that no longer runs."""
        with self._lock:
            self._answers.pop(query, None)

    def get_current(self) -> dict[str, Backlog | None]:
        """Return the backlog of each endpoint, of the inbox and of the fallback topic; None is unknown."""
        with self._lock:
            answers = list(self._answers.values())
        backlogs: dict[str, Backlog | None] = {}
        for answer in answers:
            stale = self._clock() - answer.at > STALE_SECONDS
            backlogs |= {name: None if stale else backlog for name, backlog in answer.backlogs.items()}
        return backlogs

    def last_answer_time(self, query: str) -> float | None:
        """Return when the backlogs of a query were last updated, by the clock; None for never."""
        with self._lock:
            answer = self._answers.get(query)
            return None if answer is None else answer.at

    def read_until(self) -> float:
        """Return the time before which all arrived records are in their sinks, in seconds since 1970; 0 unknown."""
        with self._lock:
            return min((answer.read_until for answer in self._answers.values()), default=0.0)

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without samples, so that the registry reserves their names."""
        yield from _MetricFamilies().all_families

    def collect(self) -> Iterator[Metric]:
        """Yield the current figures."""
        families, now_ms = _MetricFamilies(), int(self._now() * 1000)
        with self._lock:
            inside = self._answers.get(INBOX)
            arrived = {name: total for name, (_, total) in self._arrived.items() if name not in (INBOX, REST)}
        pushed = set() if inside is None else inside.backlogs.keys() - {INBOX}
        shared: dict[tuple[str, bool], list[Backlog | None]] = {}
        for name, backlog in self.get_current().items():
            if name == INBOX:
                families.add_unlabeled(families.inbox, families.inbox_oldest, backlog, now_ms)
            elif name == REST:
                families.add_unlabeled(families.rest, None, backlog, now_ms)
            else:
                shared.setdefault((self._label(name), name in pushed), []).append(backlog)
        for (label, in_inbox), backlogs in shared.items():
            families.add_endpoint(label, backlogs, now_ms, in_inbox=in_inbox)
        totals: dict[str, int] = {}
        for name, total in arrived.items():
            totals[self._label(name)] = totals.get(self._label(name), 0) + total
        for label, total in totals.items():
            families.arrived.add_metric([label], total)
        yield from families.all_families


class _MetricFamilies:
    """The metric families of one collection."""

    def __init__(self) -> None:
        self.lag = GaugeMetricFamily(
            "xrouter_source_lag_records",
            "Records at the broker that have not reached all their sinks; absent while it is unreachable.",
            labels=["endpoint"],
        )
        self.oldest = GaugeMetricFamily(
            "xrouter_source_oldest_seconds", "Age of the oldest of them; 0 for none.", labels=["endpoint"]
        )
        self.up = GaugeMetricFamily(
            "xrouter_source_up", "Whether the broker has reported the end of its topic.", labels=["endpoint"]
        )
        self.inbox = GaugeMetricFamily(
            "xrouter_inbox_records", "Records in the inbox that have not reached all their sinks."
        )
        self.inbox_oldest = GaugeMetricFamily("xrouter_inbox_oldest_seconds", "Age of the oldest of them.")
        self.rest = GaugeMetricFamily(
            "xrouter_rest_records", "Records of the fallback topic that have not reached all their sinks."
        )
        self.pushed = GaugeMetricFamily(
            "xrouter_inbox_endpoint_records",
            "Records of an endpoint in the local inbox that have not reached all their sinks.",
            labels=["endpoint"],
        )
        self.pushed_oldest = GaugeMetricFamily(
            "xrouter_inbox_endpoint_oldest_seconds", "Age of the oldest of them; 0 for none.", labels=["endpoint"]
        )
        self.arrived = CounterMetricFamily(
            "xrouter_arrived_records",
            "Records that arrived at a source since the router started to watch it.",
            labels=["endpoint"],
        )

    @property
    def all_families(self) -> tuple[Metric, ...]:
        pushed = self.pushed, self.pushed_oldest, self.arrived
        return self.lag, self.oldest, self.up, self.inbox, self.inbox_oldest, self.rest, *pushed

    def add_unlabeled(
        self, records: GaugeMetricFamily, oldest: GaugeMetricFamily | None, backlog: Backlog | None, now: int
    ) -> None:
        if backlog is None:
            return
        records.add_metric([], backlog.records)
        age = _oldest_age(backlog, now)
        if oldest is not None and age is not None:
            oldest.add_metric([], age)

    def add_endpoint(self, label: str, backlogs: list[Backlog | None], now: int, *, in_inbox: bool) -> None:
        """Add an endpoint, or all endpoints that share a label. Backlogs *in_inbox* are not reported by a broker."""
        known = [backlog for backlog in backlogs if backlog is not None]
        whole = len(known) == len(backlogs)
        if not in_inbox:
            self.up.add_metric([label], whole)
        if not whole:
            return
        records, oldest = (self.pushed, self.pushed_oldest) if in_inbox else (self.lag, self.oldest)
        records.add_metric([label], sum(backlog.records for backlog in known))
        ages = [_oldest_age(backlog, now) for backlog in known]
        if None not in ages:
            oldest.add_metric([label], max(age for age in ages if age is not None))


def _oldest_age(backlog: Backlog, now: int) -> float | None:
    """Return the age of the oldest record in seconds; at least 0, even if a sender's clock is ahead."""
    if not backlog.records:
        return 0.0
    return None if backlog.oldest is None else max(0, now - backlog.oldest) / 1000
