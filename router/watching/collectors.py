"""What metrics are made of where the client library has nothing that fits."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from bindings.background import faults

OTHER: Final = "other"
INFINITE: Final = float("inf")


class FaultCounter(Collector):
    """What :mod:`bindings.background` has counted in this process."""

    def describe(self) -> Iterator[CounterMetricFamily]:
        """Tell the registry the name, which it then keeps others from taking."""
        yield self._family()

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Give the faults of each part as they are now."""
        family = self._family()
        for part, count in sorted(faults().items()):
            family.add_metric([part], count)
        yield family

    @staticmethod
    def _family() -> CounterMetricFamily:
        text = "Faults of background threads and gateways, which began again."
        return CounterMetricFamily("xrouter_background_faults", text, labels=["part"])


class BulkHistogram(Collector):
    """A histogram without labels that takes many equal values at once; the client library's takes one at a time."""

    def __init__(self, name: str, documentation: str, buckets: Iterable[float]) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = tuple(buckets)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def add(self, values: Iterable[tuple[float, int]]) -> None:
        """Add each value as many times as the number beside it."""
        with self._lock:
            for value, count in values:
                self._counts[bisect_left(self._bounds, value)] += count
                self._sum += value * count

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """Tell the registry the name, which it then keeps others from taking."""
        yield HistogramMetricFamily(self._name, self._documentation)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Give the buckets as they are now, each with those below it."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        buckets: list[tuple[str, float]] = []
        below = 0
        for bound, count in zip((*self._bounds, INFINITE), counts, strict=True):
            below += count
            buckets.append(("+Inf" if bound == INFINITE else repr(bound), below))
        family = HistogramMetricFamily(self._name, self._documentation)
        family.add_metric([], buckets, sum_value=total)
        yield family


class Capped:
    """Label values with a cap: the first ones keep their own, all later ones become ``other``."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def of(self, value: str) -> str:
        """Return the label that a value has."""
        if value in self._known:
            return value
        with self._lock:
            if value not in self._known and len(self._known) >= self._cap:
                return OTHER
            self._known.add(value)
        return value
