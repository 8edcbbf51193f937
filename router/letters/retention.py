"""Removing dead letters that are old enough, or too many, from the sinks that let them be removed.

Tables and folders lose letters; topics of Kafka have the broker's own retention. Nothing is removed while a replay runs
or is unfinished, since it must find its letters again. The ledger forgets letters after they are gone everywhere, so a
crash in between can leave rows of letters that are no more, and never open a letter again that was replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from pkgutil import resolve_name
from typing import Final

from router.errors import StateError
from router.letters.delta_retention import OldRows
from router.letters.folder_retention import OldFiles
from router.letters.reading import read_letters, readable_sinks
from router.settings import Settings, letter_sinks
from router.state.ledger import LetterLedger

SPILL: Final = "spill"
_CHUNK: Final = 500


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """What letters may stay: ``age`` zero is any, ``size`` 0 is any; as in :mod:`router.settings.dead_letters`."""

    age: timedelta = timedelta(0)
    size: int = 0


@dataclass(frozen=True, slots=True)
class Removed:
    """What was removed from one sink, or would be; ``spill`` is called so, and its files are counted as letters."""

    sink: str
    letters: int
    bytes: int


def purge(
    settings: Settings, limits: RetentionLimits, *, now: datetime | None = None, dry_run: bool = False
) -> list[Removed]:
    """Remove what is beyond the limits; returns what that was by sink, those without anything left out.

    With *dry_run* nothing is changed.

    Raises:
        StateError: a replay is running or unfinished, or the ledger cannot be used.
        SinkError: a sink cannot be read or changed now; others may have been.
    """
    before = None if not limits.age else (now or datetime.now(UTC)) - limits.age
    root = Path(settings.state)
    if dry_run:
        return [*_removals(_doomed(settings, before, limits.size)), *_spilled(root, before, remove=False)]
    with LetterLedger.open(root) as ledger, ledger.exclusive():
        if ledger.pending() is not None:
            raise StateError(
                "a replay is unfinished, so that no letter can be removed",
                hint="run `xrouter dead-letters replay` once more: it finishes what it began",
            )
        removed: list[Removed] = []
        known: set[str] = set()
        for doomed in _doomed(settings, before, limits.size):
            known.update(_known(doomed.ids(), ledger))
            doomed.remove()
            removed += _removals([doomed])
        _forget(settings, ledger, known)
        if removed or _has_topics(settings):
            _free_keys(settings, ledger)
    return [*removed, *_spilled(root, before, remove=True)]


def _doomed(settings: Settings, before: datetime | None, most: int) -> Iterator[OldRows | OldFiles]:
    """Yield what is beyond the limits, sink by sink."""
    for name in letter_sinks(settings):
        sink = settings.sinks[name]
        if sink.retention and sink.readable:
            excess: OldRows | OldFiles | None = resolve_name(sink.retention)(name, sink, before=before, most=most)
            if excess is not None:
                yield excess


def _removals(doomed: Iterable[OldRows | OldFiles]) -> list[Removed]:
    return [Removed(each.sink, each.letters, each.size) for each in doomed]


def _known(ids: Iterator[str], ledger: LetterLedger) -> Iterator[str]:
    """Yield those of the ids that the ledger has an entry of, which are few."""
    while some := list(islice(ids, _CHUNK)):
        yield from ledger.entries(some)


def _forget(settings: Settings, ledger: LetterLedger, ids: set[str]) -> None:
    """Forget letters that no sink has any more; one that a topic may still have must keep its standing."""
    if not ids or _has_topics(settings):
        return
    readable = readable_sinks(settings)
    if len(readable) > 1:
        ids = ids - {letter.id for letter in read_letters(settings, sinks=readable, bodies=False) if letter.id in ids}
    ledger.forget(ids)


def _free_keys(settings: Settings, ledger: LetterLedger) -> None:
    """Stop letters that no sink has any more from holding up their key; also those that a broker removed.

    A letter that is still to be written may be among them; it gets its place again once it is.
    """
    left = ledger.order.numbers()
    if left:
        for letter in read_letters(settings, bodies=False):
            left.pop(letter.id, None)
        ledger.order.gone(left)


def _has_topics(settings: Settings) -> bool:
    return any(settings.sinks[name].topics is not None for name in letter_sinks(settings))


def _spilled(root: Path, before: datetime | None, *, remove: bool) -> list[Removed]:
    """Remove the files of letters in topics by their age: broker and router are to keep letters equally long."""
    if before is None:
        return []
    files = [path for path in (root / SPILL).glob("*.json") if path.stat().st_mtime < before.timestamp()]
    size = sum(path.stat().st_size for path in files)
    if remove:
        for path in files:
            path.unlink(missing_ok=True)
    return [Removed(SPILL, len(files), size)] if files else []
