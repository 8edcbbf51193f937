"""Replaying one batch of dead letters: judged, written to its sinks, settled in the ledger.

The batch is durable in the ledger before its first write, with the plan that judges it, and settled after its last, so
that one which was cut off is repeated by the next replay as it was. Tables know the repeat by the ledger's id and the
batch's number; message targets get it at least once. A letter that stays one is not written again: the ledger counts
the attempt. Of letters that wait for each other (:mod:`router.state.key_order`), those behind one that stays dead are
not sent and count no attempt; what a sink rejects while the batch is written holds them up from the next batch on.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from router.batches.attempt import Journal, attempt
from router.batches.holding import pauses
from router.batches.parts import Part
from router.batches.plans import LoadedPlan, load
from router.errors import SinkError
from router.faults import registry_away
from router.judging.plan import Plan
from router.judging.tally import Tally
from router.letters.letter import Letter
from router.replay.rows import rows_of
from router.state.key_order import held_up
from router.state.ledger import LetterLedger, Outcome, PendingReplay
from router.writing.commits import Batch
from router.writing.ordering import HeldBack, HeldRecord
from router.writing.outcomes import Decision, Outcomes
from router.writing.rejections import REASON, Rejections, detail_of

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

QUERY: Final = "replay"


class Interrupted(Exception):
    """A replay was asked to end while a sink was away; its batch stays pending in the ledger."""


@dataclass(slots=True)
class Summary:
    """What a replay did: letters routed, by definition; still dead, by reason; parked, and gone before their turn.

    ``held`` are those that were not tried, since an earlier one of their key in the same batch stays dead.
    """

    routed: Counter[str] = field(default_factory=Counter)
    dead: Counter[str] = field(default_factory=Counter)
    parked: int = 0
    gone: int = 0
    held: int = 0

    @property
    def settled(self) -> int:
        """Letters that were tried."""
        return self.routed.total() + self.dead.total()


@dataclass(slots=True)
class ReplayJournal(Journal):
    """The journal of an attempt at a replay batch, which the ledger has with the plan that judges it.

    Its letters stand where they are, so none is written: the ledger settles what became of each.
    """

    writes_letters = False
    ledger: LetterLedger
    plan: Plan
    pending: PendingReplay
    letters: Sequence[Letter]
    keys: Mapping[str, str]
    summary: Summary
    decisions: list[Decision] = field(default_factory=list)
    held: set[str] = field(default_factory=set)

    @property
    def only(self) -> Container[str] | None:
        """The sinks that lack the records, where others have them."""
        return frozenset(self.pending.sinks) or None

    def hold_back(self, outcomes: Outcomes, tally: Tally) -> HeldBack:
        """Decide which letters wait for one of their key that stays dead; a repeat judges them alike."""
        self.decisions = outcomes.decisions()
        lasting = (each.letter for each in self._outcomes(self.letters, {}) if each.reason)
        self.held = held_up((letter.id for letter in self.letters), lasting, self.keys)
        return HeldBack(tuple(HeldRecord(each, "") for each in self.decisions if each.letter in self.held))

    def settle(self, outcomes: Outcomes, tally: Tally, rejections: Rejections) -> None:
        """Settle the batch in the ledger, durably: from then on no replay repeats it, and its letters count as tried.

        Raises:
            StateError: the ledger cannot be written; nothing is settled.
        """
        tried = [letter for letter in self.letters if letter.id not in self.held]
        settled = list(self._outcomes(tried, rejections.details))
        finish(self.ledger, self.plan, self.pending, settled, self.summary)
        routed = {outcome.letter for outcome in settled if outcome.reason is None}
        self.summary.routed.update(each.message for each in self.decisions if each.letter in routed)
        self.summary.held += len(self.held)

    def _outcomes(self, letters: Sequence[Letter], details: Mapping[str, str]) -> Iterable[Outcome]:
        return _outcomes_of(letters, self.decisions, details, self.plan, self.pending.sinks)


Held = Callable[[str, float], None]
"""Called with the reason why a batch is held, and the seconds until it is tried again."""


class Loads:
    """The plan that was loaded last in a session, for the next replay in it; of one thread at a time."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark: Final = spark
        self._last: LoadedPlan | None = None
        # Spark keeps each to its end, so that all plans have them in common.
        self._tallies: dict[str, Accumulator[dict[str, str]]] = {}

    def of(self, plan: Plan) -> LoadedPlan:
        """Return a plan, loaded."""
        if self._last is None or self._last.plan.id != plan.id:
            self._last = load(self.spark, plan, lambda sink, result: None, self._tallies)
        return self._last


