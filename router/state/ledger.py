"""What became of dead letters: a small SQLite database at ``state/ledger/letters.db``, keyed by letter id.

It is used beside a running router and does not need ``state/lock``. Write-ahead log with ``synchronous=FULL``: what a
method changed is on the disk when it returns, wholly or not at all, and readers never wait for a writer. The letters
themselves stay where they are; a letter without a row is open and was never tried again.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from bindings.private import InUse, is_locked, private_folder, sync_path, take_lock
from router.errors import DiskError, StateError
from router.state import ledger_database as sqlite
from router.state.ledger_database import (
    KeyOrder,
    freed,
    instant,
    opened,
    parse_instant,
    portions,
    transaction,
    translated,
)

FOLDER: Final = "ledger"
NAME: Final = "letters.db"
LOCK: Final = "replay.lock"
GONE: Final = "letters removed"
"""The fact that counts letters which no sink has any more."""

Standing = Literal["open", "replayed", "parked"]
"""``open``: to be mended and replayed; ``replayed``: it became an event; ``parked``: replays leave it out."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What the ledger knows of one letter.

    ``attempts`` counts settled replays of it, ``reason`` and ``detail`` are those of the last one that failed (''
    before that), ``changed`` is the time of the last change.
    """

    letter: str
    standing: Standing
    attempts: int
    reason: str
    detail: str
    changed: datetime | None


@dataclass(frozen=True, slots=True)
class Happening:
    """One line of a letter's history. ``what`` is ``failed``, ``replayed`` or ``parked``.

    ``replay`` is the number of the replay batch, None for what was no part of one.
    """

    at: datetime | None
    what: str
    replay: int | None
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class PendingReplay:
    """One replay batch, durable before its first write.

    ``number`` grows with every batch of the ledger and is the version that tables commit it under; ``plan`` is the id
    of the plan that judges it; ``sinks`` are the only sinks that get it, () for all of the route.
    """

    number: int
    plan: str
    letters: tuple[str, ...]
    sinks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one letter in a replay batch: an event when ``reason`` is None, else a dead letter again."""

    letter: str
    reason: str | None = None
    detail: str = ""


