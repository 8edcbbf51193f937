"""What a running router notes of an attempt besides what its sinks have: pins, holds, blocked keys, spilled letters."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from router.batches.attempt import Journal
from router.batches.plans import LoadedPlan, PlanHolder
from router.batches.splitting import BatchPart, Bounding
from router.errors import SinkError
from router.judging.outputs import Tally
from router.logs import get_logger
from router.reading.generations import reads
from router.relating import NAME as PAIRS
from router.relating import Pairing
from router.state.state import BatchNotes, Hold, Park, StateFolder
from router.watching.batches import HELD
from router.writing.outcomes import HeldBack, Ordering, Outcomes, Rejections
from router.writing.staging import BatchId, commit_of

if TYPE_CHECKING:
    from router.judging.plan import Plan
    from router.watching.metrics import Metrics
    from router.watching.status import RouterStatus

ASIDE: Final = "set aside by an operator"
_log = get_logger()


class TooManyLetters(Exception):
    """The circuit breaker: a batch that would flood the dead letters is held before its first write."""


@dataclass(slots=True)
class BatchJournal(Journal):
    """The journal of one attempt at a part of a batch; with *park* the part is set aside."""

    state: StateFolder
    notes: BatchNotes
    ordering: Ordering
    bounding: Bounding
    batch: BatchId
    loaded: LoadedPlan
    part: BatchPart
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


# A batch that is held: said, noted beside its pin, and tried again after growing pauses.

RETRY_FIRST: Final = 0.5
RETRY_MOST: Final = 30.0
ERROR_SECONDS: Final = 60.0
"""A batch that is held for so long is an error: somebody has to look."""
LOOK: Final = 1.0
"""Longest time in which a held batch does not look for an operator's order to set it aside."""
FOREVER: Final = float("inf")
AWAY: Final = "the batch is written when it answers, or when `xrouter schemas pull` has brought its ids onto the disk"
MEND: Final = "mend the catalog, and the batch is judged anew; or raise dead_letters.max_ratio and restart"
_REGISTRY: Final = "schema-registry"
"""The label, in the metrics, of what holds a batch when it is neither a sink nor its dead letters."""


class Draining(Exception):
    """Raised inside a batch to end its query before the batch's first write."""


def pauses() -> Iterator[float]:
    """Yield in how many seconds a batch that a sink holds is tried again, each time."""
    yield from (min(RETRY_FIRST * 2**n, RETRY_MOST) for n in range(16))
    yield from itertools.repeat(RETRY_MOST)


@dataclass(frozen=True, slots=True)
class BatchRetry:
    """Holds the batches of one query; once *draining* is set, every wait ends the query."""

    query: str
    notes: BatchNotes
    plans: PlanHolder
    metrics: Metrics
    status: RouterStatus
    draining: threading.Event
    since: dict[int, float] = field(default_factory=dict)
    """When the batch that is held was held first."""
    said: dict[str, str] = field(default_factory=dict)
    """The level at which the log has said so, by the sink in the way."""

    def facts(self, number: int) -> dict[str, Any]:
        """Return what log lines say of a batch: what its query reads, the query, and the batch's number."""
        return {**reads(self.plans.active.sources, self.query), "query": self.query, "batch": number}

    def goes_on(self, number: int) -> None:
        """Say that a batch is written, if it was said that it is held."""
        if number in self.since:
            seconds = round(time.monotonic() - self.since[number], 1)
            _log.info("batch goes on", **self.facts(number), held_seconds=seconds)
        self.since.clear()
        self.said.clear()

    def by_sink(self, loaded: LoadedPlan, batch: BatchId, error: SinkError, seconds: float, *, parked: bool) -> None:
        """Hold a batch that a sink does not take, with a note of the sinks that have their share, and wait.

        An order to set the batch aside ends the wait, unless it was there before: *parked*.

        Raises:
            Draining: the query is to end.
        """
        hint = error.hint or "repair the sink: the batch is tried again by itself, and nothing is lost meanwhile"
        self.metrics.sink_write(error.sink, "error", str(error))
        self._say(batch, str(error), error.sink, hint=hint, retry_seconds=seconds)
        self._note(batch, str(error), error.sink, loaded.writer.taken(batch))
        self._wait(batch, seconds, parked=parked)

    def by_registry(self, loaded: LoadedPlan, batch: BatchId, reason: str, seconds: float, *, parked: bool) -> None:
        """Hold a batch with ids that only a schema registry knows which gives no answer for now, and wait.

        Raises:
            Draining: the query is to end.
        """
        self._say(batch, reason, _REGISTRY, hint=AWAY, retry_seconds=seconds)
        self._note(batch, reason, "", loaded.writer.taken(batch))
        self._wait(batch, seconds, parked=parked)

    def by_breaker(self, loaded: LoadedPlan, batch: BatchId, reason: str) -> None:
        """Hold a batch of too many dead letters until another plan is active: the same would judge it alike.

        An order to set it aside ends the wait as well.

        Raises:
            Draining: the query is to end.
        """
        self.said.clear()
        self._say(batch, reason, "", error=True, hint=MEND)
        self._note(batch, reason, "", frozenset())
        self._wait(batch, FOREVER, judged_by=loaded.plan)

    def breathe(self, seconds: float) -> None:
        """Wait.

        Raises:
            Draining: the query is to end.
        """
        if self.draining.wait(seconds):
            raise Draining

    def _say(self, batch: BatchId, reason: str, sink: str, *, error: bool = False, **more: object) -> None:
        """Report that a batch is held; the log has it once for each sink in the way, and once more when that stays so.

        What ends by itself is a warning. It is an error once it lasts, and at once where only somebody can end it.
        """
        self.metrics.held(self.query, sink)
        endpoints = self.facts(batch.number).get("endpoints", "")
        shared = f"; all of {endpoints} wait, which share the query" if ", " in endpoints else ""
        self.status.query(self.query, "held", batch=batch.number, reason=f"{reason}{shared}")
        lasts = time.monotonic() - self.since.setdefault(batch.number, time.monotonic())
        level = "error" if error or lasts >= ERROR_SECONDS else "warning"
        facts = {**self.facts(batch.number), "reason": reason, **more}
        if self.said.get(sink) in (level, "error"):
            _log.debug("batch is still held", **facts)
        elif level == "warning":
            _log.warning("batch held", **facts)
        else:
            _log.error("batch held", **facts, **({} if error else {"held_seconds": round(lasts)}))
        self.said[sink] = level if self.said.get(sink) != "error" else "error"

    def _note(self, batch: BatchId, reason: str, sink: str, known: frozenset[str]) -> None:
        before = self.notes.held(self.query, batch.number, batch.generation)
        taken = tuple(sorted(known.union(before.taken if before and before.part == batch.label else ())))
        note = Hold(batch.generation, before.since if before else batch.failed, reason, sink, taken, batch.label)
        if note == before:
            return
        try:
            self.notes.hold(self.query, batch.number, note)
        except OSError as error:  # A full disk may be why the batch is held; the note can wait for it.
            _log.warning("the hold of a batch cannot be noted", query=self.query, error=error.strerror)

    def _wait(self, batch: BatchId, seconds: float, *, parked: bool = False, judged_by: Plan | None = None) -> None:
        self.status.steps.turn(self.query, HELD)
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.breathe(min(left, LOOK))
            if not parked and self.notes.parked(self.query, batch.number, batch.generation) is not None:
                return
            if judged_by is not None and self.plans.active.id != judged_by.id:
                return
