"""Replay one batch of dead letters: evaluate, write to sinks, record in the ledger.

The batch is durable in the ledger before its first write, with the plan that judges it, and settled after its last, so
that one which was cut off is repeated by the next replay as it was. Tables know the repeat by the ledger's id and the
batch's number; message targets get it at least once. A letter that stays one is not written again: the ledger counts
the attempt. Of letters that wait for each other (:mod:`router.state.ledger`), those behind one that stays dead
are not sent and count no attempt; what a sink rejects while the batch is written holds them up from the next batch on.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeAlias

import pyarrow as pa

from router.batches.batch import Batch
from router.batches.plans import LoadedPlan, PlanCache
from router.batches.splitting import BatchPart
from router.batches.waiting import pauses
from router.dead_letters.dead_letter import DeadLetter, rows_of
from router.dead_letters.reading import DeadLetterFilter, get_standing, join_ledger_entries
from router.errors import SinkError, find_lost_registry
from router.evaluation.evaluator import INBOX_COLUMNS, evaluate
from router.evaluation.plan import Plan
from router.state.ledger import (
    HELD,
    LedgerEntry,
    LetterLedger,
    Outcome,
    PendingReplay,
    ReplayOrder,
    held_up,
    only_waits,
)
from router.writing.outcomes import SINK_REJECTED, HeldBack, RecordOutcome, format_detail, parse_sinks
from router.writing.staging import BatchId

QUERY: Final = "replay"
STOPPED: Final = "it was stopped"


class ReplayInterrupted(Exception):
    """A replay ended early, for the reason that it names; its batch stays pending in the ledger."""


@dataclass(slots=True)
class Summary:
    """Counts of a replay: routed, by definition; still dead, by reason; parked; removed meanwhile.

    ``held`` are those that were not tried, since an earlier one of their key in the same batch stays dead. ``skipped``
    counts those not selected, by standing; ``unknown`` are requested ids that no sink has. ``interrupted`` is why it
    ended early, '' if it did not, and ``resuming`` whether that was in the batch of an earlier replay.
    """

    routed: Counter[str] = field(default_factory=Counter)
    dead: Counter[str] = field(default_factory=Counter)
    parked: int = 0
    gone: int = 0
    held: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    unknown: tuple[str, ...] = ()
    interrupted: str = ""
    resuming: bool = False

    @property
    def settled(self) -> int:
        """How many dead letters were tried."""
        return self.routed.total() + self.dead.total()


@dataclass(slots=True)
class ReplayedBatch(Batch):
    """A batch of a replay, which the ledger stores with the plan that evaluates it.

    Its letters stand where they are, so none is written: the ledger settles what became of each. ``keys`` are those of
    letters that hold up others.
    """

    writes_dead_letters = False
    ledger: LetterLedger
    plan: Plan
    pending: PendingReplay
    letters: Sequence[DeadLetter]
    keys: Mapping[str, str]
    summary: Summary
    decisions: list[RecordOutcome] = field(init=False)
    held: set[str] = field(init=False)

    @property
    def only(self) -> Container[str] | None:
        """The sinks that lack the records, if others have them."""
        return frozenset(self.pending.sinks) or None

    def hold_back(self) -> HeldBack:
        """Decide which dead letters wait for one of their key that stays dead; a repeat decides the same."""
        self.decisions = self.outcomes.list_decisions()
        lasting = (each.letter for each in self._iter_outcomes(self.letters, {}) if each.reason)
        self.held = held_up((letter.id for letter in self.letters), lasting, self.keys)
        return {each: "" for each in self.decisions if each.letter in self.held}

    def settle(self) -> None:
        """Commit the batch to the ledger, durably: no replay repeats it, and its dead letters count as tried.

        Raises:
            StateError: the ledger cannot be written; nothing is settled.
        """
        tried = [letter for letter in self.letters if letter.id not in self.held]
        settled = list(self._iter_outcomes(tried, self.rejections.details))
        finish_batch(self.ledger, self.plan, self.pending, settled, self.summary)
        routed = {outcome.letter for outcome in settled if outcome.reason is None}
        self.summary.routed.update(each.message for each in self.decisions if each.letter in routed)
        self.summary.held += len(self.held)

    def _iter_outcomes(self, letters: Sequence[DeadLetter], details: Mapping[str, str]) -> Iterator[Outcome]:
        """Yield the outcome of each dead letter; *details* are of records that a sink rejected, by position."""
        decided: dict[str, list[RecordOutcome]] = {}
        for each in self.decisions:
            decided.setdefault(each.letter, []).append(each)
        only = self.pending.sinks
        for letter in letters:
            rows = decided.get(letter.id, [])
            dead = next((row for row in rows if row.route < 0), None)
            rejected = next((details[row.position] for row in rows if row.position in details), None)
            if not rows:
                yield Outcome(letter.id, letter.reason, "nothing came of it")
            elif dead is not None:
                yield Outcome(letter.id, dead.reason, dead.detail)
            elif rejected is not None:
                yield Outcome(letter.id, SINK_REJECTED, rejected)
            elif only and not set(only) & set(self.plan.settings.routes[rows[0].route].to):
                # It may have been given another name; to call the letter settled would lose the record there.
                why = "is not in the route of the record any more, so nothing was sent"
                yield Outcome(letter.id, SINK_REJECTED, format_detail(dict.fromkeys(only, why)))
            else:
                yield Outcome(letter.id)


@dataclass(frozen=True, slots=True)
class Replayer:
    """Replays batches in one Spark session, on one thread.

    *held* is called while a sink blocks a batch, with the reason and the seconds until the retry; None gives up then.
    """

    plans: PlanCache
    ledger: LetterLedger
    stop: threading.Event
    held: Callable[[str, float], None] | None

    def replay(self, plan: Plan, pending: PendingReplay, letters: Sequence[DeadLetter], summary: Summary) -> None:
        """Write and commit a batch that was started; *letters* are those that still exist.

        Raises:
            ReplayInterrupted: a sink, or a schema registry, is away, and nobody waits any more; nothing is settled.
        """
        summary.gone += len(pending.letters) - len(letters)
        if not letters:
            finish_batch(self.ledger, plan, pending, (), summary)
            return
        self.plans.activate(plan)
        for pause in pauses():
            try:
                self._attempt(self.plans.current(), pending, letters, summary)
                return
            except Exception as error:
                away = str(error) if isinstance(error, SinkError) else find_lost_registry(error)
                if not away:
                    raise
                if self.held is None:
                    raise ReplayInterrupted(away) from error
                self.held(away, pause)
            if self.stop.wait(pause):
                raise ReplayInterrupted(STOPPED)

    def _attempt(
        self, loaded: LoadedPlan, pending: PendingReplay, letters: Sequence[DeadLetter], summary: Summary
    ) -> None:
        keys = self.ledger.order.keys_of_letters(letter.id for letter in letters)
        rows = self.plans.spark.createDataFrame(rows_of(letters))
        # Letters of a key go in order of arrival, which several tasks would not keep.
        rows = rows.coalesce(1) if keys else rows
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        id = BatchId("letters", QUERY, f"replay-{self.ledger.id}", pending.number, now)
        outcomes = loaded.outcomes(rows, id, BatchPart(), arrived=False)
        ReplayedBatch(id, outcomes, loaded.writer, self.ledger, loaded.plan, pending, letters, keys, summary).write()


def finish_batch(
    ledger: LetterLedger, plan: Plan, pending: PendingReplay, outcomes: Sequence[Outcome], summary: Summary
) -> None:
    """Commit a batch to the ledger, and park dead letters that failed too often."""
    ledger.finish(pending.number, outcomes, datetime.now(UTC))
    dead = [outcome for outcome in outcomes if outcome.reason is not None]
    summary.dead.update(outcome.reason for outcome in dead if outcome.reason is not None)
    entries = ledger.entries(outcome.letter for outcome in dead)
    most = plan.settings.dead_letters.max_replays
    summary.parked += ledger.park(each.letter for each in dead if entries[each.letter].attempts >= most)


# The outcomes of a replay with the current catalog and settings: by the plan of ``run``, without Spark.


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """The outcome of one dead letter: routed by definition ``message`` to ``sinks``, or dead with ``reason``."""

    letter: str
    message: str | None
    sinks: tuple[str, ...]
    reason: str | None = None
    detail: str = ""


def evaluate_letters(plan: Plan, letters: Sequence[DeadLetter]) -> list[ReplayOutcome]:
    """Evaluate dead letters with a plan; return one outcome each, in their order.

    ``sinks`` are all sinks of the route, also those that have the record already.

    Raises:
        RouterError: the record of a letter is invalid.
    """
    if not letters:
        return []
    rows = rows_of(letters).select(list(INBOX_COLUMNS)).combine_chunks().to_batches()[0]
    evaluated = evaluate("letters", plan.evaluator, rows)
    order = pa.array(evaluated.order)
    columns = {name: evaluated.column(name).take(order) for name in ("route", "message", "reason", "detail")}
    every, routes = pa.table(columns).to_pylist(), plan.settings.routes
    results: list[ReplayOutcome] = []
    for letter, (start, end) in zip(letters, itertools.pairwise(evaluated.offsets.tolist()), strict=True):
        outcomes = every[start:end]
        dead = next((each for each in outcomes if each["route"] < 0), None)
        if dead is not None or not outcomes:
            cause = dead or {"reason": letter.reason, "detail": "nothing came of it"}
            results.append(ReplayOutcome(letter.id, None, (), cause["reason"], cause["detail"] or ""))
        else:
            results.append(ReplayOutcome(letter.id, outcomes[0]["message"], tuple(routes[outcomes[0]["route"]].to)))
    return results


def hold_back_waiting(judged: Sequence[ReplayOutcome], turns: ReplayOrder) -> Iterator[ReplayOutcome]:
    """Yield the outcomes of a batch, including those that would wait behind others; count the rest as replayed."""
    lasting = [each.letter for each in judged if each.reason is not None]
    keys = turns.order.keys_of_letters(each.letter for each in judged)
    held = held_up((each.letter for each in judged), lasting, keys)
    for each in judged:
        if each.letter in held:
            yield ReplayOutcome(each.letter, None, (), HELD)
            continue
        if each.reason is None and each.letter in keys:
            turns.passed.add(each.letter)
        yield each


# The dead letters that a replay selects, their batches, and the sinks that lack each record.

MAX_BATCH_BYTES: Final = 64 * 2**20
"""Bytes of bodies at which a batch is closed, whatever its number of dead letters."""
Sinks: TypeAlias = tuple[str, ...]
"""The sinks that lack a record; () for those of its route, when none has it."""


@dataclass(slots=True)
class Selection:
    """Selects dead letters by filter and standing; the others are counted in ``skipped`` by standing.

    Letters that failed ``most`` replays are parked when they are met: a crash may have come before that.
    """

    ledger: LetterLedger
    wanted: DeadLetterFilter
    parked: bool = False
    limit: int | None = None
    most: int | None = None
    only: frozenset[str] | None = None
    """Ids to which the selection is limited; None for all."""
    skipped: Counter[str] = field(default_factory=Counter)
    seen: set[str] = field(default_factory=set)
    """The filter's ids that were found."""

    def choose(self, letters: Iterable[DeadLetter]) -> Iterator[tuple[DeadLetter, Sinks]]:
        """Yield the dead letters to replay, in order, at most ``limit``, each with the sinks that lack it."""
        return itertools.islice(self._choose(letters), self.limit)

    def _choose(self, letters: Iterable[DeadLetter]) -> Iterator[tuple[DeadLetter, Sinks]]:
        for letter, entry in join_ledger_entries(letters, self.ledger):
            standing = get_standing(entry)
            if (self.only is not None and letter.id not in self.only) or not self.wanted.matches(letter, standing):
                continue
            if self.wanted.ids:
                self.seen.add(letter.id)
            if entry is not None and standing == "open" and self.most is not None and entry.attempts >= self.most:
                self.ledger.park([letter.id])
                standing = "parked"
            if standing == "open" or (standing == "parked" and self.parked):
                yield letter, missing_sinks(self.ledger, letter, entry)
            else:
                self.skipped[standing] += 1


