"""The order of records of one key, when ``dead_letters.order`` is ``park`` (deploy/OPERATIONS.md#dead-letters).

A record whose key has an earlier dead letter is *held back*: no sink gets it, and it becomes a dead letter as well, one
that waits for the first. Which records those are is settled before the first write of a batch, in this order: the keys
that were blocked are noted beside the batch's pin, so that every try of it holds back the same records whatever a
replay frees meanwhile; the letters to come take their places in the ledger, where they block the key for later
batches; then sinks and dead letters are written; then the letters take their places once more, with those of records
that a sink turned down. What a sink turns down while a batch is written therefore holds back later records from the
next batch on, not those that the same write sent.

A replay that caught up with all letters of a key but those that still come says so, and batches with records of that
key wait for its end. Otherwise a key that always has records would never be free again.

The driver sees only those rows of a batch whose key is blocked or has a dead letter in it, without their bodies. A key
is the event's ``partitionkey``, else the key that the record came with; a record without one is never held back.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from router.judging.plan import Plan
from router.logs import get_logger
from router.sinks.contract import Rejected
from router.state.key_order import waits_for
from router.state.ledger import LetterLedger
from router.state.notes import BatchNotes
from router.state.state import State
from router.writing.commits import Batch
from router.writing.outcomes import Decision, Outcomes
from router.writing.rejections import Rejections

PATIENCE_SECONDS: Final = 60.0
"""Longest time in which a batch waits for a replay that is about to free one of its keys."""
LOOK_SECONDS: Final = 0.1
_NUMBERS: Final = re.compile(r"((?:-\d+)*)(?:#(\d+))?\Z")
_log = get_logger()


@dataclass(frozen=True, slots=True)
class HeldRecord:
    """A routed record that waits for the dead letter ``behind``."""

    decision: Decision
    behind: str


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The records of a batch that no sink gets, since an earlier one of their key is a dead letter."""

    records: tuple[HeldRecord, ...] = ()

    def left(self, outcomes: Outcomes) -> Outcomes:
        """Return the outcomes of the batch without those that are held back, in their order."""
        return outcomes.without([each.decision.letter for each in self.records])

    def share(self, routes: Collection[int]) -> Iterator[Rejected]:
        """Yield what a sink that these routes lead to would have got of them, as rejected."""
        for each in self.records:
            held = each.decision
            if held.route in routes:
                yield Rejected(held.position, waits_for(each.behind), held.endpoint, held.message)


NOTHING: Final = HeldBack()


class Ordering:
    """Holds back records of one query, by the settings of each batch's plan; under ``continue`` it does nothing."""

    def __init__(self, state: State, query: str, notes: BatchNotes, pause: Callable[[float], None]) -> None:
        """*pause* waits so many seconds, or raises what is to end the batch before its first write."""
        self._pause = pause
        self._root = state.root
        self._query = query
        self._notes = notes

    def hold_back(self, outcomes: Outcomes, batch: Batch, plan: Plan, *, dead: int) -> HeldBack:
        """Return which records of a batch wait; before its first write, when it was judged and is pinned.

        *dead* is how many dead letters the batch has. Repeating gives the same.

        Raises:
            StateError: the note or the ledger cannot be read or written; nothing has been decided then.
        """
        if not _parks(plan):
            return NOTHING
        noted = self._blocked(batch)
        blocked = self._heads(()) if noted is None else noted
        suspects = _suspects(outcomes, blocked, dead=dead)
        if noted is None:
            keys = {each.key for each in suspects}
            blocked = self._heads(keys)
            met = {key: blocked[key] for key in keys & blocked.keys()}
            self._notes.block(self._query, batch.number, batch.generation, met, batch.label)
        held = _held(suspects, blocked)
        waiting = {each.decision.letter for each in held.records}
        self._arrived(each for each in suspects if each.route < 0 or each.letter in waiting)
        if held.records:
            _log.info("records wait for dead letters of their keys", query=self._query, records=len(held.records))
        return held

    def noted(self, outcomes: Outcomes, batch: Batch, plan: Plan) -> HeldBack:
        """Return which records of a batch waited when it was first written; none if it was never written."""
        blocked = self._blocked(batch) if _parks(plan) else None
        return NOTHING if blocked is None else _held(_suspects(outcomes, blocked, dead=1), blocked)

    def settle(self, outcomes: Outcomes, rejections: Rejections, plan: Plan, *, dead: int) -> None:
        """Let all dead letters of a batch with a key block it; after they are written, before Spark commits the batch.

        Repeating it changes nothing, except that letters that were replayed in between do not block any more.

        Raises:
            StateError: the ledger cannot be written.
        """
        if _parks(plan) and dead:
            self._arrived(outcomes.letters(rejections).keyed())

    def _blocked(self, batch: Batch) -> dict[str, str] | None:
        return self._notes.blocked(self._query, batch.number, batch.generation, batch.label)

    def _heads(self, keys: Collection[str]) -> dict[str, str]:
        """Return the blocked keys, but first wait for a replay that is about to free one of *keys*."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with LetterLedger.open(self._root, create=False) as ledger:
                heads = ledger.order.heads()
                freeing = ledger.order.catching() & heads.keys() & set(keys)
                # The word of a replay that was killed does not count.
                if not freeing or not ledger.is_locked or time.monotonic() >= deadline:
                    return heads
            self._pause(LOOK_SECONDS)

    def _arrived(self, letters: Iterable[Decision]) -> None:
        ordered = sorted(letters, key=lambda each: in_order(each.position))
        if ordered:
            with LetterLedger.open(self._root) as ledger:
                ledger.order.arrived((each.key, each.letter) for each in ordered)


def in_order(position: str) -> tuple[str, tuple[int, ...], int]:
    """Return what sorts positions as records arrived: its numbers (partition, then offset or segment and row)."""
    match = _NUMBERS.search(position)
    assert match is not None  # It also matches nothing.
    numbers = tuple(int(text) for text in match[1].split("-")[1:])
    return position[: match.start()], numbers, int(match[2] or -1)


def _parks(plan: Plan) -> bool:
    return plan.settings.dead_letters.order == "park"


def _suspects(outcomes: Outcomes, blocked: Mapping[str, str], *, dead: int) -> list[Decision]:
    """Return the records of keys that are blocked, or have a dead letter in the batch, as they arrived."""
    keys = set(blocked)
    if dead:
        keys.update(each.key for each in outcomes.letters().keyed())
    return sorted(outcomes.keyed(keys), key=lambda each: in_order(each.position)) if keys else []


def _held(suspects: Iterable[Decision], blocked: Mapping[str, str]) -> HeldBack:
    """Return the routed records that come after a dead letter of their key; *suspects* are in order."""
    heads = dict(blocked)
    held: list[HeldRecord] = []
    for each in suspects:
        if each.route < 0:
            heads.setdefault(each.key, each.letter)
        elif each.key in heads:
            held.append(HeldRecord(each, heads[each.key]))
    return HeldBack(tuple(held))
