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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
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
from router.watching.families import iter_families, make_metrics
from router.watching.shadow import ShadowMetrics
from router.watching.status import MAX_TEXT, RouterStatus

if TYPE_CHECKING:
    from router.state.state import Account

# Collectors that the client library does not have.

OTHER: Final = "other"


class FaultCounter(Collector):
    """The faults that :mod:`bindings.background` has counted in this process."""

    def collect(self) -> Iterator[Metric]:
        """Yield the current faults by part."""
        counts = [([part], count) for part, count in sorted(fault_counts().items())]
        return iter_families("faults", {"background_faults": counts})


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
    """The metrics of relations; ``write`` counts a write to the sink of pairs by its result."""

    def __init__(self, registry: CollectorRegistry, write: Callable[[str], None]) -> None:
        self._metrics = make_metrics(registry, "relations")
        self.write = write
        self.settled(dict.fromkeys(OUTCOMES, 0))

    def settled(self, counts: Mapping[str, int]) -> None:
        """Count completed exchanges by outcome."""
        for outcome, count in counts.items():
            self._metrics["relations"].labels(outcome).inc(count)

    def waiting(self, open: int, undelivered: int) -> None:
        """Set the number of pending messages, and of pairs that are not yet in their sink."""
        self._metrics["relations_open"].set(open)
        self._metrics["relations_undelivered"].set(undelivered)


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
        self._counter = make_metrics(registry, "schema_ids")["schema_ids"]

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
        self._metrics = make_metrics(registry, "subscriptions")

    def up(self, endpoint: str, up: bool) -> None:
        """Set whether the subscription exists, according to the last request."""
        self._metrics["subscription_up"].labels(endpoint).set(up)

    def request(self, endpoint: str, action: str, result: Literal["ok", "error"]) -> None:
        """Count a request: ``create``, ``renew`` or ``delete``."""
        self._metrics["subscription_requests"].labels(endpoint, action, result).inc()


# Expiry of the certificates in the settings.

_RENEWED = "catalog."
"""Begins the keys of files that are read again when they change; all others are read only at the start."""


def make_certificate_collector(settings: Settings) -> CertificateCollector:
    """Return the collector for the expiry of the router's certificates."""
    files = find_certificates(settings)
    renewed = {key: path for key, path in files.items() if key.startswith(_RENEWED)}
    return CertificateCollector({key: path for key, path in files.items() if key not in renewed}, renewed)


# Records in sinks, and the conservation check; these counts are restored when a router starts.

FADE_SECONDS: Final = 600.0
"""How long an error is shown after the sink works again."""


@dataclass(frozen=True, slots=True)
class SinkProblem:
    """The last error of a sink: when it was (seconds since 1970), its text, and whether the sink has worked since."""

    at: float
    text: str
    over: bool = False


class SinkProblems:
    """The last error of each sink."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._problems: dict[str, SinkProblem] = {}

    def set(self, sink: str, problem: str) -> None:
        """Set the last error of a sink; an empty *problem* means that it works again."""
        if problem:
            self._problems[sink] = SinkProblem(self._now(), problem[:MAX_TEXT])
        elif (known := self._problems.get(sink)) is not None and not known.over:
            self._problems[sink] = replace(known, over=True)

    def get(self, sink: str) -> SinkProblem | None:
        """Return the last error of a sink; None if the sink has worked for :data:`FADE_SECONDS` since."""
        known = self._problems.get(sink)
        if known is not None and known.over and self._now() - known.at > FADE_SECONDS:
            return None
        return known


# Metrics of the router's processes: version, CPU time, memory and descriptors.


def add_jvm_metrics(registry: CollectorRegistry, pid: int) -> None:
    """Register the process metrics of Spark's JVM."""
    ProcessCollector(namespace="xrouter_jvm", pid=lambda: pid, registry=registry)


