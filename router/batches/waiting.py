"""Waiting with a blocked batch: it is logged, recorded, and retried after growing pauses."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from router.batches.batch import TooManyDeadLetters
from router.batches.plans import LoadedPlan, PlanCache
from router.errors import RouterError, SinkError, find_lost_registry
from router.logs import get_logger
from router.reading.generations import reads
from router.state.state import BatchStore, Hold, Park
from router.watching.batches import HELD
from router.writing.staging import BatchId

if TYPE_CHECKING:
    from router.watching.metrics import Metrics
    from router.watching.status import RouterStatus

RETRY_FIRST: Final = 0.5
RETRY_MAX: Final = 30.0
ERROR_SECONDS: Final = 60.0
"""After this time a blocked batch is logged as an error: an operator must act."""
PARK_CHECK_SECONDS: Final = 1.0
"""Seconds between checks whether an operator moves a blocked batch to dead letters."""
SINK_HINT: Final = "repair the sink; the batch is retried automatically, and nothing is lost"
REGISTRY_HINT: Final = (
    "the batch is retried until the registry answers; or store its ids on disk with `xrouter schemas pull`"
)
BREAKER_HINT: Final = "fix the catalog, and the batch is evaluated again; or raise dead_letters.max_ratio and restart"
_REGISTRY: Final = "schema-registry"
"""The metric label of a batch blocked by the schema registry, in place of a sink's name."""
_log = get_logger()


class Draining(Exception):
    """Ends a query before the first write of a batch."""


def pauses() -> Iterator[float]:
    """Yield the seconds before each retry of a batch that a sink blocks."""
    yield from (min(RETRY_FIRST * 2**n, RETRY_MAX) for n in range(16))
    yield from itertools.repeat(RETRY_MAX)


@dataclass(slots=True)
class BatchWaiting:
    """Waits with blocked batches of one query; once *draining* is set, every wait ends the query."""

    query: str
    store: BatchStore
    plans: PlanCache
    metrics: Metrics
    status: RouterStatus
    draining: threading.Event
    since: dict[int, float] = field(default_factory=dict)
    """When each blocked batch was first blocked (monotonic seconds)."""
    logged: dict[str, str] = field(default_factory=dict)
    """The level already logged for each failing sink."""
    pauses: Iterator[float] = field(default_factory=pauses)

    def facts(self, number: int) -> dict[str, Any]:
        """Return the log fields of a batch: what its query reads, the query, and the batch number."""
        return {**reads(self.plans.active.sources, self.query), "query": self.query, "batch": number}

    def end(self, number: int) -> None:
        """Log that a blocked batch is now written."""
        if number in self.since:
            seconds = round(time.monotonic() - self.since[number], 1)
            _log.info("batch resumed", **self.facts(number), held_seconds=seconds)
        self.since.clear()
        self.logged.clear()

    def block(self, loaded: LoadedPlan, batch: BatchId, error: Exception, *, parked: bool) -> bool:
        """Record that a batch is blocked, with the sinks that have their share, and wait; False for another error.

        A batch waits for a sink, for the schema registry that must resolve its ids, or, with too many dead letters, for
        another plan. ``batches park`` ends the wait, unless the batch was *parked* before.

        Raises:
            Draining: the query must end.
        """
        if isinstance(error, TooManyDeadLetters):
            self.logged.clear()
            self._report(batch, str(error), "", error=True, hint=BREAKER_HINT)
            self._note(batch, str(error), "", frozenset())
            self._wait(batch, None, parked=parked, plan=loaded.plan.id)
            self.pauses = pauses()
            return True
        if isinstance(error, SinkError):
            reason, sink, label, hint = str(error), error.sink, error.sink, error.hint or SINK_HINT
            self.metrics.count_sink_write(sink, "error", reason)
        elif away := find_lost_registry(error):
            reason, sink, label, hint = away, "", _REGISTRY, REGISTRY_HINT
        else:
            return False
        seconds = next(self.pauses)
        self._report(batch, reason, label, hint=hint, retry_seconds=seconds)
        self._note(batch, reason, sink, loaded.writer.finished_sinks(batch))
        self._wait(batch, seconds, parked=parked)
        return True

    def pause(self, seconds: float | None = None) -> None:
        """Wait some seconds, by default those before the first retry.

        Raises:
            Draining: the query must end.
        """
        if self.draining.wait(RETRY_FIRST if seconds is None else seconds):
            raise Draining

    def _report(self, batch: BatchId, reason: str, sink: str, *, error: bool = False, **more: object) -> None:
        """Report a blocked batch to metrics, status and log; the log has one line per failing sink and level.

        A warning becomes an error after ERROR_SECONDS; what only an operator can resolve is an error at once.
        """
        self.metrics.held(self.query, sink)
        endpoints = self.facts(batch.number).get("endpoints", "")
        shared = f"; this blocks all endpoints of the query: {endpoints}" if ", " in endpoints else ""
        self.status.query(self.query, "held", batch=batch.number, reason=f"{reason}{shared}")
        lasts = time.monotonic() - self.since.setdefault(batch.number, time.monotonic())
        level = "error" if error or lasts >= ERROR_SECONDS else "warning"
        facts = {**self.facts(batch.number), "reason": reason, **more}
        if self.logged.get(sink) in (level, "error"):
            _log.debug("batch still blocked", **facts)
            return
        self.logged[sink] = level
        if level == "warning":
            _log.warning("batch blocked", **facts)
        else:
            _log.error("batch blocked", **facts, **({} if error else {"held_seconds": round(lasts)}))

    def _note(self, batch: BatchId, reason: str, sink: str, known: frozenset[str]) -> None:
        before = self.store.noted(Hold, self.query, batch.number, batch.generation)
        taken = tuple(sorted(known.union(before.taken if before and before.part == batch.label else ())))
        note = Hold(batch.generation, before.since if before else batch.failed, reason, sink, taken, batch.label)
        if note == before:
            return
        try:
            self.store.note(self.query, batch.number, note)
        except RouterError as error:  # A full disk may be what blocks the batch; the note is not essential.
            _log.warning("cannot store why a batch is blocked", query=self.query, error=str(error))

    def _wait(self, batch: BatchId, seconds: float | None, *, parked: bool, plan: str = "") -> None:
        """Wait some seconds, or, for None, until another plan than *plan* is active."""
        self.status.steps.turn(self.query, HELD)
        deadline = float("inf") if seconds is None else time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.pause(min(left, PARK_CHECK_SECONDS))
            if not parked and self.store.noted(Park, self.query, batch.number, batch.generation) is not None:
                return
            if plan and self.plans.active.id != plan:
                return
