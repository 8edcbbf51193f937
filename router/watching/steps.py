"""Where batches spend their time: finding records, judging them, writing to each sink, waiting.

The time of a batch is that of its step at the moment; whoever begins another step says so. Where one pass of Spark
judges and writes, it counts as writing; where workers write files while they judge, it counts as judging.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

JUDGE: Final = "judge"
HELD: Final = "held"
REST: Final = "rest"
"""All other work: notes of the batch, order of keys, and what Spark does around it."""
RECENT: Final = 20
"""Batches of a query whose times are added up."""
TURNS: Final = 100
"""Turns of a batch that a follower gets at most."""


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
