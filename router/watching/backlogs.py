"""What waits at the sources, by their own last answers, whatever the queries do meanwhile.

A source that does not answer has no figures: 0 would say that nothing waits. Figures that nobody updates disappear
after :data:`STALE_SECONDS`. Everything here may be called from any thread.
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
    """Records of a source that are not at all their sinks, and when the oldest arrived (ms since 1970; None unknown).

    The oldest is None as well where nothing waits.
    """

    records: int
    oldest: int | None = None
    arrived: int = field(default=0, compare=False)
    """Records that came since somebody looks; it begins anew with another connection."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the sources of one query said, by endpoint (or :data:`INBOX`, :data:`REST`), and when; None is no answer.

    All that arrived there before ``read_until`` is at its sinks, in seconds since 1970.
    """

    at: float
    read_until: float
    backlogs: Mapping[str, Backlog | None]


class Backlogs(Collector):
    """The last answers, as metrics; *label* gives what stands for an endpoint there."""

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
        self._answers: dict[str, _Answer] = {}
        self._arrived: dict[str, tuple[int, int]] = {}
        """By endpoint what was said last, and all that arrived."""

    def answered(self, query: str, backlogs: Mapping[str, Backlog | None], read_until: float = 0.0) -> None:
        """Note what waits for a query, in place of what was noted before.

        *read_until* is the time before which all that arrived is at its sinks, in seconds since 1970; 0 not known.
        """
        with self._lock:
            self._answers[query] = _Answer(self._clock(), read_until, dict(backlogs))
            for name, backlog in backlogs.items():
                if backlog is not None:
                    last, total = self._arrived.get(name, (0, 0))
                    came = backlog.arrived - last if backlog.arrived >= last else backlog.arrived
                    self._arrived[name] = (backlog.arrived, total + came)

    def forget(self, query: str) -> None:
        """Leave out a query that is not read any more."""
        with self._lock:
            self._answers.pop(query, None)

    def current(self) -> dict[str, Backlog | None]:
        """Return what waits at each endpoint, in the inbox and in the rest topic; None is not known."""
        with self._lock:
            answers = list(self._answers.values())
        backlogs: dict[str, Backlog | None] = {}
        for answer in answers:
            stale = self._clock() - answer.at > STALE_SECONDS
            backlogs |= {name: None if stale else backlog for name, backlog in answer.backlogs.items()}
        return backlogs

    def answered_at(self, query: str) -> float | None:
        """Return when the sources of a query answered last, by the clock; None when they never did."""
        with self._lock:
            answer = self._answers.get(query)
            return None if answer is None else answer.at

    def read_until(self) -> float:
        """Return the time up to which all that arrived anywhere is at its sinks, in seconds since 1970; 0 not known."""
        with self._lock:
            return min((answer.read_until for answer in self._answers.values()), default=0.0)

    def describe(self) -> Iterator[Metric]:
        """Give the registry the names, so that nobody else can take them."""
        yield from _Families().all

    def collect(self) -> Iterator[Metric]:
        """Give the figures as they are now."""
        families, now_ms = _Families(), int(self._now() * 1000)
        with self._lock:
            inside = self._answers.get(INBOX)
            arrived = {name: total for name, (_, total) in self._arrived.items() if name not in (INBOX, REST)}
        pushed = set() if inside is None else inside.backlogs.keys() - {INBOX}
        shared: dict[tuple[str, bool], list[Backlog | None]] = {}
        for name, backlog in self.current().items():
            if name == INBOX:
                families.plain(families.inbox, families.inbox_oldest, backlog, now_ms)
            elif name == REST:
                families.plain(families.rest, None, backlog, now_ms)
            else:
                shared.setdefault((self._label(name), name in pushed), []).append(backlog)
        for (label, in_inbox), backlogs in shared.items():
            families.of_endpoint(label, backlogs, now_ms, in_inbox=in_inbox)
        totals: dict[str, int] = {}
        for name, total in arrived.items():
            totals[self._label(name)] = totals.get(self._label(name), 0) + total
        for label, total in totals.items():
            families.arrived.add_metric([label], total)
        yield from families.all


class _Families:
    """The metrics of one look."""

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
    def all(self) -> tuple[Metric, ...]:
        pushed = self.pushed, self.pushed_oldest, self.arrived
        return self.lag, self.oldest, self.up, self.inbox, self.inbox_oldest, self.rest, *pushed

    def plain(
        self, records: GaugeMetricFamily, oldest: GaugeMetricFamily | None, backlog: Backlog | None, now: int
    ) -> None:
        if backlog is None:
            return
        records.add_metric([], backlog.records)
        age = _age(backlog, now)
        if oldest is not None and age is not None:
            oldest.add_metric([], age)

    def of_endpoint(self, label: str, backlogs: list[Backlog | None], now: int, *, in_inbox: bool) -> None:
        """Add an endpoint; past the cap of labels, all that share ``other``. No broker tells what is *in_inbox*."""
        known = [backlog for backlog in backlogs if backlog is not None]
        whole = len(known) == len(backlogs)
        if not in_inbox:
            self.up.add_metric([label], whole)
        if not whole:
            return
        records, oldest = (self.pushed, self.pushed_oldest) if in_inbox else (self.lag, self.oldest)
        records.add_metric([label], sum(backlog.records for backlog in known))
        ages = [_age(backlog, now) for backlog in known]
        if None not in ages:
            oldest.add_metric([label], max(age for age in ages if age is not None))


def _age(backlog: Backlog, now: int) -> float | None:
    """Return the age in seconds of the oldest; a sender's clock that is ahead counts as 0."""
    if not backlog.records:
        return 0.0
    return None if backlog.oldest is None else max(0, now - backlog.oldest) / 1000
