"""The metrics of the router, as documented in deploy/OPERATIONS.md#metrics, in a separate registry.

Label values from catalogs and records are bounded: the first ones have their own series, the rest share ``other``.
Everything here is thread-safe.
"""

from __future__ import annotations

import platform
import shutil
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from bindings.background import fault_counts
from bindings.certificates import CertificateCollector
from catalog.model import Finding
from router.evaluation.outputs import ROUTED, Tally
from router.evaluation.plan import VERSION
from router.logs import get_logger
from router.settings import Settings
from router.settings.model import find_certificates
from router.watching.backlogs import Backlogs
from router.watching.coverage import Coverage, ThroughputLog
from router.watching.shadow import ShadowMetrics
from router.watching.status import MAX_TEXT, RouterStatus

if TYPE_CHECKING:
    from router.state.state import Account

# Collectors that the client library does not have.

OTHER: Final = "other"


class FaultCounter(Collector):
    """The faults that :mod:`bindings.background` has counted in this process."""

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the current faults by part."""
        text = "Faults of background threads and gateways, which began again."
        family = CounterMetricFamily("xrouter_background_faults", text, labels=["part"])
        for part, count in sorted(fault_counts().items()):
            family.add_metric([part], count)
        yield family


class BulkHistogram(Collector):
    """A histogram without labels to which many equal values can be added at once."""

    def __init__(self, name: str, documentation: str, buckets: Iterable[float]) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = tuple(buckets)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def add(self, values: Iterable[tuple[float, int]]) -> None:
        """Add pairs of a value and its number of occurrences."""
        with self._lock:
            for value, count in values:
                self._counts[bisect_left(self._bounds, value)] += count
                self._sum += value * count

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the current cumulative buckets."""
        with self._lock:
            counts, total = list(accumulate(self._counts)), self._sum
        buckets = list(zip((*map(repr, self._bounds), "+Inf"), counts, strict=True))
        family = HistogramMetricFamily(self._name, self._documentation)
        family.add_metric([], buckets, sum_value=total)
        yield family


class _Maker:
    """Makes metrics in a registry; *labels* are separated by spaces."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, text: str, labels: str = "") -> Counter:
        return Counter(name, text, labels.split(), registry=self._registry)

    def gauge(self, name: str, text: str, labels: str = "") -> Gauge:
        return Gauge(name, text, labels.split(), registry=self._registry)

    def histogram(self, name: str, text: str, buckets: Sequence[float], labels: str = "") -> Histogram:
        return Histogram(name, text, labels.split(), buckets=buckets, registry=self._registry)


class CappedLabels:
    """Limits label values: the first ones are unchanged, all later ones become ``other``."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def label_for(self, value: str) -> str:
        """Return the label for a value."""
        if value in self._known:
            return value
        with self._lock:
            if value not in self._known and len(self._known) >= self._cap:
                return OTHER
            self._known.add(value)
        return value


# Metrics of request-reply pairs, only in a router with relations.

OUTCOMES: Final = ("paired", "unanswered", "unasked")


class RelationMetrics:
    """The metrics of relations; ``written`` is called with the result of each write to the sink of pairs."""

    def __init__(self, registry: CollectorRegistry, written: Callable[[str], None]) -> None:
        make = _Maker(registry)
        self._exchanges = make.counter(
            "xrouter_relations", "Request-reply pairs and messages without a counterpart, by outcome.", "outcome"
        )
        for outcome in OUTCOMES:
            self._exchanges.labels(outcome)
        self._open = make.gauge("xrouter_relations_open", "Pending messages, which wait for their counterpart.")
        self._undelivered = make.gauge(
            "xrouter_relations_undelivered", "Request-reply pairs that their sink does not have yet."
        )
        self._written = written

    def settled(self, counts: Mapping[str, int]) -> None:
        """Count completed exchanges by outcome."""
        for outcome, count in counts.items():
            self._exchanges.labels(outcome).inc(count)

    def waiting(self, open: int, undelivered: int) -> None:
        """Set the number of pending messages, and of pairs that are not yet in their sink."""
        self._open.set(open)
        self._undelivered.set(undelivered)

    def write(self, result: Literal["ok", "error"]) -> None:
        """Count a write to the sink."""
        self._written(result)


