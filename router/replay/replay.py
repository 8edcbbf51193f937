"""Replay dead letters (``xrouter dead-letters replay``), from the settings file to the summary.

It runs beside a router or without one, in a process and a Spark of its own, and one at a time. Whatever ends it leaves
nothing lost and no outcome twice: the batch in hand is finished by the next replay (:mod:`router.replay.batches`).
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from bindings.private_files import create_private_folder, set_umask_for
from router.batches.plans import PlanCache, restore_plan
from router.dead_letters.dead_letter import DeadLetter
from router.dead_letters.reading import DeadLetterFilter, read_dead_letters
from router.errors import CatalogUnavailable, RouterError
from router.evaluation.plan import Plan, compile_plan, read_catalog
from router.logs import configure_logs, get_logger
from router.replay.batches import (
    STOPPED,
    Replayer,
    ReplayInterrupted,
    ReplayOutcome,
    Selection,
    Summary,
    evaluate_letters,
    group_letters,
    hold_back_waiting,
    missing_sinks,
)
from router.settings import Settings, load_settings
from router.sinks import check_endpoints
from router.sinks.messages.sink import close_publishers
from router.spark.session import handle_signals, open_spark_session
from router.state.durable import admit
from router.state.ledger import HELD, LOCK, LetterLedger, PendingReplay, ReplayOrder
from router.state.state import BatchStore
from router.watching.metrics import Metrics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER: Final = "local[2]"
"""Spark master of a replay: local, whatever master the router uses."""
CHUNK: Final = 1_000
CATCH_UP_SECONDS: Final = 30.0
"""Maximum time for which a replay follows a router that keeps blocking records."""
LOOK_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Options of a replay: ``rate`` in dead letters per second, ``batch`` per batch, at most ``limit`` in all."""

    parked: bool = False
    limit: int | None = None
    rate: float | None = None
    batch: int = 10_000
    # A batch costs a second or two whatever it has, so few large ones take less time.

    @property
    def size(self) -> int:
        """Dead letters per batch: at most one second's worth of the rate."""
        return max(1, min(self.batch, int(self.rate) if self.rate is not None else self.batch))


class ReplayProgress(Protocol):
    """Receives the progress of a replay, for display."""

    def resumed(self, pending: PendingReplay) -> None:
        """Called when an unfinished batch of an earlier replay is finished first."""

    def progress(self, summary: Summary) -> None:
        """Called when a batch is done."""

    def held(self, reason: str, seconds: float) -> None:
        """Called when a sink is unavailable; the write is retried after *seconds*."""


def count_matching(settings: Settings, wanted: DeadLetterFilter, options: ReplayOptions) -> int:
    """Return how many dead letters a replay would select."""
    with LetterLedger.open(Path(settings.state), create=False) as ledger:
        selection = Selection(ledger, wanted, options.parked, options.limit)
        return sum(1 for _ in selection.choose(read_dead_letters(settings)))


def dry_run(settings: Settings, wanted: DeadLetterFilter, options: ReplayOptions) -> Iterator[ReplayOutcome]:
    """Yield the outcome of each dead letter that a replay would select, without writing or starting Spark.

    ``sinks`` of a verdict are those that would get the record: not the ones that have it. What waits for a letter that
    stays dead has the reason :data:`~router.state.ledger.HELD`.
    """
    plan = current_plan(settings)
    with LetterLedger.open(Path(settings.state), create=False) as ledger:
        selection = Selection(ledger, wanted, options.parked, options.limit)
        turns = ReplayOrder(ledger.order)
        for sinks, letters in group_letters(selection.choose(read_dead_letters(settings)), CHUNK, turns):
            for verdict in hold_back_waiting(evaluate_letters(plan, letters), turns):
                yield replace(verdict, sinks=tuple(name for name in verdict.sinks if not sinks or name in sinks))
        yield from (ReplayOutcome(letter, None, (), HELD) for letter in sorted(turns.left))


