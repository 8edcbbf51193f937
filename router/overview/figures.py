"""What the registry of metrics counts, read as numbers, and how fast it grew over the last minute."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry

from router.judging.tally import DEAD_LETTER, EMPTY, ROUTED

WINDOW_SECONDS: Final = 60.0
EVERY_SECONDS: Final = 5.0
"""Time between two samples that rates are taken from."""
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
}
_COUNTED: Final = (RECORDS, DEFINITIONS, WRITES)
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

    def _keys(self, metric: str, labels: tuple[str, ...]) -> list[Key]:
        fits = [key for key in self._samples if key[0] == metric]
        return [key for key in fits if all(not want or want == has for want, has in zip(labels, key[1:], strict=False))]

    def _sum(self, keys: list[Key]) -> Figure:
        count = sum(self._samples[key] for key in keys)
        if self._before is None or self.window <= 0:
            return Figure(int(count), None)
        grown = count - sum(self._before.get(key, 0.0) for key in keys)
        return Figure(int(count), round(max(0.0, grown) / self.window, 3))


class Figures:
    """Reads a registry, and keeps samples of a minute for rates. Any thread may call it."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: deque[tuple[float, Samples]] = deque(maxlen=int(WINDOW_SECONDS / EVERY_SECONDS) + 1)

    def tick(self) -> None:
        """Take a sample if it is time for one; call it every second or so."""
        now = self._clock()
        with self._lock:
            due = not self._kept or now - self._kept[-1][0] >= EVERY_SECONDS
        if due:
            counted = self._read(_COUNTED)
            with self._lock:
                self._kept.append((now, counted))

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
