"""The streaming queries: one per Kafka cluster and lane, and one for the inbox.

A query that ends because a broker went away is started again from its checkpoint, with growing pauses. One that
ends for a reason which repeating cannot mend ends the router, with that reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from router.batches.bounding import Bounding
from router.batches.holding import Draining
from router.batches.pipeline import Pipeline
from router.batches.plans import PlanHolder
from router.errors import BrokerUnreachable, DiskError
from router.faults import cause_of, lasting_error
from router.judging.kinds import Kind
from router.judging.plan import Plan
from router.logs import get_logger
from router.machine.sizing import BatchSizing
from router.reading.generations import Generation
from router.reading.offsets import ranges_reader, spans_reader
from router.reading.positions import cluster_of
from router.reading.streams import inbox_rows, kafka_rows, start_query
from router.reading.succession import Succession, by_query, topics_of
from router.running.integrity import check_query
from router.sources.sources import INBOX, Source
from router.spark.jvm_life import kill_jvm
from router.state.durable import disk_of
from router.state.state import State
from router.watching.progress import InboxBacklog, end_of, lag_by_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from router.watching.metrics import Metrics
    from router.watching.status import Status

RESTART_FIRST: Final = 1.0
RESTART_MOST: Final = 60.0
_log = get_logger()


@dataclass(slots=True)
class _Running:
    """One query as it runs. ``sources`` are what it is to read; its generation may have others until it switches.

    ``committed`` is the source's offset up to which batches were committed when the query was started.
    """

    name: str
    sources: tuple[Source, ...]
    sizing: BatchSizing
    pipeline: Pipeline | None = None
    query: StreamingQuery | None = None
    pause: float = RESTART_FIRST
    restart_at: float = 0.0
    switching: bool = False
    ended: bool = False
    committed: dict[str, Any] | None = None


class Queries:
    """Starts, watches, retargets and drains all queries of a router."""

    def __init__(
        self,
        spark: SparkSession,
        state: State,
        plans: PlanHolder,
        metrics: Metrics,
        status: Status,
        restore: Callable[[bytes], Plan],
        *,
        once: bool,
    ) -> None:
        self._spark = spark
        self._state = state
        self._plans = plans
        self._metrics = metrics
        self._status = status
        self._restore = restore
        self._once = once
        self._succession = Succession(state)
        self._running: dict[str, _Running] = {}
        self._inbox = InboxBacklog(state.inbox)

    def place(self, sources: Sequence[Source]) -> None:
        """Note where topics that are new begin; see :meth:`Succession.place`. It comes before anything says so.

        Raises:
            BrokerUnreachable: the brokers of a topic that is read from its end do not answer.
        """
        self._succession.place(sources, self._plans.active.settings.start)

    def start(self, sources: Sequence[Source]) -> None:
        """Start a query for each cluster, lane and the inbox.

        Raises:
            RouterError: a query cannot be set up.
        """
        wanted = by_query(sources)
        left = self._succession.left(wanted)
        for name in left:
            _log.info("query is finished, though no source is left of it", query=name)
        self._running = {name: _Running(name, wanted.get(name, ()), self._sizing()) for name in (*left, *wanted)}
        for running in self._running.values():
            self._status.query(running.name, "starting")
            self._begin(running)

    @property
    def finished(self) -> bool:
        """Whether every query has ended by itself (``--once``)."""
        return all(running.ended for running in self._running.values())

    def check(self) -> None:
        """Look after ended queries: start them again, switch their generation, or give up.

        Raises:
            RouterError: a query ended for a reason that repeating cannot mend.
        """
        for running in self._running.values():
            if running.ended:
                continue
            if running.query is None:
                if time.monotonic() >= running.restart_at:
                    self._begin(running)
                continue
            if running.query.isActive:
                if running.switching:
                    self._try_stop(running)
                elif running.sizing.relimit:
                    # Spark takes another limit with another start alone.
                    _log.info("query starts again, with batches of another size", query=running.name)
                    self._switch(running)
                continue
            self._ended(running)

    def retarget(self, sources: Sequence[Source]) -> None:
        """Read these sources from the next :meth:`check` on; it comes before their plan is active.

        A query whose topics change begins no batch from here on, so that none of them is judged by a plan that does
        not know its topic. It ends after the batch in hand, for a new generation.
        """
        wanted = by_query(sources)
        for name in dict.fromkeys((*self._running, *wanted)):
            running, members = self._running.get(name), wanted.get(name, ())
            if running is None or running.ended:
                if members:
                    self._running[name] = _Running(name, members, self._sizing())
                    self._status.query(name, "starting")
                continue
            changed = name != INBOX and topics_of(running.sources) != topics_of(members)
            running.sources = members
            if changed:
                self._switch(running)

    def measure(self, inbox_bytes: int) -> None:
        """Bring lag and inbox figures up to date from the queries' last progress."""
        in_topic = self._plans.active.settings.inbox.kafka is not None
        backlog = 0
        for running in self._running.values():
            progress = running.query.lastProgress if running.query is not None else None
            if running.name == INBOX and not in_topic:
                backlog = self._inbox.behind(running.committed if progress is None else end_of(progress))
                continue
            if progress is None:
                continue
            if running.name == INBOX:
                backlog = sum(lag_by_topic(progress).values())
                continue
            for topic, lag in lag_by_topic(progress).items():
                for source in running.sources:
                    if source.topic == topic:
                        self._metrics.lag(source.endpoint, lag)
        self._metrics.inbox(backlog, inbox_bytes)

    def drain(self, seconds: float) -> bool:
        """End every query between two batches; one that takes too long is cut off, and repeats its batch later.

        Returns False when one was cut off: threads of its batch may then still wait for a sink.

        Nothing is cut off in order: Spark and its workers would each tell of it at length. So their JVM is killed.
        """
        cut = False
        deadline = time.monotonic() + seconds
        for running in self._running.values():
            if running.pipeline is not None:
                running.pipeline.drain()
        for running in self._running.values():
            if running.query is None or running.pipeline is None:
                continue
            if running.pipeline.wait_idle(max(0.0, deadline - time.monotonic())):
                self._await_commit(running, deadline)
                running.query.stop()
            else:
                cut = True
                _log.warning("batch cut off by the grace limit; it will be repeated", query=running.name)
            self._status.query(running.name, "stopped", batch=running.pipeline.last)
        if cut:
            kill_jvm()
        return not cut

    def _switch(self, running: _Running) -> None:
        if running.query is not None and running.pipeline is not None:
            running.switching = True
            running.pipeline.drain()

    def _try_stop(self, running: _Running) -> None:
        """Stop an idle query that is to switch; a busy one stops itself at its next batch.

        One that was started only to finish a batch drains once it has, and is left alone until then.
        """
        assert running.query is not None and running.pipeline is not None
        if running.pipeline.draining and running.pipeline.wait_idle(0) and self._committed(running):
            running.query.stop()

    def _committed(self, running: _Running) -> bool:
        pipeline = running.pipeline
        return pipeline is None or pipeline.last is None or pipeline.generation.committed(pipeline.last)

    def _await_commit(self, running: _Running, deadline: float) -> None:
        """Wait for Spark to note the last batch as done: stopping in between would repeat it."""
        while not self._committed(running) and time.monotonic() < deadline:
            time.sleep(0.02)

    def _ended(self, running: _Running) -> None:
        assert running.query is not None and running.pipeline is not None
        error = running.query.exception()
        if running.pipeline.last is not None:
            running.pause = RESTART_FIRST
        failure = running.pipeline.failure
        running.query = None
        if failure is not None:
            raise failure
        switched = running.switching and (error is None or Draining.__name__ in str(error))
        if switched or running.pipeline.renewed:
            running.switching = False
            self._begin(running)
        elif error is None:
            running.ended = self._once
            self._status.query(running.name, "stopped", batch=running.pipeline.last)
            if not self._once:
                self._begin(running)
        else:
            self._failed(running, str(error))

    def _failed(self, running: _Running, text: str) -> None:
        final = lasting_error(running.name, text)
        if final is not None:
            raise final
        cause = cause_of(text)
        self._status.query(running.name, "failed", reason=cause)
        _log.error("query ended, will start again", query=running.name, error=cause, seconds=running.pause)
        running.restart_at = time.monotonic() + running.pause
        running.pause = min(running.pause * 2, RESTART_MOST)

    def _begin(self, running: _Running) -> None:
        """Start a query, or try again later what a broker or the disk does not let it do now."""
        try:
            with disk_of(self._state.root):
                self._set_up(running)
        except (BrokerUnreachable, DiskError) as error:
            self._failed(running, str(error))

    def _set_up(self, running: _Running) -> None:
        """Start a query on its generation: that of its unfinished batch, else the one for its sources."""
        checked = check_query(self._state, running.name)
        running.committed = None if checked is None else checked[1].start
        if running.pipeline is not None and running.pipeline.renewed:
            self._succession.renew(running.name, running.pipeline.renewed)
            running.pipeline.renewed = {}
        settings = self._plans.active.settings
        if running.name == INBOX:
            generation = self._succession.inbox()
            rows = inbox_rows(self._spark, settings, self._state, generation, running.sizing)
            self._launch(running, generation, rows, ())
            return
        unfinished = self._succession.unfinished(running.name)
        if unfinished is None and not running.sources:
            running.ended = True
            self._status.forget_query(running.name)
            return
        if unfinished is None and self._read_elsewhere(running):
            return  # It is looked for again at the next check.
        sources = running.sources or self._sources_of(unfinished, running.name)
        generation = unfinished or self._succession.next(running.name, sources, settings.start)
        rows = kafka_rows(self._spark, settings, sources, generation, running.sizing)
        # An unfinished batch is all that is read of topics that are no more to be read, or not by this query.
        running.switching = set(generation.topics) != set(topics_of(running.sources))
        self._launch(running, generation, rows, sources, final=generation.pending if running.switching else None)

    def _sources_of(self, unfinished: Generation | None, query: str) -> tuple[Source, ...]:
        """Return by which sources the plan of an unfinished batch read, for a query that none is left of."""
        assert unfinished is not None and unfinished.pending is not None
        plan = self._state.pinned(query, unfinished.pending)
        assert plan is not None
        return by_query(self._plans.pinned(plan, self._restore).plan.sources)[query]

    def _read_elsewhere(self, running: _Running) -> bool:
        """Whether another query of the cluster still reads a topic that this one is to read."""
        wanted = set(topics_of(running.sources))
        for other in self._running.values():
            if other is running or other.name == INBOX or cluster_of(other.name) != cluster_of(running.name):
                continue
            reading = other.pipeline.generation if other.query is not None and other.pipeline is not None else None
            reading = reading or self._succession.unfinished(other.name)
            if reading is not None and wanted & set(reading.topics) - set(topics_of(other.sources)):
                return True
        return False

    def _sizing(self) -> BatchSizing:
        return BatchSizing.of(self._plans.active.settings)

    def _launch(
        self,
        running: _Running,
        generation: Generation,
        rows: DataFrame,
        sources: Sequence[Source],
        *,
        final: int | None = None,
    ) -> None:
        settings = self._plans.active.settings
        kind: Kind = "inbox" if running.name == INBOX else "kafka"
        read = spans_reader(self._spark, settings, sources)
        own = ranges_reader(self._spark, settings, sources)
        running.pipeline = Pipeline(
            running.name,
            kind,
            generation,
            self._state,
            self._plans,
            self._metrics,
            self._status,
            self._restore,
            final=final,
            bounding=Bounding(kind, generation, running.sizing, read, own),
        )
        running.query = start_query(rows, running.name, running.pipeline.batch, generation, settings, once=self._once)
        self._status.query(running.name, "running")
