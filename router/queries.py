"""The streaming queries: one per Kafka cluster and lane, and one for the inbox.

A query that ends because a broker went away is started again from its checkpoint, with growing pauses. One that
ends for a reason which repeating cannot mend ends the router, with that reason.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from router import generations
from router.errors import BrokerUnreachable, StateError
from router.generations import Generation
from router.kafka_writing import LOST
from router.logs import get_logger
from router.pipeline import Pipeline
from router.plan import Plan
from router.plans import PlanHolder
from router.positions import Positions, cluster_of
from router.progress import inbox_backlog, lag_by_topic
from router.sources import INBOX, Source
from router.state import State
from router.streams import inbox_rows, kafka_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from router.metrics import Metrics
    from router.status import Status

RESTART_FIRST: Final = 1.0
RESTART_MOST: Final = 60.0
COMMIT_SECONDS: Final = 30.0
_log = get_logger()


@dataclass(slots=True)
class _Running:
    """One query as it runs. ``sources`` are what it is to read; its generation may have others until it switches."""

    name: str
    sources: tuple[Source, ...]
    pipeline: Pipeline | None = None
    query: StreamingQuery | None = None
    pause: float = RESTART_FIRST
    restart_at: float = 0.0
    switching: bool = False
    ended: bool = False


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
        self._positions = Positions(state)
        self._running: dict[str, _Running] = {}

    def place(self, sources: Sequence[Source]) -> None:
        """Note, durably, from where each topic is read that is read for the first time; before anything says so.

        Raises:
            BrokerUnreachable: the brokers of a topic that is read from its end do not answer.
        """
        default = self._plans.active.settings.start
        for name, members in by_query(sources).items():
            if name != INBOX:
                self._positions.place(members, self._read_in(cluster_of(name)), default)

    def start(self, sources: Sequence[Source]) -> None:
        """Start a query for each cluster, lane and the inbox.

        Raises:
            RouterError: a query cannot be set up.
        """
        for name, members in by_query(sources).items():
            self._running[name] = _Running(name, members)
            self._status.query(name, "starting")
            self._begin(self._running[name])

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
                continue
            self._ended(running)

    def retarget(self, sources: Sequence[Source]) -> None:
        """Read these sources from now on; a query whose topics changed ends after a batch, for a new generation."""
        wanted = by_query(sources)
        for name, members in wanted.items():
            running = self._running.get(name)
            if running is None or running.ended:
                self._running[name] = running = _Running(name, members)
                self._begin(running)
                continue
            changed = topics_of(running.sources) != topics_of(members)
            running.sources = members
            if changed:
                self._switch(running)
        for name, running in self._running.items():
            if name not in wanted and name != INBOX and running.sources:
                running.sources = ()
                self._switch(running)

    def measure(self, inbox_bytes: int) -> None:
        """Bring lag and inbox figures up to date from the queries' last progress."""
        backlog = 0
        for running in self._running.values():
            progress = running.query.lastProgress if running.query is not None else None
            if progress is None:
                continue
            if running.name == INBOX and self._plans.active.settings.inbox.kafka is not None:
                backlog = sum(lag_by_topic(progress).values())
                continue
            if running.name == INBOX:
                backlog = inbox_backlog(self._state.inbox, progress["sources"][0].get("endOffset"))
                continue
            for topic, lag in lag_by_topic(progress).items():
                for source in running.sources:
                    if source.topic == topic:
                        self._metrics.lag(source.endpoint, lag)
        self._metrics.inbox(backlog, inbox_bytes)

    def drain(self, seconds: float) -> None:
        """End every query between two batches; one that takes too long is cut off, and repeats its batch later."""
        deadline = time.monotonic() + seconds
        for running in self._running.values():
            if running.pipeline is not None:
                running.pipeline.drain()
        for running in self._running.values():
            if running.query is None or running.pipeline is None:
                continue
            if not running.pipeline.wait_idle(max(0.0, deadline - time.monotonic())):
                _log.warning("batch cut off by the grace limit; it will be repeated", query=running.name)
            self._await_commit(running, deadline)
            running.query.stop()
            self._status.query(running.name, "stopped", batch=running.pipeline.last)

    def _switch(self, running: _Running) -> None:
        if running.query is not None and running.pipeline is not None:
            running.switching = True
            running.pipeline.drain()

    def _try_stop(self, running: _Running) -> None:
        """Stop an idle query that is to switch; a busy one stops itself at its next batch.

        One that was started only to finish a batch is drained once it has.
        """
        assert running.query is not None and running.pipeline is not None
        if running.pipeline.last is not None:
            running.pipeline.drain()
        if running.pipeline.wait_idle(0) and self._committed(running):
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
        failure = running.pipeline.failure
        running.query = None
        if failure is not None:
            raise failure
        if running.switching:
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
        cause = cause_of(text)
        if any(sign in text for sign in LOST):
            raise StateError(
                f"query {running.name}: records were lost at the broker before they were read: {cause}",
                hint="find out which; `on_data_loss: continue` goes on with what is left",
            )
        self._status.query(running.name, "failed", reason=cause)
        _log.error("query ended, will start again", query=running.name, error=cause, seconds=running.pause)
        running.restart_at = time.monotonic() + running.pause
        running.pause = min(running.pause * 2, RESTART_MOST)

    def _begin(self, running: _Running) -> None:
        """Start a query on its generation: the pending batch's as it was, else one for the topics of now."""
        if running.name == INBOX:
            generation = generations.current(self._state, INBOX) or generations.begin(self._state, INBOX, ())
            self._launch(running, generation, inbox_rows(self._spark, self._plans.active.settings, self._state))
            return
        if not running.sources:
            running.ended = True
            self._status.forget_query(running.name)
            return
        try:
            generation = self._generation(running)
            rows = kafka_rows(self._spark, self._plans.active.settings, running.sources, generation)
        except BrokerUnreachable as error:
            self._failed(running, str(error))
            return
        self._launch(running, generation, rows)
        if set(generation.topics) != set(topics_of(running.sources)):
            # An unfinished batch goes first; its query drains once it is committed.
            running.switching = True

    def _generation(self, running: _Running) -> Generation:
        topics = topics_of(running.sources)
        known = generations.current(self._state, running.name)
        if known is not None and (set(known.topics) == set(topics) or self._unfinished(known, running.name)):
            return known
        cluster = cluster_of(running.name)
        if known is not None:
            self._positions.keep(cluster, known.positions())
        self._positions.place(running.sources, (), self._plans.active.settings.start)
        kept = self._positions.of(cluster)
        starting = json.dumps({topic: kept[topic] for topic in topics}, sort_keys=True)
        return generations.begin(self._state, running.name, topics, starting)

    def _unfinished(self, generation: Generation, query: str) -> bool:
        """Whether a batch may have been written in part: one that was planned and never pinned has not."""
        return generation.pending is not None and self._state.pinned(query, generation.pending) is not None

    def _read_in(self, cluster: str) -> set[str]:
        """Return the topics of a cluster that its queries read, or read when they last ran."""
        names = (path.name for path in self._state.checkpoints.glob(f"kafka-{cluster}*"))
        found = (generations.current(self._state, name) for name in names)
        return {topic for generation in found if generation is not None for topic in generation.topics}

    def _launch(self, running: _Running, generation: Generation, rows: DataFrame) -> None:
        kind = "inbox" if running.name == INBOX else "kafka"
        running.pipeline = Pipeline(
            running.name,
            kind,  # type: ignore[arg-type]
            generation,
            self._state,
            self._plans,
            self._metrics,
            self._status,
            self._restore,
        )
        settings = self._plans.active.settings
        writer = rows.writeStream.queryName(running.name).foreachBatch(running.pipeline.batch)
        writer = writer.option("checkpointLocation", str(generation.path))
        if self._once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{int(settings.trigger.total_seconds() * 1000)} milliseconds")
        running.query = writer.start()
        self._status.query(running.name, "running")


def by_query(sources: Sequence[Source]) -> dict[str, tuple[Source, ...]]:
    """Group sources by the query that reads them, in their order."""
    found: dict[str, tuple[Source, ...]] = {}
    for source in sources:
        found[source.query] = (*found.get(source.query, ()), source)
    return found


def topics_of(sources: Sequence[Source]) -> tuple[str, ...]:
    """Return the topics of Kafka sources, each once."""
    return tuple(dict.fromkeys(source.topic for source in sources))


def cause_of(text: str) -> str:
    """Return the line of a failed query's report that names the cause."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("at ")]
    causes = [line for line in lines if line.startswith("Caused by:") or "Exception:" in line or "Error:" in line]
    return (causes[-1] if causes else lines[0] if lines else "unknown").removeprefix("Caused by: ")[:400]
