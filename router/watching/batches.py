"""Batches watched while they are worked on: the step they are in, what waits, and what takes too long."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from router.errors import CANCELLED
from router.logs import get_logger
from router.settings.spark import is_local
from router.spark.executors import executor_count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router.watching.metrics import Metrics
    from router.watching.status import RouterStatus

# Where batches spend their time: finding records, judging them, writing to each sink, waiting.
#
# The time of a batch is that of its step at the moment; whoever begins another step says so. Where one pass of Spark
# judges and writes, it counts as writing; where workers write files while they judge, it counts as judging.

JUDGE: Final = "judge"
HELD: Final = "held"
REST: Final = "rest"
"""All other work: notes of the batch, order of keys, and what Spark does around it."""
RECENT: Final = 20
"""Batches of a query whose times are added up."""
TURNS: Final = 100
"""ReplayOrder of a batch that a follower gets at most."""


def sink_step(sink: str) -> str:
    """Return the step of writing to a sink; several of a cluster are named with commas."""
    return f"sink {sink}"


def finding_seconds(progress: Any) -> float | None:
    """Return how long Spark took over the last batch besides the batch itself: to find, plan and note it.

    None when Spark looked and found nothing, which it reports too.
    """
    durations: dict[str, int] = progress["durationMs"]
    if "addBatch" not in durations:
        return None
    return max(0, durations.get("triggerExecution", 0) - durations["addBatch"]) / 1000


@dataclass(frozen=True, slots=True)
class _Batch:
    number: int
    ended: str
    records: int
    steps: dict[str, float]
    at: float = 0.0
    """When it ended, by the clock of :class:`Steps`."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A step that a batch was at, from when until when, in seconds since 1970."""

    step: str
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class FinishedBatch:
    """A batch as it went, in seconds since 1970; ``records`` is None for one that did not come to its end.

    It has the first :data:`TURNS` of its turns: one that is held has new ones for as long as that takes.
    """

    query: str
    number: int
    began: float
    ended: float
    turns: tuple[Turn, ...]
    records: int | None


Follower = Callable[[FinishedBatch], None]


@dataclass(slots=True)
class _Query:
    """One query: ``step`` since ``turned`` of the batch ``number``, None between two batches."""

    number: int | None = None
    step: str = REST
    turned: float = 0.0
    began: float = 0.0
    steps: dict[str, float] = field(default_factory=dict)
    recent: deque[_Batch] = field(default_factory=lambda: deque(maxlen=RECENT))
    finding: float | None = None
    turns: list[tuple[str, float, float]] = field(default_factory=list)
    written: int = 0