# Schema ids of bodies by definition: a metric, and a warning if a definition has several ids that decide nothing
# (MATCHING.md#schema-ids).

_log = get_logger()


class SchemaIdMetrics:
    """Counts schema ids by definition. Thread-safe."""

    def __init__(self, registry: CollectorRegistry, cap: int) -> None:
        """*cap* is the maximum of pairs of definition and id with their own series."""
        self._pairs = CappedLabels(cap)
        self._lock = threading.Lock()
        self._first: dict[str, str] = {}
        self._warned: set[str] = set()
        make = _Maker(registry)
        self._counter = make.counter(
            "xrouter_schema_ids",
            "Routed records whose body begins with a schema id, by definition, id, and what the id decided.",
            "message schemaid by",
        )

    def add(self, ids: Mapping[tuple[str, str, str], int]) -> None:
        """Count records by definition, id, and what decided."""
        for (message, schema_id, by), count in ids.items():
            pair = f"{message} {schema_id} {by}"
            known = self._pairs.label_for(pair) == pair
            self._counter.labels(message if known else OTHER, schema_id if known else OTHER, by).inc(count)
            if by == "nothing" and known:
                self._warn_if_several(message, schema_id)

    def _warn_if_several(self, message: str, schema_id: str) -> None:
        with self._lock:
            first = self._first.setdefault(message, schema_id)
            if first == schema_id or message in self._warned:
                return
            self._warned.add(message)
        _log.warning(
            "bodies of one definition begin with several schema ids; it is unknown whether all are of its type",
            message=message,
            ids=f"{first}, {schema_id}",
            hint="name the schema registry of the source, or declare the ids of the definition's schema",
        )


# Metrics of subscriptions, only in a router that has some.


class SubscriptionMetrics:
    """The metrics of subscriptions; their endpoints are in the settings, so there are few."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = _Maker(registry)
        self._up = make.gauge(
            "xrouter_subscription_up", "Whether the subscription exists, according to its manager.", "endpoint"
        )
        self._requests = make.counter(
            "xrouter_subscription_requests", "Requests to subscription managers.", "endpoint action result"
        )

    def up(self, endpoint: str, up: bool) -> None:
        """Set whether the subscription exists, according to the last request."""
        self._up.labels(endpoint).set(up)

    def request(self, endpoint: str, action: str, result: Literal["ok", "error"]) -> None:
        """Count a request: ``create``, ``renew`` or ``delete``."""
        self._requests.labels(endpoint, action, result).inc()


# Expiry of the certificates in the settings.

_RENEWED = "catalog."
"""Begins the keys of files that are read again when they change; all others are read only at the start."""


def make_certificate_collector(settings: Settings) -> CertificateCollector:
    """Return the collector for the expiry of the router's certificates."""
    files = find_certificates(settings)
    renewed = {key: path for key, path in files.items() if key.startswith(_RENEWED)}
    return CertificateCollector({key: path for key, path in files.items() if key not in renewed}, renewed)


# Metrics of the active catalog and its changes.

_SEVERITIES: Final = ("error", "warning")


