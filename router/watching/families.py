"""The table of metrics, ``metrics.yaml``: made in a registry, or as families of current values."""

# Small: counters and collectors of several modules use it.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from catalog.parsing.texts import read_table


class _MetricRow(msgspec.Struct):
    """A metric, with the bounds of its buckets if it is a histogram."""

    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    def make(self, name: str, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
        """Make the metric in a registry."""
        if self.kind == "histogram":
            return Histogram(name, self.text, self.labels, buckets=self.buckets, registry=registry)
        return (Counter if self.kind == "counter" else Gauge)(name, self.text, self.labels, registry=registry)


_TABLE: Final = read_table(__package__, "metrics.yaml", dict[str, dict[str, _MetricRow]])
LabelledValues = Mapping[str, Iterable[tuple[Sequence[str], float]]]
"""The values of metrics, each with its labels, by name without ``xrouter_``."""


def make_metrics(registry: CollectorRegistry, group: str) -> Mapping[str, Any]:
    """Make the metrics of a group of the table in a registry; return them by name, without ``xrouter_``."""
    return {name: row.make(f"xrouter_{name}", registry) for name, row in _TABLE[group].items()}


def iter_families(group: str, values: LabelledValues) -> Iterator[Metric]:
    """Yield the metrics of a group of the table with these values; one without a value has no series."""
    for name, row in _TABLE[group].items():
        kind = CounterMetricFamily if row.kind == "counter" else GaugeMetricFamily
        family = kind(f"xrouter_{name}", row.text, labels=row.labels)
        for labels, value in values.get(name, ()):
            family.add_metric(labels, value)
        yield family
