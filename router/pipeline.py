"""One streaming query: where its batches come from, how each is judged, pinned and written.

``foreachBatch`` is where everything happens that must not be done twice in different ways. In this order: a
drain stops before the first write; the circuit breaker may hold the batch; it is pinned, durably, to the plan that
judges it; records that wait for dead letters of their keys are held back (:mod:`router.ordering`); sinks are written,
and written again for as long as a sink is down; counts go to the metrics. Only then does Spark commit the batch. A
batch that an operator has set aside (:mod:`router.notes`) is written to the dead letters instead, as far as its sinks
do not have it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from router.errors import RouterError, SinkError
from router.generations import Generation
from router.judging import Tallies
from router.logs import get_logger
from router.notes import BatchNotes, Hold, Park
from router.ordering import Ordering
from router.plan import Plan
from router.plans import LoadedPlan, PlanHolder
from router.refusals import REASON
from router.render import spilled_records
from router.stages import Kind, judged, prepared, unified
from router.state import State
from router.tally import Tally, collect
from router.writing import Batch, BatchWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from router.metrics import Metrics
    from router.status import Status

RETRY_FIRST: Final = 0.5
RETRY_MOST: Final = 30.0
LOOK: Final = 1.0
"""Longest time in which a held batch does not look for an operator's order to set it aside."""
FOREVER: Final = float("inf")
ASIDE: Final = "set aside by an operator"
MEND: Final = "mend the catalog, and the batch is judged anew; or raise dead_letters.max_ratio and restart"
_log = get_logger()


class Draining(Exception):
    """Raised inside a batch to end its query before the batch's first write."""


