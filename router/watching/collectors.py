"""What metrics are made of where the client library has nothing that fits."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from bindings.background import faults
from bindings.certificates import CertificateCollector
from router.logs import get_logger
from router.settings import Settings
from router.settings.inward import certificates

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


# Metrics of pairs of messages, in the registry of a router that pairs them; other routers have no such series.

OUTCOMES: Final = ("paired", "unanswered", "unasked")


class RelationMetrics:
    """The metrics of relations; ``written`` is called at each write to the sink of pairs."""

    def __init__(self, registry: CollectorRegistry, written: Callable[[str], None]) -> None:
        self._exchanges = Counter(
            "xrouter_relations",
            "Pairs of messages, and messages that none came for, by what became of them.",
            ("outcome",),
            registry=registry,
        )
        for outcome in OUTCOMES:
            self._exchanges.labels(outcome)
        self._open = Gauge("xrouter_relations_open", "Messages that wait for another.", registry=registry)
        self._undelivered = Gauge(
            "xrouter_relations_undelivered", "Pairs that their sink does not have yet.", registry=registry
        )
        self._written = written

    def settled(self, counts: Mapping[str, int]) -> None:
        """Count what became of exchanges."""
        for outcome, count in counts.items():
            self._exchanges.labels(outcome).inc(count)

    def waiting(self, open: int, undelivered: int) -> None:
        """Set how many messages wait for another, and how many pairs for their sink."""
        self._open.set(open)
        self._undelivered.set(undelivered)

    def write(self, result: Literal["ok", "error"]) -> None:
        """Count a write to the sink."""
        self._written(result)


# The ids of schemas that bodies come with, by definition: a metric, and a line in the log for a second one by which
# nothing decides (JUDGING.md#schema-ids).

SERIES: Final = 1000
"""Pairs of definition and id that have a series of their own."""
_log = get_logger()


class SchemaIdFigures:
    """Counts ids by definition, as batches are written. From any thread."""

    def __init__(self, registry: CollectorRegistry, cap: int = SERIES) -> None:
        self._pairs = Capped(cap)
        self._lock = threading.Lock()
        self._first: dict[str, str] = {}
        self._warned: set[str] = set()
        self._counter = Counter(
            "xrouter_schema_ids",
            "Routed records whose body begins with the id of a schema, by definition, id, and what decided by the id.",
            ("message", "schemaid", "by"),
            registry=registry,
        )

    def add(self, ids: Mapping[tuple[str, str, str], int]) -> None:
        """Count records by definition, id, and what decided."""
        for (message, schema_id, by), count in ids.items():
            pair = f"{message} {schema_id} {by}"
            known = self._pairs.of(pair) == pair
            self._counter.labels(message if known else OTHER, schema_id if known else OTHER, by).inc(count)
            if by == "nothing" and known:
                self._look(message, schema_id)

    def _look(self, message: str, schema_id: str) -> None:
        with self._lock:
            first = self._first.setdefault(message, schema_id)
            if first == schema_id or message in self._warned:
                return
            self._warned.add(message)
        _log.warning(
            "bodies of one definition begin with several schema ids, and nothing tells whether all are of its type",
            message=message,
            ids=f"{first}, {schema_id}",
            hint="name the schema registry of the source, or declare the ids of the definition's schema",
        )


# Metrics of subscriptions, in the registry of a router that has some; other routers have no such series.


class SubscriptionMetrics:
    """The metrics of subscriptions; endpoints are those that settings name, so that they are few."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._up = Gauge(
            "xrouter_subscription_up",
            "Whether there is a subscription, as far as its manager has said.",
            ("endpoint",),
            registry=registry,
        )
        self._requests = Counter(
            "xrouter_subscription_requests",
            "Requests to subscription managers.",
            ("endpoint", "action", "result"),
            registry=registry,
        )

    def up(self, endpoint: str, up: bool) -> None:
        """Set whether there is a subscription, as far as the last request shows."""
        self._up.labels(endpoint).set(up)

    def request(self, endpoint: str, action: str, result: Literal["ok", "error"]) -> None:
        """Count a request: ``create``, ``renew`` or ``delete``."""
        self._requests.labels(endpoint, action, result).inc()


# When the certificates that the settings name end.

_RENEWED = "catalog."
"""Begins the keys of files that are read again when they change; all others are read only at the start."""


def certificate_collector(settings: Settings) -> CertificateCollector:
    """Return the collector of their metrics."""
    files = certificates(settings)
    renewed = {key: path for key, path in files.items() if key.startswith(_RENEWED)}
    return CertificateCollector({key: path for key, path in files.items() if key not in renewed}, renewed)
