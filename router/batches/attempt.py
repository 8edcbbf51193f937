"""One attempt at a batch, or at a part of one: the steps of evaluating and writing it.

| step | guaranteed after it, also if the process dies right then |
|---|---|
| ``evaluate`` | no sink has anything; each record is evaluated once. Staged files are invisible to readers |
| ``look`` | nothing is written; the batch may still be blocked, split, or evaluated with another plan |
| ``pin`` | the plan of the batch is durable, and used by every retry |
| ``hold_back`` | the records that wait for a dead letter of their key are durable, and the same in every retry |
| ``set_aside`` | the sinks that get dead letters instead of events are durable, and the same in every retry |
| ``send_events`` | each sink before the failing one has its events: tables once, message targets at least once |
| ``spill`` | dead letters too large for a topic are in files, before a topic has one that refers to a file |
| ``send_letters`` | each sink has its dead letters, which proves that all sinks have their events |
| ``relate`` | what pairs records with others is durable, once, however often the batch is repeated |
| ``settle`` | key order and states of dead letters are durable, before the source commits |

A new batch takes all steps but ``set_aside``. One that an operator moves to dead letters has ``withhold_events``
instead of ``send_events``. If one write serves all sinks, it is the only step between ``pin`` and the counts, and
evaluates on the way. A replay writes no dead letters, since its records have theirs. A :class:`Journal` stores what a
step must remember, a :class:`~router.writing.writer.BatchWriter` writes, and
:class:`~router.writing.outcomes.Outcomes` have the records.
"""

# Small: the steps of a batch, on one screen.

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import ClassVar

from router.evaluation.outputs import Tally
from router.writing.outcomes import NOTHING_HELD, SINK_REJECTED, HeldBack, Outcomes, Receipts, Rejections
from router.writing.staging import BatchId
from router.writing.writer import BatchWriter


class Journal:
    """Stores what an attempt must remember besides what sinks have. This one stores nothing: retries repeat all."""

    __slots__ = ()
    writes_letters: ClassVar[bool] = True
    """Whether records without an event are written as dead letters."""

    @property
    def at_once(self) -> bool:
        """Whether one write evaluates the batch and serves all sinks."""
        return False

    @property
    def only(self) -> Container[str] | None:
        """The sinks that get events; None for all of the routes."""
        return None

    def look(self, tally: Tally) -> None:
        """Step: raise if the evaluated batch must not be written."""

    def pin(self, outcomes: Outcomes) -> None:
        """Step: store the plan that evaluated the batch."""

    def hold_back(self, outcomes: Outcomes, tally: Tally) -> HeldBack:
        """Step: decide which records go to no sink because an earlier record of their key is a dead letter."""
        return NOTHING_HELD

    def set_aside(self) -> Mapping[str, str] | None:
        """Step: return the sinks that get dead letters instead of events, each with the reason; None if none does."""
        return None

    def spill(self, letters: Outcomes, tally: Tally, rejections: Rejections | None = None) -> None:
        """Step: write dead letters to files that are too large for their topics."""

    def relate(self, outcomes: Outcomes) -> None:
        """Step: pair the records with others."""

    def settle(self, outcomes: Outcomes, tally: Tally, rejections: Rejections) -> None:
        """Step: store the outcomes of the records, after all writes."""


def attempt(outcomes: Outcomes, batch: BatchId, writer: BatchWriter, journal: Journal) -> Tally:
    """Evaluate and write a batch once, and return its counts. Safe to repeat after any error or crash.

    Raises:
        SinkError: a sink failed; the sinks before it have their share.
        Exception: the journal's ``look`` raised; this attempt has written nothing.
    """
    receipts = Receipts()
    if journal.at_once:
        journal.pin(outcomes)
        writer.send_all(outcomes)
        tally = outcomes.tally()
        receipts.add_to_tally(tally, writer.routes)
        journal.spill(outcomes, tally)
        return tally
    try:
        tally = outcomes.evaluate()
        journal.look(tally)
        journal.pin(outcomes)
        reached = {route for (_, route), (count, _) in tally.routes.items() if count}
        aside = journal.set_aside()
        held = journal.hold_back(outcomes, tally)
        events = held.remaining(outcomes)
        if aside is None:
            rejections = writer.send_events(events, batch, journal.only, receipts, reached)
        else:
            rejections = writer.withhold_events(events, batch, aside)
        writer.reject_held(rejections, held, batch, receipts)
        tally.reject(rejections.counts, SINK_REJECTED)
        if journal.writes_letters:
            letters = outcomes.select_dead_letters(rejections)
            journal.spill(letters, tally, rejections)
            writer.send_dead_letters(letters, batch, receipts, reached | rejections.dead_letter_routes)
            receipts.add_to_tally(tally, writer.routes, rejections)
        journal.relate(outcomes)
        journal.settle(outcomes, tally, rejections)
        return tally
    finally:
        outcomes.release()