class DiskCollector(Collector):
    """Size and free space of the disks of *folders*, which need not exist yet."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = folders

    def collect(self) -> Iterator[Metric]:
        """Yield the current figures; disks that cannot be read have none."""
        known: dict[str, Any] = {}
        for key, folder in self._folders.items():
            with suppress(OSError):
                place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
                known[key] = shutil.disk_usage(place)
        free, size = ([([key], getattr(each, name)) for key, each in known.items()] for name in ("free", "total"))
        yield from iter_families("disks", {"disk_free_bytes": free, "disk_size_bytes": size})


class StatusCollector(Collector):
    """The status in ``/readyz``, as metrics."""

    def __init__(self, status: RouterStatus) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yield the current status."""
        good, answer = self._status.check_readiness()
        catalog = answer["catalog"]
        pending = self._status.count_pending()
        single = {"ready": good, "inbox_accepting": answer["inbox"]["accepting"]}
        single |= {f"catalog_{name}": count for name, count in pending.items()}
        single |= {"catalog_definitions": catalog["definitions"]}
        values: dict[str, list[tuple[list[str], float]]] = {
            name: [([], value)] for name, value in single.items() if value is not None
        }
        values["gateway_connected"] = [([name], gateway["up"]) for name, gateway in answer["gateways"].items()]
        values["catalog_info"] = [] if catalog["epoch"] is None else [([catalog["epoch"]], 1)]
        yield from iter_families("status", values)


