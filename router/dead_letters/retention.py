"""Remove dead letters by age or total size, from sinks that support it.

Letters are removed from tables and folders; for Kafka topics, the broker's retention applies. Nothing is removed while
a replay is running or unfinished, since it must find its letters again. Ledger entries are deleted after the letters: a
crash in between leaves entries without letters, but never reopens a letter that was replayed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
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
_NO_LIMIT: Final = timedelta(0)


def purge(
    settings: Settings, age: timedelta = _NO_LIMIT, size: int = 0, *, now: datetime | None = None, dry_run: bool = False
) -> list[OldLetters]:
    """Remove dead letters beyond an age and a total size, and return those of each sink that had any; 0 is no limit.

    With *dry_run* nothing is removed.

    Raises:
        StateError: a replay is running or unfinished, or the ledger cannot be used.
        SinkError: a sink cannot be read or changed now; others may have been.
    """
    before = None if not age else (now or datetime.now(UTC)) - age
    if dry_run:
        return list(_find_old(settings, before, size))
    removed: list[OldLetters] = []
    known: set[str] = set()
    with LetterLedger.open(Path(settings.state)) as ledger, ledger.exclusive():
        if ledger.pending() is not None:
            raise StateError(
                "a replay is unfinished, so no dead letter can be removed",
                hint="run `xrouter dead-letters replay` again to finish it",
            )
        for old in _find_old(settings, before, size):
            ids = old.iter_ids()
            while some := list(islice(ids, _CHUNK)):
                known.update(ledger.entries(some))
            old.remove()
            removed.append(old)
        _forget_removed(settings, ledger, known)
        if removed or _has_topics(settings):
            _unblock_keys(settings, ledger)
    return removed


def _find_old(settings: Settings, before: datetime | None, limit: int) -> Iterator[OldLetters]:
    stores = open_stores(settings) if any(settings.sinks[name].readable for name in dead_letter_sinks(settings)) else []
    yield from (old for store in stores if (old := store.find_old(before, limit)) is not None)
    if before is not None:
        yield from _find_old_spills(Path(settings.state) / SPILL, before)


def _find_old_spills(folder: Path, before: datetime) -> Iterator[OldLetters]:
    """Yield the old spill files of dead letters in topics; the broker's retention should have the same age."""
    files = [path for path in folder.glob("*.json") if path.stat().st_mtime < before.timestamp()]

    def remove() -> None:
        for path in files:
            path.unlink(missing_ok=True)

    if files:
        size = sum(path.stat().st_size for path in files)
        yield OldLetters(SPILL, len(files), size, lambda: iter(()), remove)


def _forget_removed(settings: Settings, ledger: LetterLedger, ids: set[str]) -> None:
    """Delete the ledger entries of removed dead letters, unless a topic or another sink may still have them."""
    if not ids or _has_topics(settings):
        return
    if len(readable_sinks(settings)) > 1:
        ids = ids - {letter.id for letter in read_dead_letters(settings, bodies=False) if letter.id in ids}
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

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.ask_to_end()
        # A purge of a large table must not delay shutdown.
        self._thread.join(_STOP_SECONDS)

    def _purge_periodically(self) -> None:
        retention = self._settings.dead_letters.retention
        while not self._stop.is_set():
            try:
                for removed in purge(self._settings, retention.age, retention.size):
                    _log.info("dead letters removed", sink=removed.sink, letters=removed.letters, bytes=removed.size)
            except (RouterError, OSError) as error:
                _log.warning("dead letters could not be removed; will retry", problem=str(error))
            self._stop.wait(INTERVAL_SECONDS)
