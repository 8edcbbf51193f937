"""The plans of a running router: the active plan, and the plans that unfinished batches are pinned to."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from router.batches.splitting import BatchPart
from router.errors import BatchPinError
from router.evaluation.comparing import ShadowCatalog, iter_catalog_notes
from router.evaluation.evaluator import Kind, TallyAccumulator, WorkerPass
from router.evaluation.outcome_rows import (
    add_dead_letter_ids,
    create_outcome_pass,
    make_poison_outcome,
    needs_milliseconds,
    normalize_rows,
)
from router.evaluation.outputs import Tally, sum_tallies
from router.evaluation.plan import Plan, compile_plan
from router.logs import get_logger
from router.state.state import BatchStore, StateFolder
from router.watching.metrics import Metrics
from router.watching.shadow import EpochPair
from router.writing.kafka_records import KafkaRecords, create_single_write, to_kafka_records
from router.writing.outcomes import Outcomes, save_to_kafka
from router.writing.staging import BatchId, RowsForSink, SinkRows, collect_results
from router.writing.writer import BatchWriter

if TYPE_CHECKING:
    from pyspark import Accumulator, Broadcast
    from pyspark.sql import DataFrame, SparkSession

    from router.evaluation.plan import Evaluator
    from router.request_reply import Pairing
    from router.watching.status import RouterStatus

_NO_ROUTE: Final = 2**31 - 1
_log = get_logger()


class _ColumnsKey(NamedTuple):
    """What the columns of a query depend on: its row kind, the query its positions name, conversion of timestamps."""

    query: str
    kind: Kind
    first_query: str
    converts: bool


@dataclass(slots=True, weakref_slot=True)
class LoadedPlan:
    """A plan that is broadcast to the workers, with its writer."""

    plan: Plan
    judge: Broadcast[Evaluator]
    writer: BatchWriter
    tallies: dict[str, Accumulator[dict[str, str]]] = field(default_factory=dict)
    """Counts of the workers, by query. Spark never frees accumulators, so attempts and plans share them."""
    once: dict[_ColumnsKey, WorkerPass] = field(default_factory=dict)
    """The pass of a single write to all sinks, cached across batches; per query, since queries run in parallel."""
    passes: dict[tuple[_ColumnsKey, bool], WorkerPass] = field(default_factory=dict)
    """The passes that evaluate batches, cached likewise; with the original records or without."""
    without_shadow: LoadedPlan | None = None
    """The same plan without a shadow catalog; None if this plan has none."""

    @property
    def one_pass(self) -> bool:
        """Whether one write serves all sinks; not if requests are paired with replies, which happens before sending."""
        return self.writer.is_single_write and not self.plan.pairs_messages

    def beside(self, shadow: ShadowCatalog, spark: SparkSession) -> LoadedPlan:
        """Return the same plan and writer with a shadow catalog beside it."""
        judge = spark.sparkContext.broadcast(replace(self.plan.evaluator, shadow=shadow))
        return LoadedPlan(self.plan, judge, self.writer, self.tallies, without_shadow=self)

    def prepare(self, before: LoadedPlan, queries: Collection[str]) -> None:
        """Compile the columns that *queries* used with the plan *before*, so that their next batches need not."""
        if not self.one_pass:
            return
        for key in tuple(before.once):
            if key.query in queries:
                self._columns(key, before.tallies[key.query])

    def warm(self, rows: DataFrame, kind: Kind) -> None:
        """Evaluate *rows* of a source like a batch, up to the write to sinks.

        The first batch of a session takes seconds: the JVM loads classes and compiles the columns, Python workers
        start and load the plan, Kafka producers are created. Nothing is written and nothing is counted: the
        accumulator is only for this call, and sinks get at most an empty share.
        """
        from pyspark.sql import functions as F

        plan, routes = self.plan, self.plan.routes
        alone = LoadedPlan(plan, self.judge, BatchWriter(plan, Metrics()))
        batch = BatchId(kind, "", "", 0, datetime.now(UTC).isoformat(timespec="microseconds"))
        if self.one_pass:
            key = _ColumnsKey("", kind, "", needs_milliseconds(rows, kind))
            outgoing = to_kafka_records(alone._columns(key, alone._reset_counts(rows, "")), rows, batch.failed)
            name = next(iter(routes.dead_letter_sinks))
            sink = plan.settings.sinks[name].topics
            assert sink is not None
            # Spark can neither know that no row is left nor evaluate that first, so all code is that of a batch.
            save_to_kafka(outgoing.coalesce(1).where(F.spark_partition_id() < 0), sink, name)
            return
        used = (plan.settings.sinks[name] for name in (*routes.event_sinks, *routes.dead_letter_sinks))
        if not plan.pairs_messages and all(sink.tabular for sink in used):
            collect_results(SinkRows.for_batch(batch, plan).stage_source(normalize_rows(rows, kind), self.judge))
            return
        outcomes = alone.outcomes(rows, batch, BatchPart(), arrived=True)
        try:
            outcomes.evaluate()
            nothing = outcomes.select_routes((_NO_ROUTE,))
            for names, letters in ((routes.event_sinks, False), (routes.dead_letter_sinks, True)):
                topics = [name for name in names if plan.settings.sinks[name].topics is not None]
                if topics:
                    nothing.publish(topics[0], letters=letters)
        finally:
            outcomes.release()

    def outcomes(
        self, rows: DataFrame, batch: BatchId, part: BatchPart, *, arrived: bool, at_once: bool = False
    ) -> Outcomes:
        """Return the outcomes of a part, from the rows of its source; lazy until ``evaluate``.

        *arrived* keeps the original records, for events that may still become dead letters. *at_once* prepares a single
        write to all sinks.
        """
        kind = batch.kind
        if part.condemned:
            source = normalize_rows(rows, kind)
            decided, tally = make_poison_outcome(
                source, kind, self.plan, part.condemned, bare=part.bare, arrived=arrived
            )
            rows_of = partial(add_dead_letter_ids, decided, kind, batch.first_query)
            bare = source if part.bare else None
            return Outcomes(
                rows_of, batch, self.plan, partial(deepcopy, tally), bare=bare, judge=self.judge, may_reject=arrived
            )
        texts = self._reset_counts(rows, batch.query)
        counted = partial(_counts, texts, self.plan)
        key = _ColumnsKey(batch.query, kind, batch.first_query, needs_milliseconds(rows, kind))
        outgoing = to_kafka_records(self._columns(key, texts), rows, batch.failed) if at_once else None

        def unify() -> DataFrame:
            outcomes = self._outcome_pass(key, rows, texts, arrived=arrived).apply(rows)
            return add_dead_letter_ids(outcomes, kind, batch.first_query)

        staging = (
            None if at_once or arrived or self.plan.pairs_messages else self._staging(normalize_rows(rows, kind), batch)
        )
        # A replayed dead letter stays stored, whatever becomes of its record.
        rejects = arrived or kind == "letters"
        how: dict[str, Any] = {"outgoing": outgoing, "staging": staging, "judge": self.judge, "may_reject": rejects}
        return Outcomes(unify, batch, self.plan, counted, **how)

    def _staging(self, source: DataFrame, batch: BatchId) -> tuple[Sequence[RowsForSink], DataFrame] | None:
        """Return the pass that stages the files of all sinks; None if a sink is not file-based, or for a replay."""
        shares = self.writer.staged_shares(batch) if batch.kind != "letters" else None
        if shares is None:
            return None
        return shares, SinkRows.for_batch(batch, self.plan, *shares).stage_source(source, self.judge)

    def _reset_counts(self, rows: DataFrame, query: str) -> Accumulator[dict[str, str]]:
        """Return the accumulator for a query's next attempt, reset to empty."""
        tallies = self.tallies.get(query)
        if tallies is None:
            tallies = self.tallies[query] = rows.sparkSession.sparkContext.accumulator({}, TallyAccumulator())
        tallies.value = {}
        return tallies

    def _columns(self, key: _ColumnsKey, tallies: Accumulator[dict[str, str]]) -> WorkerPass:
        known = self.once.get(key)
        if known is None:
            records = KafkaRecords.for_all_sinks(self.plan, key.kind, key.first_query)
            known = self.once[key] = create_single_write(records, self.judge, tallies, converts=key.converts)
        return known

    def _outcome_pass(
        self, key: _ColumnsKey, rows: DataFrame, tallies: Accumulator[dict[str, str]], *, arrived: bool
    ) -> WorkerPass:
        known = self.passes.get((key, arrived))
        if known is None:
            known = create_outcome_pass(key.kind, rows, self.judge, tallies, arrived=arrived)
            self.passes[key, arrived] = known
        return known