def missing_sinks(ledger: LetterLedger, letter: DeadLetter, entry: LedgerEntry | None) -> Sinks:
    """Return the sinks that lack the record of a dead letter when others have it, by its last failure.

    A letter that only waited for its turn is nowhere, and goes where its route leads by now.
    """
    if entry is not None:
        for happening in reversed(ledger.history(letter.id)):
            named = parse_sinks(happening.detail) if happening.reason == SINK_REJECTED else ()
            if named:
                return named
    return parse_sinks(letter.detail) if letter.reason == SINK_REJECTED and not only_waits(letter.detail) else ()


def group_letters(
    chosen: Iterable[tuple[DeadLetter, Sinks]], size: int, turns: ReplayOrder | None = None
) -> Iterator[tuple[Sinks, tuple[DeadLetter, ...]]]:
    """Group dead letters into batches of at most *size*, each for the same sinks and with unique positions.

    A batch of few large letters is closed earlier (:data:`MAX_BATCH_BYTES`).

    What a sink has of a batch is known by position, and records of two clusters may share one. By *turns*, letters of a
    key come in order of arrival: in a batch, and from one batch to the next, if each is settled before the next is
    asked for. One that comes before its turn is left out, and listed in ``turns.left``.
    """
    gathered: dict[Sinks, dict[str, DeadLetter]] = {}
    sizes: Counter[Sinks] = Counter()
    sinks_of: dict[str, Sinks] = {}

    def close(sinks: Sinks) -> tuple[Sinks, tuple[DeadLetter, ...]]:
        letters = tuple(gathered.pop(sinks).values())
        del sizes[sinks]
        for letter in letters:
            del sinks_of[letter.id]
        return sinks, letters

    for letter, sinks in chosen:
        earlier = turns.earlier(letter.id) if turns is not None else None
        place = sinks if earlier is None else sinks_of.get(earlier, sinks)
        # What must be replayed first: an earlier one for other sinks, or one of the same position.
        for other in dict.fromkeys((place, sinks)):
            if other != sinks or letter.position in gathered.get(sinks, ()):
                yield close(other)
                earlier = turns.earlier(letter.id) if turns is not None else None
        if turns is not None and earlier is not None and earlier not in sinks_of:
            turns.left.add(letter.id)
            continue
        gathered.setdefault(sinks, {})[letter.position] = letter
        sinks_of[letter.id] = sinks
        sizes[sinks] += len(letter.body or b"")
        if len(gathered[sinks]) >= size or sizes[sinks] >= MAX_BATCH_BYTES:
            yield close(sinks)
    for sinks in list(gathered):
        yield close(sinks)