class LetterLedger:
    """The open ledger; of one thread. Methods raise :class:`~router.errors.StateError` when the disk refuses."""

    def __init__(self, folder: Path, database: sqlite3.Connection) -> None:
        self._folder = folder
        self._database = database
        self.order = KeyOrder(database, folder / NAME)
        """Which letters hold up later records of their keys."""

    @classmethod
    @contextlib.contextmanager
    def open(cls, root: Path, *, create: bool = True) -> Iterator[LetterLedger]:
        """Open the ledger of the state folder *root*; without *create* one that is missing reads as empty.

        Raises:
            StateError: it cannot be used, is no ledger, or is of a newer format.
        """
        folder = root / FOLDER
        with opened(folder / NAME, create=create) as database:
            yield cls(folder, database)

    @property
    def id(self) -> str:
        """The ledger's own id, made with it: part of the names that replays commit under."""
        return str(self._all("SELECT value FROM facts WHERE name = 'id'")[0][0])

    @classmethod
    def check(cls, root: Path) -> None:
        """Make sure that the ledger of the state folder *root*, if there is one, is whole.

        Raises:
            StateError: it is damaged, or gone.
        """
        with cls.open(root, create=False) as ledger:
            faults = ledger._all("PRAGMA quick_check(1)")
        if faults != [("ok",)]:
            raise StateError(
                f"ledger {root / FOLDER / NAME} is damaged: {faults[0][0]}", hint="restore it from a backup"
            )

    def standing(self, ids: Iterable[str]) -> dict[str, Standing]:
        """Return the standing of each of these letters; one that the ledger does not know is open."""
        wanted = list(ids)
        known = self.entries(wanted)
        return {letter: known[letter].standing if letter in known else "open" for letter in wanted}

    def entries(self, ids: Iterable[str]) -> dict[str, LedgerEntry]:
        """Return what is known of these letters; those without an entry are left out."""
        entries: dict[str, LedgerEntry] = {}
        for some in portions(ids):
            marks = ",".join("?" * len(some))
            columns = "letter, standing, attempts, reason, detail, changed"
            for row in self._all(f"SELECT {columns} FROM letters WHERE letter IN ({marks})", some):
                entries[row[0]] = LedgerEntry(row[0], row[1], row[2], row[3], row[4], parse_instant(row[5]))
        return entries

    def history(self, letter: str) -> list[Happening]:
        """Return what happened to a letter, oldest first."""
        query = "SELECT at, what, replay, reason, detail FROM history WHERE letter = ? ORDER BY rowid"
        return [Happening(parse_instant(row[0]), *row[1:]) for row in self._all(query, [letter])]

    def attempted(self, failed: Iterable[tuple[str, str, str]], when: datetime) -> None:
        """Count one attempt for each (id, reason, detail): it was judged again and is a dead letter still."""
        with self._writing() as database:
            _failed(database, failed, instant(when), None)

    def replayed(self, ids: Iterable[str], when: datetime) -> None:
        """Note that these letters became events; nothing changes that any more."""
        with self._writing() as database:
            _replayed(database, ids, instant(when), None)

    def park(self, ids: Iterable[str], when: datetime | None = None) -> int:
        """Park those of the letters that are open; return how many were."""
        at = instant(when or datetime.now(UTC))
        with self._writing() as database:
            wanted = list(dict.fromkeys(ids))
            known = self.standing(wanted)
            parked = [letter for letter in wanted if known[letter] == "open"]
            database.executemany(
                "INSERT INTO letters VALUES (?, 'parked', 0, '', '', ?) "
                "ON CONFLICT DO UPDATE SET standing = excluded.standing, changed = excluded.changed",
                [(letter, at) for letter in parked],
            )
            database.executemany(
                "INSERT INTO history VALUES (?, ?, 'parked', NULL, '', '')", [(letter, at) for letter in parked]
            )
        return len(parked)

    def forget(self, ids: Iterable[str]) -> None:
        """Remove what is known of letters that do not exist any more; they hold up nothing any more."""
        wanted = list(dict.fromkeys(ids))
        with self._writing() as database:
            freed(database, wanted)
            database.execute(
                "INSERT INTO facts VALUES (?, ?) ON CONFLICT DO UPDATE SET value = CAST(value AS INTEGER) + ?",
                (GONE, str(len(wanted)), len(wanted)),
            )
            for some in portions(wanted):
                marks = ",".join("?" * len(some))
                for table in ("letters", "history"):
                    database.execute(f"DELETE FROM {table} WHERE letter IN ({marks})", some)

    def settled(self) -> int:
        """Return how many letters need nobody's attention any more: they were replayed, or removed everywhere."""
        (replayed,) = self._all("SELECT count(*) FROM letters WHERE standing = 'replayed'")[0]
        gone = self._all("SELECT value FROM facts WHERE name = ?", (GONE,))
        return int(replayed) + (int(gone[0][0]) if gone else 0)

    def next_number(self) -> int:
        """Return the number of the next replay batch: above every one before it."""
        return int(self._all("SELECT coalesce(max(number), 0) + 1 FROM replays")[0][0])

    def begin(self, replay: PendingReplay) -> None:
        """Make a replay batch durable, before its first write.

        Raises:
            StateError: another one is pending, or its number was used before.
        """
        with self._writing() as database:
            pending = database.execute("SELECT number FROM replays WHERE ended IS NULL").fetchone()
            if pending is not None:
                raise StateError(
                    f"replay batch {pending[0]} is not finished", hint="finish it before another one is begun"
                )
            if replay.number < self.next_number():
                raise StateError(f"replay batch {replay.number} was used before", hint="take the next number")
            content = json.dumps({"letters": replay.letters, "sinks": replay.sinks})
            database.execute(
                "INSERT INTO replays VALUES (?, ?, ?, ?, NULL)",
                (replay.number, replay.plan, content, instant(datetime.now(UTC))),
            )

    def pending(self) -> PendingReplay | None:
        """Return the replay batch that was begun and not finished."""
        rows = self._all("SELECT number, plan, content FROM replays WHERE ended IS NULL")
        if not rows:
            return None
        number, plan, content = rows[0]
        form: Mapping[str, Any] = json.loads(content)
        return PendingReplay(number, plan, tuple(form["letters"]), tuple(form["sinks"]))

    def finish(self, number: int, outcomes: Iterable[Outcome], when: datetime | None = None) -> None:
        """Settle a replay batch and each of its letters, in one transaction.

        Raises:
            StateError: this batch is not pending.
        """
        settled = list(outcomes)
        at = instant(when or datetime.now(UTC))
        with self._writing() as database:
            ended = database.execute(
                "UPDATE replays SET ended = ?, content = '' WHERE number = ? AND ended IS NULL", (at, number)
            )
            if ended.rowcount != 1:
                raise StateError(f"replay batch {number} is not pending", hint="begin it first")
            database.execute("DELETE FROM replays WHERE number < ?", (number,))
            _failed(database, ((o.letter, o.reason, o.detail) for o in settled if o.reason is not None), at, number)
            _replayed(database, (o.letter for o in settled if o.reason is None), at, number)

    @property
    def is_locked(self) -> bool:
        """Whether a process holds the lock of :meth:`exclusive` now."""
        return is_locked(self._folder / LOCK)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock of replays and purges: one at a time, across processes; a killed holder leaves it free.

        Raises:
            StateError: another process holds it; says which.
        """
        path = self._folder / LOCK
        try:
            lock = take_lock(path)
        except OSError as error:
            raise StateError(f"{path} cannot be used: {error.strerror}", hint="make it writable") from error
        except InUse as holder:
            raise StateError(
                f"another replay or purge is running here (process {holder})", hint="wait for its end, or stop it"
            ) from holder
        with lock:
            yield

    def _writing(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        """One transaction: committed at the end of the block, undone by any error in it."""
        return transaction(self._database, self._folder / NAME)

    def _all(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with translated(self._folder / NAME):
            return self._database.execute(query, values).fetchall()


def _failed(database: sqlite3.Connection, failed: Iterable[tuple[str, str, str]], at: str, replay: int | None) -> None:
    rows = list(failed)
    database.executemany(
        "INSERT INTO letters VALUES (?, 'open', 1, ?, ?, ?) ON CONFLICT DO UPDATE SET attempts = attempts + 1, "
        "reason = excluded.reason, detail = excluded.detail, changed = excluded.changed",
        [(letter, reason, detail, at) for letter, reason, detail in rows],
    )
    database.executemany(
        "INSERT INTO history VALUES (?, ?, 'failed', ?, ?, ?)",
        [(letter, at, replay, reason, detail) for letter, reason, detail in rows],
    )


def _replayed(database: sqlite3.Connection, ids: Iterable[str], at: str, replay: int | None) -> None:
    letters = list(ids)
    database.executemany(
        "INSERT INTO letters VALUES (?, 'replayed', 1, '', '', ?) ON CONFLICT DO UPDATE SET "
        "standing = 'replayed', attempts = attempts + 1, changed = excluded.changed",
        [(letter, at) for letter in letters],
    )
    database.executemany(
        "INSERT INTO history VALUES (?, ?, 'replayed', ?, '', '')", [(letter, at, replay) for letter in letters]
    )
    freed(database, letters)


# What has occurred so far, and when last: a small SQLite database at ``state/ledger/sightings.db``.
#
# It has a row for each endpoint that is read, and for each definition that one of them expects, and no others. Writing
# to it is for the router that has the state folder; anybody may read it meanwhile. Without it no record is lost.

SIGHTINGS_NAME: Final = "sightings.db"
FORMAT: Final = 1
BUSY_SECONDS: Final = 5.0
"""Longest wait for somebody who reads or copies the file."""
_TABLE: Final = (
    "CREATE TABLE sightings (endpoint TEXT NOT NULL, message TEXT NOT NULL, epoch TEXT NOT NULL, "
    "since INTEGER NOT NULL, first INTEGER, last INTEGER, PRIMARY KEY (endpoint, message)) WITHOUT ROWID"
)


class DefinitionAtEndpoint(NamedTuple):
    """A definition as an endpoint expects it; without ``message``, the endpoint itself."""

    endpoint: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What is known of a place: since when, and with which epoch first, it is expected; its first and last record.

    Times are seconds since 1970; None is never.
    """

    epoch: str
    since: int
    first: int | None = None
    last: int | None = None