class TooManyLetters(Exception):
    """The circuit breaker: a batch that would flood the dead letters is held before its first write."""


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
    ) -> None:
        self.name = name
        self.kind = kind
        self.generation = generation
        self._state = state
        self._plans = plans
        self._metrics = metrics
        self._status = status
        self._restore = restore
        self._draining = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._notes = BatchNotes(state.batches)
        self._ordering = Ordering(state, name, self._notes, self._breathe)
        self.failure: RouterError | None = None
        self.last: int | None = None

    def drain(self) -> None:
        """Let the batch that is being written finish, and no other begin."""
        self._draining.set()

    def wait_idle(self, seconds: float) -> bool:
        """Wait until no batch is being written; False when it took longer."""
        return self._idle.wait(seconds)

    def batch(self, rows: DataFrame, number: int) -> None:
        """Judge and write one batch; the callback of ``foreachBatch``.

        Raises:
            Draining: the query is to end, and nothing of this batch has been written.
            BatchPinError: the batch is pinned to a plan that cannot be restored.
        """
        self._idle.clear()
        try:
            if self._draining.is_set():
                raise Draining
            began = time.monotonic()
            self._status.query(self.name, "running", batch=number)
            tally = self._write_until_done(rows, number)
            self._status.query(self.name, "running", batch=number)
            now = time.time()
            self._metrics.batch_done(self.name, tally, time.monotonic() - began, int(now * 1000))
            self.last = number
        except RouterError as error:
            self.failure = error
            raise
        finally:
            self._metrics.released(self.name)
            self._idle.set()

    def _write_until_done(self, rows: DataFrame, number: int) -> Tally:
        """Write, and again while the world is in the way: such an error holds a batch and never drops it."""
        wait = RETRY_FIRST
        while True:
            pinned = self._state.pinned(self.name, number)
            loaded = self._plans.current() if pinned is None else self._plans.pinned(pinned, self._restore)
            batch = Batch(self.kind, self.name, self.generation.id, number, _now())
            park = self._notes.parked(self.name, number, self.generation.id)
            try:
                if park is not None:
                    tally = self._set_aside(rows, batch, loaded, park)
                else:
                    tally = self._write(rows, batch, loaded, pinned=pinned is not None)
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
            else:
                self._notes.release(self.name, number)
                return tally

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
        taken = tuple(sorted(known.union(before.taken if before else ())))
        if before is not None and (before.reason, before.taken) == (reason, taken):
            return
        note = Hold(batch.generation, before.since if before else batch.failed, reason, sink, taken)
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

    def _set_aside(self, rows: DataFrame, batch: Batch, loaded: LoadedPlan, park: Park) -> Tally:
        """Write dead letters in place of the events that sinks lack; which ones is durable before the first write."""
        tallies = rows.sparkSession.sparkContext.accumulator([], Tallies())
        outcomes = judged(prepared(rows, self.kind), self.kind, loaded.judge, tallies, loaded.layouts)
        kept = unified(outcomes, self.kind, self.name, arrived=True).persist()
        try:
            kept.count()
            tally = loaded.learn(collect(tallies.value))
            if self._state.pinned(self.name, batch.number) is None:
                self._state.pin(self.name, batch.number, loaded.plan.id)
            lacking = park.lacking
            if lacking is None:
                lacking = self._lacking(loaded.writer, batch)
                self._notes.park(self.name, batch.number, replace(park, lacking=lacking))
            self._spill(kept, tally.spilled)
            held = self._ordering.noted(kept, batch, loaded.plan)
            refused = loaded.writer.set_aside(kept, batch, lacking, held)
            if refused.letters is not None:
                tally.refuse(refused.counts, REASON)
                self._spill(refused.letters, loaded.writer.may_spill)
            self._ordering.settle(kept, batch, loaded.plan, refused, dead=tally.dead)
            _log.warning("batch set aside", query=self.name, batch=batch.number, letters=refused.counts.total())
            return tally
        finally:
            kept.unpersist()

    def _lacking(self, writer: BatchWriter, batch: Batch) -> dict[str, str]:
        """Return the sinks that do not have their events of the batch, each with what a letter is to say of it."""
        if writer.has_letters(batch):
            return {}
        held = self._notes.held(self.name, batch.number, batch.generation)
        taken = writer.taken(batch).union(held.taken if held else ())
        why = {held.sink: f"{ASIDE}: {held.reason.removeprefix(f'sink {held.sink}: ')}"} if held and held.sink else {}
        return {name: why.get(name, ASIDE) for name in writer.lacking(taken)}

    def _write(self, rows: DataFrame, batch: Batch, loaded: LoadedPlan, *, pinned: bool) -> Tally:
        """Judge and write once; the batch is pinned to the plan after the last look that may hold it unwritten."""
        number = batch.number
        tallies = rows.sparkSession.sparkContext.accumulator([], Tallies())
        outcomes = judged(prepared(rows, self.kind), self.kind, loaded.judge, tallies, loaded.layouts)
        made = unified(outcomes, self.kind, self.name, arrived=loaded.writer.may_refuse)
        if loaded.writer.one_pass:
            if not pinned:
                self._state.pin(self.name, number, loaded.plan.id)
            loaded.writer.write(made, batch)
            tally = loaded.learn(collect(tallies.value))
            self._spill(made, tally.spilled)
            return tally
        kept = made.persist()
        try:
            kept.count()
            tally = loaded.learn(collect(tallies.value))
            if not pinned:
                check_ratio(tally, loaded.plan.settings.dead_letters.max_ratio)
                self._state.pin(self.name, number, loaded.plan.id)
            held = self._ordering.hold_back(kept, batch, loaded.plan, dead=tally.dead)
            self._spill(kept, tally.spilled)
            refused = loaded.writer.write(kept, batch, held)
            if refused.letters is not None:
                tally.refuse(refused.counts, REASON)
                self._spill(refused.letters, loaded.writer.may_spill)
            self._ordering.settle(kept, batch, loaded.plan, refused, dead=tally.dead)
            return tally
        finally:
            kept.unpersist()

    def _spill(self, rows: DataFrame, any_spilled: bool | int) -> None:
        """Keep dead letters that no topic takes in files, before Spark commits the batch that refers to them."""
        if not any_spilled:
            return
        for letter, line in spilled_records(rows, self.kind):
            self._state.spill(letter, line)
            _log.warning(
                "dead letter too large for its topic", query=self.name, letter=letter, file=f"spill/{letter}.json"
            )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def check_ratio(tally: Tally, most: float | None) -> None:
    """Raise :class:`TooManyLetters` when dead letters make up more of a batch than the circuit breaker allows."""
    if most is not None and tally.total and tally.dead / tally.total > most:
        raise TooManyLetters(
            f"{tally.dead} of {tally.total} records would be dead letters, more than dead_letters.max_ratio {most:g}; "
            "mend the catalog or raise the limit"
        )