def replay(path: Path, wanted: DeadLetterFilter, options: ReplayOptions, watcher: ReplayProgress) -> Summary:
    """Replay the dead letters that match the filter, with the current catalog and settings.

    SIGTERM and Ctrl-C end it after the batch in hand; while a sink is away, at once.

    Raises:
        RouterError: it cannot start or go on; a batch in hand is finished by the next replay.
    """
    settings = load_settings(path)
    configure_logs(settings.log)
    set_umask_for(settings.readable_by)
    stop = threading.Event()
    with handle_signals(stop), LetterLedger.open(Path(settings.state)) as ledger, ledger.exclusive():
        return _Run(settings, ledger, path.resolve().parent, wanted, options, watcher, stop).all()


def current_plan(settings: Settings) -> Plan:
    """Return the plan of the current catalog and settings.

    Raises:
        CatalogUnavailable: the catalog cannot be read, or refers to what cannot be reached: what is unknown now is no
            reason to call a letter dead again.
    """
    catalog = read_catalog(settings)
    if catalog.pending:
        raise CatalogUnavailable(
            f"the catalog refers to what cannot be reached now: {', '.join(catalog.pending[:3])}",
            hint="replay again when it responds",
        )
    check_endpoints(settings, catalog)
    plan = Plan(catalog, settings)
    admit(settings, catalog, plan.sources)
    return plan


