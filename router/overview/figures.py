"""What the registry of metrics counts, read as numbers, and how fast it grew over the last minute."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry

from router.judging.tally import DEAD_LETTER, EMPTY, ROUTED

WINDOW_SECONDS: Final = 60.0
EVERY_SECONDS: Final = 5.0
"""Time between two samples that rates are taken from."""
POINT_SECONDS: Final = 30.0
"""Time between two points of the last hour."""
HOUR_POINTS: Final = 120
HISTORIES: Final = 100
"""Endpoints whose last hour is kept."""
RECORDS: Final = "xrouter_records_total"
DEFINITIONS: Final = "xrouter_definition_records_total"
WRITES: Final = "xrouter_sink_writes_total"
RECEIVED: Final = "xrouter_gateway_received_total"
ACKNOWLEDGED: Final = "xrouter_gateway_acknowledged_total"
LAG: Final = "xrouter_source_lag_records"
OLDEST: Final = "xrouter_source_oldest_seconds"
INBOX_OLDEST: Final = "xrouter_inbox_oldest_seconds"
HELD: Final = "xrouter_query_held"
INBOX_RECORDS: Final = "xrouter_inbox_records"
INBOX_BYTES: Final = "xrouter_inbox_bytes"
REST: Final = "xrouter_rest_records"
PUSHED: Final = "xrouter_inbox_endpoint_records"
PUSHED_OLDEST: Final = "xrouter_inbox_endpoint_oldest_seconds"
ARRIVED: Final = "xrouter_arrived_records_total"
LATENCY: Final = "xrouter_record_latency_seconds_bucket"
_LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    RECORDS: ("endpoint", "outcome", "reason"),
    DEFINITIONS: ("message",),
    WRITES: ("sink", "result"),
    RECEIVED: ("endpoint",),
    ACKNOWLEDGED: ("endpoint",),
    LAG: ("endpoint",),
    OLDEST: ("endpoint",),
    INBOX_OLDEST: (),
    HELD: ("query", "sink"),
    INBOX_RECORDS: (),
    INBOX_BYTES: (),
    REST: (),
    PUSHED: ("endpoint",),
    PUSHED_OLDEST: ("endpoint",),
    ARRIVED: ("endpoint",),
    LATENCY: ("le",),
}
_COUNTED: Final = (RECORDS, DEFINITIONS, WRITES, ARRIVED, LATENCY)
"""The metrics that rates are taken of."""
Key = tuple[str, ...]
Samples = dict[Key, float]
"""Values by the name of a metric and the values of its labels."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A count, and how much it grows in a second; the rate is None before there are two samples."""

    count: int
    rate: float | None


class Reading:
    """All figures of one moment. ``window`` is how many seconds rates are over."""

    def __init__(self, samples: Samples, before: Samples | None, window: float) -> None:
        self._samples = samples
        self._before = before
        self.window = window

    def of(self, metric: str, *labels: str) -> Figure:
        """Return the sum of all series of a metric whose first labels are these; '' stands for any."""
        return self._sum(self._keys(metric, labels))

    def value(self, metric: str, *labels: str) -> float | None:
        """Return the value of one series; None where there is none."""
        return self._samples.get((metric, *labels))

    def by(self, metric: str, label: int) -> dict[str, Figure]:
        """Return the figures of a metric by the value of one of its labels, given by its place."""
        grouped: dict[str, list[Key]] = {}
        for key in self._samples:
            if key[0] == metric:
                grouped.setdefault(key[1 + label], []).append(key)
        return {name: self._sum(keys) for name, keys in grouped.items()}

    def outcomes(self) -> dict[str, tuple[Figure, Figure, Figure]]:
        """Return for each endpoint what was routed of it, what became dead letters, and its batches of no events."""
        keys: dict[str, dict[str, list[Key]]] = {}
        for key in self._samples:
            if key[0] == RECORDS:
                keys.setdefault(key[1], {}).setdefault(key[2], []).append(key)
        outcomes = (ROUTED, DEAD_LETTER, EMPTY)
        return {name: tuple(self._sum(each.get(outcome, [])) for outcome in outcomes) for name, each in keys.items()}  # type: ignore[misc]

    def held(self) -> list[tuple[str, str]]:
        """Return the queries that hold a batch, each with the sink in the way."""
        return sorted((key[1], key[2]) for key, value in self._samples.items() if key[0] == HELD and value)

    def lag(self, endpoint: str) -> float | None:
        """Return how many records of an endpoint wait, at its broker or in the inbox; None where that is not known."""
        known = [value for name in (LAG, PUSHED) if (value := self.value(name, endpoint)) is not None]
        return sum(known) if known else None

    def oldest(self, endpoint: str) -> float | None:
        """Return the age of the oldest record of an endpoint that waits; None where that is not known."""
        known = [value for name in (OLDEST, PUSHED_OLDEST) if (value := self.value(name, endpoint)) is not None]
        return max(known, default=None)

    def whole_lag(self) -> float | None:
        """Return how many records wait anywhere; None where nobody says so."""
        known = [value for key, value in self._samples.items() if key[0] in (LAG, INBOX_RECORDS, REST)]
        return sum(known) if known else None

    def whole_oldest(self) -> float | None:
        """Return the age of the oldest record that waits anywhere."""
        return max((value for key, value in self._samples.items() if key[0] in (OLDEST, INBOX_OLDEST)), default=None)

    def latency(self, share: float) -> float | None:
        """Return the seconds within which this share of the window's records got to their sinks; None without any."""
        before = self._before or {}
        counts = sorted(
            (float(key[1]), value - before.get(key, 0.0)) for key, value in self._samples.items() if key[0] == LATENCY
        )
        if self._before is None or not counts or counts[-1][1] <= 0:
            return None
        wanted, below, lower = share * counts[-1][1], 0.0, 0.0
        for bound, count in counts:
            if count >= wanted:
                if bound == math.inf:
                    return lower
                return lower + (bound - lower) * (wanted - below) / max(count - below, 1e-9)
            below, lower = count, bound
        return lower

    def _keys(self, metric: str, labels: tuple[str, ...]) -> list[Key]:
        fits = [key for key in self._samples if key[0] == metric]
        return [key for key in fits if all(not want or want == has for want, has in zip(labels, key[1:], strict=False))]

    def _sum(self, keys: list[Key]) -> Figure:
        count = sum(self._samples[key] for key in keys)
        if self._before is None or self.window <= 0:
            return Figure(int(count), None)
        grown = count - sum(self._before.get(key, 0.0) for key in keys)
        return Figure(int(count), round(max(0.0, grown) / self.window, 3))


