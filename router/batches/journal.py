"""What a running router stores about an attempt: pins, blocked batches, blocked keys, spilled dead letters."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from router.batches.attempt import Journal
from router.batches.plans import LoadedPlan, PlanHolder
from router.batches.splitting import BatchPart, BatchSizeLimiter
from router.errors import RouterError, SinkError
from router.evaluation.outputs import Tally
from router.logs import get_logger
from router.reading.generations import reads
from router.request_reply import NAME as PAIRS
from router.request_reply import Pairing
from router.state.state import BatchStore, Hold, Park, StateFolder
from router.watching.batches import HELD
from router.writing.outcomes import HeldBack, KeyOrdering, Outcomes, Rejections
from router.writing.staging import BatchId, create_commit

if TYPE_CHECKING:
    from router.evaluation.plan import Plan
    from router.watching.metrics import Metrics
    from router.watching.status import RouterStatus

PARKED: Final = "moved to dead letters by an operator"
_log = get_logger()


class TooManyDeadLetters(Exception):
    """The circuit breaker: a batch has too many dead letters, and is blocked before its first write."""


@dataclass(slots=True)
class BatchJournal(Journal):
    """The journal of one attempt at a part of a batch; with *park* the part goes to dead letters."""

    state: StateFolder
    ordering: KeyOrdering
    bounding: BatchSizeLimiter
    batch: BatchId
    loaded: LoadedPlan
    part: BatchPart
    park: Park | None
    pairing: Pairing | None = None

    @property
    def at_once(self) -> bool:
        """Whether one write serves all sinks; poison records and parked batches need one for each sink."""
        return self.loaded.one_pass and self.park is None and not self.part.condemned

    @property
    def may_reject(self) -> bool:
        """Whether routed records may still become dead letters."""
        return self.loaded.writer.may_reject or self.park is not None

    def look(self, tally: Tally) -> None:
        """Check the evaluated batch before the first write.

        Raises:
            TooLarge: it must be split.
            SinkError: the sink of request-reply pairs is too far behind.
            TooManyLetters: the circuit breaker is open. A pinned batch has passed it, and a poison record says nothing
                about the catalog.
        """
        if self.park is not None:
            return
        self.bounding.check(tally, self.batch.number, self.part)
        if self.pairing is not None:
            self.pairing.require_room()
        pinned = self.state.batches.pinned(self.batch.query, self.batch.number) is not None
        if not pinned and not self.part.condemned:
            check_ratio(tally, self.loaded.plan.settings.dead_letters.max_ratio)

    def pin(self, outcomes: Outcomes) -> None:
        """Store the plan, durably, unless an earlier attempt did; write to files what a bare dead letter omits."""
        for name, line in outcomes.iter_bare_records():
            self._keep(f"{name}.raw", line, "original record written to a file", letter=name)
        if self.state.batches.pinned(self.batch.query, self.batch.number) is None:
            plan = self.loaded.plan
            self.state.batches.pin(self.batch.query, self.batch.number, plan.id, plan.to_bytes())

    def hold_back(self, outcomes: Outcomes, tally: Tally) -> HeldBack:
        """Decide, durably, which records wait for dead letters of their keys; a parked batch repeats its decision."""
        if self.park is not None:
            return self.ordering.read_held_back(outcomes, self.batch, self.loaded.plan)
        return self.ordering.hold_back(outcomes, self.batch, self.loaded.plan, dead=tally.dead_letters)

    def set_aside(self) -> Mapping[str, str] | None:
        """Decide, durably, which sinks do not have their events, each with the detail for its dead letters."""
        if self.park is None:
            return None
        if self.park.lacking is not None and self.park.part == self.batch.label:
            return self.park.lacking
        lacking = self._lacking()
        noted = replace(self.park, lacking=lacking, part=self.batch.label)
        self.state.batches.park(self.batch.query, self.batch.number, noted)
        return lacking

    def spill(self, letters: Outcomes, tally: Tally, rejections: Rejections | None = None) -> None:
        """Write dead letters too large for their topics to files, durably, before Spark commits the batch.

        With a single write, a topic may have the reference a moment before the file exists.
        """
        if tally.spilled or (rejections and self.loaded.writer.may_spill):
            for letter, line in letters.iter_spilled():
                self._keep(letter, line, "dead letter too large for its topic", letter=letter)

    def relate(self, outcomes: Outcomes) -> None:
        """Pass on the pairing columns, if the plan has them."""
        if self.pairing is not None and self.loaded.plan.pairs_messages:
            commit = create_commit(PAIRS, self.batch)
            self.pairing.take(outcomes.iter_exchanges(), commit, self.batch.query, self.loaded.plan.epoch)

    def settle(self, outcomes: Outcomes, tally: Tally, rejections: Rejections) -> None:
        """Block the keys of the dead letters, durably."""
        self.ordering.block_keys(outcomes, rejections, self.loaded.plan, dead=tally.dead_letters)
        if self.park is not None:
            count = rejections.counts.total()
            _log.warning("batch moved to dead letters", query=self.batch.query, batch=self.batch.number, letters=count)

    def _lacking(self) -> dict[str, str]:
        writer, batch = self.loaded.writer, self.batch
        if writer.has_dead_letters(batch):
            return {}
        held = self.state.batches.held(batch.query, batch.number, batch.generation)
        noted = held.taken if held and held.part == batch.label else ()
        taken = writer.finished_sinks(batch).union(noted)
        why = {held.sink: f"{PARKED}: {held.reason.removeprefix(f'sink {held.sink}: ')}"} if held and held.sink else {}
        return {name: why.get(name, PARKED) for name in writer.unfinished_sinks(taken)}

    def _keep(self, name: str, line: bytes, what: str, *, letter: str) -> None:
        self.state.spill(name, line)
        _log.warning(what, query=self.batch.query, letter=letter, file=f"spill/{name}.json")


def check_ratio(tally: Tally, most: float | None) -> None:
    """Raise :class:`TooManyDeadLetters` when dead letters make up more of a batch than the circuit breaker allows."""
    if most is not None and tally.total and tally.dead_letters / tally.total > most:
        raise TooManyDeadLetters(
            f"{tally.dead_letters} of {tally.total} records would be dead letters, more than dead_letters.max_ratio "
            f"{most:g}; fix the catalog or raise the limit"
        )


# A blocked batch is logged, recorded, and retried after growing pauses.

RETRY_FIRST: Final = 0.5
RETRY_MAX: Final = 30.0
ERROR_SECONDS: Final = 60.0
"""After this time a blocked batch is logged as an error: an operator must act."""
PARK_CHECK_SECONDS: Final = 1.0
"""Seconds between checks whether an operator moves a blocked batch to dead letters."""
FOREVER: Final = float("inf")
REGISTRY_HINT: Final = (
    "the batch is retried until the registry answers; or store its ids on disk with `xrouter schemas pull`"
)
BREAKER_HINT: Final = "fix the catalog, and the batch is evaluated again; or raise dead_letters.max_ratio and restart"
_REGISTRY: Final = "schema-registry"
"""The metric label of a batch blocked by the schema registry, in place of a sink's name."""