class CatalogMetrics:
    """The findings of the active catalog, and what reloads changed for consumers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = _Maker(registry)
        self._findings = make.gauge("xrouter_catalog_findings", "Findings of the active catalog.", "severity")
        self._changes = make.counter(
            "xrouter_catalog_changes", "Changes for consumers by reloads, by compatibility.", "compatible"
        )
        for compatible in ("true", "false"):
            self._changes.labels(compatible)
        self._incompatible = make.gauge(
            "xrouter_catalog_incompatible_changes",
            "Incompatible changes of the active catalog, against the last compatible one; 0 once they are reverted.",
        )

    def set_findings(self, findings: Iterable[Finding]) -> None:
        """Set how many findings of each severity the active catalog has."""
        severities = [finding.severity for finding in findings]
        for severity in _SEVERITIES:
            self._findings.labels(severity).set(severities.count(severity))

    def count_changes(self, changes: int, incompatible: int, left: int) -> None:
        """Count the changes of a reload, some of which are incompatible.

        *left* is the number of incompatible changes against the last compatible catalog.
        """
        self._incompatible.set(left)
        self._changes.labels("true").inc(changes - incompatible)
        self._changes.labels("false").inc(incompatible)


# Records in sinks, and the conservation check; these counts are restored when a router starts.

FADE_SECONDS: Final = 600.0
"""How long an error is shown after the sink works again."""
SECONDS_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class SinkProblem:
    """The last error of a sink: when it was (seconds since 1970), its text, and whether the sink has worked since."""

    at: float
    text: str
    over: bool = False


class SinkMetrics:
    """The metrics of sinks and the conservation counts of queries; *label* returns the label of an endpoint."""

    def __init__(
        self, registry: CollectorRegistry, label: Callable[[str], str], now: Callable[[], float] = time.time
    ) -> None:
        self._label = label
        self._now = now
        self._problems: dict[str, SinkProblem] = {}
        make = _Maker(registry)
        self._records = make.counter(
            "xrouter_sink_records",
            "Events and dead letters written to a sink, by their source endpoint.",
            "sink endpoint",
        )
        self._bytes = make.counter(
            "xrouter_sink_bytes", "Bytes of keys and bodies of records written to a sink.", "sink endpoint"
        )
        self._seconds = make.histogram(
            "xrouter_sink_write_seconds", "Time to write a sink's share of a batch.", SECONDS_BUCKETS, "sink"
        )
        self._taken = make.counter("xrouter_taken_records", "Records read, by the offsets of their source.", "query")
        self._empty = make.counter("xrouter_empty_offsets", "Offsets read that have no record.", "query")
        self._gap = make.gauge(
            "xrouter_conservation_gap",
            "Records read minus records that all their sinks have as events or dead letters; 0 unless some were lost.",
            "query",
        )

    def expect(self, sinks: Iterable[str]) -> None:
        """Initialize the series of sinks with 0."""
        for sink in sinks:
            self._seconds.labels(sink)

    def took(self, sink: str, seconds: float) -> None:
        """Add the duration of a successful write."""
        self._seconds.labels(sink).observe(seconds)

    def set_problem(self, sink: str, problem: str) -> None:
        """Set the last error of a sink; an empty *problem* means that it works again."""
        if problem:
            self._problems[sink] = SinkProblem(self._now(), problem[:MAX_TEXT])
        elif (known := self._problems.get(sink)) is not None and not known.over:
            self._problems[sink] = replace(known, over=True)

    def get_problem(self, sink: str) -> SinkProblem | None:
        """Return the last error of a sink; None if the sink has worked for :data:`FADE_SECONDS` since."""
        known = self._problems.get(sink)
        if known is not None and known.over and self._now() - known.at > FADE_SECONDS:
            return None
        return known

    def count_delivered(self, counts: Mapping[tuple[str, str], int], sizes: Mapping[tuple[str, str], int]) -> None:
        """Add the counts and sizes of records written, by sink and endpoint."""
        for (sink, endpoint), count in counts.items():
            label = self._label(endpoint)
            self._records.labels(sink, label).inc(max(0, count))
            self._bytes.labels(sink, label).inc(max(0, sizes.get((sink, endpoint), 0)))

    def account(self, query: str, taken: int, empty: int, gap: int) -> None:
        """Add the counts of one batch, and set the records missing over all batches."""
        self._taken.labels(query).inc(taken)
        self._empty.labels(query).inc(empty)
        self._gap.labels(query).set(gap)

    def restore_counts(self, query: str, account: Account) -> None:
        """Restore the counts of a query; call it once per query."""
        self.count_delivered(account.delivered, account.delivered_bytes)
        self.account(query, account.taken, account.empty, account.gap)


# Metrics of the router's processes: version, CPU time, memory and descriptors.


def add_process_metrics(registry: CollectorRegistry) -> None:
    """Register the version and the process metrics."""
    build = _Maker(registry).gauge("xrouter_build_info", "The router's version, always 1.", "version python")
    build.labels(VERSION, platform.python_version()).set(1)
    ProcessCollector(registry=registry)


def add_jvm_metrics(registry: CollectorRegistry, pid: int) -> None:
    """Register the process metrics of Spark's JVM."""
    ProcessCollector(namespace="xrouter_jvm", pid=lambda: pid, registry=registry)


