"""Watch running batches: their current step, stalled writes, and time limits."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from router.errors import CANCELLED
from router.logs import get_logger
from router.settings.spark import is_local
from router.spark.executors import count_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router.watching.metrics import Metrics
    from router.watching.status import RouterStatus

# Where batches spend their time: finding records, evaluating them, writing to each sink, being blocked.
#
# Time counts for the current step of a batch, until the next step begins. If one pass of Spark evaluates and writes, it
# counts as writing; if workers write files while they evaluate, it counts as evaluating.

JUDGE: Final = "judge"
HELD: Final = "held"
REST: Final = "rest"
"""All other work: the journal, the order of keys, and Spark's own work."""
RECENT: Final = 20
"""Number of recent batches of a query whose times are summed."""
MAX_TURNS: Final = 100
"""Maximum step spans of a batch that a listener gets."""


def name_sink_step(sink: str) -> str:
    """Return the name of the step that writes to a sink, or to several sinks of a cluster (comma-separated)."""
    return f"sink {sink}"


def finding_seconds(progress: Any) -> float | None:
    """Return the time that Spark needed to find, plan and commit the last batch, without processing it.

    None if Spark found no records.
    """
    durations: dict[str, int] = progress["durationMs"]
    if "addBatch" not in durations:
        return None
    return max(0, durations.get("triggerExecution", 0) - durations["addBatch"]) / 1000


@dataclass(frozen=True, slots=True)
class StepSpan:
    """The start and end of one step of a batch, in seconds since 1970."""

    step: str
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class FinishedBatch:
    """The times of an ended batch, in seconds since 1970; ``records`` is None if it was not completed.

    ``steps`` has the seconds of each step. Only the first :data:`MAX_TURNS` step spans are included, since a blocked
    batch may have many.
    """

    query: str
    number: int
    began: float
    ended: float
    turns: tuple[StepSpan, ...]
    records: int | None
    steps: Mapping[str, float]


BatchListener = Callable[[FinishedBatch], None]


@dataclass(slots=True)
class _QuerySteps:
    """The current ``step`` of the current batch of a query, since ``turned``; ``number`` is None between batches."""

    number: int | None = None
    step: str = REST
    turned: float = 0.0
    began: float = 0.0
    steps: dict[str, float] = field(default_factory=dict)
    recent: deque[FinishedBatch] = field(default_factory=lambda: deque(maxlen=RECENT))
    finding: float | None = None
    turns: list[StepSpan] = field(default_factory=list)
    written: int = 0


class BatchSteps:
    """The steps of all queries' batches. Thread-safe; ``clock`` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = time.time() - clock()
        """What to add to the clock's seconds for those since 1970."""
        self._lock = threading.Lock()
        self._queries: dict[str, _QuerySteps] = {}
        self._listener: BatchListener | None = None

    def set_listener(self, listener: BatchListener | None) -> None:
        """Call *listener* with each batch that ends; None removes it. It must return immediately."""
        self._listener = listener

    def begin(self, query: str, number: int) -> None:
        """Start a batch; a batch that was not ended counts as incomplete."""
        with self._lock:
            known = self._queries.setdefault(query, _QuerySteps())
            known.number, known.step, known.steps, known.turns = number, REST, {}, []
            known.began = known.turned = self._clock()
            known.written = 0

    def turn(self, query: str, step: str) -> None:
        """Start another step of the current batch."""
        with self._lock:
            if (known := self._current(query)) is not None:
                self._enter_step(known, step)

    def written(self, query: str, records: int) -> None:
        """Set the number of records of the current batch that are already in their sinks."""
        with self._lock:
            if (known := self._current(query)) is not None:
                known.written = records

    def count_written(self, query: str, since: float) -> int:
        """Return the records written in batches that ended after *since*, and in the current batch so far."""
        with self._lock:
            known = self._queries.get(query)
            if known is None:
                return 0
            ended = sum(batch.records or 0 for batch in known.recent if batch.ended - self._began > since)
            return ended + (known.written if known.number is not None else 0)

    def end(self, query: str, records: int | None = None) -> dict[str, float]:
        """End the current batch, if any, with its number of records, None for incomplete; return seconds by step."""
        with self._lock:
            if (known := self._current(query)) is None or known.number is None:
                return {}
            self._enter_step(known, REST)
            at = self._began
            times = (at + known.began, at + known.turned)
            finished = FinishedBatch(query, known.number, *times, tuple(known.turns), records, known.steps)
            if records is not None:
                known.recent.append(finished)
            known.number = None
            listener = self._listener
        if listener is not None:
            listener(finished)
        return {step: _to_ms(seconds) for step, seconds in finished.steps.items()}

    def _current(self, query: str) -> _QuerySteps | None:
        """Return the steps of a query's current batch; None between batches."""
        known = self._queries.get(query)
        return None if known is None or known.number is None else known

    def set_finding_time(self, query: str, seconds: float) -> None:
        """Set the time that Spark needed to find, plan and commit the last batch."""
        with self._lock:
            self._queries.setdefault(query, _QuerySteps()).finding = seconds

    def forget(self, query: str) -> None:
        """Remove a query that no longer runs."""
        with self._lock:
            self._queries.pop(query, None)

    def to_json(self) -> dict[str, Any]:
        """Return as JSON, for each query, the current step, the last batch, and sums of recent batches."""
        with self._lock:
            return {name: self._query_json(query) for name, query in sorted(self._queries.items())}

    def _query_json(self, query: _QuerySteps) -> dict[str, Any]:
        now = None
        if query.number is not None:
            at = self._clock()
            step, whole = at - query.turned, at - query.began
            now = {"batch": query.number, "step": query.step, "step_seconds": _to_ms(step), "seconds": _to_ms(whole)}
            now["written"] = query.written
        last = None
        if query.recent:
            latest = query.recent[-1]
            ended = datetime.fromtimestamp(latest.ended, UTC).isoformat(timespec="milliseconds")
            last = {"batch": latest.number, "ended": ended, **_sum_batches([latest])}
        return {
            "now": now,
            "source_seconds": None if query.finding is None else _to_ms(query.finding),
            "last": last,
            "recent": {"batches": len(query.recent), **_sum_batches(query.recent)},
        }

    def _enter_step(self, query: _QuerySteps, step: str) -> None:
        now = self._clock()
        if len(query.turns) < MAX_TURNS and now > query.turned:
            query.turns.append(StepSpan(query.step, self._began + query.turned, self._began + now))
        query.steps[query.step] = query.steps.get(query.step, 0.0) + now - query.turned
        query.step, query.turned = step, now