MAX_SERIES: Final = 1000
"""Maximum endpoints, definitions, and schema ids with their own series."""
LATENCY_BUCKETS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
    *(10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
"""Upper bounds in seconds, from a small batch to a backlog of ten minutes."""

BatchFault = Literal["error", "worker", "time", "overdue"]
_SINK_RESULTS: Final = ("ok", "error", "rejected")
_FAULTS: Final[tuple[BatchFault, ...]] = ("error", "worker", "time", "overdue")
_RELOAD_RESULTS: Final = ("accepted", "refused")
_SEVERITIES: Final = ("error", "warning")


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
        self._label = CappedLabels(max_series).label_for
        """Returns the label of an endpoint."""
        self.backlogs = Backlogs(self._label)
        """The backlogs of sources."""
        self.coverage = Coverage(self._label)
        """The coverage of definitions."""
        self.problems = SinkProblems()
        """The last errors of sinks."""
        self._metrics = make_metrics(self.registry, "router")
        self.shadow = ShadowMetrics(self._metrics, self._label)
        """The metrics of the shadow catalog."""
        self._schema_ids = SchemaIdMetrics(self.registry, max_series)
        self.flow = ThroughputLog()
        """The throughput log."""
        self._resumed: set[str] = set()
        self.last_received = 0.0
        """When a gateway last received a message (monotonic seconds)."""
        self._latency = BulkHistogram(
            "xrouter_record_latency_seconds", "Time from arrival until all sinks have committed.", LATENCY_BUCKETS
        )
        for collector in (self._latency, FaultCounter(), self.backlogs, self.coverage):
            self.registry.register(collector)
        ProcessCollector(registry=self.registry)
        self._of("build_info", VERSION, platform.python_version()).set(1)
        for result in _RELOAD_RESULTS:
            self._of("catalog_reloads", result)
        self.count_changes(0, 0, 0)
        self.init_series(sinks)

    def _of(self, name: str, *labels: str) -> Any:
        """Return a series of a metric, at 0 if it is new."""
        return self._metrics[name].labels(*labels)

    def init_series(self, sinks: Iterable[str] = (), endpoints: Iterable[str] = ()) -> None:
        """Initialize the series of sinks and endpoints with 0, so that rates include the first event of each."""
        with self._lock:
            self._sinks |= frozenset(sinks)
        for sink in self._sinks:
            for result in _SINK_RESULTS:
                self._of("sink_writes", sink, result)
            self._of("sink_write_seconds", sink)
        for label in map(self._label, endpoints):
            self._of("records", label, ROUTED, "")
            self._of("gateway_received", label)
            self._of("gateway_acknowledged", label)

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
        self._metrics["batch_seconds"].observe(seconds)
        self._metrics["batch_bytes"].observe(tally.bytes)
        self._latency.add((max(0, committed_at_ms - at) / 1000, count) for at, count in tally.arrivals.items())

    def outcomes(self, tally: Tally) -> None:
        """Count the outcomes of written records."""
        self._count_records(tally)
        self.coverage.add_batch(tally)
        self.flow.add(tally.records)
        self.shadow.count_batch(tally)
        self._schema_ids.add(tally.ids)
        for endpoint, _, _ in tally.records:
            if not self._notified_early:
                self._notify_listener(endpoint)
        for endpoint, count in tally.ties.items():
            self._of("ambiguous_records", self._label(endpoint)).inc(count)
        for (_, message), count in tally.definitions.items():
            self._of("definition_records", self._definition_labels.label_for(message)).inc(count)

    def _count_records(self, counts: Tally | Account) -> None:
        for (endpoint, outcome, reason), count in counts.records.items():
            self._of("records", self._label(endpoint), outcome, reason).inc(count)
        for (sink, endpoint), count in counts.delivered.items():
            self._of("sink_records", sink, self._label(endpoint)).inc(max(0, count))
            size = counts.delivered_bytes.get((sink, endpoint), 0)
            self._of("sink_bytes", sink, self._label(endpoint)).inc(max(0, size))

    def account(self, query: str, taken: int, empty: int, gap: int) -> None:
        """Add the counts of one batch, and set the records missing over all batches."""
        self._of("taken_records", query).inc(taken)
        self._of("empty_offsets", query).inc(empty)
        self._of("conservation_gap", query).set(gap)

    def resume(self, query: str, account: Account) -> None:
        """Restore a query's counts from its saved totals, unless that was done."""
        if query not in self._resumed:
            self._resumed.add(query)
            self._count_records(account)
            self.account(query, account.taken, account.empty, account.gap)

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
            self._of("sink_writes", name, result).inc()
            self.problems.set(name, problem)

    def took(self, sink: str, seconds: float) -> None:
        """Add the duration of a successful write to a sink."""
        self._of("sink_write_seconds", sink).observe(seconds)

    def count_unfit_values(self, sink: str, counts: Mapping[str, int]) -> None:
        """Count values that a write made null in typed columns, by definition."""
        for message, count in counts.items():
            self._of("unfit_values", sink, self._definition_labels.label_for(message)).inc(count)

    def held(self, query: str, sink: str = "") -> None:
        """Set that a query holds a batch, because of that sink or, without one, of the share of dead letters in it.

        As with writes, several sinks of a cluster may be named with commas. Say it before the status says so, and
        :meth:`released` before it says the contrary: who reads the status and then the metrics finds the same.
        """
        names = [sink] if not sink or sink in self._sinks else sink.split(",")
        with self._lock:
            self._clear_blocked(query)
            for name in names:
                self._of("query_held", query, name).set(1)
                self._holds.setdefault(query, set()).add(name)

    def init_query_series(self, query: str) -> None:
        """Initialize the series of a query with 0."""
        self._of("query_held", query, "")
        for fault in _FAULTS:
            self._of("batch_faults", query, fault)

    def fault(self, query: str, fault: BatchFault) -> None:
        """Count an attempt that failed because of the batch itself, or that exceeded its time limit (``overdue``)."""
        self._of("batch_faults", query, fault).inc()

    def released(self, query: str) -> None:
        """Set that no batch of a query is blocked."""
        with self._lock:
            self._clear_blocked(query)

    def _clear_blocked(self, query: str) -> None:
        for name in self._holds.get(query, ()):
            self._of("query_held", query, name).set(0)

    def set_inbox_size(self, bytes: int, most: int) -> None:
        """Set the size of the inbox on disk, and its maximum."""
        self._metrics["inbox_bytes"].set(bytes)
        self._metrics["inbox_max_bytes"].set(most)

    def count_reload(self, result: Literal["accepted", "refused"]) -> None:
        """Count a changed catalog."""
        self._of("catalog_reloads", result).inc()

    def set_findings(self, findings: Iterable[Finding]) -> None:
        """Set how many findings of each severity the active catalog has."""
        severities = [finding.severity for finding in findings]
        for severity in _SEVERITIES:
            self._of("catalog_findings", severity).set(severities.count(severity))

    def count_changes(self, changes: int, incompatible: int, left: int) -> None:
        """Count the changes for consumers by a reload, some of which are incompatible.

        *left* is the number of incompatible changes against the last compatible catalog.
        """
        self._metrics["catalog_incompatible_changes"].set(left)
        self._of("catalog_changes", "true").inc(changes - incompatible)
        self._of("catalog_changes", "false").inc(incompatible)

    def received(self, endpoint: str) -> None:
        """Count a message that a gateway received."""
        self.last_received = time.monotonic()
        self._of("gateway_received", self._label(endpoint)).inc()

    def acknowledged(self, endpoint: str) -> None:
        """Count a message that is stored and acknowledged to its sender."""
        self._of("gateway_acknowledged", self._label(endpoint)).inc()
        if self._notify_listener(endpoint):
            self._notified_early = True