class DiskCollector(Collector):
    """Size and free space of the disks of *folders*, which need not exist yet."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = folders

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the current figures; disks that cannot be read have none."""
        text = "Free bytes of the disk of the state, or of a sink's folder, by its key of the settings."
        free = GaugeMetricFamily("xrouter_disk_free_bytes", text, labels=["disk"])
        size = GaugeMetricFamily("xrouter_disk_size_bytes", "All bytes of that disk.", labels=["disk"])
        for key, folder in self._folders.items():
            with suppress(OSError):
                usage = shutil.disk_usage(next(path for path in (folder, *folder.absolute().parents) if path.exists()))
                free.add_metric([key], usage.free)
                size.add_metric([key], usage.total)
        yield from (free, size)


class StatusCollector(Collector):
    """The status in ``/readyz``, as metrics."""

    def __init__(self, status: RouterStatus) -> None:
        self._status = status

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the current status."""
        good, answer = self._status.check_readiness()
        yield GaugeMetricFamily("xrouter_ready", "Whether the router is ready, as in /readyz.", good)
        text = "Whether a gateway accepts messages; gateways of brokers are named by endpoint."
        connected = GaugeMetricFamily("xrouter_gateway_connected", text, labels=["gateway"])
        for name, gateway in answer["gateways"].items():
            connected.add_metric([name], gateway["up"])
        yield connected
        text = "Whether the inbox accepts messages; if not, gateways push back, and HTTP returns 503."
        yield GaugeMetricFamily("xrouter_inbox_accepting", text, answer["inbox"]["accepting"])
        catalog = answer["catalog"]
        info = GaugeMetricFamily("xrouter_catalog_info", "The active catalog, always 1.", labels=["epoch"])
        if catalog["epoch"] is not None:
            info.add_metric([catalog["epoch"]], 1)
        yield info
        figures = self._status.count_pending()
        for name, text in _CATALOG_TEXTS.items():
            yield GaugeMetricFamily(f"xrouter_catalog_{name}", text, figures.get(name, catalog.get(name)))


_CATALOG_TEXTS: Final = {
    "definitions": "Definitions of the active catalog.",
    "awaited": "Unreachable references of a pending catalog.",
    "doubted": "Reasons why a catalog change needs confirmation.",
    "held": "Whether a changed catalog waits for the disk or a broker.",
    "refused": "Findings that the latest catalog was rejected for; 0 if it was not.",
}
"""The figures of ``/readyz`` on catalogs."""


MAX_SERIES: Final = 1000
"""Maximum endpoints, definitions, and schema ids with their own series."""
LATENCY_BUCKETS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
    *(10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
"""Upper bounds in seconds, from a small batch to a backlog of ten minutes."""
BATCH_BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
BYTES_BUCKETS: Final = tuple(2.0**power for power in range(16, 33, 2))
"""64 KiB to 4 GiB."""

BatchFault = Literal["error", "worker", "time", "overdue"]
ReloadResult = Literal["accepted", "refused", "unchanged"]
_SINK_RESULTS: Final = ("ok", "error", "rejected")
_FAULTS: Final[tuple[BatchFault, ...]] = ("error", "worker", "time", "overdue")
_RELOAD_RESULTS: Final = ("accepted", "refused")


class Metrics:
    """The metrics of one router. Counts of a batch are added once, when all its sinks have it.

    The series of ``sinks`` exist from the start, at 0; see :meth:`init_series`.
    """

    def __init__(self, sinks: Iterable[str] = (), *, max_series: int = MAX_SERIES) -> None:
        # A series for the time of creation would double all series, and Prometheus detects restarts without it.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=True)
        self._sinks: frozenset[str] = frozenset()
        self._holds: dict[str, set[str]] = {}
        self._lock = threading.Lock()
        self._listening: tuple[str, Callable[[], None]] | None = None
        self._notified_early = False
        self._definition_labels = CappedLabels(max_series)
        self._endpoint_labels = CappedLabels(max_series)
        self.backlogs = Backlogs(self._endpoint_labels.label_for)
        """The backlogs of sources."""
        self.coverage = Coverage(self._endpoint_labels.label_for)
        """The coverage of definitions."""
        self.sinks = SinkMetrics(self.registry, self._endpoint_labels.label_for)
        """The metrics of sinks."""
        self.shadow = ShadowMetrics(self.registry, self._endpoint_labels.label_for)
        """The metrics of the shadow catalog."""
        self._schema_ids = SchemaIdMetrics(self.registry, max_series)
        self.catalog_state = CatalogMetrics(self.registry)
        """The metrics of the active catalog."""
        self.flow = ThroughputLog()
        """The throughput log."""
        self._resumed: set[str] = set()
        self._make_flow()
        self._make_state()
        self.init_series(sinks)

    def _make_flow(self) -> None:
        registry, make = self.registry, _Maker(self.registry)
        self._records = make.counter("xrouter_records", "Records by outcome.", "endpoint outcome reason")
        self._ties = make.counter(
            "xrouter_ambiguous_records",
            "Routed records that several definitions match equally well, decided by match.ambiguous.",
            "endpoint",
        )
        self._definitions = make.counter(
            "xrouter_definition_records", "Records routed or tied to a definition.", "message"
        )
        self._batch = make.histogram("xrouter_batch_seconds", "Time to evaluate and write a batch.", BATCH_BUCKETS)
        self._bytes = make.histogram("xrouter_batch_bytes", "Bytes of keys and bodies of a batch.", BYTES_BUCKETS)
        self._latency = BulkHistogram(
            "xrouter_record_latency_seconds", "Time from arrival until all sinks have committed.", LATENCY_BUCKETS
        )
        registry.register(self._latency)
        self._writes = make.counter("xrouter_sink_writes", "Writes of a batch's share to a sink.", "sink result")
        self._unfit = make.counter(
            "xrouter_unfit_values",
            "Values of bodies that do not fit their typed column and are written as null.",
            "sink message",
        )
        self._faults = make.counter(
            "xrouter_batch_faults",
            "Failed attempts of batches that something in the batch caused, by kind of fault.",
            "query fault",
        )
        self._received = make.counter("xrouter_gateway_received", "Messages received by a gateway.", "endpoint")
        self._acknowledged = make.counter(
            "xrouter_gateway_acknowledged", "Messages stored on disk and acknowledged.", "endpoint"
        )

    def _make_state(self) -> None:
        registry, make = self.registry, _Maker(self.registry)
        self._held = make.gauge(
            "xrouter_query_held",
            "Whether a batch of a query is blocked; sink is the one that blocks it, empty for dead_letters.max_ratio.",
            "query sink",
        )
        self._inbox_bytes = make.gauge("xrouter_inbox_bytes", "Disk space of the inbox.")
        self._inbox_most = make.gauge(
            "xrouter_inbox_max_bytes",
            "Disk space of the inbox at which gateways push back: inbox.max_bytes, or less if the disk fills up first.",
        )
        self._reloads = make.counter("xrouter_catalog_reloads", "Changed catalogs, by result.", "result")
        for result in _RELOAD_RESULTS:
            self._reloads.labels(result)
        registry.register(FaultCounter())
        registry.register(self.backlogs)
        registry.register(self.coverage)
        add_process_metrics(registry)

    def init_series(self, sinks: Iterable[str] = (), endpoints: Iterable[str] = ()) -> None:
        """Initialize the series of sinks and endpoints with 0, so that rates include the first event of each."""
        with self._lock:
            self._sinks |= frozenset(sinks)
        for sink in self._sinks:
            for result in _SINK_RESULTS:
                self._writes.labels(sink, result)
        self.sinks.expect(self._sinks)
        for endpoint in endpoints:
            label = self._endpoint_labels.label_for(endpoint)
            self._records.labels(label, ROUTED, "")
            self._received.labels(label)
            self._acknowledged.labels(label)

    def count_written_batch(
        self, query: str, tally: Tally, seconds: float, committed_at_ms: int, *, counted: bool = False
    ) -> None:
        """Count a written batch of a query: its outcomes, its duration, and the latency of its records.

        *counted* is True if it was written before a crash and is repeated, so that its outcomes count already.
        *committed_at_ms* and the arrivals of the tally are milliseconds since 1970. An arrival in the future (a
        broker's clock ahead of ours) counts as no latency. The query is no label.
        """
        if counted:
            self.coverage.add_batch(tally)
        else:
            self.outcomes(tally)
        self._batch.observe(seconds)
        self._bytes.observe(tally.bytes)
        self._latency.add((max(0, committed_at_ms - at) / 1000, count) for at, count in tally.arrivals.items())

    def outcomes(self, tally: Tally) -> None:
        """Count the outcomes of written records."""
        self._count_records(tally.records)
        self.coverage.add_batch(tally)
        self.flow.add(tally.records)
        self.sinks.count_delivered(tally.delivered, tally.delivered_bytes)
        self.shadow.count_batch(tally)
        self._schema_ids.add(tally.ids)
        for endpoint, _, _ in tally.records:
            if not self._notified_early:
                self._notify_listener(endpoint)
        for endpoint, count in tally.ties.items():
            self._ties.labels(self._endpoint_labels.label_for(endpoint)).inc(count)
        for (_, message), count in tally.definitions.items():
            self._definitions.labels(self._definition_labels.label_for(message)).inc(count)

    def _count_records(self, records: Mapping[tuple[str, str, str], int]) -> None:
        for (endpoint, outcome, reason), count in records.items():
            self._records.labels(self._endpoint_labels.label_for(endpoint), outcome, reason).inc(count)

    def resume(self, query: str, account: Account) -> None:
        """Restore a query's counts from its saved totals, unless that was done."""
        if query not in self._resumed:
            self._resumed.add(query)
            self._count_records(account.records)
            self.sinks.restore_counts(query, account)

    def set_listener(self, endpoint: str, callback: Callable[[], None]) -> None:
        """Call *callback*, in any thread, when a message of *endpoint* is stored.

        If no gateway of this process receives its messages, *callback* is called when a batch has records of it.
        """
        self._listening = (endpoint, callback)

    def _notify_listener(self, endpoint: str) -> bool:
        if self._listening is None or self._listening[0] != endpoint:
            return False
        self._listening[1]()
        return True

    def count_sink_write(self, sink: str, result: str, problem: str = "") -> None:
        """Count a write to a sink by result: ``ok`` or ``error``, and also ``rejected`` if it rejected records.

        *problem* is the text of an error.

        One write may serve several sinks of a cluster and then names them all, with commas.
        """
        names = [sink] if sink in self._sinks else sink.split(",")
        for name in names:
            self._writes.labels(name, result).inc()
            self.sinks.set_problem(name, problem)

    def count_unfit_values(self, sink: str, counts: Mapping[str, int]) -> None:
        """Count values that a write made null in typed columns, by definition."""
        for message, count in counts.items():
            self._unfit.labels(sink, self._definition_labels.label_for(message)).inc(count)

    def held(self, query: str, sink: str = "") -> None:
        """Set that a query holds a batch, because of that sink or, without one, of the share of dead letters in it.

        As with writes, several sinks of a cluster may be named with commas. Say it before the status says so, and
        :meth:`released` before it says the contrary: who reads the status and then the metrics finds the same.
        """
        names = [sink] if not sink or sink in self._sinks else sink.split(",")
        with self._lock:
            self._clear_blocked(query)
            for name in names:
                self._held.labels(query, name).set(1)
                self._holds.setdefault(query, set()).add(name)

    def init_query_series(self, query: str) -> None:
        """Initialize the series of a query with 0."""
        self._held.labels(query, "")
        for fault in _FAULTS:
            self._faults.labels(query, fault)

    def fault(self, query: str, fault: BatchFault) -> None:
        """Count an attempt that failed because of the batch itself, or that exceeded its time limit (``overdue``)."""
        self._faults.labels(query, fault).inc()

    def released(self, query: str) -> None:
        """Set that no batch of a query is blocked."""
        with self._lock:
            self._clear_blocked(query)

    def _clear_blocked(self, query: str) -> None:
        for name in self._holds.get(query, ()):
            self._held.labels(query, name).set(0)

    def set_inbox_size(self, bytes: int, most: int) -> None:
        """Set the size of the inbox on disk, and its maximum."""
        self._inbox_bytes.set(bytes)
        self._inbox_most.set(most)

    def count_reload(self, result: ReloadResult) -> None:
        """Count a reload as ``accepted`` or ``refused``; ``unchanged`` is not counted."""
        if result != "unchanged":
            self._reloads.labels(result).inc()

    def received(self, endpoint: str) -> None:
        """Count a message that a gateway received."""
        self._received.labels(self._endpoint_labels.label_for(endpoint)).inc()

    def acknowledged(self, endpoint: str) -> None:
        """Count a message that is stored and acknowledged to its sender."""
        self._acknowledged.labels(self._endpoint_labels.label_for(endpoint)).inc()
        if self._notify_listener(endpoint):
            self._notified_early = True
