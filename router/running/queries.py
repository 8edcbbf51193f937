"""The streaming queries: one per Kafka cluster and lane, one for the inbox, and one for the rest topic.

A query that ends because a broker went away is started again from its checkpoint, with growing pauses. One that
ends for a reason which repeating cannot mend ends the router, with that reason.

In real-time mode the query of the sources sends records on one by one (:mod:`router.realtime`). Batches take its place,
on the same checkpoint, until they have caught up: where one was begun and is not finished, and after any error, since
they can hold, cut and bury what a real-time query only fails of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from router.batches.holding import Draining
from router.batches.plans import PlanHolder
from router.errors import BrokerUnreachable, DiskError
from router.faults import cause_of, is_lost, lasting_error
from router.judging.plan import Plan
from router.logs import get_logger
from router.machine.sizing import BatchSizing
from router.reading.succession import Succession, reads, topics_of
from router.realtime.query import RealTimeQuery
from router.relating.pairing import Pairing
from router.running.starts import PAUSE_FIRST, Running, Starts
from router.sources.sources import INBOX, REST, Source, by_query
from router.spark.jvm_life import kill_jvm
from router.state.accounts import Accounts
from router.state.durable import disk_of
from router.state.state import State
from router.watching.steps import finding_seconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router.watching.metrics import Metrics
    from router.watching.status import Status

RESTART_MOST: Final = 60.0
LASTING: Final = 3
"""Failures in a row from which on somebody has to look at a query."""
ASK_MOST: Final = 10.0
"""Seconds between two questions to brokers that do not answer, at most."""
_log = get_logger()


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
        pairing: Pairing | None = None,
        accounts: Accounts | None = None,
    ) -> None:
        self._spark = spark
        self._state = state
        self._plans = plans
        self._metrics = metrics
        self._status = status
        self._accounts = accounts or Accounts(state)
        self._once = once
        self._succession = Succession(state)
        self._starts = Starts(spark, state, plans, metrics, status, restore, self._accounts, once=once, pairing=pairing)
        self._running: dict[str, Running] = {}

    def place(self, sources: Sequence[Source], *, waits: bool = False) -> None:
        """Note where topics that are new begin; see :meth:`Succession.place`. It comes before anything says so.

        With *waits* those of brokers that do not answer are left to the start of their query, which waits for them.

        Raises:
            BrokerUnreachable: the brokers of a topic that is read from its end do not answer.
        """
        for members in by_query(sources).values():
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
        wanted = by_query(sources)
        rest = () if self._plans.active.settings.realtime is None else (REST,)
        left = self._succession.left({*wanted, *rest})
        for name in left:
            _log.info("query without sources finishes its last batch", query=name)
        names = (*left, *wanted, *rest)
        self._running = {name: Running(name, wanted.get(name, ()), self._sizing()) for name in names}
        for running in self._running.values():
            self._status.query(running.name, "starting")
            self._begin(running)

    @property
    def finished(self) -> bool:
        """Whether every query has ended by itself (``--once``)."""
        return all(running.ended for running in self._running.values())

    @property
    def at_work(self) -> frozenset[str]:
        """The names of queries that have not come to their end."""
        return frozenset(name for name, running in self._running.items() if not running.ended)

    @property
    def have_looked(self) -> bool:
        """Whether each query that runs has looked for records once; Spark reports on the first look in any case."""
        return all(running.has_looked for running in self._running.values())

    def check(self) -> None:
        """Look after ended queries: start them again, switch their generation, or give up.

        Raises:
            RouterError: a query ended for a reason that repeating cannot mend.
        """
        for running in self._running.values():
            if running.ended:
                continue
            if running.query is None:
                if time.monotonic() >= running.restart_at and self._answered(running):
                    self._begin(running)
                continue
            if running.query.isActive:
                self._recovered(running)
                if running.switching:
                    self._try_stop(running)
                elif self._outdated(running):
                    _log.info("real-time query begins anew with the changed catalog", query=running.name)
                    self._switch(running)
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
            if name == REST:
                continue
            running, members = self._running.get(name), wanted.get(name, ())
            if running is None or running.ended:
                if members:
                    self._running[name] = Running(name, members, self._sizing())
                    self._status.query(name, "starting")
                continue
            changed = name != INBOX and topics_of(running.sources) != topics_of(members)
            running.sources = members
            if changed:
                self._switch(running)

    def measure(self) -> None:
        """Take in what Spark reports of batches that have ended: the time to find them, and real-time counts."""
        for running in self._running.values():
            progress = running.query.lastProgress if running.query is not None else None
            if progress is None:
                continue
            if (seconds := finding_seconds(progress)) is not None:
                self._status.steps.finding_took(running.name, seconds)
            if isinstance(running.pipeline, RealTimeQuery):
                running.pipeline.progressed(progress)

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
                    _log.info(
                        "real-time query ends before its next note; what came since is repeated", query=running.name
                    )
                running.pipeline.stop()
            elif idle:
                self._await_commit(running, deadline)
                running.query.stop()
            else:
                cut = True
                _log.warning("batch cut off by the grace limit; it will be repeated", query=running.name)
            self._status.query(running.name, "stopped", batch=running.pipeline.last)
        if cut:
            kill_jvm()
        self._accounts.keep_all()
        return not cut

    def _switch(self, running: Running) -> None:
        if running.query is not None and running.pipeline is not None:
            running.switching = True
            running.pipeline.drain()

    def _try_stop(self, running: Running) -> None:
        """Stop an idle query that is to switch; a busy one stops itself at its next batch.

        One that was started only to finish a batch drains once it has, and is left alone until then.
        """
        assert running.query is not None and running.pipeline is not None
        if isinstance(running.pipeline, RealTimeQuery):
            if running.pipeline.ended_batch:
                running.pipeline.stop()
        elif running.pipeline.draining and running.pipeline.wait_idle(0) and self._committed(running):
            running.query.stop()

    def _outdated(self, running: Running) -> bool:
        """Whether a real-time query goes by another plan than the active one, which a query in batches never does."""
        pipeline = running.pipeline
        return isinstance(pipeline, RealTimeQuery) and pipeline.plan.id != self._plans.active.id

    def _committed(self, running: Running) -> bool:
        pipeline = running.pipeline
        return pipeline is None or pipeline.last is None or pipeline.generation.committed(pipeline.last)

    def _await_commit(self, running: Running, deadline: float) -> None:
        """Wait for Spark to note the last batch as done: stopping in between would repeat it."""
        while not self._committed(running) and time.monotonic() < deadline:
            time.sleep(0.02)

    def _ended(self, running: Running) -> None:
        assert running.query is not None and running.pipeline is not None
        error = running.query.exception()
        if running.pipeline.last is not None:
            running.pause = PAUSE_FIRST
        failure = running.pipeline.failure
        running.query = None
        if failure is not None:
            raise failure
        switched = running.switching and (error is None or Draining.__name__ in str(error))
        if switched or running.pipeline.renewed:
            running.switching = False
            self._begin(running)
        elif error is None and running.catching_up:
            running.catching_up = False
            self._begin(running)
        elif error is None:
            running.ended = self._once
            self._status.query(running.name, "stopped", batch=running.pipeline.last)
            if not self._once:
                self._begin(running)
        else:
            self._failed(running, str(error))

    def _failed(self, running: Running, text: str) -> None:
        final = lasting_error(running.name, text)
        if final is not None:
            if is_lost(text):
                self._starts.explain_loss(running)
            raise final
        cause = cause_of(text)
        running.catching_up = isinstance(running.pipeline, RealTimeQuery) or running.catching_up
        self._status.query(running.name, "failed", reason=cause)
        running.failures += 1
        facts = {**self._inputs(running), "error": cause, "seconds": running.pause}
        if running.failures == 1:
            _log.warning("query ended, will start again", **facts)
        elif running.failures == LASTING:
            _log.error("query ends each time it starts", **facts, times=running.failures)
        else:
            _log.debug("query ended, will start again", **facts, times=running.failures)
        running.restart_at = time.monotonic() + running.pause
        running.pause = min(running.pause * 2, RESTART_MOST)

    def _recovered(self, running: Running) -> None:
        """Say that a query that had failed has written a batch again."""
        if running.failures and running.pipeline is not None and running.pipeline.last is not None:
            running.failures = 0
            _log.info("query goes on", **reads(running.sources, running.name), query=running.name)

    def _begin(self, running: Running) -> None:
        """Start a query, or try again later what a broker or the disk does not let it do now."""
        try:
            with disk_of(self._state.root):
                self._starts.start(running, self._running.values())
        except BrokerUnreachable as error:
            self._wait_for_brokers(running, str(error))
        except DiskError as error:
            self._failed(running, str(error))
        else:
            if running.away_since is not None:
                seconds = round(time.monotonic() - running.away_since, 1)
                _log.info("brokers answer, query starts", **self._inputs(running), seconds=seconds)
                running.away_since = None

    def _answered(self, running: Running) -> bool:
        """Whether a query may try to start: one that waits for brokers only once these have answered.

        They are asked in the background, since a broker that is away takes its time to say nothing.
        """
        if running.away_since is None:
            return True
        if running.asked is None:
            running.asked = self._starts.ask(running)
            return running.asked is None
        if not running.asked.done():
            return False
        asked, running.asked = running.asked, None
        if (error := asked.exception()) is not None:
            self._wait_for_brokers(running, str(error))
        return error is None

    def _wait_for_brokers(self, running: Running, reason: str) -> None:
        """Note that the brokers of a query do not answer, and say so once."""
        self._status.query(running.name, "starting" if running.pipeline is None else "failed", reason=reason)
        if running.away_since is None:
            running.away_since = time.monotonic()
            hint = "nothing is lost: it starts by itself when they answer"
            _log.warning("query waits for its brokers", **self._inputs(running), problem=reason, hint=hint)
        running.restart_at = time.monotonic() + running.pause
        running.pause = min(running.pause * 2, ASK_MOST)

    @staticmethod
    def _inputs(running: Running) -> dict[str, str]:
        return {**reads(running.sources, running.name), "query": running.name}

    def _sizing(self) -> BatchSizing:
        return BatchSizing.of(self._plans.active.settings)
