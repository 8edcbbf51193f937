"""One attempt to judge and write a batch, or a part of it.

A batch is pinned, durably, to the plan that judges it after the last look that may hold it unwritten, and before its
first write. Records that wait for dead letters of their keys are held back (:mod:`router.writing.ordering`). One that
an operator has set aside is written to the dead letters instead, as far as its sinks do not have it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from router.batches.bounding import Bounding
from router.batches.parts import Part
from router.batches.plans import LoadedPlan
from router.judging.condemning import condemned, raw_records
from router.judging.judging import Tallies
from router.judging.stages import judged, prepared, unified
from router.judging.tally import Tally, collect
from router.logs import get_logger
from router.state.notes import BatchNotes, Park
from router.state.state import State
from router.writing.commits import Batch
from router.writing.ordering import Ordering
from router.writing.refusals import REASON, Refused
from router.writing.render import spilled_records
from router.writing.writer import BatchWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ASIDE: Final = "set aside by an operator"
_log = get_logger()


class TooManyLetters(Exception):
    """The circuit breaker: a batch that would flood the dead letters is held before its first write."""


class Attempts:
    """Attempts at the batches of one query."""

    def __init__(self, state: State, notes: BatchNotes, ordering: Ordering, bounding: Bounding) -> None:
        self._state = state
        self._notes = notes
        self._ordering = ordering
        self._bounding = bounding

    def write(self, rows: DataFrame, batch: Batch, loaded: LoadedPlan, part: Part) -> Tally:
        """Judge and write the rows of a part once, and return their counts. Repeating is safe.

        Raises:
            SinkError: a sink is in the way.
            TooManyLetters: the circuit breaker; nothing has been written.
            TooLarge: it is to be cut; nothing has been written by this attempt.
        """
        pinned = self._state.pinned(batch.query, batch.number) is not None
        made, counted = self._outcomes(rows, batch, loaded, part, arrived=loaded.writer.may_refuse)
        if loaded.writer.one_pass:
            self._pin(batch, loaded)
            loaded.writer.write(made, batch)
            tally = counted()
            self._spill(made, batch, tally.spilled)
            return tally
        kept = made.persist()
        try:
            kept.count()
            tally = counted()
            self._bounding.check(tally, batch.number, part)
            # A letter of our own making says nothing of the catalog.
            if not pinned and not part.condemned:
                check_ratio(tally, loaded.plan.settings.dead_letters.max_ratio)
            self._pin(batch, loaded)
            held = self._ordering.hold_back(kept, batch, loaded.plan, dead=tally.dead)
            self._spill(kept, batch, tally.spilled)
            refused = loaded.writer.write(kept, batch, held)
            self._refused(refused, batch, loaded, tally)
            self._ordering.settle(kept, batch, loaded.plan, refused, dead=tally.dead)
            return tally
        finally:
            kept.unpersist()

    def set_aside(self, rows: DataFrame, batch: Batch, loaded: LoadedPlan, part: Part, park: Park) -> Tally:
        """Write dead letters in place of the events that sinks lack; which ones is durable before the first write.

        Raises:
            SinkError: a sink of dead letters is in the way.
        """
        made, counted = self._outcomes(rows, batch, loaded, part, arrived=True)
        kept = made.persist()
        try:
            kept.count()
            tally = counted()
            self._pin(batch, loaded)
            lacking = park.lacking if park.part == batch.label else None
            if lacking is None:
                lacking = self._lacking(loaded.writer, batch)
                noted = replace(park, lacking=lacking, part=batch.label)
                self._notes.park(batch.query, batch.number, noted)
            self._spill(kept, batch, tally.spilled)
            held = self._ordering.noted(kept, batch, loaded.plan)
            refused = loaded.writer.set_aside(kept, batch, lacking, held)
            self._refused(refused, batch, loaded, tally)
            self._ordering.settle(kept, batch, loaded.plan, refused, dead=tally.dead)
            _log.warning("batch set aside", query=batch.query, batch=batch.number, letters=refused.counts.total())
            return tally
        finally:
            kept.unpersist()

    def _outcomes(
        self, rows: DataFrame, batch: Batch, loaded: LoadedPlan, part: Part, *, arrived: bool
    ) -> tuple[DataFrame, Callable[[], Tally]]:
        """Return the outcomes of a part, and what gives their counts once they were evaluated."""
        source = prepared(rows, batch.kind)
        if part.condemned:
            if part.bare:
                self._keep_raw(source, batch)
            outcomes, known = condemned(source, batch.kind, loaded.plan, part.condemned, bare=part.bare)
            return unified(outcomes, batch.kind, batch.query, arrived=arrived), lambda: known
        counts = rows.sparkSession.sparkContext.accumulator([], Tallies())
        outcomes = judged(source, batch.kind, loaded.judge, counts, loaded.layouts)
        made = unified(outcomes, batch.kind, batch.query, arrived=arrived)
        return made, lambda: loaded.learn(collect(counts.value))

    def _pin(self, batch: Batch, loaded: LoadedPlan) -> None:
        if self._state.pinned(batch.query, batch.number) is None:
            self._state.pin(batch.query, batch.number, loaded.plan.id, loaded.plan.to_bytes())

    def _lacking(self, writer: BatchWriter, batch: Batch) -> dict[str, str]:
        """Return the sinks that do not have their events of the batch, each with what a letter is to say of it."""
        if writer.has_letters(batch):
            return {}
        held = self._notes.held(batch.query, batch.number, batch.generation)
        noted = held.taken if held and held.part == batch.label else ()
        taken = writer.taken(batch).union(noted)
        why = {held.sink: f"{ASIDE}: {held.reason.removeprefix(f'sink {held.sink}: ')}"} if held and held.sink else {}
        return {name: why.get(name, ASIDE) for name in writer.lacking(taken)}

    def _refused(self, refused: Refused, batch: Batch, loaded: LoadedPlan, tally: Tally) -> None:
        if refused.letters is not None:
            tally.refuse(refused.counts, REASON)
            self._spill(refused.letters, batch, loaded.writer.may_spill)

    def _spill(self, rows: DataFrame, batch: Batch, any_spilled: bool | int) -> None:
        """Keep dead letters that no topic takes in files, before Spark commits the batch that refers to them."""
        if not any_spilled:
            return
        for letter, line in spilled_records(rows, batch.kind):
            self._state.spill(letter, line)
            _log.warning(
                "dead letter too large for its topic", query=batch.query, letter=letter, file=f"spill/{letter}.json"
            )

    def _keep_raw(self, rows: DataFrame, batch: Batch) -> None:
        for name, line in raw_records(rows, batch.kind, batch.query):
            self._state.spill(f"{name}.raw", line)
            _log.warning("record kept as it came", query=batch.query, letter=name, file=f"spill/{name}.raw.json")


def check_ratio(tally: Tally, most: float | None) -> None:
    """Raise :class:`TooManyLetters` when dead letters make up more of a batch than the circuit breaker allows."""
    if most is not None and tally.total and tally.dead / tally.total > most:
        raise TooManyLetters(
            f"{tally.dead} of {tally.total} records would be dead letters, more than dead_letters.max_ratio {most:g}; "
            "mend the catalog or raise the limit"
        )