class Draining(Exception):
    """Ends a query before the first write of a batch."""


def pauses() -> Iterator[float]:
    """Yield the seconds before each retry of a batch that a sink blocks."""
    yield from (min(RETRY_FIRST * 2**n, RETRY_MAX) for n in range(16))
    yield from itertools.repeat(RETRY_MAX)


@dataclass(frozen=True, slots=True)
class BatchRetry:
    """Waits with blocked batches of one query; once *draining* is set, every wait ends the query."""

    query: str
    notes: BatchStore
    plans: PlanHolder
    metrics: Metrics
    status: RouterStatus
    draining: threading.Event
    since: dict[int, float] = field(default_factory=dict)
    """When each blocked batch was first blocked (monotonic seconds)."""
    logged: dict[str, str] = field(default_factory=dict)
    """The level already logged for each failing sink."""

    def facts(self, number: int) -> dict[str, Any]:
        """Return the log fields of a batch: what its query reads, the query, and the batch number."""
        return {**reads(self.plans.active.sources, self.query), "query": self.query, "batch": number}

    def resumed(self, number: int) -> None:
        """Log that a blocked batch is now written."""
        if number in self.since:
            seconds = round(time.monotonic() - self.since[number], 1)
            _log.info("batch resumed", **self.facts(number), held_seconds=seconds)
        self.since.clear()
        self.logged.clear()

    def by_sink(self, loaded: LoadedPlan, batch: BatchId, error: SinkError, seconds: float, *, parked: bool) -> None:
        """Block a batch because a sink failed: record which sinks have their share, and wait.

        ``batches park`` ends the wait, unless the batch was *parked* before.

        Raises:
            Draining: the query must end.
        """
        hint = error.hint or "repair the sink; the batch is retried automatically, and nothing is lost"
        self.metrics.count_sink_write(error.sink, "error", str(error))
        self._report(batch, str(error), error.sink, hint=hint, retry_seconds=seconds)
        self._note(batch, str(error), error.sink, loaded.writer.finished_sinks(batch))
        self._wait(batch, seconds, parked=parked)

    def by_registry(self, loaded: LoadedPlan, batch: BatchId, reason: str, seconds: float, *, parked: bool) -> None:
        """Block a batch because a schema registry that must resolve its ids is unavailable, and wait.

        Raises:
            Draining: the query must end.
        """
        self._report(batch, reason, _REGISTRY, hint=REGISTRY_HINT, retry_seconds=seconds)
        self._note(batch, reason, "", loaded.writer.finished_sinks(batch))
        self._wait(batch, seconds, parked=parked)

    def by_breaker(self, loaded: LoadedPlan, batch: BatchId, reason: str) -> None:
        """Block a batch with too many dead letters until another plan is active, or ``batches park`` is called.

        Raises:
            Draining: the query must end.
        """
        self.logged.clear()
        self._report(batch, reason, "", error=True, hint=BREAKER_HINT)
        self._note(batch, reason, "", frozenset())
        self._wait(batch, FOREVER, plan=loaded.plan)

    def pause(self, seconds: float) -> None:
        """Wait.

        Raises:
            Draining: the query must end.
        """
        if self.draining.wait(seconds):
            raise Draining

    def _report(self, batch: BatchId, reason: str, sink: str, *, error: bool = False, **more: object) -> None:
        """Report a blocked batch to metrics, status and log; the log has one line per failing sink and level.

        A warning becomes an error after ERROR_SECONDS; what only an operator can resolve is an error at once.
        """
        self.metrics.held(self.query, sink)
        endpoints = self.facts(batch.number).get("endpoints", "")
        shared = f"; this blocks all endpoints of the query: {endpoints}" if ", " in endpoints else ""
        self.status.query(self.query, "held", batch=batch.number, reason=f"{reason}{shared}")
        lasts = time.monotonic() - self.since.setdefault(batch.number, time.monotonic())
        level = "error" if error or lasts >= ERROR_SECONDS else "warning"
        facts = {**self.facts(batch.number), "reason": reason, **more}
        if self.logged.get(sink) in (level, "error"):
            _log.debug("batch still blocked", **facts)
        elif level == "warning":
            _log.warning("batch blocked", **facts)
        else:
            _log.error("batch blocked", **facts, **({} if error else {"held_seconds": round(lasts)}))
        self.logged[sink] = level if self.logged.get(sink) != "error" else "error"

    def _note(self, batch: BatchId, reason: str, sink: str, known: frozenset[str]) -> None:
        before = self.notes.held(self.query, batch.number, batch.generation)
        taken = tuple(sorted(known.union(before.taken if before and before.part == batch.label else ())))
        note = Hold(batch.generation, before.since if before else batch.failed, reason, sink, taken, batch.label)
        if note == before:
            return
        try:
            self.notes.hold(self.query, batch.number, note)
        except RouterError as error:  # A full disk may be what blocks the batch; the note is not essential.
            _log.warning("cannot store why a batch is blocked", query=self.query, error=str(error))

    def _wait(self, batch: BatchId, seconds: float, *, parked: bool = False, plan: Plan | None = None) -> None:
        self.status.steps.turn(self.query, HELD)
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.pause(min(left, PARK_CHECK_SECONDS))
            if not parked and self.notes.parked(self.query, batch.number, batch.generation) is not None:
                return
            if plan is not None and self.plans.active.id != plan.id:
                return
