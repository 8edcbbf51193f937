"""What a running router notes of an attempt besides what its sinks have: pins, holds, blocked keys, spilled letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from router.batches.attempt import Journal
from router.batches.bounding import Bounding
from router.batches.parts import Part
from router.batches.plans import LoadedPlan
from router.judging.tally import Tally
from router.logs import get_logger
from router.relating.pairing import NAME as PAIRS
from router.relating.pairing import Pairing
from router.state.notes import BatchNotes, Park
from router.state.state import State
from router.writing.commits import Batch, commit_of
from router.writing.ordering import HeldBack, Ordering
from router.writing.outcomes import Outcomes
from router.writing.rejections import Rejections

ASIDE: Final = "set aside by an operator"
_log = get_logger()


class TooManyLetters(Exception):
    """The circuit breaker: a batch that would flood the dead letters is held before its first write."""


@dataclass(slots=True)
class BatchJournal(Journal):
    """The journal of one attempt at a part of a batch; with *park* the part is set aside."""

    state: State
    notes: BatchNotes
    ordering: Ordering
    bounding: Bounding
    batch: Batch
    loaded: LoadedPlan
    part: Part
    park: Park | None
    pairing: Pairing | None = None

    @property
    def at_once(self) -> bool:
        """Whether one write serves all sinks; what is not judged at all takes one for each."""
        return self.loaded.one_pass and self.park is None and not self.part.condemned

    @property
    def may_reject(self) -> bool:
        """Whether routed records may become dead letters after all."""
        return self.loaded.writer.may_reject or self.park is not None

    def look(self, tally: Tally) -> None:
        """Look at what was judged, when nothing of the batch is written yet.

        Raises:
            TooLarge: it is to be cut.
            SinkError: the sink of pairs is too far behind.
            TooManyLetters: the circuit breaker. A batch that was pinned has passed it, and a letter of our own making
                says nothing of the catalog.
        """
        if self.park is not None:
            return
        self.bounding.check(tally, self.batch.number, self.part)
        if self.pairing is not None:
            self.pairing.require_room()
        pinned = self.state.pinned(self.batch.query, self.batch.number) is not None
        if not pinned and not self.part.condemned:
            check_ratio(tally, self.loaded.plan.settings.dead_letters.max_ratio)

    def pin(self, outcomes: Outcomes) -> None:
        """Note the plan, durably, unless an earlier attempt did; and keep in files what a bare letter leaves out."""
        for name, line in outcomes.left_out():
            self._keep(f"{name}.raw", line, "record kept as it arrived", letter=name)
        if self.state.pinned(self.batch.query, self.batch.number) is None:
            plan = self.loaded.plan
            self.state.pin(self.batch.query, self.batch.number, plan.id, plan.to_bytes())

    def hold_back(self, outcomes: Outcomes, tally: Tally) -> HeldBack:
        """Decide, durably, which records wait for dead letters of their keys; of a batch set aside, as was decided."""
        if self.park is not None:
            return self.ordering.noted(outcomes, self.batch, self.loaded.plan)
        return self.ordering.hold_back(outcomes, self.batch, self.loaded.plan, dead=tally.dead)

    def set_aside(self) -> Mapping[str, str] | None:
        """Decide, durably, which sinks do not have their events, each with what a letter is to say of it."""
        if self.park is None:
            return None
        if self.park.lacking is not None and self.park.part == self.batch.label:
            return self.park.lacking
        lacking = self._lacking()
        noted = replace(self.park, lacking=lacking, part=self.batch.label)
        self.notes.park(self.batch.query, self.batch.number, noted)
        return lacking

    def spill(self, letters: Outcomes, tally: Tally, rejections: Rejections | None = None) -> None:
        """Keep letters that no topic takes in files, durably, before Spark commits the batch that refers to them.

        In one pass a topic may have the letter a moment before the file is there.
        """
        if tally.spilled or (rejections and self.loaded.writer.may_spill):
            for letter, line in letters.spilled():
                self._keep(letter, line, "dead letter too large for its topic", letter=letter)

    def relate(self, outcomes: Outcomes) -> None:
        """Hand over what pairs the records with others, if the plan that judged them has such columns."""
        if self.pairing is not None and self.loaded.plan.pairs:
            commit = commit_of(PAIRS, self.batch)
            self.pairing.take(outcomes.exchanges(), commit, self.batch.query, self.loaded.plan.epoch)

    def settle(self, outcomes: Outcomes, tally: Tally, rejections: Rejections) -> None:
        """Let the letters block their keys, durably."""
        self.ordering.settle(outcomes, rejections, self.loaded.plan, dead=tally.dead)
        if self.park is not None:
            count = rejections.counts.total()
            _log.warning("batch set aside", query=self.batch.query, batch=self.batch.number, letters=count)

    def _lacking(self) -> dict[str, str]:
        writer, batch = self.loaded.writer, self.batch
        if writer.has_letters(batch):
            return {}
        held = self.notes.held(batch.query, batch.number, batch.generation)
        noted = held.taken if held and held.part == batch.label else ()
        taken = writer.taken(batch).union(noted)
        why = {held.sink: f"{ASIDE}: {held.reason.removeprefix(f'sink {held.sink}: ')}"} if held and held.sink else {}
        return {name: why.get(name, ASIDE) for name in writer.lacking(taken)}

    def _keep(self, name: str, line: bytes, what: str, *, letter: str) -> None:
        self.state.spill(name, line)
        _log.warning(what, query=self.batch.query, letter=letter, file=f"spill/{name}.json")


def check_ratio(tally: Tally, most: float | None) -> None:
    """Raise :class:`TooManyLetters` when dead letters make up more of a batch than the circuit breaker allows."""
    if most is not None and tally.total and tally.dead / tally.total > most:
        raise TooManyLetters(
            f"{tally.dead} of {tally.total} records would be dead letters, more than dead_letters.max_ratio {most:g}; "
            "mend the catalog or raise the limit"
        )
