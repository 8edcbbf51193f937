"""One dead letter at a time, for the status page: what a replay would make of it, and the replay itself.

It runs in the router's own process and Spark session, on a thread of its own and one at a time, as a batch beside those
of the stream; the lock and the ledger are those of ``xrouter dead-letters replay``.
"""

from __future__ import annotations

import threading
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from router.errors import RouterError
from router.judging.plan import Plan
from router.letters.letter import Letter
from router.logs import get_logger
from router.replay.dry_run import verdicts
from router.replay.replay import Result, replay_one
from router.replay.replaying import Loads
from router.replay.selection import lacking
from router.state.ledger import LetterLedger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router.replay.replaying import Summary
    from router.state.ledger import PendingReplay

KEPT: Final = 20
"""Replays that are remembered."""
_log = get_logger()


class SingleReplays:
    """Replays letters when asked; any thread may ask. *base* is the folder of the settings file."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._lock = threading.Lock()
        self._loads: Loads | None = None
        self._recent: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def begin(self, spark: SparkSession) -> None:
        """Replay in this session from now on; before there is none, nothing is replayed."""
        self._loads = Loads(spark)

    def end(self) -> None:
        """Begin no replay any more."""
        self._loads = None

    def verdict(self, plan: Plan, letter: Letter) -> dict[str, Any]:
        """Return what a replay would make of a letter under *plan*; ``sinks`` are those that lack its record."""
        (verdict,) = verdicts(plan, [letter])
        with LetterLedger.open(Path(plan.settings.state), create=False) as ledger:
            without = lacking(ledger, letter, ledger.entries([letter.id]).get(letter.id))
        return {
            "outcome": "routed" if verdict.reason is None else "dead-letter",
            "message": verdict.message,
            "sinks": [name for name in verdict.sinks if not without or name in without],
            "reason": verdict.reason,
            "detail": verdict.detail,
        }

    def replay(self, plan: Plan, letter: Letter) -> dict[str, Any]:
        """Begin to replay a letter, and return how that stands; :meth:`recent` says how it went on.

        Raises:
            RouterError: another replay of ours is under way, or the router is not running.
        """
        with self._lock:
            loads = self._loads
            if loads is None:
                raise RouterError("the router is not running its queries now", hint="try again when it is ready")
            if any(each["state"] == "running" for each in self._recent):
                raise RouterError("another letter is being replayed", hint="try again when it is done")
            entry = {"letter": letter.id, "began": _now(), "state": "running", "outcome": None, "detail": ""}
            self._recent.append(entry)
        _log.info("dead letter is replayed, as the status page asked", letter=letter.id)
        work = threading.Thread(target=self._run, args=(plan, letter, loads, entry), name="replay", daemon=True)
        try:
            work.start()
        except RuntimeError as error:
            with self._lock:
                entry |= {"state": "failed", "detail": str(error)}
        return dict(entry)

    def recent(self) -> list[dict[str, Any]]:
        """Return how the last replays went, newest first."""
        with self._lock:
            return [dict(each) for each in reversed(self._recent)]

    def _run(self, plan: Plan, letter: Letter, loads: Loads, entry: dict[str, Any]) -> None:
        notes = _Notes()
        try:
            result = _outcome(replay_one(plan, self._base, letter, notes, loads), notes)
        except RouterError as error:
            result = {"state": "failed", "detail": str(error)}
        except Exception as error:
            # Whatever it is, the stream goes on: the batch in hand is finished by the next replay.
            _log.exception("a replay from the status page failed")
            result = {"state": "failed", "detail": f"{type(error).__name__}; the log says why"}
        with self._lock:
            entry |= result
        _log.info("replay that the status page asked for has ended", **entry)


class _Notes:
    """What a replay says on its way."""

    def __init__(self) -> None:
        self.reason = ""
        self.earlier = False

    def resumed(self, pending: PendingReplay) -> None:
        """Note that an earlier replay is finished first."""
        self.earlier = True

    def progress(self, summary: Summary) -> None:
        """Note that the batch in hand is settled: there is one of the letter, and perhaps one before it."""
        self.earlier = False

    def held(self, reason: str, seconds: float) -> None:
        """Note why it is not done."""
        self.reason = reason


def _outcome(result: Result, notes: _Notes) -> dict[str, Any]:
    if result.interrupted and notes.earlier:
        return {"state": "failed", "detail": f"an earlier replay is to be finished first, and waits: {notes.reason}"}
    if result.interrupted:
        return {"state": "held", "detail": f"{notes.reason}; the next replay finishes it"}
    if routed := list(result.summary.routed):
        return {"state": "done", "outcome": "routed", "detail": routed[-1]}
    if dead := list(result.summary.dead):
        return {"state": "done", "outcome": "dead-letter", "detail": dead[-1]}
    skipped = ", ".join(result.skipped) or ("gone" if result.summary.gone else "nothing to do")
    return {"state": "done", "outcome": None, "detail": f"left out: {skipped}"}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