def _sum_batches(batches: Collection[FinishedBatch]) -> dict[str, Any]:
    steps: dict[str, float] = {}
    for batch in batches:
        steps |= {step: steps.get(step, 0.0) + seconds for step, seconds in batch.steps.items()}
    return {
        "records": sum(batch.records or 0 for batch in batches),
        "seconds": _to_ms(sum(steps.values())),
        "steps": [{"step": step, "seconds": _to_ms(seconds)} for step, seconds in sorted(steps.items())],
    }


def _to_ms(seconds: float) -> float:
    return round(seconds, 3)


# Watching a running batch in a separate thread, which reports stalled writes and exceeded limits.
#
# A write that makes no progress for :data:`SLOW_SECONDS` is logged once, until writes are fast again; the router stays
# ready. A write that makes none for :data:`WAITS_SECONDS` is reported as a blocked batch, until it ends or continues.
# An attempt that exceeds ``batch_limit`` is reported and counted, and its Spark jobs are cancelled; it then fails like
# any other attempt, and the batch is split (:mod:`router.batches.splitting`).

SLOW_SECONDS: Final = 10.0
WAITS_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 1.0
_ASKS_SECONDS: Final = 3.0
"""Time without progress after which Spark is asked for the progress of a write."""
_GROUP: Final = "spark.jobGroup.id"
_CLUSTER: Final = "spark"
"""The label in metrics for batches that the cluster blocks, not a sink."""
_current: ContextVar[BatchWatch | None] = ContextVar("watch", default=None)
_log = get_logger()


@dataclass(slots=True)
class _WriteProgress:
    """A running write: ``moved`` is the time of its last progress, ``far`` Spark's progress then."""

    sink: str
    by_spark: bool
    moved: float
    far: Any = None
    slow: bool = False
    reported: bool = False


@contextmanager
def watch_write(sink: str, *, by_spark: bool = False) -> Iterator[None]:
    """Watch a write to a sink during the block; several sinks of a cluster are comma-separated.

    With *by_spark*, Spark writes and is asked for its progress. Other writers call :func:`progressed`.
    """
    watch = _current.get()
    if watch is None:
        yield
        return
    watch.begin_write(sink, by_spark=by_spark)
    well = False
    try:
        yield
        well = True
    finally:
        watch.end_write(well=well)


def report_progress() -> None:
    """Report that the running write of this thread, if any, makes progress."""
    watch = _current.get()
    if watch is not None:
        watch.note_progress()