class Steps:
    """The steps of all queries. Any thread may call it; ``clock`` gives seconds that never go back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._queries: dict[str, _Query] = {}
        self._follower: Follower | None = None

    def follow(self, follower: Follower | None) -> None:
        """Call *follower* with each batch when it ends, in whatever way; None ends that. It must return at once."""
        self._follower = follower

    def begin(self, query: str, number: int) -> None:
        """Note that a batch begins; one that was under way did not come to its end."""
        with self._lock:
            known = self._queries.setdefault(query, _Query())
            known.number, known.step, known.steps, known.turns = number, REST, {}, []
            known.began = known.turned = self._clock()
            known.written = 0

    def turn(self, query: str, step: str) -> None:
        """Note that the batch under way goes on with another step."""
        with self._lock:
            known = self._queries.get(query)
            if known is not None and known.number is not None:
                self._turn(known, step)

    def written(self, query: str, records: int) -> None:
        """Note how many records of the batch under way are at their sinks: those of its parts so far."""
        with self._lock:
            known = self._queries.get(query)
            if known is not None and known.number is not None:
                known.written = records

    def worked(self, query: str, since: float) -> int:
        """Return how many records are written: in parts of the batch under way, in batches that ended after a time."""
        with self._lock:
            known = self._queries.get(query)
            if known is None:
                return 0
            ended = sum(batch.records for batch in known.recent if batch.at > since)
            return ended + (known.written if known.number is not None else 0)

    def end(self, query: str, records: int) -> dict[str, float]:
        """Note that the batch is written; return the seconds of its steps."""
        with self._lock:
            known = self._queries.get(query)
            if known is None or known.number is None:
                return {}
            self._turn(known, REST)
            ended = datetime.now(UTC).isoformat(timespec="milliseconds")
            known.recent.append(_Batch(known.number, ended, records, known.steps, self._clock()))
            finished = self._finished(query, known, records)
            known.number = None
        self._notify(finished)
        return {step: _ms(seconds) for step, seconds in known.steps.items()}

    def leave(self, query: str) -> None:
        """Note that no batch is under way, however the last one ended."""
        with self._lock:
            known = self._queries.get(query)
            if known is None or known.number is None:
                return
            self._turn(known, REST)
            finished = self._finished(query, known, None)
            known.number = None
        self._notify(finished)

    def finding_took(self, query: str, seconds: float) -> None:
        """Note how long Spark took before the last batch: to ask the source for its end, to plan, to note offsets."""
        with self._lock:
            self._queries.setdefault(query, _Query()).finding = seconds

    def forget(self, query: str) -> None:
        """Leave out a query that has ended for good."""
        with self._lock:
            self._queries.pop(query, None)

    def to_json(self) -> dict[str, Any]:
        """Return for each query the step ``now``, the ``last`` batch, and the sums of the ``recent`` ones, as JSON."""
        with self._lock:
            return {name: self._query_json(query) for name, query in sorted(self._queries.items())}

    def _query_json(self, query: _Query) -> dict[str, Any]:
        now = None
        if query.number is not None:
            at = self._clock()
            step, whole = at - query.turned, at - query.began
            now = {"batch": query.number, "step": query.step, "step_seconds": _ms(step), "seconds": _ms(whole)}
            now["written"] = query.written
        last = query.recent[-1] if query.recent else None
        return {
            "now": now,
            "source_seconds": None if query.finding is None else _ms(query.finding),
            "last": None if last is None else {"batch": last.number, "ended": last.ended, **_sums([last])},
            "recent": {"batches": len(query.recent), **_sums(query.recent)},
        }

    def _finished(self, name: str, query: _Query, records: int | None) -> FinishedBatch | None:
        if self._follower is None or query.number is None:
            return None
        since_1970 = time.time() - self._clock()
        turns = tuple(Turn(step, since_1970 + began, since_1970 + ended) for step, began, ended in query.turns)
        return FinishedBatch(name, query.number, since_1970 + query.began, since_1970 + query.turned, turns, records)

    def _notify(self, finished: FinishedBatch | None) -> None:
        follower = self._follower
        if finished is not None and follower is not None:
            follower(finished)

    def _turn(self, query: _Query, step: str) -> None:
        now = self._clock()
        if self._follower is not None and len(query.turns) < TURNS and now > query.turned:
            query.turns.append((query.step, query.turned, now))
        query.steps[query.step] = query.steps.get(query.step, 0.0) + now - query.turned
        query.step, query.turned = step, now


def _sums(batches: Iterable[_Batch]) -> dict[str, Any]:
    steps: dict[str, float] = {}
    records = 0
    for batch in batches:
        records += batch.records
        for step, seconds in batch.steps.items():
            steps[step] = steps.get(step, 0.0) + seconds
    return {
        "records": records,
        "seconds": _ms(sum(steps.values())),
        "steps": [{"step": step, "seconds": _ms(seconds)} for step, seconds in sorted(steps.items())],
    }


def _ms(seconds: float) -> float:
    return round(seconds, 3)


# Watching a batch while it is worked on, from a thread of its own: it reports what waits and what takes too long.
#
# A write to a sink that makes no progress for :data:`SLOW_SECONDS` is told by the log, once until writes are quick
# again: the router stays ready. One that makes none for :data:`WAITS_SECONDS` is reported as a batch that is held,
# until it ends or goes on. An attempt that takes longer than ``batch_limit`` is reported and counted, and its Spark
# jobs are cancelled: then it fails like one that fails by itself, and is cut (:mod:`router.batches.splitting`).

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
        self, query: str, metrics: Metrics, status: RouterStatus, reads: Callable[[], Mapping[str, str]] = dict
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
            _log.info("sink is no longer slow", **self._reads(), query=self._query, sink=write.sink, seconds=seconds)

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
            _log.warning("batch blocked", **self._reads(), query=self._query, batch=self._number, reason=reason)
        elif before and not stranded:
            _log.info("batch resumed", **self._reads(), query=self._query, batch=self._number)
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
            hint = "nothing is lost; check the sink if this lasts"
            _log.warning("sink is slow", **facts, seconds_without_progress=round(still), hint=hint)
        if waits:
            sink, moved = write.sink, write.moved

            def reason() -> str:
                return f"sink {sink}: write stalled, no progress for {time.monotonic() - moved:.0f} s"

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