class Replayer:
    """Replays batches in one Spark session; of one thread. *held* is called while a sink keeps a batch waiting."""

    def __init__(self, loads: Loads, ledger: LetterLedger, stop: threading.Event, held: Held) -> None:
        self._loads = loads
        self._ledger = ledger
        self._stop = stop
        self._held = held

    def replay(self, plan: Plan, pending: PendingReplay, letters: Sequence[Letter], summary: Summary) -> None:
        """Write and settle a batch that has been begun; *letters* are those of it that are still there.

        Raises:
            Interrupted: *stop* was set while a sink, or a schema registry, was away; nothing is settled.
        """
        summary.gone += len(pending.letters) - len(letters)
        if not letters:
            finish(self._ledger, plan, pending, (), summary)
            return
        loaded = self._loads.of(plan)
        for pause in pauses():
            try:
                self._attempt(loaded, pending, letters, summary)
                return
            except SinkError as error:
                self._held(str(error), pause)
            except Exception as error:
                if not (away := registry_away(error)):
                    raise
                self._held(away, pause)
            if self._stop.wait(pause):
                raise Interrupted

    def _attempt(self, loaded: LoadedPlan, pending: PendingReplay, letters: Sequence[Letter], summary: Summary) -> None:
        keys = self._ledger.order.keys(letter.id for letter in letters)
        rows = self._loads.spark.createDataFrame(rows_of(letters))
        # Letters of a key go in order of arrival, which several tasks would not keep.
        rows = rows.coalesce(1) if keys else rows
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        batch = Batch("letters", QUERY, f"replay-{self._ledger.id}", pending.number, now)
        journal = ReplayJournal(self._ledger, loaded.plan, pending, letters, keys, summary)
        attempt(loaded.outcomes(rows, batch, Part(), arrived=False), batch, loaded.writer, journal)


def finish(
    ledger: LetterLedger, plan: Plan, pending: PendingReplay, outcomes: Sequence[Outcome], summary: Summary
) -> None:
    """Settle a batch in the ledger, and park letters that failed too often."""
    ledger.finish(pending.number, outcomes, datetime.now(UTC))
    dead = [outcome for outcome in outcomes if outcome.reason is not None]
    summary.dead.update(outcome.reason for outcome in dead if outcome.reason is not None)
    entries = ledger.entries(outcome.letter for outcome in dead)
    most = plan.settings.dead_letters.max_replays
    summary.parked += ledger.park(each.letter for each in dead if entries[each.letter].attempts >= most)


def _outcomes_of(
    letters: Sequence[Letter],
    decisions: Iterable[Decision],
    details: Mapping[str, str],
    plan: Plan,
    only: Sequence[str],
) -> Iterator[Outcome]:
    """Return what became of each letter; *details* are of records that a sink rejected, by position."""
    decided: dict[str, list[Decision]] = {}
    for each in decisions:
        decided.setdefault(each.letter, []).append(each)
    for letter in letters:
        rows = decided.get(letter.id, [])
        dead = next((row for row in rows if row.route < 0), None)
        rejected = next((details[row.position] for row in rows if row.position in details), None)
        if not rows:
            yield Outcome(letter.id, letter.reason, "nothing came of it")
        elif dead is not None:
            yield Outcome(letter.id, dead.reason, dead.detail)
        elif rejected is not None:
            yield Outcome(letter.id, REASON, rejected)
        elif only and not set(only) & set(plan.settings.routes[rows[0].route].to):
            # It may have been given another name; to call the letter settled would lose the record there.
            why = "is not in the route of the record any more, so nothing was sent"
            yield Outcome(letter.id, REASON, detail_of(dict.fromkeys(only, why)))
        else:
            yield Outcome(letter.id)