def _counts(texts: Accumulator[dict[str, str]], plan: Plan) -> Tally:
    """Return the counts of an attempt."""
    return sum_tallies(texts.value.values(), plan.evaluator.matcher.targets)


class PlanCache:
    """The active plan, and the plans of batches in progress; thread-safe.

    ``activate`` takes effect with the next attempt at each batch that has no pin yet, never inside an attempt. A plan
    stays loaded, with its writer, while it is active or referenced: a pinned batch keeps its plan through all retries
    and reloads. *metrics* count writes. A replay has no *plan* before the first one is activated.

    A shadow catalog is evaluated beside the active plan, unless both are equal, or a batch failed because of it.
    """

    def __init__(
        self,
        spark: SparkSession,
        store: BatchStore | None,
        plan: Plan | None,
        metrics: Metrics,
        restore: Callable[[bytes], Plan] = compile_plan,
    ) -> None:
        """*store* has the documents of pinned plans, which *restore* compiles; a replay has none there."""
        self.spark: Final = spark
        self._store = store
        self._restore = restore
        self._metrics = metrics
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._loaded: weakref.WeakValueDictionary[str, LoadedPlan] = weakref.WeakValueDictionary()
        self._tallies: dict[str, Accumulator[dict[str, str]]] = {}
        self._active = plan
        self._current: LoadedPlan | None = None
        self._shadow: Plan | None = None

    @property
    def active(self) -> Plan:
        """The plan of the next batch."""
        assert self._active is not None
        return self._active

    def activate(self, plan: Plan, queries: Collection[str] = ()) -> None:
        """Compile a plan, broadcast it, prepare it for *queries*, and use it for the next batches.

        No batch waits for that. Nothing is stored: a plan is stored when a batch is pinned to it
        (:meth:`BatchStore.pin`).
        """
        loaded = self._beside(self.load(plan))
        if self._current is not None:
            loaded.prepare(self._current, queries)
        # Before a batch can have records of the plan's definitions.
        self._metrics.coverage.follow(plan)
        with self._lock:
            self._active, self._current = loaded.plan, loaded
        self._report_shadow(loaded)

    def shadow(self, plan: Plan) -> None:
        """Evaluate the next batches with a shadow catalog too, and count its outcomes; as :meth:`activate`."""
        self._shadow = plan
        self.activate(self.active, {key.query for key in tuple(self.current().once)})

    def set_aside_shadow(self, reason: str) -> None:
        """Disable the shadow catalog until it changes; do nothing if there is none."""
        with self._lock:
            if self._shadow is None:
                return
            self._shadow = None
            if self._current is not None:
                self._current = self._current.without_shadow or self._current
        self._metrics.shadow.set_aside(reason)
        _log.error("shadow catalog disabled until it changes; routing continues", reason=reason)

    def current(self) -> LoadedPlan:
        """Return the active plan, loaded."""
        with self._lock:
            current = self._current
        return current or self.load(self.active)

    def pinned(self, plan_id: str) -> LoadedPlan:
        """Return the plan with that id, compiled from its stored document if it is not loaded.

        Raises:
            BatchPinError: its document is missing, or of another version.
        """
        with self._lock:
            known, current = self._loaded.get(plan_id), self._current
        if current is not None and current.plan.id == plan_id:
            return current
        if known is not None:
            return known
        if self.active.id == plan_id:
            return self.load(self.active)
        assert self._store is not None
        return self.load(restore_plan(self._store, plan_id, self._restore))

    def load(self, plan: Plan) -> LoadedPlan:
        """Return a plan, broadcast to the workers if it was not loaded."""
        # A second lock: batches pinned to other plans read them while this one is loaded.
        with self._loading:
            with self._lock:
                known = self._loaded.get(plan.id)
            if known is None:
                judge = self.spark.sparkContext.broadcast(plan.evaluator)
                known = LoadedPlan(plan, judge, BatchWriter(plan, self._metrics), self._tallies)
                with self._lock:
                    self._loaded[plan.id] = known
            return known

    def _beside(self, loaded: LoadedPlan) -> LoadedPlan:
        """Return a plan with the shadow catalog beside it, if one is set and differs."""
        shadow = self._shadow
        if shadow is None or shadow.epoch == loaded.plan.epoch:
            return loaded
        try:
            return loaded.beside(ShadowCatalog.from_plans(loaded.plan, shadow), self.spark)
        except Exception as error:  # A shadow must not keep a plan from taking effect. Log and metrics have the fault.
            _log.warning("shadow catalog rejected", problem=str(error), error=type(error).__name__)
            self._metrics.shadow.broken(f"{type(error).__name__}: {error}")
            return loaded

    def _report_shadow(self, loaded: LoadedPlan) -> None:
        shadow = self._shadow
        if shadow is None:
            return
        pair = EpochPair(loaded.plan.epoch, shadow.epoch)
        if pair.before == pair.after or loaded.without_shadow is not None:
            notes = list(iter_catalog_notes(loaded.plan, shadow))
            self._metrics.shadow.judging(pair, len(shadow.catalog.definitions), notes)


@dataclass(frozen=True, slots=True)
class SharedParts:
    """What all queries of a router share; *pairing* receives the records to pair with others."""

    state: StateFolder
    plans: PlanCache
    metrics: Metrics
    status: RouterStatus
    pairing: Pairing | None = None


def restore_plan(store: BatchStore, plan_id: str, restore: Callable[[bytes], Plan]) -> Plan:
    """Compile the plan that an unfinished batch or replay is pinned to.

    Raises:
        BatchPinError: its document is missing, of another version, or does not compile to itself.
    """
    document = store.plan(plan_id)
    if document is None:
        hint = (
            "restore that from a backup; or start once with the catalog and settings that the batch began with, which "
            "make the same plan. Do not remove the query's checkpoint: all records would be read again, and tables "
            "would have each of them twice"
        )
        text = f"an unfinished batch is pinned to plan {plan_id}, but {store.path} does not have it"
        raise BatchPinError(text, hint=hint)
    plan = restore(document)
    if plan.id != plan_id:
        text = f"plan {plan_id} of an unfinished batch compiles to a different plan now ({plan.id})"
        raise BatchPinError(text, hint="finish the batch by starting, once, the router version that began it")
    return plan
