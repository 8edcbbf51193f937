"""The streaming queries: one per Kafka cluster and lane, one for the inbox, and one for the rest topic.

A query that ends because a broker went away is started again from its checkpoint, with growing pauses. One that
ends for a reason which repeating cannot mend ends the router, with that reason.

In real-time mode the query of the sources sends records on one by one (:mod:`router.realtime`). Batches take its place,
on the same checkpoint, until they have caught up: where one was begun and is not finished, and after any error, since
they can hold, cut and bury what a real-time query only fails of.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from bindings.background import run_in_background
from bindings.inbox.source import SPARK_SCHEMA
from bindings.kafka.offsets import KafkaOffsets
from router.batches.pipeline import Pipeline
from router.batches.plans import LoadedPlan, SharedParts
from router.batches.splitting import Splitting
from router.batches.waiting import Draining
from router.errors import BrokerUnreachable, DiskError, extract_cause, find_permanent_error, is_data_loss
from router.evaluation.evaluator import Kind
from router.logs import get_logger
from router.machine import BatchSizing
from router.reading import generations
from router.reading.generations import Generation, Spans, Succession, cluster_of, reads, topics_of
from router.reading.streams import QueryReader, ReadTopics, start_query, topics_of_query
from router.realtime import RealTimeQuery, require_cores, require_rest_topic, restore_origin
from router.running.monitoring import require_intact_query
from router.sources import INBOX, REST, Source, group_by_query, make_query_client
from router.spark.session import is_jvm_alive, kill_jvm
from router.state.durable import disk_of
from router.watching.batches import finding_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from router.watching.status import RouterStatus

# What starts a query: on its generation, in batches or record by record.

FIRST_PAUSE: Final = 1.0


@dataclass(slots=True)
class QueryRun:
    """One query as it runs. ``sources`` are what it is to read; its generation may have others until it switches.

    While it is ``catching_up``, batches take the place of a real-time query until all that is there is read.
    """

    name: str
    sources: tuple[Source, ...]
    sizing: BatchSizing
    pipeline: Pipeline | RealTimeQuery | None = None
    query: StreamingQuery | None = None
    pause: float = FIRST_PAUSE
    restart_at: float = 0.0
    switching: bool = False
    ended: bool = False
    catching_up: bool = False
    failures: int = 0
    """How often it has ended by an error since it wrote a batch."""
    away_since: float | None = None
    """When its brokers were first found not to answer; it starts when they do."""
    asked: Future[Any] | None = None
    """The question whether they answer now, in a thread of its own."""

    @property
    def has_polled(self) -> bool:
        """Whether it has looked for records, or will say by itself why it cannot."""
        if self.query is None or not isinstance(self.pipeline, Pipeline) or not self.pipeline.wait_idle(0):
            return True
        return self.pipeline.last is not None or self.query.lastProgress is not None or not self.query.isActive


MAX_RESTART_SECONDS: Final = 60.0
LASTING_FAILURES: Final = 3
"""Failures in a row from which on somebody has to look at a query."""
MAX_ASK_SECONDS: Final = 10.0
"""Seconds between two questions to brokers that do not answer, at most."""
_log = get_logger()


class Queries:
    """Starts, watches, retargets and drains all queries of a router."""

    def __init__(self, shared: SharedParts, *, once: bool) -> None:
        self._shared = shared
        self._state, self._plans, self._status = shared.state, shared.plans, shared.status
        self._once = once
        self._succession = Succession(shared.state)
        self._running: dict[str, QueryRun] = {}

    def set_start_positions(self, sources: Sequence[Source], *, waits: bool = False) -> None:
        """Store the start positions of new topics, before anything else records that the topics are known.

        With *waits* those of brokers that do not answer are left to the start of their query, which waits for them.

        Raises:
            BrokerUnreachable: the brokers of a topic that is read from its end do not answer.
        """
        for members in group_by_query(sources).values():
            try:
                self._succession.place(members, self._plans.active.settings.start)
            except BrokerUnreachable:
                if not waits:
                    raise

    def start(self, sources: Sequence[Source]) -> None:
        """Start a query for each cluster, lane and the inbox.

        Raises:
            RouterError: a query cannot be set up.
        """
        wanted = group_by_query(sources)
        rest = () if self._plans.active.settings.realtime is None else (REST,)
        left = self._succession.left({*wanted, *rest})
        for name in left:
            _log.info("query has no sources; finishing its last batch", query=name)
        names = (*left, *wanted, *rest)
        settings = self._plans.active.settings
        self._running = {name: QueryRun(name, wanted.get(name, ()), BatchSizing.of(settings)) for name in names}
        for running in self._running.values():
            self._status.query(running.name, "starting")
            self._try_start(running)

    @property
    def is_finished(self) -> bool:
        """Whether every query has ended by itself (``--once``)."""
        return all(running.ended for running in self._running.values())

    @property
    def active_names(self) -> frozenset[str]:
        """The names of queries that have not come to their end."""
        return frozenset(name for name, running in self._running.items() if not running.ended)

    @property
    def have_polled(self) -> bool:
        """Whether each query that runs has looked for records once; Spark reports on the first look in any case."""
        return all(running.has_polled for running in self._running.values())

    def supervise(self) -> None:
        """Look after ended queries: start them again, switch their generation, or give up.

        Raises:
            RouterError: a query ended for a reason that repeating cannot mend.
        """
        for running in self._running.values():
            if running.ended:
                continue
            if running.query is None:
                if time.monotonic() >= running.restart_at and self._can_start(running):
                    self._try_start(running)
                continue
            if not running.query.isActive:
                self._handle_end(running)
                continue
            pipeline = running.pipeline
            if running.failures and pipeline is not None and pipeline.last is not None:
                running.failures = 0
                _log.info("query recovered", **self._log_fields(running))
            if running.switching:
                self._stop_if_idle(running)
            elif isinstance(pipeline, RealTimeQuery) and pipeline.plan.id != self._plans.active.id:
                _log.info("restarting real-time query with the changed catalog", query=running.name)
                self._begin_switch(running)
            elif running.sizing.relimit:
                # Spark takes another limit with another start alone.
                _log.info("restarting query with another batch size", query=running.name)
                self._begin_switch(running)

    def change_sources(self, sources: Sequence[Source]) -> None:
        """Read these sources from the next :meth:`supervise` on; it comes before their plan is active.

        A query whose topics change begins no batch from here on, so that none of them is judged by a plan that does
        not know its topic. It ends after the batch in hand, for a new generation.
        """
        wanted = group_by_query(sources)
        for name in dict.fromkeys((*self._running, *wanted)):
            if name == REST:
                continue
            running, members = self._running.get(name), wanted.get(name, ())
            if running is None or running.ended:
                if members:
                    self._running[name] = QueryRun(name, members, BatchSizing.of(self._plans.active.settings))
                    self._status.query(name, "starting")
                continue
            changed = name != INBOX and topics_of(running.sources) != topics_of(members)
            running.sources = members
            if changed:
                self._begin_switch(running)

    def collect_progress(self) -> None:
        """Take in what Spark reports of batches that have ended: the time to find them, and real-time counts."""
        for running in self._running.values():
            progress = running.query.lastProgress if running.query is not None else None
            if progress is None:
                continue
            if (seconds := finding_seconds(progress)) is not None:
                self._status.steps.set_finding_time(running.name, seconds)
            if isinstance(running.pipeline, RealTimeQuery):
                running.pipeline.record_progress(progress)

    def drain(self, seconds: float) -> bool:
        """End every query between two batches; one that takes too long is cut off, and repeats its batch later.

        Returns False when one was cut off: threads of its batch may then still wait for a sink.

        Cutting off kills the JVM. In an orderly end Spark and its workers would each log long errors.
        """
        cut = False
        deadline = time.monotonic() + seconds
        for running in self._running.values():
            if running.pipeline is not None:
                running.pipeline.drain()
        for running in self._running.values():
            if running.query is None or running.pipeline is None:
                continue
            idle = running.pipeline.wait_idle(max(0.0, deadline - time.monotonic()))
            if isinstance(running.pipeline, RealTimeQuery):
                if not idle:
                    text = "real-time query stopped before its next checkpoint; records since the last one are repeated"
                    _log.info(text, query=running.name)
                running.pipeline.stop()
            elif idle:
                while not self._is_committed(running) and time.monotonic() < deadline:
                    time.sleep(0.02)  # Stopping before Spark notes the last batch as done would repeat it.
                running.query.stop()
            else:
                cut = True
                _log.warning("batch interrupted after drain_grace; it will be repeated", query=running.name)
            self._status.query(running.name, "stopped", batch=running.pipeline.last)
        if cut:
            kill_jvm()
        self._state.accounts.keep_all()
        return not cut

    def _begin_switch(self, running: QueryRun) -> None:
        if running.query is not None and running.pipeline is not None:
            running.switching = True
            running.pipeline.drain()

    def _stop_if_idle(self, running: QueryRun) -> None:
        """Stop an idle query that is to switch; a busy one stops itself at its next batch.

        One that was started only to finish a batch drains once it has, and is left alone until then.
        """
        assert running.query is not None and running.pipeline is not None
        if isinstance(running.pipeline, RealTimeQuery):
            if running.pipeline.ended_batch:
                running.pipeline.stop()
        elif running.pipeline.draining and running.pipeline.wait_idle(0) and self._is_committed(running):
            running.query.stop()

    def _is_committed(self, running: QueryRun) -> bool:
        pipeline = running.pipeline
        return pipeline is None or pipeline.last is None or pipeline.generation.committed(pipeline.last)

    def _handle_end(self, running: QueryRun) -> None:
        assert running.query is not None and running.pipeline is not None
        error = running.query.exception()
        if running.pipeline.last is not None:
            running.pause = FIRST_PAUSE
        failure = running.pipeline.failure
        running.query = None
        if failure is not None:
            raise failure
        switched = running.switching and (error is None or Draining.__name__ in str(error))
        if switched or running.pipeline.renewed:
            running.switching = False
            self._try_start(running)
        elif error is None and running.catching_up:
            running.catching_up = False
            self._try_start(running)
        elif error is None:
            running.ended = self._once
            self._status.query(running.name, "stopped", batch=running.pipeline.last)
            if not self._once:
                self._try_start(running)
        else:
            self._handle_failure(running, str(error))

    def _handle_failure(self, running: QueryRun, text: str) -> None:
        final = find_permanent_error(running.name, text)
        if final is not None:
            generation = generations.current(self._state, running.name) if is_data_loss(text) else None
            if generation is not None and (topics := self._make_topics(running, running.sources)) is not None:
                with suppress(BrokerUnreachable):
                    topics.check(generation.positions())  # It raises what brokers have lost, if they tell.
            raise final
        cause = extract_cause(text)
        running.catching_up = isinstance(running.pipeline, RealTimeQuery) or running.catching_up
        self._status.query(running.name, "failed", reason=cause)
        running.failures += 1
        facts = {**self._log_fields(running), "error": cause, "seconds": running.pause}
        if running.failures == 1:
            _log.warning("query failed; restarting", **facts)
        elif running.failures == LASTING_FAILURES:
            _log.error("query fails each time it starts", **facts, times=running.failures)
        else:
            _log.debug("query failed; restarting", **facts, times=running.failures)
        running.restart_at = time.monotonic() + running.pause
        running.pause = min(running.pause * 2, MAX_RESTART_SECONDS)

    def _try_start(self, running: QueryRun) -> None:
        """Start a query, or try again later what a broker or the disk does not let it do now."""
        try:
            with disk_of(self._state.root):
                self._launch(running)
        except BrokerUnreachable as error:
            self._wait_for_brokers(running, str(error))
        except DiskError as error:
            self._handle_failure(running, str(error))
        else:
            if running.away_since is not None:
                seconds = round(time.monotonic() - running.away_since, 1)
                _log.info("brokers reachable again; starting query", **self._log_fields(running), seconds=seconds)
                running.away_since = None

    def _can_start(self, running: QueryRun) -> bool:
        """Whether a query may try to start: one that waits for brokers only once these have answered.

        They are asked in the background, since a broker that is away takes its time to say nothing.
        """
        if running.away_since is None:
            return True
        if running.asked is None:
            running.asked = self._ask_brokers(running)
            return running.asked is None
        if not running.asked.done():
            return False
        asked, running.asked = running.asked, None
        if (error := asked.exception()) is not None:
            self._wait_for_brokers(running, str(error))
        return error is None

    def _wait_for_brokers(self, running: QueryRun, reason: str) -> None:
        """Note that the brokers of a query do not answer, and say so once."""
        self._status.query(running.name, "starting" if running.pipeline is None else "failed", reason=reason)
        if running.away_since is None:
            running.away_since = time.monotonic()
            hint = "nothing is lost: the query starts when they are reachable"
            _log.warning("brokers unreachable; query waits", **self._log_fields(running), problem=reason, hint=hint)
        running.restart_at = time.monotonic() + running.pause
        running.pause = min(running.pause * 2, MAX_ASK_SECONDS)

    def _launch(self, running: QueryRun) -> None:
        """Start a query on its generation: that of its unfinished batch, else the one for its sources.

        One that nothing is left of ends; one whose topics another query still reads is not started.

        Raises:
            BrokerUnreachable: its brokers do not answer.
            RouterError: it cannot be set up, or brokers have lost what it was to read.
        """
        require_intact_query(self._state, running.name)
        settings = self._plans.active.settings
        if running.pipeline is not None and running.pipeline.renewed:
            self._restart_partitions(running, running.pipeline.renewed, self._make_topics(running, running.sources))
            running.pipeline.renewed = {}
        apart, sources, unfinished = running.name in (INBOX, REST), running.sources, None
        if running.name == REST:
            require_rest_topic(settings, self._state)
        if not apart:
            unfinished = self._succession.unfinished(running.name)
            if unfinished is None and not sources:
                running.ended = True
                self._status.forget_query(running.name)
                return
            if unfinished is None and self._is_read_elsewhere(running):
                return  # The next check looks for it again.
            if not sources:  # It reads as the plan of the unfinished batch did.
                assert unfinished is not None and unfinished.pending is not None
                pinned = self._state.batches.pinned(running.name, unfinished.pending)
                assert pinned is not None
                sources = self._plans.pinned(pinned).plan.queries[running.name]
        members = () if apart else sources
        topics = self._make_topics(running, members)
        generation = self._repair(running, members, topics)
        reader = QueryReader(self._plans.spark, settings, running.name, members)
        if not apart and settings.is_real_time:
            running.catching_up = running.catching_up or self._succession.unfinished(running.name) is not None
            if not running.catching_up:
                self._launch_real_time(running, generation, reader)
                return
        # Of topics that this query is not to read any more, it reads the unfinished batch alone.
        running.switching = not apart and set(generation.topics) != set(topics_of(running.sources))
        self._launch_batches(running, generation, reader, topics)

    def _make_topics(self, running: QueryRun, sources: Sequence[Source]) -> ReadTopics | None:
        return topics_of_query(self._plans.active.settings, running.name, sources, self._state)

    def _repair(self, running: QueryRun, sources: Sequence[Source], topics: ReadTopics | None) -> Generation:
        """Return the generation to read, or what takes its place where brokers have lost what it read on."""
        settings = self._plans.active.settings
        generation = self._succession.choose(running.name, sources, settings)
        if topics is None or not (again := topics.check(generation.positions())):
            return generation
        self._restart_partitions(running, again, topics)
        return self._succession.choose(running.name, sources, settings)

    def _restart_partitions(self, running: QueryRun, again: Spans, topics: ReadTopics | None) -> None:
        """Read these partitions from their first record; a death in between does it again."""
        self._succession.renew(running.name, again)
        if topics is not None:
            topics.note(again)

    def _ask_brokers(self, running: QueryRun) -> Future[Any] | None:
        """Ask in the background whether the brokers of a query answer; None where it has none.

        What the future raises (KafkaUnreachable) is why not.
        """
        apart = running.name in (INBOX, REST)
        members = () if apart else running.sources
        client = make_query_client(self._plans.active.settings, running.name, members) if apart or members else None
        return None if client is None else run_in_background(partial(KafkaOffsets(client).find_partitions, ()))

    def _is_read_elsewhere(self, running: QueryRun) -> bool:
        """Whether another query of the cluster still reads a topic that this one is to read."""
        wanted = set(topics_of(running.sources))
        for other in self._running.values():
            if other is running or other.name in (INBOX, REST) or cluster_of(other.name) != cluster_of(running.name):
                continue
            reading = other.pipeline.generation if other.query is not None and other.pipeline is not None else None
            reading = reading or self._succession.unfinished(other.name)
            if reading is not None and wanted & set(reading.topics) - set(topics_of(other.sources)):
                return True
        return False

    def _launch_batches(
        self, running: QueryRun, generation: Generation, reader: QueryReader, topics: ReadTopics | None
    ) -> None:
        settings = self._plans.active.settings
        kind: Kind = "inbox" if running.name == INBOX else "kafka"
        is_rest = running.name == REST
        rows = reader.stream(self._state, generation, running.sizing)
        offsets = reader if reader.has_offsets else None
        splitting = Splitting(self._state.batches, running.name, kind, generation, running.sizing, offsets)
        running.pipeline = Pipeline(
            running.name,
            kind,
            generation,
            self._shared,
            final=generation.pending if running.switching else None,
            splitting=splitting,
            came_by=next(iter(self._plans.active.queries), "") if is_rest else "",
            restored=restore_origin if is_rest else None,
            topics=topics,
        )
        once = self._once or running.catching_up
        running.query = start_query(rows, running.name, running.pipeline.batch, generation, settings, once=once)
        self._status.query(running.name, "running")

    def _launch_real_time(self, running: QueryRun, generation: Generation, reader: QueryReader) -> None:
        plan = self._plans.active
        require_cores(self._plans.spark, plan, generation.topics)
        rows = reader.stream(self._state, generation, None)
        running.switching = False
        accounts = self._state.accounts
        accounts.let_go(running.name)
        running.pipeline = RealTimeQuery(running.name, generation, plan, self._shared.metrics, self._status, accounts)
        running.query = running.pipeline.start(rows, self._state)
        self._status.query(running.name, "running")

    @staticmethod
    def _log_fields(running: QueryRun) -> dict[str, str]:
        return {**reads(running.sources, running.name), "query": running.name}


# What the first batch would else pay for is done before the router says that it is ready.
#
# In a new session the first batch takes seconds more than the second: the JVM loads classes and compiles, Python
# workers start, load the plan and meet each function once. So one row of each kind of source is judged beside the
# start, in a thread of its own, by the way that batches take (:meth:`router.batches.plans.LoadedPlan.warm`). The row is
# of no source: nothing is read, written or counted. If a batch comes first, as at a start with records that wait, it is
# not kept back.

MAX_WARM_SECONDS: Final = 60.0
"""A start waits no longer, whatever keeps the row: batches say by themselves what is in their way."""
_GROUP: Final = "warming"
_END_SECONDS: Final = 10.0
_KAFKA: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)
"""The columns of Spark's Kafka source."""