class Sightings:
    """The open database. Not for concurrent use, but for any thread."""

    def __init__(self, root: Path) -> None:
        """Open it; what is there and cannot be read is replaced by an empty one, which *replaced* tells.

        Raises:
            StateError: it cannot be used at all.
            DiskError: the disk is full.
        """
        self.path = root / FOLDER / SIGHTINGS_NAME
        self.replaced = ""
        try:
            self._database = _connect(self.path)
        except DiskError:
            raise
        except StateError as error:
            self.replaced = str(error)
            for suffix in ("", "-wal", "-shm"):
                with _translated(self.path):
                    self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            self._database = _connect(self.path)

    def all(self) -> dict[DefinitionAtEndpoint, Sighting]:
        """Return all that is noted."""
        with _translated(self.path):
            return _all(self._database)

    def keep(self, changed: Mapping[DefinitionAtEndpoint, Sighting], gone: Iterable[DefinitionAtEndpoint] = ()) -> None:
        """Note what has changed, and forget what is gone; all of it is on the disk when this returns, or nothing.

        Raises:
            StateError: the file cannot be used.
            DiskError: the disk is full.
        """
        rows = ((*place, each.epoch, each.since, each.first, each.last) for place, each in changed.items())
        with _translated(self.path), sqlite.sqlite_transaction(self._database):
            self._database.executemany("DELETE FROM sightings WHERE endpoint = ? AND message = ?", gone)
            self._database.executemany("INSERT OR REPLACE INTO sightings VALUES (?, ?, ?, ?, ?, ?)", rows)

    def close(self) -> None:
        """Close the file."""
        self._database.close()