@dataclass(slots=True)
class _Run:
    """One replay from start to end.

    Without a ``watcher`` it gives up if a sink is away. ``letters`` are those to select from, by default those of all
    sinks; ``plans`` those of a session, by default a new one. ``plan`` evaluates, by default the plan of catalog and
    settings as they are; ``resumed`` counts what an earlier replay left, by default in the summary of all.
    """

    settings: Settings
    ledger: LetterLedger
    base: Path
    wanted: DeadLetterFilter
    options: ReplayOptions
    watcher: ReplayProgress | None
    stop: threading.Event
    letters: Sequence[DeadLetter] | None = None
    plans: PlanCache | None = None
    plan: Plan | None = None
    resumed: Summary | None = None
    summary: Summary = field(default_factory=Summary)
    stack: ExitStack = field(default_factory=ExitStack)
    tried: set[str] = field(default_factory=set)
    freed: set[str] = field(default_factory=set)
    began: float = 0.0
    before: int = 0
    """Dead letters that were tried before it began."""

    def all(self) -> Summary:
        """Finish an interrupted replay, then replay the selected dead letters."""
        with self.stack:
            try:
                self._resume()
                self._replay_selected()
            except ReplayInterrupted as reason:
                self.summary.interrupted = str(reason)
        return self.summary

    def _replay_selected(self) -> None:
        most = self.settings.dead_letters.max_replays
        selection = Selection(self.ledger, self.wanted, self.options.parked, self.options.limit, most)
        self.summary.skipped = selection.skipped
        self.began, self.before = time.monotonic(), self.summary.settled
        left = self._through(selection)
        self.summary.unknown = tuple(sorted(self.wanted.ids - selection.seen))
        # One that was read before its turn came is looked for again; each time there are fewer.
        while any(self.ledger.order.earlier(letter) is None for letter in left):
            left = self._through(replace(selection, limit=None, only=frozenset(left), skipped=Counter(), seen=set()))
        if self.wanted == DeadLetterFilter() and self.options.limit is None:
            self._catch_up(selection)
        if held := len(left) + self.summary.held:
            self.summary.skipped[HELD] = held

    def _catch_up(self, selection: Selection) -> None:
        """Replay new dead letters that wait behind routed ones, until their keys are unblocked.

        A key that always has records would never be free, but the router holds them back meanwhile
        (:mod:`router.batches.batch`). One that it had held back before is read once it is written.
        """
        order = self.ledger.order
        deadline = time.monotonic() + CATCH_UP_SECONDS
        try:
            while (keys := self._due()) and time.monotonic() < deadline and not self.stop.is_set():
                order.note_keys_to_free(keys)
                only, tried = frozenset(order.letters_of_keys(keys) - self.tried), len(self.tried)
                self._through(replace(selection, only=only, skipped=Counter(), seen=set()))
                if len(self.tried) == tried:
                    self.stop.wait(LOOK_SECONDS)
        finally:
            order.note_keys_to_free(())

    def _due(self) -> list[str]:
        """Return keys that this replay partly unblocked, whose first dead letter it has not tried yet."""
        heads = {key: head for key, head in self.ledger.order.first_letters().items() if key in self.freed}
        standing = self.ledger.standing(heads.values())
        return [key for key, head in heads.items() if head not in self.tried and standing[head] == "open"]

    def _through(self, selection: Selection) -> set[str]:
        """Replay a selection; return the dead letters that were skipped because of an earlier one."""
        turns = ReplayOrder(self.ledger.order)
        letters = read_dead_letters(self.settings) if self.letters is None else self.letters
        for sinks, batch in group_letters(selection.choose(letters), self.options.size, turns):
            if self.stop.is_set():
                raise ReplayInterrupted(STOPPED)
            self.plan = self.plan or current_plan(self.settings)
            self._batch(self.plan, sinks, batch)
            if self.options.rate is not None:
                # A request to stop is honored before the next batch.
                due = self.began + (self.summary.settled - self.before) / self.options.rate
                self.stop.wait(max(0.0, due - time.monotonic()))
        return turns.left

    def _batch(self, plan: Plan, sinks: tuple[str, ...], letters: Sequence[DeadLetter]) -> None:
        replayer = self._opened()
        ids = tuple(letter.id for letter in letters)
        pending = PendingReplay(self.ledger.next_number(), plan.id, ids, sinks)
        self.ledger.begin(pending, plan.to_bytes())
        keys = self.ledger.order.keys_of_letters(ids)
        replayer.replay(plan, pending, letters, self.summary)
        self.tried.update(ids)
        self.freed.update(keys[letter] for letter in keys.keys() - self.ledger.order.keys_of_letters(keys).keys())
        if self.watcher is not None:
            self.watcher.progress(self.summary)

    def _resume(self) -> None:
        pending = self.ledger.pending()
        if pending is None:
            return
        if self.watcher is not None:
            self.watcher.resumed(pending)
        restore = partial(compile_plan, environ=os.environ, base=self.base)
        plan = restore_plan(BatchStore(self.ledger.database), pending.plan, restore)
        self.summary.resuming = True
        counts = self.summary if self.resumed is None else self.resumed
        self._opened().replay(plan, pending, self._find_letters(pending.letters), counts)
        self.summary.resuming = False
        if self.watcher is not None:
            self.watcher.progress(counts)

    def _find_letters(self, ids: Sequence[str]) -> list[DeadLetter]:
        """Return dead letters by id, in that order, without those that no longer exist."""
        left, by_id = set(ids), {}
        for letter in read_dead_letters(self.settings):
            if letter.id in left:
                by_id[letter.id] = letter
                left.remove(letter.id)
                if not left:
                    break
        return [by_id[letter] for letter in ids if letter in by_id]

    def _opened(self) -> Replayer:
        """Start Spark on first use. It has its own folder, so a router may run at the same time."""
        if self.plans is None:
            spark = self.settings.spark.model_copy(update={"master": MASTER})
            folder = Path(self.settings.state) / LOCK.parent / "replay"
            create_private_folder(folder)
            self.stack.callback(close_publishers)
            session = open_spark_session(self.settings.model_copy(update={"spark": spark}), folder, ())
            self.plans = PlanCache(self.stack.enter_context(session), None, None, Metrics())
        return Replayer(self.plans, self.ledger, self.stop, None if self.watcher is None else self.watcher.held)


# One dead letter at a time, for the status page: preview and replay.
#
# It runs in the router's own process and Spark session, on a thread of its own and one at a time, as a batch beside
# those of the stream; the lock and the ledger are those of ``xrouter dead-letters replay``.

KEPT: Final = 20
"""Finished replays that are kept."""
_log = get_logger()


