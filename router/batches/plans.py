"""The plans of a running router: the active one, and those that unfinished batches are pinned to."""

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
from router.judging.comparing import Shadow, notes_of
from router.judging.judging import Kind, TallyAccumulator
from router.judging.outputs import Tally, collect
from router.judging.plan import Plan
from router.judging.stages import condemned, converts, judged, prepared, unified
from router.logs import get_logger
from router.state.state import StateFolder
from router.watching.shadow import EpochPair
from router.writing.outcomes import SparkOutcomes, save_to_kafka
from router.writing.outgoing import OnePass, OutgoingColumns
from router.writing.staging import BatchId, RowsForSink, SinkRows, StagingPass, results_of
from router.writing.writer import BatchWriter, Counted, Nulled, Timed, uncounted, untimed

if TYPE_CHECKING:
    from pyspark import Accumulator, Broadcast
    from pyspark.sql import DataFrame, SparkSession

    from router.judging.plan import Judge
    from router.watching.metrics import Metrics

_NO_ROUTE: Final = 2**31 - 1
_log = get_logger()


class _Taker(NamedTuple):
    """A query as it takes columns: with the kind of its rows, the query that its positions name, and whether timestamps
    are converted.
    """

    query: str
    kind: Kind
    first_query: str
    converts: bool


