"""Watching a batch while it is worked on, from a thread of its own: it reports what waits and what takes too long.

A write to a sink that makes no progress for :data:`SLOW_SECONDS` is told by the log, once until writes are quick again:
the router stays ready. One that makes none for :data:`WAITS_SECONDS` is reported as a batch that is held, until it ends
or goes on. An attempt that takes longer than ``batch_limit`` is reported and counted, and its Spark jobs are
cancelled: then it fails like one that fails by itself, and is cut (:mod:`router.batches.parts`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from router.faults import CANCELLED
from router.logs import get_logger
from router.settings.spark import is_local
from router.spark.executors import executor_count
from router.watching.steps import JUDGE, REST, sink_step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router.watching.metrics import Metrics
    from router.watching.status import Status

SLOW_SECONDS: Final = 10.0
WAITS_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 1.0
_ASKS_SECONDS: Final = 3.0
"""How long a write by Spark goes on before Spark is asked how far it is."""
_GROUP: Final = "spark.jobGroup.id"
_CLUSTER: Final = "spark"
"""The label, in the metrics, for what holds a batch when no sink does."""
_current: ContextVar[Watch | None] = ContextVar("watch", default=None)
_log = get_logger()


@dataclass(slots=True)
class _Write:
    """A write under way: ``moved`` is when it last went on, ``far`` how far Spark was then."""

    sink: str
    by_spark: bool
    moved: float
    far: Any = None
    slow: bool = False
    reported: bool = False


@contextmanager
def writing(sink: str, *, by_spark: bool = False) -> Iterator[None]:
    """Say that a sink is written to for the time of the block; several of a cluster are named with commas.

    With *by_spark*, Spark writes and is asked how far it is. Other writers call :func:`progressed`.
    """
    watch = _current.get()
    if watch is None:
        yield
        return
    watch.begin(sink, by_spark=by_spark)
    try:
        yield
    except BaseException:
        watch.end(well=False)
        raise
    watch.end(well=True)


def progressed() -> None:
    """Say that the write under way in this thread, if any, goes on."""
    watch = _current.get()
    if watch is not None:
        watch.progressed()


class Watch:
    """Watches one attempt at a time of one query; *reads* gives what that reads, for the log."""

    def __init__(
        self, query: str, metrics: Metrics, status: Status, reads: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        self._reads = reads
        self._query = query
        self._metrics = metrics
        self._status = status
        self._lock = threading.Lock()
        self._write: _Write | None = None
        self._number = 0
        self._jobs: _Jobs | None = None
        self._stranded = False
        self._slow: dict[str, float] = {}
        """Sinks that are slow, and since when."""

    @contextmanager
    def attempt(self, spark: SparkSession, number: int, limit: float) -> Iterator[None]:
        """Watch what the block does for a batch; *limit* is in seconds, 0 is none."""
        over = threading.Event()
        self._number, self._write, self._jobs, self._stranded = number, None, _Jobs(spark), False
        thread = threading.Thread(target=self._look, args=(over, limit), name=f"watch-{self._query}", daemon=True)
        token = _current.set(self)
        self._status.steps.turn(self._query, JUDGE)
        thread.start()
        try:
            yield
        finally:
            self._status.steps.turn(self._query, REST)
            _current.reset(token)
            over.set()
            thread.join()

    def begin(self, sink: str, *, by_spark: bool) -> None:
        """Note that a write begins."""
        with self._lock:
            self._write = _Write(sink, by_spark, time.monotonic())
        self._status.steps.turn(self._query, sink_step(sink))

    def progressed(self) -> None:
        """Note that the write goes on."""
        with self._lock:
            write = self._write
            if write is None:
                return
            write.moved = time.monotonic()
            reported, write.reported = write.reported, False
        if reported:
            self._running()

    def end(self, *, well: bool) -> None:
        """Note that the write has ended. What holds the batch for another reason reports that itself."""
        with self._lock:
            write, self._write = self._write, None
        self._status.steps.turn(self._query, REST)
        if write is not None and write.reported and well:
            self._running()
        if write is not None and well and not write.slow and (since := self._slow.pop(write.sink, None)) is not None:
            seconds = round(time.monotonic() - since, 1)
            _log.info("sink is quick again", **self._reads(), query=self._query, sink=write.sink, seconds=seconds)

    def _running(self) -> None:
        self._metrics.released(self._query)
        self._status.query(self._query, "running", batch=self._number)

    def _look(self, over: threading.Event, limit: float) -> None:
        began = looked = time.monotonic()
        overdue = False
        while not over.wait(LOOK_SECONDS):
            now = time.monotonic()
            if self._look_for_executors():
                # No executor works at the batch, so its time limit must not condemn its records.
                began, looked = began + now - looked, now
                continue
            looked = now
            if limit and not overdue and now - began > limit:
                overdue = True
                self._overdue(limit)
            self._look_at_write(now)

    def _look_for_executors(self) -> bool:
        """Return whether a cluster has no executor for us, and report it; its master looks for others."""
        stranded = self._jobs is not None and self._jobs.stranded()
        before, self._stranded = self._stranded, stranded
        if stranded and not before:
            reason = "the cluster has no executor for the router"
            self._metrics.held(self._query, _CLUSTER)
            self._status.query(self._query, "held", batch=self._number, reason=reason)
            _log.warning("batch waits", **self._reads(), query=self._query, batch=self._number, reason=reason)
        elif before and not stranded:
            _log.info("batch goes on", **self._reads(), query=self._query, batch=self._number)
            self._running()
        return stranded

    def _look_at_write(self, now: float) -> None:
        with self._lock:
            write = self._write
        if write is None or now - write.moved < _ASKS_SECONDS:
            return
        if write.by_spark and self._jobs is not None:
            far = self._jobs.far()
            if far != write.far:
                write.far = far
                self.progressed()
                return
        still = now - write.moved
        with self._lock:
            if write is not self._write:
                return
            waits = still >= WAITS_SECONDS and not write.reported
            write.reported = write.reported or waits
            write.slow = write.slow or waits or still >= SLOW_SECONDS
        if write.slow and write.sink not in self._slow:
            self._slow[write.sink] = write.moved
            facts = {**self._reads(), "query": self._query, "batch": self._number, "sink": write.sink}
            hint = "nothing is lost; see what keeps the sink, if this stays so"
            _log.warning("sink is slow", **facts, seconds_without_progress=round(still), hint=hint)
        if waits:
            sink, moved = write.sink, write.moved

            def reason() -> str:
                return f"sink {sink}: a write waits, and has made no progress for {time.monotonic() - moved:.0f} s"

            self._metrics.held(self._query, sink)
            self._status.query(self._query, "held", batch=self._number, reason=reason)

    def _overdue(self, limit: float) -> None:
        reason = f"batch {self._number} {CANCELLED} ({limit:g} s)"
        self._status.query(self._query, "overdue", batch=self._number, reason=reason)
        self._metrics.fault(self._query, "overdue")
        _log.error("batch takes too long", **self._reads(), query=self._query, batch=self._number, reason=reason)
        if self._jobs is not None:
            self._jobs.cancel(reason)


class _Jobs:
    """The Spark jobs of the query in whose thread this is made."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._group = self._context.getLocalProperty(_GROUP)
        self._cluster = not is_local(self._context.master or "")

    def stranded(self) -> bool:
        """Return whether there is no executor now; never for a local master."""
        with suppress(Exception):  # The context may be stopping.
            return self._cluster and executor_count(self._context) < 1
        return False

    def far(self) -> Any:
        """Return a value that changes when the running jobs make progress; None when Spark cannot say."""
        with suppress(Exception):  # It may be stopping, or the stage may just have ended; the next look asks again.
            tracker = self._context.statusTracker()
            store = self._context._jsc.sc().statusStore()
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
            stages = [stage for job in jobs if job is not None and job.status == "RUNNING" for stage in job.stageIds]
            return tuple(self._stage(store, stage) for stage in stages)
        return None

    def cancel(self, reason: str) -> None:
        """Cancel them; Python workers that hang are ended by Spark with their tasks."""
        if self._group is not None:
            with suppress(Exception):
                self._context._jsc.sc().cancelJobGroup(self._group, reason)

    @staticmethod
    def _stage(store: Any, stage: int) -> tuple[int, ...]:
        with suppress(Exception):  # The stage may not have begun.
            attempt = store.lastStageAttempt(stage)
            return (
                stage,
                attempt.numCompleteTasks(),
                attempt.inputRecords(),
                attempt.outputRecords(),
                attempt.shuffleWriteRecords(),
            )
        return (stage,)