class SingleReplays:
    """Replays single dead letters on request, from any thread. *base* is the folder of the settings file."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._lock = threading.Lock()
        self._plans: PlanCache | None = None
        self._recent: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def begin(self, spark: SparkSession) -> None:
        """Set the Spark session for replays; without one nothing is replayed."""
        self._plans = PlanCache(spark, None, None, Metrics())

    def end(self) -> None:
        """Refuse further replays."""
        self._plans = None

    def verdict(self, plan: Plan, letter: DeadLetter) -> dict[str, Any]:
        """Return the outcome of replaying a dead letter with *plan*; ``sinks`` are those that lack its record."""
        (verdict,) = evaluate_letters(plan, [letter])
        with LetterLedger.open(Path(plan.settings.state), create=False) as ledger:
            without = missing_sinks(ledger, letter, ledger.entries([letter.id]).get(letter.id))
        return {
            "outcome": "routed" if verdict.reason is None else "dead-letter",
            "message": verdict.message,
            "sinks": [name for name in verdict.sinks if not without or name in without],
            "reason": verdict.reason,
            "detail": verdict.detail,
        }

    def replay(self, plan: Plan, letter: DeadLetter) -> dict[str, Any]:
        """Start to replay a dead letter, and return its state; :meth:`recent` has its progress.

        Raises:
            RouterError: another replay of ours is under way, or the router is not running.
        """
        with self._lock:
            plans = self._plans
            if plans is None:
                raise RouterError("the router is not running its queries", hint="retry when it is ready")
            if any(each["state"] == "running" for each in self._recent):
                raise RouterError("another dead letter is being replayed", hint="retry when it is done")
            entry = {"letter": letter.id, "began": _now(), "state": "running", "outcome": None, "detail": ""}
            self._recent.append(entry)
        _log.info("replaying a dead letter, requested on the status page", letter=letter.id)
        work = threading.Thread(target=self._run, args=(plan, letter, plans, entry), name="replay", daemon=True)
        try:
            work.start()
        except RuntimeError as error:
            with self._lock:
                entry |= {"state": "failed", "detail": str(error)}
        return dict(entry)

    def recent(self) -> list[dict[str, Any]]:
        """Return the last replays, newest first."""
        with self._lock:
            return [dict(each) for each in reversed(self._recent)]

    def _run(self, plan: Plan, letter: DeadLetter, plans: PlanCache, entry: dict[str, Any]) -> None:
        """Replay a dead letter, also a parked one; give up if a sink is unavailable.

        What an earlier replay left unfinished is finished first, and not in the summary.
        """
        wanted, options = DeadLetterFilter(ids=frozenset((letter.id,))), ReplayOptions(parked=True)
        try:
            with LetterLedger.open(Path(plan.settings.state)) as ledger, ledger.exclusive():
                parts = (plan.settings, ledger, self._base, wanted, options, None, threading.Event())
                result = _to_entry(_Run(*parts, (letter,), plans, plan, Summary()).all())
        except RouterError as error:
            result = {"state": "failed", "detail": str(error)}
        except Exception as error:
            # The stream must continue whatever the error; the next replay finishes the current batch.
            _log.exception("replay requested on the status page failed")
            result = {"state": "failed", "detail": f"{type(error).__name__}; the log says why"}
        with self._lock:
            entry |= result
        _log.info("replay requested on the status page finished", **entry)


def _to_entry(summary: Summary) -> dict[str, Any]:
    if summary.interrupted and summary.resuming:
        detail = f"an earlier replay is to be finished first, and waits: {summary.interrupted}"
        return {"state": "failed", "detail": detail}
    if summary.interrupted:
        return {"state": "held", "detail": f"{summary.interrupted}; the next replay finishes it"}
    for outcome, counts in (("routed", summary.routed), ("dead-letter", summary.dead)):
        if counts:
            return {"state": "done", "outcome": outcome, "detail": list(counts)[-1]}
    skipped = ", ".join(summary.skipped) or ("gone" if summary.gone else "nothing to do")
    return {"state": "done", "outcome": None, "detail": f"left out: {skipped}"}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
