"""What starts a query: on its generation, in batches or record by record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from bindings.kafka.client import KafkaClient
from bindings.kafka.ends import KafkaEnds
from router.batches.bounding import Bounding
from router.batches.pipeline import Pipeline
from router.batches.plans import PlanHolder
from router.errors import BrokerUnreachable
from router.judging.kinds import Kind
from router.judging.plan import Plan
from router.machine.sizing import BatchSizing
from router.reading import generations
from router.reading.generations import Generation
from router.reading.losses import ReadTopics, topics_of_query
from router.reading.offsets import ranges_reader, spans_reader
from router.reading.planned import Spans
from router.reading.positions import cluster_of
from router.reading.streams import inbox_rows, kafka_rows, rest_rows, start_query
from router.reading.succession import Succession, topics_of
from router.realtime.checks import require_cores, require_rest_topic
from router.realtime.query import RealTimeQuery
from router.realtime.rest import restored
from router.relating.pairing import Pairing
from router.running.integrity import check_query
from router.running.reload import in_background
from router.sources.clusters import query_client
from router.sources.sources import INBOX, REST, Source
from router.state.accounts import Accounts
from router.state.state import State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from router.watching.metrics import Metrics
    from router.watching.status import Status

PAUSE_FIRST: Final = 1.0


@dataclass(slots=True)
class Running:
    """One query as it runs. ``sources`` are what it is to read; its generation may have others until it switches.

    While it is ``catching_up``, batches take the place of a real-time query until all that is there is read.
    """

    name: str
    sources: tuple[Source, ...]
    sizing: BatchSizing
    pipeline: Pipeline | RealTimeQuery | None = None
    query: StreamingQuery | None = None
    pause: float = PAUSE_FIRST
    restart_at: float = 0.0
    switching: bool = False
    ended: bool = False
    catching_up: bool = False
    failures: int = 0
    """How often it has ended by an error since it wrote a batch."""
    away_since: float | None = None
    """When its brokers were first found not to answer; it starts when they do."""
    asked: Future[None] | None = None
    """The question whether they answer now, in a thread of its own."""

    @property
    def has_looked(self) -> bool:
        """Whether it has looked for records, or will say by itself why it cannot."""
        if self.query is None or not isinstance(self.pipeline, Pipeline) or not self.pipeline.wait_idle(0):
            return True
        return self.pipeline.last is not None or self.query.lastProgress is not None or not self.query.isActive


def _answers(client: KafkaClient) -> None:
    KafkaEnds(client).partitions(())


class Starts:
    """Starts the queries of a router. Not for concurrent use."""

    def __init__(
        self,
        spark: SparkSession,
        state: State,
        plans: PlanHolder,
        metrics: Metrics,
        status: Status,
        restore: Callable[[bytes], Plan],
        accounts: Accounts,
        *,
        once: bool,
        pairing: Pairing | None = None,
    ) -> None:
        self._spark = spark
        self._state = state
        self._plans = plans
        self._metrics = metrics
        self._status = status
        self._restore = restore
        self._accounts = accounts
        self._once = once
        self._pairing = pairing
        self._succession = Succession(state)

    def start(self, running: Running, others: Iterable[Running]) -> None:
        """Start a query on its generation: that of its unfinished batch, else the one for its sources.

        One that nothing is left of ends; one whose topics one of the *others* still reads is not started.

        Raises:
            BrokerUnreachable: its brokers do not answer.
            RouterError: it cannot be set up, or brokers have lost what it was to read.
        """
        check_query(self._state, running.name)
        settings = self._plans.active.settings
        if running.pipeline is not None and running.pipeline.renewed:
            self._renew(running, running.pipeline.renewed, self._topics(running, running.sources))
            running.pipeline.renewed = {}
        if running.name == INBOX:
            topics = self._topics(running, ())
            generation = self._whole(running, self._succession.inbox, topics)
            rows = inbox_rows(self._spark, settings, self._state, generation, running.sizing)
            self._launch(running, generation, rows, (), topics)
            return
        if running.name == REST:
            assert settings.realtime is not None
            require_rest_topic(settings, self._state)
            topics, rest = self._topics(running, ()), settings.realtime.rest
            generation = self._whole(running, lambda: self._succession.rest(rest), topics)
            rows = rest_rows(self._spark, settings, generation, running.sizing)
            self._launch(running, generation, rows, (), topics)
            return
        unfinished = self._succession.unfinished(running.name)
        if unfinished is None and not running.sources:
            running.ended = True
            self._status.forget_query(running.name)
            return
        if unfinished is None and self._read_elsewhere(running, others):
            return  # The next check looks for it again.
        sources = running.sources or self._sources_of(unfinished, running.name)
        topics = self._topics(running, sources)

        def current() -> Generation:
            unfinished = self._succession.unfinished(running.name)
            return unfinished or self._succession.next(running.name, sources, settings.start)

        generation = self._whole(running, current, topics)
        unfinished = self._succession.unfinished(running.name)
        running.catching_up = settings.is_real_time and (running.catching_up or unfinished is not None)
        if settings.is_real_time and not running.catching_up:
            self._launch_real_time(running, generation)
            return
        rows = kafka_rows(self._spark, settings, sources, generation, running.sizing)
        # Of topics that this query is not to read any more, it reads the unfinished batch alone.
        running.switching = set(generation.topics) != set(topics_of(running.sources))
        self._launch(
            running, generation, rows, sources, topics, final=generation.pending if running.switching else None
        )

    def _topics(self, running: Running, sources: Sequence[Source]) -> ReadTopics | None:
        return topics_of_query(self._plans.active.settings, running.name, sources, self._state)

    def _whole(self, running: Running, current: Callable[[], Generation], topics: ReadTopics | None) -> Generation:
        """Return the *current* generation, or what takes its place where brokers have lost what it read on."""
        generation = current()
        if topics is None or not (again := topics.check(generation.positions())):
            return generation
        self._renew(running, again, topics)
        return current()

    def _renew(self, running: Running, again: Spans, topics: ReadTopics | None) -> None:
        """Read these partitions from their first record; a death in between does it again."""
        self._succession.renew(running.name, again)
        if topics is not None:
            topics.note(again)

    def ask(self, running: Running) -> Future[None] | None:
        """Ask in the background whether the brokers of a query answer; None where it has none.

        What the future raises (KafkaUnreachable) is why not.
        """
        apart = running.name in (INBOX, REST)
        members = () if apart else running.sources
        client = query_client(self._plans.active.settings, running.name, members) if apart or members else None
        return None if client is None else in_background(partial(_answers, client))

    def explain_loss(self, running: Running) -> None:
        """Raise what brokers have lost of what a query was to read, if they tell.

        Raises:
            StateError: there is something.
        """
        generation = generations.current(self._state, running.name)
        topics = self._topics(running, running.sources)
        if generation is not None and topics is not None:
            with suppress(BrokerUnreachable):
                topics.check(generation.positions())

    def _sources_of(self, unfinished: Generation | None, query: str) -> tuple[Source, ...]:
        """Return by which sources the plan of an unfinished batch read, for a query that none is left of."""
        assert unfinished is not None and unfinished.pending is not None
        plan = self._state.pinned(query, unfinished.pending)
        assert plan is not None
        return self._plans.pinned(plan, self._restore).plan.queries[query]

    def _read_elsewhere(self, running: Running, others: Iterable[Running]) -> bool:
        """Whether another query of the cluster still reads a topic that this one is to read."""
        wanted = set(topics_of(running.sources))
        for other in others:
            if other is running or other.name in (INBOX, REST) or cluster_of(other.name) != cluster_of(running.name):
                continue
            reading = other.pipeline.generation if other.query is not None and other.pipeline is not None else None
            reading = reading or self._succession.unfinished(other.name)
            if reading is not None and wanted & set(reading.topics) - set(topics_of(other.sources)):
                return True
        return False

    def _launch(
        self,
        running: Running,
        generation: Generation,
        rows: DataFrame,
        sources: Sequence[Source],
        topics: ReadTopics | None,
        *,
        final: int | None = None,
    ) -> None:
        settings = self._plans.active.settings
        kind: Kind = "inbox" if running.name == INBOX else "kafka"
        read = spans_reader(self._spark, settings, running.name, sources)
        own = ranges_reader(self._spark, settings, running.name, sources)
        is_rest = running.name == REST
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
            came_by=next(iter(self._plans.active.queries), "") if is_rest else "",
            restored=restored if is_rest else None,
            pairing=self._pairing,
            accounts=self._accounts,
            topics=topics,
        )
        once = self._once or running.catching_up
        running.query = start_query(rows, running.name, running.pipeline.batch, generation, settings, once=once)
        self._status.query(running.name, "running")

    def _launch_real_time(self, running: Running, generation: Generation) -> None:
        plan = self._plans.active
        require_cores(self._spark, plan, generation.topics)
        rows = kafka_rows(self._spark, plan.settings, running.sources, generation, None)
        running.switching = False
        self._accounts.let_go(running.name)
        running.pipeline = RealTimeQuery(running.name, generation, plan, self._metrics, self._status, self._accounts)
        running.query = running.pipeline.start(rows, self._state)
        self._status.query(running.name, "running")