@dataclass(slots=True, weakref_slot=True)
class LoadedPlan:
    """A plan on its way through the session: broadcast to the workers, with its writer."""

    plan: Plan
    judge: Broadcast[Judge]
    writer: BatchWriter
    tallies: dict[str, Accumulator[dict[str, str]]] = field(default_factory=dict)
    """What workers count, by query. Spark keeps accumulators to its end, so attempts and plans share them."""
    once: dict[_Taker, OutgoingColumns] = field(default_factory=dict)
    """What one write to all sinks takes, kept from batch to batch.

    Each query has its own, since queries are at work at the same time.
    """
    without_shadow: LoadedPlan | None = None
    """The same plan with no shadow catalog beside it; None where there is none."""

    @property
    def one_pass(self) -> bool:
        """Whether one write serves all sinks; records that are paired with others are judged before they are sent."""
        return self.writer.one_pass and not self.plan.pairs

    def beside(self, shadow: Shadow, spark: SparkSession) -> LoadedPlan:
        """Return the same plan, with the same writer, beside which a shadow catalog judges."""
        judge = spark.sparkContext.broadcast(replace(self.plan.judge, shadow=shadow))
        return LoadedPlan(self.plan, judge, self.writer, self.tallies, without_shadow=self)

    def prepare(self, before: LoadedPlan, queries: Collection[str]) -> None:
        """Make the columns that *queries* took of the plan *before*, so that their next batches need not make them."""
        if not self.one_pass:
            return
        for taker in tuple(before.once):
            if taker.query in queries:
                self._columns(taker, before.tallies[taker.query])

    def warm(self, rows: DataFrame, kind: Kind) -> None:
        """Judge *rows* of a source in the way of its batches, up to where sinks would get what comes of them.

        What a session does for the first time takes it seconds: the JVM loads classes and compiles the columns, Python
        workers start and load the plan, producers of Kafka are made. Nothing is written and nothing is counted: the
        accumulator is of this call alone, and sinks get an empty share at most.
        """
        from pyspark.sql import functions as F

        plan, routes = self.plan, self.plan.routes
        alone = LoadedPlan(plan, self.judge, BatchWriter(plan, lambda _, __: None))
        batch = BatchId(kind, "", "", 0, datetime.now(UTC).isoformat(timespec="microseconds"))
        if self.one_pass:
            taker = _Taker("", kind, "", converts(rows, kind))
            outgoing = alone._columns(taker, alone._nothing_counted(rows, "")).of_rows(rows, batch.failed)
            name = next(iter(routes.letter_sinks))
            sink = plan.settings.sinks[name].topics
            assert sink is not None
            # No topic has this name. Of a condition that is false without a look at rows, Spark would judge none.
            save_to_kafka(outgoing.where(F.col("topic") == ""), sink, name)
            return
        if not plan.pairs and all(
            plan.settings.sinks[name].tabular for name in (*routes.event_sinks, *routes.letter_sinks)
        ):
            results_of(StagingPass(SinkRows.of(batch, plan), ()).of_source(prepared(rows, kind), self.judge))
            return
        outcomes = alone.outcomes(rows, batch, BatchPart(), arrived=True)
        try:
            outcomes.evaluate()
            nothing = outcomes.on_routes((_NO_ROUTE,))
            for names, publish in (
                (routes.event_sinks, nothing.publish_events),
                (routes.letter_sinks, nothing.publish_letters),
            ):
                topics = [name for name in names if plan.settings.sinks[name].topics is not None]
                if topics:
                    publish(topics[0])
        finally:
            outcomes.release()

    def outcomes(
        self, rows: DataFrame, batch: BatchId, part: BatchPart, *, arrived: bool, at_once: bool = False
    ) -> SparkOutcomes:
        """Return the outcomes of a part, of its source's rows; nothing is judged before they are evaluated.

        *arrived* keeps how records arrived beside what they became: where events may become dead letters after all.
        With *at_once* one write is to take them all.
        """
        kind = batch.kind
        if part.condemned:
            source = prepared(rows, kind)
            decided, tally = condemned(source, kind, self.plan, part.condemned, bare=part.bare)
            rows_of = partial(unified, decided, kind, batch.first_query, arrived=arrived)
            bare = source if part.bare else None
            return SparkOutcomes(
                rows_of, batch, self.plan, partial(deepcopy, tally), bare=bare, judge=self.judge, may_reject=arrived
            )
        texts = self._nothing_counted(rows, batch.query)
        counted = partial(_counts, texts, self.plan)
        taker = _Taker(batch.query, kind, batch.first_query, converts(rows, kind))
        outgoing = self._columns(taker, texts).of_rows(rows, batch.failed) if at_once else None

        def one_form() -> DataFrame:
            outcomes = judged(prepared(rows, kind), kind, self.judge, texts)
            return unified(outcomes, kind, batch.first_query, arrived=arrived)

        staging = None if at_once or arrived or self.plan.pairs else self._staging(prepared(rows, kind), batch)
        # Letters that are replayed stay where they are, whatever becomes of their records.
        rejects = arrived or kind == "letters"
        how: dict[str, Any] = {"outgoing": outgoing, "staging": staging, "judge": self.judge, "may_reject": rejects}
        return SparkOutcomes(one_form, batch, self.plan, counted, **how)

    def _staging(self, source: DataFrame, batch: BatchId) -> tuple[Sequence[RowsForSink], DataFrame] | None:
        """Return the one pass that stages all that sinks get of a batch; None where one takes it otherwise.

        What is judged again is looked at record by record before it is written.
        """
        shares = self.writer.shares(batch) if batch.kind != "letters" else None
        if shares is None:
            return None
        staging = StagingPass(SinkRows.of(batch, self.plan), shares)
        return shares, staging.of_source(source, self.judge)

    def _nothing_counted(self, rows: DataFrame, query: str) -> Accumulator[dict[str, str]]:
        """Return what the workers of a query's next attempt count, which is nothing yet."""
        tallies = self.tallies.get(query)
        if tallies is None:
            tallies = self.tallies[query] = rows.sparkSession.sparkContext.accumulator({}, TallyAccumulator())
        tallies.value = {}
        return tallies

    def _columns(self, taker: _Taker, tallies: Accumulator[dict[str, str]]) -> OutgoingColumns:
        columns = self.once.get(taker)
        if columns is None:
            one_pass = OnePass.of(self.plan, taker.kind, taker.first_query)
            judge = self.plan.judge if self.without_shadow is None else self.judge.value
            columns = OutgoingColumns.of(one_pass, judge, self.judge, tallies, converts=taker.converts)
            self.once[taker] = columns
        return columns


def _counts(texts: Accumulator[dict[str, str]], plan: Plan) -> Tally:
    """Return the counts of an attempt."""
    return collect(texts.value.values(), plan.judge.matcher.targets)


def load(
    spark: SparkSession,
    plan: Plan,
    counted: Counted,
    tallies: dict[str, Accumulator[dict[str, str]]] | None = None,
    timed: Timed = untimed,
    nulled: Nulled = uncounted,
) -> LoadedPlan:
    """Send a plan to the workers of a session, compiled; *tallies* are what plans before it have counted with."""
    known = {} if tallies is None else tallies
    return LoadedPlan(plan, spark.sparkContext.broadcast(plan.judge), BatchWriter(plan, counted, timed, nulled), known)


