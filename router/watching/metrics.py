"""Everything the router counts, under the names of deploy/OPERATIONS.md#metrics, in a registry of its own.

Labels that come from catalogs and records are bounded: the first values seen keep a series of their own, the rest
share ``other``. Everything here may be called from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from router.judging.tally import ROUTED, Tally
from router.watching.backlogs import Backlogs
from router.watching.catalogs import CatalogState
from router.watching.collectors import BulkHistogram, Capped, FaultCounter
from router.watching.coverage import Coverage
from router.watching.deliveries import Deliveries
from router.watching.flow import Flow
from router.watching.process import watch_process
from router.watching.schema_ids import SchemaIdFigures
from router.watching.shadow import ShadowFigures

if TYPE_CHECKING:
    from router.state.accounts import Account

DEFINITIONS: Final = 1000
"""Definitions with a series of their own, by default."""
ENDPOINTS: Final = 1000
LATENCY_BUCKETS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
    *(10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
"""Upper bounds in seconds: from a batch that had little to do, to a backlog of ten minutes."""
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

    ``sinks`` and ``endpoints`` that are known at the start have their series from the start, at 0; see :meth:`expect`.
    """

    def __init__(
        self,
        sinks: Iterable[str] = (),
        endpoints: Iterable[str] = (),
        *,
        definitions: int = DEFINITIONS,
        endpoint_cap: int = ENDPOINTS,
    ) -> None:
        # A series for the time of creation would double all series, and Prometheus detects restarts without it.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._sinks: frozenset[str] = frozenset()
        self._holds: dict[str, set[str]] = {}
        self._epoch: str | None = None
        self._lock = threading.Lock()
        self._listening: tuple[str, Callable[[], None]] | None = None
        self._notified_early = False
        self._definition_labels = Capped(definitions)
        self._by_definition: dict[str, Counter] = {}
        self._endpoint_labels = Capped(endpoint_cap)
        self.backlogs = Backlogs(self._endpoint_labels.of)
        """What waits at the sources."""
        self.coverage = Coverage(self._endpoint_labels.of)
        """Which definitions have occurred."""
        self.sinks = Deliveries(self.registry, self._endpoint_labels.of)
        """What sinks have."""
        self.shadow = ShadowFigures(self.registry, self._endpoint_labels.of)
        """What the shadow catalog would change."""
        self._schema_ids = SchemaIdFigures(self.registry)
        self.catalog_state = CatalogState(self.registry)
        """What is known of the active catalog."""
        self.flow = Flow()
        """Counts for the log of what went through."""
        self._resumed: set[str] = set()
        self._make_flow()
        self._make_state()
        self.expect(sinks, endpoints)

    def _make_flow(self) -> None:
        registry = self.registry
        self._records = Counter(
            "xrouter_records", "Records with their outcome.", ("endpoint", "outcome", "reason"), registry=registry
        )
        self._ties = Counter(
            "xrouter_ambiguous_records",
            "Routed records that several definitions match equally well, decided by match.ambiguous.",
            ("endpoint",),
            registry=registry,
        )
        self._definitions = Counter(
            "xrouter_definition_records", "Records routed or tied to a definition.", ("message",), registry=registry
        )
        self._batch = Histogram(
            "xrouter_batch_seconds", "Time to judge and write a batch.", buckets=BATCH_BUCKETS, registry=registry
        )
        self._bytes = Histogram(
            "xrouter_batch_bytes", "Bytes of keys and bodies of a batch.", buckets=BYTES_BUCKETS, registry=registry
        )
        self._latency = BulkHistogram(
            "xrouter_record_latency_seconds", "Time from arrival to the commit of all sinks.", LATENCY_BUCKETS
        )
        registry.register(self._latency)
        self._writes = Counter(
            "xrouter_sink_writes", "Writes of a batch's share to a sink.", ("sink", "result"), registry=registry
        )
        self._unfit = Counter(
            "xrouter_unfit_values",
            "Values of bodies that do not fit their typed column and are null in it.",
            ("sink", "message"),
            registry=registry,
        )
        self._faults = Counter(
            "xrouter_batch_faults",
            "Tries of a batch that failed by themselves, by what happened.",
            ("query", "fault"),
            registry=registry,
        )
        self._received = Counter(
            "xrouter_gateway_received", "Messages that a gateway was handed.", ("endpoint",), registry=registry
        )
        self._acknowledged = Counter(
            "xrouter_gateway_acknowledged",
            "Messages that are on disk and acknowledged.",
            ("endpoint",),
            registry=registry,
        )

    def _make_state(self) -> None:
        registry = self.registry
        self._held = Gauge(
            "xrouter_query_held",
            "Whether a query holds a batch; the sink in the way, empty for dead_letters.max_ratio.",
            ("query", "sink"),
            registry=registry,
        )
        self._inbox_bytes = Gauge("xrouter_inbox_bytes", "Disk space of the inbox.", registry=registry)
        self._inbox_most = Gauge(
            "xrouter_inbox_max_bytes",
            "Disk space at which gateways push back: inbox.max_bytes, or less where the disk is full before.",
            registry=registry,
        )
        self._info = Gauge("xrouter_catalog_info", "The active catalog, always 1.", ("epoch",), registry=registry)
        self._size = Gauge("xrouter_catalog_definitions", "Definitions of the active catalog.", registry=registry)
        self._awaited = Gauge(
            "xrouter_catalog_awaited", "Unreachable references that a catalog waits for.", registry=registry
        )
        self._doubted = Gauge(
            "xrouter_catalog_doubted", "Reasons why a changed catalog waits for a second look.", registry=registry
        )
        self._catalog_held = Gauge(
            "xrouter_catalog_held",
            "Whether a changed catalog waits for the disk or a broker.",
            registry=registry,
        )
        self._reloads = Counter(
            "xrouter_catalog_reloads", "Changed catalogs, by what became of them.", ("result",), registry=registry
        )
        for result in _RELOAD_RESULTS:
            self._reloads.labels(result)
        registry.register(FaultCounter())
        registry.register(self.backlogs)
        registry.register(self.coverage)
        watch_process(registry)

    def expect(self, sinks: Iterable[str] = (), endpoints: Iterable[str] = ()) -> None:
        """Begin the series of sinks and endpoints at 0, so that the first event of each shows up in a rate."""
        with self._lock:
            self._sinks |= frozenset(sinks)
        for sink in self._sinks:
            for result in _SINK_RESULTS:
                self._writes.labels(sink, result)
        self.sinks.expect(self._sinks)
        for endpoint in endpoints:
            label = self._endpoint_labels.of(endpoint)
            self._records.labels(label, ROUTED, "")
            self._received.labels(label)
            self._acknowledged.labels(label)

    def batch_done(
        self, query: str, tally: Tally, seconds: float, committed_at_ms: int, *, counted: bool = False
    ) -> None:
        """Add one written batch of a query: its outcomes, how long it took, and how old its records were.

        Its outcomes are *counted* already if it was written before a crash and has come again.
        *committed_at_ms* and the arrivals of the tally are milliseconds since 1970. An arrival in the future (a
        broker's clock ahead of ours) counts as no latency. The query is no label.
        """
        if counted:
            self.coverage.saw(tally)
        else:
            self.outcomes(tally)
        self._batch.observe(seconds)
        self._bytes.observe(tally.bytes)
        self._latency.add((max(0, committed_at_ms - at) / 1000, count) for at, count in tally.arrivals.items())

    def outcomes(self, tally: Tally) -> None:
        """Add what became of records that were written, in batches or one by one."""
        self._add(tally.records)
        self.coverage.saw(tally)
        self.flow.add(tally.records)
        self.sinks.delivered(tally.delivered, tally.delivered_bytes)
        self.shadow.add(tally)
        self._schema_ids.add(tally.ids)
        for endpoint, _, _ in tally.records:
            if not self._notified_early:
                self._notify(endpoint)
        for endpoint, count in tally.ties.items():
            self._ties.labels(self._endpoint_labels.of(endpoint)).inc(count)
        for (_, message), count in tally.definitions.items():
            self._counter_of(message).inc(count)

    def _counter_of(self, message: str) -> Counter:
        """Return the counter of a definition, without asking for it by its label each time."""
        known = self._by_definition.get(message)
        if known is None:
            label = self._definition_labels.of(message)
            known = self._definitions.labels(label)
            if label == message:
                self._by_definition[message] = known
        return known

    def _add(self, records: Mapping[tuple[str, str, str], int]) -> None:
        for (endpoint, outcome, reason), count in records.items():
            self._records.labels(self._endpoint_labels.of(endpoint), outcome, reason).inc(count)

    def resume(self, query: str, account: Account) -> None:
        """Let the counts of a query go on from its account, unless they do already."""
        if query not in self._resumed:
            self._resumed.add(query)
            self._add(account.records)
            self.sinks.resume(query, account)

    def listen(self, endpoint: str, callback: Callable[[], None]) -> None:
        """Call *callback*, in any thread, when a message of *endpoint* is on the disk.

        Where no gateway of this process takes its messages, *callback* is called when a batch had records of it.
        """
        self._listening = (endpoint, callback)

    def _notify(self, endpoint: str) -> bool:
        if self._listening is None or self._listening[0] != endpoint:
            return False
        self._listening[1]()
        return True

    def sink_write(self, sink: str, result: str, problem: str = "") -> None:
        """Count a write to a sink, ``ok`` or ``error``; and ``rejected`` besides, if the sink refused records of it.

        *problem* is the text of an error.

        One write may serve several sinks of a cluster and then names them all, with commas.
        """
        names = [sink] if sink in self._sinks else sink.split(",")
        for name in names:
            self._writes.labels(name, result).inc()
            self.sinks.wrote(name, problem)

    def unfit_values(self, sink: str, counts: Mapping[str, int]) -> None:
        """Count what a write made null in typed columns, by definition."""
        for message, count in counts.items():
            self._unfit.labels(sink, self._definition_labels.of(message)).inc(count)

    def held(self, query: str, sink: str = "") -> None:
        """Set that a query holds a batch, because of that sink or, without one, of the share of dead letters in it.

        As with writes, several sinks of a cluster may be named with commas. Say it before the status says so, and
        :meth:`released` before it says the contrary: who reads the status and then the metrics finds the same.
        """
        names = [sink] if not sink or sink in self._sinks else sink.split(",")
        with self._lock:
            self._let_go(query)
            for name in names:
                self._held.labels(query, name).set(1)
                self._holds.setdefault(query, set()).add(name)

    def expect_query(self, query: str) -> None:
        """Begin the series of a query at 0."""
        self._held.labels(query, "")
        for fault in _FAULTS:
            self._faults.labels(query, fault)

    def fault(self, query: str, fault: BatchFault) -> None:
        """Count a try of a batch that failed for a reason of its own, or took longer than it may (``overdue``)."""
        self._faults.labels(query, fault).inc()

    def released(self, query: str) -> None:
        """Set that a query holds no batch."""
        with self._lock:
            self._let_go(query)

    def _let_go(self, query: str) -> None:
        for name in self._holds.get(query, ()):
            self._held.labels(query, name).set(0)

    def inbox(self, bytes: int, most: int) -> None:
        """Set what the inbox takes on disk, and the most that it may take."""
        self._inbox_bytes.set(bytes)
        self._inbox_most.set(most)

    def catalog(self, epoch: str, definitions: int) -> None:
        """Set the active catalog; the series of the one before ends."""
        with self._lock:
            if self._epoch not in (None, epoch):
                self._info.remove(self._epoch)
            self._epoch = epoch
            self._info.labels(epoch).set(1)
            self._size.set(definitions)

    def reload(self, result: ReloadResult) -> None:
        """Count a changed catalog as ``accepted`` or ``refused``; one that is ``unchanged`` is no reload."""
        if result != "unchanged":
            self._reloads.labels(result).inc()

    def awaited(self, references: int) -> None:
        """Set how many references keep a catalog from taking effect, since they cannot be reached for now."""
        self._awaited.set(references)

    def doubted(self, reasons: int) -> None:
        """Set for how many reasons a changed catalog waits for a second look."""
        self._doubted.set(reasons)

    def catalog_held(self, held: bool) -> None:
        """Set whether a changed catalog cannot take effect, since the disk refuses for now."""
        self._catalog_held.set(held)

    def received(self, endpoint: str) -> None:
        """Count a message that a gateway was handed; with :meth:`acknowledged` what gateways ask for."""
        self._received.labels(self._endpoint_labels.of(endpoint)).inc()

    def acknowledged(self, endpoint: str) -> None:
        """Count a message that is on disk and is being acknowledged to its sender."""
        self._acknowledged.labels(self._endpoint_labels.of(endpoint)).inc()
        if self._notify(endpoint):
            self._notified_early = True