class Point(NamedTuple):
    """How it stood at one moment: records a second over the window, what waited, and seconds."""

    arriving: float | None
    finished: float | None
    lag: float | None
    oldest: float | None
    latency: float | None
    """The 95th percentile; only known of all endpoints together."""


class History:
    """Points of the last hour, of all endpoints together ('') and of the busiest. Any thread may call it.

    Its memory is bounded: :data:`HOUR_POINTS` of :data:`HISTORIES` endpoints at most.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._taken: float | None = None
        self._points: dict[str, deque[Point]] = {"": deque(maxlen=HOUR_POINTS)}

    def is_due(self) -> bool:
        """Whether it is time for another point."""
        return self._taken is None or self._clock() - self._taken >= POINT_SECONDS

    def add(self, reading: Reading) -> None:
        """Take a point."""
        outcomes, arrived = reading.outcomes(), reading.by(ARRIVED, 0)
        finished = {name: _sum_of(figure.rate for figure in three) for name, three in outcomes.items()}
        names = sorted({*outcomes, *arrived}, key=lambda name: (-(finished.get(name) or 0.0), name))
        known = [name for name in self._points if name in outcomes or name in arrived]
        kept = dict.fromkeys((*(name for name in known if name), *names))
        fresh = {
            name: Point(
                arrived[name].rate if name in arrived else None,
                finished.get(name),
                reading.lag(name),
                reading.oldest(name),
                None,
            )
            for name in list(kept)[:HISTORIES]
        }
        whole = Point(
            _sum_of(figure.rate for figure in arrived.values()),
            _sum_of(finished.values()),
            reading.whole_lag(),
            reading.whole_oldest(),
            reading.latency(0.95),
        )
        with self._lock:
            self._taken = self._clock()
            points = {name: self._points.get(name) or deque(maxlen=HOUR_POINTS) for name in fresh}
            for name, point in fresh.items():
                points[name].append(point)
            self._points[""].append(whole)
            self._points = {"": self._points[""], **points}

    def points(self, endpoint: str = "") -> list[Point]:
        """Return the points of an endpoint, or of all together, oldest first; none of one that is not known."""
        with self._lock:
            return list(self._points.get(endpoint, ()))


def _sum_of(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return round(sum(known), 3) if known else None


class Figures:
    """Reads a registry, and keeps samples of a minute for rates. Any thread may call it."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: deque[tuple[float, Samples]] = deque(maxlen=int(WINDOW_SECONDS / EVERY_SECONDS) + 1)
        self.history = History(clock)
        """The last hour."""

    def tick(self) -> None:
        """Take a sample if it is time for one; call it every second or so."""
        now = self._clock()
        with self._lock:
            due = not self._kept or now - self._kept[-1][0] >= EVERY_SECONDS
        if due:
            counted = self._read(_COUNTED)
            with self._lock:
                self._kept.append((now, counted))
        if self.history.is_due():
            self.history.add(self.reading())

    def reading(self) -> Reading:
        """Return the figures of now."""
        samples, now = self._read(tuple(_LABELS)), self._clock()
        with self._lock:
            kept = [each for each in self._kept if now - each[0] <= WINDOW_SECONDS + EVERY_SECONDS] or self._kept
            before = kept[0] if kept else None
        if before is None or now - before[0] < 1.0:
            return Reading(samples, None, 0.0)
        return Reading(samples, before[1], now - before[0])

    def _read(self, metrics: tuple[str, ...]) -> Samples:
        """Return what these metrics count; ``restricted_registry`` asks no other collector."""
        samples: Samples = {}
        for family in self._registry.restricted_registry(metrics).collect():
            for sample in family.samples:
                labels = _LABELS.get(sample.name)
                if labels is not None:
                    samples[(sample.name, *(sample.labels.get(label, "") for label in labels))] = sample.value
        return samples