class WarmUp:
    """Judges rows of each kind of source that a plan reads. A context: nothing of it outlives its end."""

    def __init__(self, spark: SparkSession, loaded: LoadedPlan, status: RouterStatus) -> None:
        self._spark = spark
        self._loaded = loaded
        self._status = status
        self._ending = False
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._warm_workers, name=_GROUP, daemon=True)

    def __enter__(self) -> Self:
        self._status.warming = True
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.warming = False
        self._ending = True
        if not is_jvm_alive():
            return
        # Spark logs a task that is ended at length, as an error. It is over in moments, or on a machine with no time.
        self._thread.join(_END_SECONDS)
        if self._thread.is_alive():
            self._spark.sparkContext.setLogLevel("OFF")
            self._spark.sparkContext.cancelJobGroup(_GROUP)
            self._thread.join(_END_SECONDS)

    def finish_if_done(self) -> None:
        """Let the router be ready, once nothing is to be waited for any more."""
        if not self._thread.is_alive() or time.monotonic() - self._began > MAX_WARM_SECONDS:
            self._status.warming = False

    def _warm_workers(self) -> None:
        plan = self._loaded.plan
        try:
            self._spark.sparkContext.setJobGroup(_GROUP, "the first batch is made quick", interruptOnCancel=False)
            kinds: dict[Kind, Source] = {"inbox" if each.pushed else "kafka": each for each in plan.sources}
            for kind, source in kinds.items():
                if self._ending:
                    return
                self._loaded.warm(make_sample_row(self._spark, kind, source), kind)
            _log.debug("the first batch is warmed", seconds=round(time.monotonic() - self._began, 2))
        except Exception as error:  # It only saves time. The batch that meets the same says what is wrong.
            _log.debug("the first batch is not warmed", problem=str(error)[:500])


def make_sample_row(spark: SparkSession, kind: Kind, source: Source) -> DataFrame:
    """Return one row as those of a source, for one task: other workers are forked when more records come at a time.

    Like the rows of a batch it comes from an RDD whose columns may be null: Spark makes the same code for both.
    """
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    columns: Any = StructType.fromDDL(_KAFKA) if kind == "kafka" else SPARK_SCHEMA
    values = {
        **dict.fromkeys(("partition", "offset", "timestamp", "timestampType", "received"), F.lit(0)),
        "topic": F.lit(source.topic),
        "endpoint": F.lit(source.endpoint),
        "protocol": F.lit(source.protocol),
        "position": F.lit("0"),
        "properties": F.array(),
    }
    row: Any = spark.range(0, 1, 1, 1).select(
        *(values.get(each.name, F.lit(None)).cast(each.dataType).alias(each.name) for each in columns)
    )
    rdd, schema = row._jdf.queryExecution().toRdd(), row._jdf.schema().asNullable()
    return DataFrame(spark._jsparkSession.internalCreateDataFrame(rdd, schema, False), spark)
