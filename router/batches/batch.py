"""One attempt at a batch, or at a part of one: the steps of evaluating and writing it.

| step | guaranteed after it, also if the process dies right then |
|---|---|
| ``evaluate`` | no sink has anything; each record is evaluated once. Staged files are invisible to readers |
| ``look`` | nothing is written; the batch may still be blocked, split, or evaluated with another plan |
| ``pin`` | the plan of the batch is durable, and used by every retry |
| ``set_aside`` | the sinks that get dead letters instead of events are durable, and the same in every retry |
| ``hold_back`` | the records that wait for a dead letter of their key are durable, and the same in every retry |
| ``send_events`` | each sink before the failing one has its events: tables once, message targets at least once |
| ``spill`` | dead letters too large for a topic are in files, before a topic has one that refers to a file |
| ``send_dead_letters`` | each sink has its dead letters, which proves that all sinks have their events |
| ``relate`` | what pairs records with others is durable, once, however often the batch is repeated |
| ``settle`` | key order and states of dead letters are durable, before the source commits |

A new batch takes all steps but ``set_aside``. One that an operator moves to dead letters has ``withhold_events``
instead of ``send_events``. If one write serves all sinks, it is the only step between ``pin`` and the counts, and
evaluates on the way. A replay writes no dead letters, since its records have theirs
(:class:`~router.replay.batches.ReplayedBatch`). A :class:`~router.writing.writer.BatchWriter` writes, and
:class:`~router.writing.outcomes.Outcomes` have the records.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from router.batches.plans import LoadedPlan, SharedParts
from router.batches.splitting import BatchPart, Splitting
from router.evaluation.outputs import Tally
from router.logs import get_logger
from router.request_reply import NAME as PAIRS
from router.state.ledger import LetterLedger
from router.state.state import BlockedKeys, Hold, Park, StateFolder
from router.writing.outcomes import SINK_REJECTED, HeldBack, Outcomes, RecordOutcome, Rejections
from router.writing.staging import BatchId, create_commit
from router.writing.writer import BatchWriter

PARKED: Final = "moved to dead letters by an operator"
_log = get_logger()


@dataclass(slots=True)
class Batch:
    """An attempt that stores nothing besides what sinks have: a retry repeats all of it."""

    writes_dead_letters: ClassVar[bool] = True
    """Whether records without an event are written as dead letters."""
    id: BatchId
    outcomes: Outcomes
    writer: BatchWriter
    tally: Tally = field(init=False, default_factory=Tally)
    rejections: Rejections = field(init=False)

    def __post_init__(self) -> None:
        self.rejections = self.writer.new_rejections()

    def write(self) -> Tally:
        """Evaluate and write the batch once, and return its counts. Safe to repeat after any error or crash.

        Raises:
            SinkError: a sink failed; the sinks before it have their share.
            Exception: ``look`` raised; this attempt has written nothing.
        """
        outcomes, writer, rejections = self.outcomes, self.writer, self.rejections
        if outcomes.at_once:
            self.pin()
            writer.send_all(outcomes)
            self.tally = outcomes.tally()
            rejections.count_deliveries(self.tally)
            self.spill(outcomes)
            return self.tally
        try:
            self.tally = outcomes.evaluate()
            self.look()
            self.pin()
            reached = {route for (_, route), (count, _) in self.tally.routes.items() if count}
            aside = self.set_aside()
            held = self.hold_back()
            events = outcomes.exclude([record.letter for record in held])
            if aside is None:
                writer.send_events(events, self.id, rejections, self.only, reached)
            else:
                writer.withhold_events(events, self.id, rejections, aside)
            writer.reject_held(held, self.id, rejections)
            self.tally.reject(rejections.counts, SINK_REJECTED)
            if self.writes_dead_letters:
                letters = outcomes.select_dead_letters(rejections)
                self.spill(letters)
                writer.send_dead_letters(letters, self.id, rejections, reached | rejections.dead_letter_routes)
                rejections.count_deliveries(self.tally)
            self.relate()
            self.settle()
            return self.tally
        finally:
            outcomes.release()

    @property
    def only(self) -> Container[str] | None:
        """The sinks that get events; None for all of the routes."""
        return None

    def look(self) -> None:
        """Step: raise if the evaluated batch must not be written."""

    def pin(self) -> None:
        """Step: store the plan that evaluated the batch."""

    def set_aside(self) -> Mapping[str, str] | None:
        """Step: return the sinks that get dead letters instead of events, each with the reason; None if none does."""
        return None

    def hold_back(self) -> HeldBack:
        """Step: decide which records go to no sink because an earlier record of their key is a dead letter."""
        return {}

    def spill(self, letters: Outcomes) -> None:
        """Step: write dead letters to files that are too large for their topics."""

    def relate(self) -> None:
        """Step: pair the records with others."""

    def settle(self) -> None:
        """Step: store the outcomes of the records, after all writes."""


# The order of records of one key, when ``dead_letters.order`` is ``park`` (deploy/OPERATIONS.md#dead-letters).
#
# A record whose key has an earlier dead letter is *held back*: no sink gets it, and it becomes a dead letter that waits
# for the earlier one. Before the first write of a batch, the blocked keys are stored beside the batch's pin, so that
# each retry holds back the same records, even if a replay unblocks keys meanwhile. The expected dead letters are added
# to the state database, where they block the key for later batches. After the write they are added again, with those of
# records that a sink rejected; these hold back records from the next batch on.
#
# A replay that has almost caught up with a key marks it, and batches with records of that key wait for it. Otherwise a
# key with constant traffic would stay blocked forever.
#
# The driver gets only rows whose key is blocked or has a dead letter in the batch, without bodies. A key is the event's
# ``partitionkey``, else the record's key; a record without a key is never held back.

MAX_WAIT_SECONDS: Final = 60.0
"""Maximum seconds for which a batch waits until a replay unblocks one of its keys."""
POLL_SECONDS: Final = 0.1
_POSITION_NUMBERS: Final = re.compile(r"((?:-\d+)*)(?:#(\d+))?\Z")


class KeyOrdering:
    """Holds back records; *pause* waits for some seconds, or raises to end the batch before its first write."""

    def __init__(self, state: StateFolder, pause: Callable[[float], None]) -> None:
        self._ledger = LetterLedger(state.root, state.database)
        self._notes = state.batches
        self._pause = pause

    def hold_back(self, outcomes: Outcomes, batch: BatchId, *, dead: int) -> HeldBack:
        """Return the records of an evaluated and pinned batch to hold back, before its first write.

        *dead* is the number of dead letters of the batch. Repeating has the same result.

        Raises:
            StateError: the state cannot be read or written; nothing has been decided.
        """
        stored = self._stored_keys(batch)
        blocked = self._find_blocked_keys(()) if stored is None else stored
        suspects = _find_suspects(outcomes, blocked, dead=dead)
        if stored is None:
            keys = {each.key for each in suspects}
            blocked = self._find_blocked_keys(keys)
            blocking = {key: blocked[key] for key in keys & blocked.keys()}
            self._notes.note(batch.query, batch.number, BlockedKeys(batch.generation, blocking, batch.label))
        held = _find_held_back(suspects, blocked)
        self.block_keys(each for each in suspects if each.route < 0 or each in held)
        if held:
            _log.info("records held back: their keys are blocked", query=batch.query, records=len(held))
        return held

    def read_held_back(self, outcomes: Outcomes, batch: BatchId) -> HeldBack:
        """Return the records that the first write of a batch held back; none if there was no write."""
        blocked = self._stored_keys(batch)
        return {} if blocked is None else _find_held_back(_find_suspects(outcomes, blocked, dead=1), blocked)

    def block_keys(self, letters: Iterable[RecordOutcome]) -> None:
        """Block the keys of dead letters, before Spark commits the batch.

        Repeating changes nothing: dead letters replayed in between do not block again.

        Raises:
            StateError: the state cannot be written.
        """
        ordered = sorted(letters, key=_arrival)
        if ordered:
            self._ledger.order.append_letters((each.key, each.letter) for each in ordered)

    def _stored_keys(self, batch: BatchId) -> dict[str, str] | None:
        note = self._notes.noted(BlockedKeys, batch.query, batch.number, batch.generation)
        return dict(note.blocked) if note is not None and note.part == batch.label else None

    def _find_blocked_keys(self, keys: Collection[str]) -> dict[str, str]:
        """Return the blocked keys with their first dead letters; wait for a replay about to unblock one of *keys*."""
        order, deadline = self._ledger.order, time.monotonic() + MAX_WAIT_SECONDS
        while True:
            heads = order.first_letters()
            unblocking = order.keys_to_free() & heads.keys() & set(keys)
            # Ignore a replay that was killed.
            if not unblocking or not self._ledger.is_locked or time.monotonic() >= deadline:
                return heads
            self._pause(POLL_SECONDS)


def position_sort_key(position: str) -> tuple[str, tuple[int, ...], int]:
    """Return the sort key of a position for the order of arrival (partition, then offset or segment and row)."""
    match = _POSITION_NUMBERS.search(position)
    assert match is not None  # It also matches nothing.
    numbers = tuple(int(text) for text in match[1].split("-")[1:])
    return position[: match.start()], numbers, int(match[2] or -1)


def _arrival(outcome: RecordOutcome) -> tuple[str, tuple[int, ...], int]:
    return position_sort_key(outcome.position)


def _find_suspects(outcomes: Outcomes, blocked: Mapping[str, str], *, dead: int) -> list[RecordOutcome]:
    """Find the records whose key is blocked or has a dead letter in the batch, in order of arrival."""
    keys = set(blocked)
    if dead:
        keys.update(each.key for each in outcomes.select_dead_letters().list_keyed())
    return sorted(outcomes.list_keyed(keys), key=_arrival) if keys else []


def _find_held_back(suspects: Iterable[RecordOutcome], blocked: Mapping[str, str]) -> HeldBack:
    """Find the routed records after a dead letter of their key; *suspects* are in order."""
    heads = dict(blocked)
    held: dict[RecordOutcome, str] = {}
    for each in suspects:
        if each.route < 0:
            heads.setdefault(each.key, each.letter)
        elif each.key in heads:
            held[each] = heads[each.key]
    return held


# The attempts of a running router.


class TooManyDeadLetters(Exception):
    """The circuit breaker: a batch has too many dead letters, and is blocked before its first write."""


@dataclass(slots=True)
class StoredBatch(Batch):
    """An attempt at a part of a batch of a running router, which stores what a retry must know.

    With *park* the part goes to dead letters.
    """

    shared: SharedParts
    loaded: LoadedPlan
    part: BatchPart
    park: Park | None
    splitting: Splitting
    ordering: KeyOrdering

    def look(self) -> None:
        """Check the evaluated batch before the first write.

        Raises:
            TooLarge: it must be split.
            SinkError: the sink of request-reply pairs is too far behind.
            TooManyDeadLetters: the circuit breaker is open. A pinned batch has passed it, and a poison record says
                nothing about the catalog.
        """
        if self.park is not None:
            return
        self.splitting.check(self.tally)
        if self.shared.pairing is not None:
            self.shared.pairing.require_room()
        most, dead, total = self.loaded.plan.settings.dead_letters.max_ratio, self.tally.dead_letters, self.tally.total
        too_many = most is not None and total and dead / total > most
        if too_many and not self._is_pinned and not self.part.condemned:
            raise TooManyDeadLetters(
                f"{dead} of {total} records would be dead letters, more than dead_letters.max_ratio {most:g}; fix the "
                "catalog or raise the limit"
            )

    def pin(self) -> None:
        """Store the plan, durably, unless an earlier attempt did; write to files what a bare dead letter omits."""
        for name, line in self.outcomes.iter_bare_records():
            self._keep(f"{name}.raw", line, "original record written to a file", letter=name)
        if not self._is_pinned:
            plan = self.loaded.plan
            self.shared.state.batches.pin(self.id.query, self.id.number, plan.id, plan.to_bytes())

    def set_aside(self) -> Mapping[str, str] | None:
        """Decide, durably, which sinks do not have their events, each with the detail for its dead letters."""
        if self.park is None:
            return None
        if self.park.lacking is not None and self.park.part == self.id.label:
            return self.park.lacking
        lacking = self._lacking()
        noted = replace(self.park, lacking=lacking, part=self.id.label)
        self.shared.state.batches.note(self.id.query, self.id.number, noted)
        return lacking

    def hold_back(self) -> HeldBack:
        """Decide, durably, which records wait for dead letters of their keys; a parked batch repeats its decision."""
        if not self._keeps_order:
            return {}
        if self.park is not None:
            return self.ordering.read_held_back(self.outcomes, self.id)
        return self.ordering.hold_back(self.outcomes, self.id, dead=self.tally.dead_letters)

    def spill(self, letters: Outcomes) -> None:
        """Write dead letters too large for their topics to files, durably, before Spark commits the batch.

        With a single write, a topic may have the reference a moment before the file exists.
        """
        if self.tally.spilled or (self.rejections and self.writer.may_spill):
            for letter, line in letters.iter_spilled():
                self._keep(letter, line, "dead letter too large for its topic", letter=letter)

    def relate(self) -> None:
        """Pass on the pairing columns, if the plan has them."""
        if self.shared.pairing is not None and self.loaded.plan.pairs_messages:
            commit = create_commit(PAIRS, self.id)
            self.shared.pairing.take(self.outcomes.iter_exchanges(), commit, self.id.query, self.loaded.plan.epoch)

    def settle(self) -> None:
        """Block the keys of the dead letters, durably."""
        if self._keeps_order and self.tally.dead_letters:
            self.ordering.block_keys(self.outcomes.select_dead_letters(self.rejections).list_keyed())
        if self.park is not None:
            count = self.rejections.counts.total()
            _log.warning("batch moved to dead letters", query=self.id.query, batch=self.id.number, letters=count)

    @property
    def _keeps_order(self) -> bool:
        return self.loaded.plan.settings.dead_letters.order == "park"

    @property
    def _is_pinned(self) -> bool:
        return self.shared.state.batches.pinned(self.id.query, self.id.number) is not None

    def _lacking(self) -> dict[str, str]:
        if self.writer.has_dead_letters(self.id):
            return {}
        held = self.shared.state.batches.noted(Hold, self.id.query, self.id.number, self.id.generation)
        noted = held.taken if held and held.part == self.id.label else ()
        taken = self.writer.finished_sinks(self.id).union(noted)
        why = {held.sink: f"{PARKED}: {held.reason.removeprefix(f'sink {held.sink}: ')}"} if held and held.sink else {}
        return {name: why.get(name, PARKED) for name in self.writer.routes.event_sinks if name not in taken}

    def _keep(self, name: str, line: bytes, what: str, *, letter: str) -> None:
        self.shared.state.spill(name, line)
        _log.warning(what, query=self.id.query, letter=letter, file=f"spill/{name}.json")