class PlanHolder:
    """The active plan, and those that batches in progress were begun under; thread-safe.

    ``activate`` takes effect with the next try of every batch that is not pinned yet, and never inside a try. A plan
    stays loaded, with what its writer knows of a batch, as long as it is active or somebody has a reference to it: a
    pinned batch keeps its own plan through all its tries, however many reloads come meanwhile.

    A shadow catalog judges beside the active plan, unless that is the same, or a batch failed for it.
    """

    def __init__(self, spark: SparkSession, state: StateFolder, plan: Plan, metrics: Metrics) -> None:
        self._spark = spark
        self._state = state
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
        """The plan that the next batch is judged by."""
        return self._active

    def activate(self, plan: Plan, queries: Collection[str] = ()) -> None:
        """Make a plan the one for the next batches. First it is compiled, sent to workers, and prepared for *queries*.

        No batch waits for that. Nothing is written: a plan is kept once a batch is pinned to it
        (:meth:`StateFolder.pin`).
        """
        loaded = self._beside(self._load(plan))
        if self._current is not None:
            loaded.prepare(self._current, queries)
        # It must come before a batch can have records of the definitions that the plan expects.
        self._metrics.coverage.follow(plan)
        with self._lock:
            self._active, self._current = loaded.plan, loaded
        self._report_shadow(loaded)

    def shadow(self, plan: Plan) -> None:
        """Let another catalog judge beside the active one and count, with the next batches; as :meth:`activate`."""
        self._shadow = plan
        self.activate(self._active, {taker.query for taker in tuple(self.current().once)})

    def set_aside_shadow(self, reason: str) -> None:
        """Let no shadow judge until there is another one; does nothing when none does."""
        with self._lock:
            if self._shadow is None:
                return
            self._shadow = None
            if self._current is not None:
                self._current = self._current.without_shadow or self._current
        self._metrics.shadow.set_aside(reason)
        _log.error("shadow catalog is set aside until it changes; the stream goes on", reason=reason)

    def current(self) -> LoadedPlan:
        """Return the active plan, loaded."""
        with self._lock:
            current = self._current
        return current or self._load(self._active)

    def pinned(self, plan_id: str, restore: Callable[[bytes], Plan]) -> LoadedPlan:
        """Return the plan with that id, compiled from its document if need be.

        Raises:
            BatchPinError: its document is gone, or of another version.
        """
        with self._lock:
            known, current = self._loaded.get(plan_id), self._current
        if current is not None and current.plan.id == plan_id:
            return current
        if known is not None:
            return known
        if plan_id == self._active.id:
            return self._load(self._active)
        document = self._state.plan(plan_id)
        if document is None:
            raise BatchPinError(
                f"an unfinished batch is pinned to plan {plan_id}, and its file state/plans/{plan_id}.json is gone",
                hint="restore that file from a backup; or start once with the catalog and the settings that the batch "
                "began under, which make the same plan. Removing the query's checkpoint is no way out: it is then read "
                "from its first position again, and tables get every record a second time",
            )
        plan = restore(document)
        if plan.id != plan_id:
            raise BatchPinError(
                f"plan {plan_id} of an unfinished batch does not compile to itself any more (now {plan.id})",
                hint="start the router version that began the batch once, so that it finishes it",
            )
        return self._load(plan)

    def _beside(self, loaded: LoadedPlan) -> LoadedPlan:
        """Return a plan with the shadow catalog beside it, if there is one that differs."""
        shadow = self._shadow
        if shadow is None or shadow.epoch == loaded.plan.epoch:
            return loaded
        try:
            return loaded.beside(Shadow.of(loaded.plan, shadow), self._spark)
        except Exception as error:  # It must not keep a plan from taking effect. Log and metrics say why.
            _log.warning("shadow catalog cannot be used", problem=str(error), error=type(error).__name__)
            self._metrics.shadow.broken(f"{type(error).__name__}: {error}")
            return loaded

    def _report_shadow(self, loaded: LoadedPlan) -> None:
        shadow = self._shadow
        if shadow is None:
            return
        pair = EpochPair(loaded.plan.epoch, shadow.epoch)
        if pair.before == pair.after or loaded.without_shadow is not None:
            notes = list(notes_of(loaded.plan, shadow))
            self._metrics.shadow.judging(pair, len(shadow.catalog.definitions), notes)

    def _load(self, plan: Plan) -> LoadedPlan:
        # Batches that are already pinned to a plan ask for it while this one is loaded.
        with self._loading:
            with self._lock:
                known = self._loaded.get(plan.id)
            if known is None:
                metrics = self._metrics
                known = load(
                    self._spark, plan, metrics.sink_write, self._tallies, metrics.sinks.took, metrics.unfit_values
                )
                with self._lock:
                    self._loaded[plan.id] = known
            return known
