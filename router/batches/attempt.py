"""One attempt at a batch, or at a part of one: the way of all that is judged and written, as steps.

| step | what it promises, also when the process dies right behind it |
|---|---|
| ``evaluate`` | no sink has anything; every record is judged once. Files may be staged that no reader knows |
| ``look`` | nothing is written; the batch may still be held, cut, or judged by another plan |
| ``pin`` | the plan that judges the batch is durable, and judges every further try |
| ``hold_back`` | the records that wait for dead letters of their keys are durable, and the same in every further try |
| ``set_aside`` | the sinks that get dead letters in place of events are durable, and the same in every further try |
| ``send_events`` | each sink before the one in the way has its events: tables once, message targets at least once |
| ``spill`` | what no topic takes is in files, before any topic has a letter that refers to one |
| ``send_letters`` | each sink has its dead letters, which says that all sinks have their events |
| ``relate`` | what pairs records with others is durable, once, however often the batch comes |
| ``settle`` | what others ask of the batch (order of keys, ledger of letters) is durable, before its source commits |

Which of them a batch takes: a new one all but ``set_aside``; one that an operator set aside has ``withhold_events`` for
``send_events``; where one write serves all sinks, it is all between ``pin`` and the counts, and judges on its way; a
replay writes no letters, since its records have theirs. What a step has to note is with its :class:`Journal`; what it
has to write with the :class:`~router.writing.writer.BatchWriter`; and records with the
:class:`~router.writing.outcomes.Outcomes`, wherever these are.
"""

# Small: it is the way of a batch, on one screen.

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import ClassVar

from router.judging.outputs import Tally
from router.writing.outcomes import NOTHING, REASON, HeldBack, Outcomes, Receipts, Rejections
from router.writing.staging import BatchId
from router.writing.writer import BatchWriter


class Journal:
    """Keeps notes of an attempt, besides what its sinks have. This one keeps none; further attempts repeat all."""

    __slots__ = ()
    writes_letters: ClassVar[bool] = True
    """Whether what is no event is written as dead letters."""

    @property
    def at_once(self) -> bool:
        """Whether the batch leaves in one pass, with no look at it before."""
        return False

    @property
    def only(self) -> Container[str] | None:
        """The sinks that get events; None for all of the routes."""
        return None

    def look(self, tally: Tally) -> None:
        """Step: raise what is to keep the batch from being written, as it was judged."""

    def pin(self, outcomes: Outcomes) -> None:
        """Step: note what judged the batch."""

    def hold_back(self, outcomes: Outcomes, tally: Tally) -> HeldBack:
        """Step: decide which records go to no sink, since one before them is a dead letter."""
        return NOTHING

    def set_aside(self) -> Mapping[str, str] | None:
        """Step: decide which sinks get dead letters in place of their events, and why; None when none does."""
        return None

    def spill(self, letters: Outcomes, tally: Tally, rejections: Rejections | None = None) -> None:
        """Step: keep dead letters in files that no topic takes."""

    def relate(self, outcomes: Outcomes) -> None:
        """Step: pair the records with others."""

    def settle(self, outcomes: Outcomes, tally: Tally, rejections: Rejections) -> None:
        """Step: note what became of the records, when all of it is written."""


def attempt(outcomes: Outcomes, batch: BatchId, writer: BatchWriter, journal: Journal) -> Tally:
    """Judge and write a batch once, and return its counts. Repeating is safe after any error and any crash.

    Raises:
        SinkError: a sink is in the way; those before it have their share.
        Exception: what the journal's ``look`` raises; nothing has been written by this attempt.
    """
    receipts = Receipts()
    if journal.at_once:
        journal.pin(outcomes)
        writer.send_all(outcomes)
        tally = outcomes.tally()
        receipts.settle(tally, writer.routes)
        journal.spill(outcomes, tally)
        return tally
    try:
        tally = outcomes.evaluate()
        journal.look(tally)
        journal.pin(outcomes)
        reached = {route for (_, route), (count, _) in tally.routes.items() if count}
        aside = journal.set_aside()
        held = journal.hold_back(outcomes, tally)
        events = held.left(outcomes)
        if aside is None:
            rejections = writer.send_events(events, batch, journal.only, receipts, reached)
        else:
            rejections = writer.withhold_events(events, batch, aside)
        writer.reject_held(rejections, held, batch, receipts)
        tally.reject(rejections.counts, REASON)
        if journal.writes_letters:
            letters = outcomes.letters(rejections)
            journal.spill(letters, tally, rejections)
            writer.send_letters(letters, batch, receipts, reached | rejections.routes)
            receipts.settle(tally, writer.routes, rejections)
        journal.relate(outcomes)
        journal.settle(outcomes, tally, rejections)
        return tally
    finally:
        outcomes.release()
