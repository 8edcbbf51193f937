"""Metrics of the Prometheus client as metrics of OpenTelemetry: the same names, labels and numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    Sum,
)
from prometheus_client.metrics_core import Metric as Family

_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE


def points_of(families: Iterable[Family], since: int, now: int) -> Iterator[Any]:
    """Yield the metrics of families that have samples; counts are those *since*, both times in nanoseconds since 1970.

    A counter has no ``_total`` in its name: whoever shows it to Prometheus again adds that.
    """
    for family in families:
        if not family.samples:
            continue
        if family.type == "histogram":
            data = Histogram(list(_histogram(family, since, now)), _CUMULATIVE)
        else:
            # Collectors of ours give whole numbers and truth values too, of which the encoder refuses the latter.
            values = [
                NumberDataPoint(dict(sample.labels), since, now, float(sample.value))
                for sample in family.samples
                if not sample.name.endswith("_created")
            ]
            data = Sum(values, _CUMULATIVE, True) if family.type == "counter" else Gauge(values)
        yield Metric(family.name, family.documentation, family.unit, data)


def _histogram(family: Family, since: int, now: int) -> Iterator[Any]:
    histograms: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for sample in family.samples:
        labels = dict(sample.labels)
        bound = labels.pop("le", "")
        series = histograms.setdefault(tuple(sorted(labels.items())), {"below": []})
        if bound:
            series["below"].append((float(bound), int(sample.value)))
        else:
            series[sample.name.removeprefix(family.name)] = sample.value
    for labels_, series in histograms.items():
        yield _series(dict(labels_), series, since, now)


def _series(labels: Mapping[str, str], series: Mapping[str, Any], since: int, now: int) -> Any:
    below = sorted(series["below"])
    counts = [count - before for (_, count), before in zip(below, (0, *(count for _, count in below)), strict=False)]
    bounds = [bound for bound, _ in below[:-1]]  # The last bound is infinite, and is left out by convention.
    count = int(series.get("_count", below[-1][1]))
    return HistogramDataPoint(labels, since, now, count, series.get("_sum", 0.0), counts, bounds, None, None)
