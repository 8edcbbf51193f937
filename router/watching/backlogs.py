"""The backlog of each source, as last reported by its broker or inbox.

A source that does not respond has no figures, since 0 would mean that there is no backlog. Figures disappear
:data:`STALE_SECONDS` after their last update. Everything here is thread-safe.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from router.watching.families import iter_families

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


@dataclass(eq=False)
class Backlogs(Collector):
    """The current backlogs, as metrics; *label* returns the label of an endpoint."""

    label: Callable[[str], str] = str
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _answers: dict[str, _BacklogAnswer] = field(default_factory=dict, init=False)
    _arrived: dict[str, tuple[int, int]] = field(default_factory=dict, init=False)
    """By endpoint: the last reported number of arrived records, and the total."""

    def update(self, query: str, backlogs: Mapping[str, Backlog | None], read_until: float = 0.0) -> None:
        """Replace the backlogs of a query.

        Records that arrived before *read_until* (seconds since 1970; 0 unknown) are in their sinks.
        """
        with self._lock:
            self._answers[query] = _BacklogAnswer(self.clock(), read_until, dict(backlogs))
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
            stale = self.clock() - answer.at > STALE_SECONDS
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

    def collect(self) -> Iterator[Metric]:
        """Yield the current figures; those of endpoints that share a label are summed."""
        now = int(self.now() * 1000)
        with self._lock:
            inside = self._answers.get(INBOX)
            arrived = {name: total for name, (_, total) in self._arrived.items() if name not in (INBOX, REST)}
        pushed = set() if inside is None else inside.backlogs.keys() - {INBOX}
        shared: dict[tuple[str, str], list[Backlog | None]] = {}
        for name, backlog in self.get_current().items():
            own = name in (INBOX, REST)
            kind = name if own else "pushed" if name in pushed else "source"
            shared.setdefault((kind, "" if own else self.label(name)), []).append(backlog)
        values: defaultdict[str, list[tuple[list[str], float]]] = defaultdict(list)
        for (kind, label), backlogs in shared.items():
            labels = [label] if label else []
            known = [backlog for backlog in backlogs if backlog is not None]
            whole = len(known) == len(backlogs)
            if kind == "source":
                values["source_up"].append((labels, whole))
            if not whole:
                continue
            records, oldest = _NAMES[kind]
            values[records].append((labels, sum(backlog.records for backlog in known)))
            ages = [age for backlog in known if (age := _oldest_age(backlog, now)) is not None]
            if oldest and len(ages) == len(known):
                values[oldest].append((labels, max(ages)))
        counts = Counter[str]()
        for name, count in arrived.items():
            counts[self.label(name)] += count
        values["arrived_records"] = [([label], count) for label, count in counts.items()]
        yield from iter_families("backlogs", values)


_NAMES: Final = {
    "source": ("source_lag_records", "source_oldest_seconds"),
    "pushed": ("inbox_endpoint_records", "inbox_endpoint_oldest_seconds"),
    INBOX: ("inbox_records", "inbox_oldest_seconds"),
    REST: ("rest_records", ""),
}
"""The metrics of a kind of backlog: its records, and the age of the oldest. Brokers do not report pushed ones."""


def _oldest_age(backlog: Backlog, now: int) -> float | None:
    """Return the age of the oldest record in seconds; at least 0, even if a sender's clock is ahead."""
    if not backlog.records:
        return 0.0
    return None if backlog.oldest is None else max(0, now - backlog.oldest) / 1000
