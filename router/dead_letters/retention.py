"""Remove dead letters by age or total size, from sinks that support it.

Letters are removed from tables and folders; for Kafka topics, the broker's retention applies. Nothing is removed while
a replay is running or unfinished, since it must find its letters again. Ledger entries are deleted after the letters: a
crash in between leaves entries without letters, but never reopens a letter that was replayed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bindings.background import Background
from router.dead_letters.reading import open_stores, read_dead_letters, readable_sinks
from router.dead_letters.stores import OldLetters
from router.errors import RouterError, StateError
from router.logs import get_logger
from router.settings import Settings, dead_letter_sinks
from router.state.ledger import LetterLedger

SPILL: Final = "spill"
_CHUNK: Final = 500


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """Limits of retention; 0 means no limit. See :mod:`router.settings.model`."""

    age: timedelta = timedelta(0)
    size: int = 0


@dataclass(frozen=True, slots=True)
class RemovalCount:
    """How many dead letters were (or would be) removed from a sink; for spill files, ``sink`` is ``spill``."""

    sink: str
    letters: int
    bytes: int


def purge(
    settings: Settings, limits: RetentionLimits, *, now: datetime | None = None, dry_run: bool = False
) -> list[RemovalCount]:
    """Remove dead letters beyond the limits, and return the counts of each sink that had any.

    With *dry_run* nothing is removed.

    Raises:
        StateError: a replay is running or unfinished, or the ledger cannot be used.
        SinkError: a sink cannot be read or changed now; others may have been.
    """
    before = None if not limits.age else (now or datetime.now(UTC)) - limits.age
    root = Path(settings.state)
    if dry_run:
        counts = [_to_count(old) for old in _find_old(settings, before, limits.size)]
        return [*counts, *_remove_spills(root, before, remove=False)]
    with LetterLedger.open(root) as ledger, ledger.exclusive():
        if ledger.pending() is not None:
            raise StateError(
                "a replay is unfinished, so no dead letter can be removed",
                hint="run `xrouter dead-letters replay` again to finish it",
            )
        removed: list[RemovalCount] = []
        known: set[str] = set()
        for old in _find_old(settings, before, limits.size):
            known.update(_iter_known_ids(old.iter_ids(), ledger))
            old.remove()
            removed.append(_to_count(old))
        _forget_removed(settings, ledger, known)
        if removed or _has_topics(settings):
            _unblock_keys(settings, ledger)
    return [*removed, *_remove_spills(root, before, remove=True)]


def _find_old(settings: Settings, before: datetime | None, limit: int) -> Iterator[OldLetters]:
    stores = open_stores(settings) if any(settings.sinks[name].readable for name in dead_letter_sinks(settings)) else []
    return (old for store in stores if (old := store.find_old(before, limit)) is not None)


def _to_count(old: OldLetters) -> RemovalCount:
    return RemovalCount(old.sink, old.letters, old.size)


def _iter_known_ids(ids: Iterator[str], ledger: LetterLedger) -> Iterator[str]:
    """Yield the ids that have a ledger entry."""
    while some := list(islice(ids, _CHUNK)):
        yield from ledger.entries(some)


def _forget_removed(settings: Settings, ledger: LetterLedger, ids: set[str]) -> None:
    """Delete the ledger entries of removed dead letters, unless a topic or another sink may still have them."""
    if not ids or _has_topics(settings):
        return
    readable = readable_sinks(settings)
    if len(readable) > 1:
        ids = ids - {
            letter.id for letter in read_dead_letters(settings, sinks=readable, bodies=False) if letter.id in ids
        }
    ledger.forget(ids)


def _unblock_keys(settings: Settings, ledger: LetterLedger) -> None:
    """Unblock keys of dead letters that no sink has, including letters that a broker removed.

    A letter that is not written yet may be among them; its key is blocked again when it is written.
    """
    left = ledger.order.positions()
    if left:
        for letter in read_dead_letters(settings, bodies=False):
            left.pop(letter.id, None)
        ledger.order.remove_gone(left)


def _has_topics(settings: Settings) -> bool:
    return any(settings.sinks[name].topics is not None for name in dead_letter_sinks(settings))


def _remove_spills(root: Path, before: datetime | None, *, remove: bool) -> list[RemovalCount]:
    """Remove old spill files of dead letters in topics; the broker's retention should have the same age."""
    if before is None:
        return []
    files = [path for path in (root / SPILL).glob("*.json") if path.stat().st_mtime < before.timestamp()]
    size = sum(path.stat().st_size for path in files)
    if remove:
        for path in files:
            path.unlink(missing_ok=True)
    return [RemovalCount(SPILL, len(files), size)] if files else []


# Retention of dead letters in a running router, in a separate thread.

INTERVAL_SECONDS: Final = 600.0
_STOP_SECONDS: Final = 5.0
_log = get_logger()


class RetentionThread:
    """Removes dead letters beyond ``dead_letters.retention``: on entry, then every ten minutes until exit.

    Without limits there is no thread. Errors are logged and retried; the router continues. A removal interrupted
    by the end of the process leaves each table consistent, and the next one completes it.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self._thread = Background("dead-letter-retention", self._purge_periodically)

    def __enter__(self) -> Self:
        if self._settings.dead_letters.retention.on:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.ask_to_end()
        # A purge of a large table must not delay shutdown.
        self._thread.join(_STOP_SECONDS)

    def _purge_periodically(self) -> None:
        retention = self._settings.dead_letters.retention
        limits = RetentionLimits(retention.age, retention.size)
        while not self._stop.is_set():
            try:
                for removed in purge(self._settings, limits):
                    _log.info("dead letters removed", sink=removed.sink, letters=removed.letters, bytes=removed.bytes)
            except (RouterError, OSError) as error:
                _log.warning("dead letters could not be removed; will retry", problem=str(error))
            self._stop.wait(INTERVAL_SECONDS)
