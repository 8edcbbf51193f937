"""One streaming query: where its batches come from, and what happens to each until it is written.

``foreachBatch`` is where everything happens that must not be done twice in different ways. In this order: a drain
stops before the first write; the batch is judged, pinned and written (:mod:`router.batches.attempts`), and again for as
long as a sink is down; one that fails by itself is written in parts (:mod:`router.batches.parts`); counts go to the
metrics. Only then does Spark commit the batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from router.batches.attempts import Attempts, TooManyLetters
from router.batches.bounding import Bounding, TooLarge
from router.batches.parts import BatchParts, Part
from router.batches.plans import LoadedPlan, PlanHolder
from router.errors import DiskError, RouterError, SinkError
from router.faults import Fault, fault_of, is_unreadable
from router.judging.plan import Plan
from router.judging.stages import Kind
from router.judging.tally import Tally
from router.logs import get_logger
from router.machine.memory import divided
from router.machine.sizing import BatchSizing
from router.reading.extents import extents, first_of
from router.reading.generations import Generation
from router.reading.planned import Spans, turned_back
from router.state.notes import BatchNotes, Hold
from router.state.state import State
from router.watching.batches import Watch
from router.writing.commits import Batch
from router.writing.ordering import Ordering

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from router.watching.metrics import Metrics
    from router.watching.status import Status

RETRY_FIRST: Final = 0.5
RETRY_MOST: Final = 30.0
LOOK: Final = 1.0
"""Longest time in which a held batch does not look for an operator's order to set it aside."""
FOREVER: Final = float("inf")
MEND: Final = "mend the catalog, and the batch is judged anew; or raise dead_letters.max_ratio and restart"
_log = get_logger()


class Draining(Exception):
    """Raised inside a batch to end its query before the batch's first write."""


class TopicsRenewed(Exception):
    """Raised inside a batch to end its query before the batch's first write: topics were deleted and made again."""