class BatchWatch:
    """Watches the attempts of one query, one at a time; *reads* returns its inputs for the log."""

    def __init__(
        self, query: str, metrics: Metrics, status: RouterStatus, reads: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        self._reads = reads
        self._query = query
        self._metrics = metrics
        self._status = status
        self._lock = threading.Lock()
        self._write: _WriteProgress | None = None
        self._number = 0
        self._jobs: _SparkJobs | None = None
        self._stranded = False
        self._slow: dict[str, float] = {}
        """Slow sinks, and since when."""

    @contextmanager
    def attempt(self, spark: SparkSession, number: int, limit: float) -> Iterator[None]:
        """Watch one attempt during the block; *limit* is in seconds, 0 is no limit."""
        over = threading.Event()
        self._number, self._write, self._jobs, self._stranded = number, None, _SparkJobs(spark), False
        thread = threading.Thread(target=self._watch_loop, args=(over, limit), name=f"watch-{self._query}", daemon=True)
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

    def begin_write(self, sink: str, *, by_spark: bool) -> None:
        """Start watching a write."""
        with self._lock:
            self._write = _WriteProgress(sink, by_spark, time.monotonic())
        self._status.steps.turn(self._query, name_sink_step(sink))

    def note_progress(self) -> None:
        """Note progress of the write."""
        with self._lock:
            write = self._write
            if write is None:
                return
            write.moved = time.monotonic()
            reported, write.reported = write.reported, False
        if reported:
            self._report_running()

    def end_write(self, *, well: bool) -> None:
        """Stop watching the write. Other reasons for a blocked batch are reported elsewhere."""
        with self._lock:
            write, self._write = self._write, None
        self._status.steps.turn(self._query, REST)
        if write is not None and write.reported and well:
            self._report_running()
        if write is not None and well and not write.slow and (since := self._slow.pop(write.sink, None)) is not None:
            seconds = round(time.monotonic() - since, 1)
            _log.info("sink is no longer slow", **self._reads(), query=self._query, sink=write.sink, seconds=seconds)

    def _report_running(self) -> None:
        self._metrics.released(self._query)
        self._status.query(self._query, "running", batch=self._number)

    def _watch_loop(self, over: threading.Event, limit: float) -> None:
        began = looked = time.monotonic()
        overdue = False
        while not over.wait(LOOK_SECONDS):
            now = time.monotonic()
            if self._check_executors():
                # Without executors, the time limit of the batch is suspended.
                began, looked = began + now - looked, now
                continue
            looked = now
            if limit and not overdue and now - began > limit:
                overdue = True
                self._cancel_overdue(limit)
            self._check_write(now)

    def _check_executors(self) -> bool:
        """Return whether the cluster has no executor for the router, and report it."""
        stranded = self._jobs is not None and self._jobs.has_no_executor()
        before, self._stranded = self._stranded, stranded
        if stranded and not before:
            reason = "the cluster has no executor for the router"
            self._metrics.held(self._query, _CLUSTER)
            self._status.query(self._query, "held", batch=self._number, reason=reason)
            _log.warning("batch blocked", **self._reads(), query=self._query, batch=self._number, reason=reason)
        elif before and not stranded:
            _log.info("batch resumed", **self._reads(), query=self._query, batch=self._number)
            self._report_running()
        return stranded

    def _check_write(self, now: float) -> None:
        with self._lock:
            write = self._write
        if write is None or now - write.moved < _ASKS_SECONDS:
            return
        if write.by_spark and self._jobs is not None:
            far = self._jobs.get_progress()
            if far != write.far:
                write.far = far
                self.note_progress()
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
            hint = "nothing is lost; check the sink if this lasts"
            _log.warning("sink is slow", **facts, seconds_without_progress=round(still), hint=hint)
        if waits:
            sink, moved = write.sink, write.moved

            def reason() -> str:
                return f"sink {sink}: write stalled, no progress for {time.monotonic() - moved:.0f} s"

            self._metrics.held(self._query, sink)
            self._status.query(self._query, "held", batch=self._number, reason=reason)

    def _cancel_overdue(self, limit: float) -> None:
        reason = f"batch {self._number} {CANCELLED} ({limit:g} s)"
        self._status.query(self._query, "overdue", batch=self._number, reason=reason)
        self._metrics.fault(self._query, "overdue")
        _log.error("batch takes too long", **self._reads(), query=self._query, batch=self._number, reason=reason)
        if self._jobs is not None:
            self._jobs.cancel(reason)


class _SparkJobs:
    """The Spark jobs of the query whose thread creates this object."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._group = self._context.getLocalProperty(_GROUP)
        self._cluster = not is_local(self._context.master or "")

    def has_no_executor(self) -> bool:
        """Return whether a cluster has no executor; always False for a local master."""
        with suppress(Exception):  # The context may be stopping.
            return self._cluster and count_executors(self._context) < 1
        return False

    def get_progress(self) -> Any:
        """Return a value that changes when the running jobs make progress; None if unknown."""
        with suppress(Exception):  # It may be stopping, or the stage may just have ended; the next look asks again.
            tracker = self._context.statusTracker()
            store = self._context._jsc.sc().statusStore()
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
            stages = [stage for job in jobs if job is not None and job.status == "RUNNING" for stage in job.stageIds]
            return tuple(self._stage_progress(store, stage) for stage in stages)
        return None

    def cancel(self, reason: str) -> None:
        """Cancel the jobs; Spark also kills hanging Python workers."""
        if self._group is not None:
            with suppress(Exception):
                self._context._jsc.sc().cancelJobGroup(self._group, reason)

    @staticmethod
    def _stage_progress(store: Any, stage: int) -> tuple[int, ...]:
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