def sightings_in(root: Path) -> dict[DefinitionAtEndpoint, Sighting] | None:
    """Return what the router of a state folder has noted, at work or not; None when it never noted anything.

    Raises:
        StateError: the file is there and cannot be read.
    """
    path = root / FOLDER / SIGHTINGS_NAME
    if not path.exists():
        return None
    with _translated(path), contextlib.closing(sqlite3.connect(str(path), timeout=BUSY_SECONDS)) as database:
        _check_format(database, path)
        return _all(database)


def _all(database: sqlite3.Connection) -> dict[DefinitionAtEndpoint, Sighting]:
    rows = database.execute("SELECT endpoint, message, epoch, since, first, last FROM sightings")
    return {DefinitionAtEndpoint(row[0], row[1]): Sighting(*row[2:]) for row in rows}


def _connect(path: Path) -> sqlite3.Connection:
    with _translated(path):
        private_folder(path.parent)
        if not path.exists():
            sqlite.new_file(path)
            sync_path(path.parent)
        database = sqlite3.connect(str(path), timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            if not database.execute("PRAGMA user_version").fetchone()[0]:
                with sqlite.sqlite_transaction(database):
                    database.execute(_TABLE)
                    database.execute(f"PRAGMA user_version = {FORMAT}")
            _check_format(database, path)
        except BaseException:
            database.close()
            raise
    return database


def _check_format(database: sqlite3.Connection, path: Path) -> None:
    version = int(database.execute("PRAGMA user_version").fetchone()[0])
    if version != FORMAT:
        hint = "use the router version that wrote it"
        raise StateError(f"{path} has format {version}; this router knows {FORMAT}", hint=hint)


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    hint = "remove it while no router is at work here: what has occurred is then noted anew"
    with sqlite.sqlite_translated(str(path), hint):
        yield