class Pipeline:
    """The batches of one streaming query."""

    def __init__(
        self,
        name: str,
        kind: Kind,
        generation: Generation,
        state: State,
        plans: PlanHolder,
        metrics: Metrics,
        status: Status,
        restore: Callable[[bytes], Plan],
        *,
        final: int | None = None,
        bounding: Bounding | None = None,
    ) -> None:
        """*final* is the last batch that this query is to write, when it is not to read on.

        *bounding* keeps batches within their bytes; unset, it knows nothing of this query yet.
        """
        self.name = name
        self.kind = kind
        self.generation = generation
        self._state = state
        self._plans = plans
        self._metrics = metrics
        self._status = status
        self._restore = restore
        self._final = final
        self._draining = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._notes = BatchNotes(state.batches)
        self._bounding = bounding or Bounding(kind, generation, BatchSizing.of(plans.active.settings), None)
        ordering = Ordering(state, name, self._notes, self._breathe)
        self._attempts = Attempts(state, self._notes, ordering, self._bounding)
        self._watch = Watch(name, metrics, status)
        metrics.expect_query(name)
        self.failure: RouterError | None = None
        self.last: int | None = None
        self.renewed: Spans = {}
        """The partitions whose topics were deleted and made again, when the query ended for that."""

    def drain(self) -> None:
        """Let the batch that is being written finish, and no other begin."""
        self._draining.set()

    @property
    def draining(self) -> bool:
        """Whether no other batch begins."""
        return self._draining.is_set()

    def wait_idle(self, seconds: float) -> bool:
        """Wait until no batch is being written; False when it took longer."""
        return self._idle.wait(seconds)

    def batch(self, rows: DataFrame, number: int) -> None:
        """Judge and write one batch; the callback of ``foreachBatch``.

        Raises:
            Draining: the query is to end, and nothing of this batch has been written.
            TopicsRenewed: likewise, and it is to begin again at the first records of some topics.
            BatchPinError: the batch is pinned to a plan that cannot be restored.
        """
        self._idle.clear()
        try:
            if self._draining.is_set():
                raise Draining
            self._check_renewed(number)
            began = time.monotonic()
            self._status.query(self.name, "running", batch=number)
            tally = self._write_until_done(rows, number)
            self._status.query(self.name, "running", batch=number)
            now = time.time()
            self._metrics.batch_done(self.name, tally, time.monotonic() - began, int(now * 1000))
            self.last = number
            if number == self._final:
                self.drain()
        except DiskError:
            raise  # The query ends, and is started again until there is room.
        except RouterError as error:
            self.failure = error
            raise
        finally:
            self._metrics.released(self.name)
            self._idle.set()

    def _check_renewed(self, number: int) -> None:
        """End the query when the batch would go back in a topic: Spark would then pass over what is before its end.

        With ``on_data_loss: stop`` Spark itself has ended the query by now.
        """
        renewed = turned_back(self.generation, number)
        if not renewed:
            return
        places = [
            f"{topic}-{partition} was read up to offset {first} and now ends at {end}"
            for topic, spans in sorted(renewed.items())
            for partition, (first, end) in sorted(spans.items())
        ]
        self.renewed = renewed
        _log.error("topics were deleted and made again, and are read from their first record", places=places)
        raise TopicsRenewed

    def _write_until_done(self, rows: DataFrame, number: int) -> Tally:
        """Write what is left of a batch, part by part; mostly it is one part."""
        parts = BatchParts.of(self._notes, self.name, number, self.generation.id)
        while (part := parts.next) is not None:
            share = self._bounding.rows(rows, number, part)
            try:
                if self._bounding.cut(parts, share):
                    continue
                tally = self._write_part(share, number, part)
            except Draining:
                raise
            except TooLarge:
                self._bounding.divide(parts, share)
            except Exception as error:
                if is_unreadable(error) and self._bounding.read_anew(number):
                    _log.warning("batch is read by our own client: Spark's takes no such timestamp", query=self.name)
                    continue
                fault = fault_of(error)
                if fault is None or not self._failed(parts, share, fault):
                    raise
            else:
                parts.written(tally)
                self._bounding.learn(tally)
                if parts.next is not None:
                    # What is left is noted, so that a drain need not wait for it.
                    self._breathe(0)
        self._notes.release(self.name, number)
        return parts.tally

    def _failed(self, parts: BatchParts, share: DataFrame, fault: Fault) -> bool:
        """Count a failure that is the batch's own, and cut the part if it is time; False when nothing is left to do."""
        part = parts.next
        assert part is not None
        self._metrics.fault(self.name, fault.kind)
        self._status.query(self.name, "failed", batch=parts.number, reason=fault.text)
        if not parts.failed(fault):
            told = {"query": self.name, "batch": parts.number, "error": fault.text, "times": parts.failures.all}
            _log.error("batch failed", **told, **self._hint(fault))
            self._breathe(RETRY_FIRST)
            return True
        places = extents(share, self.kind)
        told = {"query": self.name, "batch": parts.number, "error": fault.text, "records": places.num_rows}
        told |= self._hint(fault)
        if not parts.divide(places, fault):
            _log.error("batch failed, and cannot be cut further", **told)
            return False
        if parts.next is not None and parts.next.condemned:
            _log.error("record becomes a dead letter, since it fails", position=first_of(places), **told)
        else:
            _log.error("batch fails, and is written in parts to find the record", parts=len(parts.left), **told)
        return True

    def _hint(self, fault: Fault) -> dict[str, str]:
        remedy = divided(self._plans.active.settings).remedy(fault.text, worker=fault.kind == "worker")
        return {"hint": remedy} if remedy else {}

    def _write_part(self, rows: DataFrame, number: int, part: Part) -> Tally:
        """Write, and again while the world is in the way: such an error holds a batch and never drops it."""
        wait = RETRY_FIRST
        while True:
            pinned = self._state.pinned(self.name, number)
            loaded = self._plans.current() if pinned is None else self._plans.pinned(pinned, self._restore)
            if pinned is None and self._draining.is_set():
                # Asked after the plan was: a drain comes before a plan that no longer knows the query's topics.
                raise Draining
            batch = Batch(self.kind, self.name, self.generation.id, number, _now(), part.path)
            park = self._notes.parked(self.name, number, self.generation.id)
            limit = loaded.plan.settings.batch_limit
            try:
                with self._watch.attempt(rows.sparkSession, number, limit.total_seconds()):
                    if park is not None:
                        return self._attempts.set_aside(rows, batch, loaded, part, park)
                    return self._attempts.write(rows, batch, loaded, part)
            except SinkError as error:
                self._metrics.sink_write(error.sink, "error")
                self._held(loaded, batch, str(error), error.sink, retry_seconds=wait)
                self._pause(number, wait, parked=park is not None)
                wait = min(wait * 2, RETRY_MOST)
            except TooManyLetters as error:
                self._held(loaded, batch, str(error))
                # The same plan would judge the same records alike, however often it is asked.
                self._pause(number, FOREVER, judged_by=loaded.plan)
                wait = RETRY_FIRST

    def _held(
        self, loaded: LoadedPlan, batch: Batch, reason: str, sink: str = "", *, retry_seconds: float | None = None
    ) -> None:
        """Say that the batch is held, and note it with the sinks that have their share, if that is news."""
        self._status.query(self.name, "held", batch=batch.number, reason=reason)
        self._metrics.held(self.name, sink)
        hint = f"`xrouter batches park CONFIG {self.name}` makes dead letters of what a sink will never take"
        _log.error(
            "batch held",
            query=self.name,
            batch=batch.number,
            reason=reason,
            hint=hint if sink else MEND,
            **({} if retry_seconds is None else {"retry_seconds": retry_seconds}),
        )
        before = self._notes.held(self.name, batch.number, batch.generation)
        known = loaded.writer.taken(batch) if sink else frozenset()
        taken = tuple(sorted(known.union(before.taken if before and before.part == batch.label else ())))
        note = Hold(batch.generation, before.since if before else batch.failed, reason, sink, taken, batch.label)
        if note == before:
            return
        try:
            self._notes.hold(self.name, batch.number, note)
        except OSError as error:  # A full disk may be why the batch is held; the note can wait for it.
            _log.warning("the hold of a batch cannot be noted", query=self.name, error=error.strerror)

    def _pause(self, number: int, seconds: float, *, parked: bool = False, judged_by: Plan | None = None) -> None:
        """Wait before the next try; an order to set the batch aside ends the wait, a drain ends the query.

        With *judged_by*, another plan than that one ends it as well.
        """
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if self._draining.wait(min(left, LOOK)):
                raise Draining
            if not parked and self._notes.parked(self.name, number, self.generation.id) is not None:
                return
            if judged_by is not None and self._plans.active.id != judged_by.id:
                return

    def _breathe(self, seconds: float) -> None:
        """Wait; a drain ends the query."""
        if self._draining.wait(seconds):
            raise Draining


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
