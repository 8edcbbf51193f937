"""What became of dead letters: a small SQLite database at ``state/ledger/letters.db``, keyed by letter id.

It is used beside a running router and does not need ``state/lock``. Write-ahead log with ``synchronous=FULL``: what a
method changed is on the disk when it returns, wholly or not at all, and readers never wait for a writer. The letters
themselves stay where they are; a letter without a row is open and was never tried again.
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from bindings.private_files import LockInUse, create_private_folder, is_locked, open_private_file, sync_path, take_lock
from router.errors import DiskError, StateError
from router.state.durable import read, write_durably

# The SQLite files of the router: opening them, their errors as ours, and the keys that wait for a letter.

# What the router's SQLite files have in common: a file for its owner alone, transactions, and errors as ours.


def new_file(path: Path) -> None:
    """Make an empty file for its owner alone; SQLite gives the files beside it the same mode."""
    open_private_file(path, "ab").close()


@contextlib.contextmanager
def sqlite_translated(name: str, damaged: str) -> Iterator[None]:
    """Turn errors of SQLite and the file system into :class:`StateError`, or :class:`DiskError` for a full disk.

    *name* is what messages call the file, *damaged* what to do where it is.
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
            raise DiskError(f"the disk of {name} is full", hint="free space on it") from error
        hint = "check its rights and the free disk space; nothing was changed by what failed"
        raise StateError(f"{name} cannot be used: {error}", hint=hint) from error
    except sqlite3.DatabaseError as error:
        raise StateError(f"{name} is damaged: {error}", hint=damaged) from error
    except OSError as error:
        hint = "choose a writable folder under `state`"
        raise StateError(f"{name} cannot be used: {error.strerror}", hint=hint) from error


@contextlib.contextmanager
def sqlite_transaction(database: sqlite3.Connection) -> Iterator[None]:
    """One transaction: on the disk at the end of the block, undone by any error in it."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


# The SQLite file of the letters' ledger: opening it, its format, and its errors as ours.

FORMAT: Final = 1
BUSY_SECONDS: Final = 30.0
"""Longest wait for another writer."""
_TABLES: Final = (
    "CREATE TABLE letters (letter TEXT PRIMARY KEY, standing TEXT NOT NULL, attempts INTEGER NOT NULL, "
    "reason TEXT NOT NULL, detail TEXT NOT NULL, changed TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE history (letter TEXT NOT NULL, at TEXT NOT NULL, what TEXT NOT NULL, replay INTEGER, "
    "reason TEXT NOT NULL, detail TEXT NOT NULL)",
    "CREATE INDEX history_by_letter ON history (letter)",
    "CREATE TABLE replays (number INTEGER PRIMARY KEY, plan TEXT NOT NULL, content TEXT NOT NULL, "
    "began TEXT NOT NULL, ended TEXT)",
    "CREATE TABLE waiting (sequence INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, letter TEXT NOT NULL UNIQUE)",
    "CREATE INDEX waiting_by_key ON waiting (key, sequence)",
    "CREATE TABLE catching (key TEXT PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
)


@contextlib.contextmanager
def opened(path: Path, *, create: bool) -> Iterator[sqlite3.Connection]:
    """Open the database, made with its tables if it is new; without *create*, a missing one is empty and in memory.

    Raises:
        StateError: it cannot be used, is no ledger, or is of a newer format.
    """
    with translated(path):
        database = _connect(path, create=create)
    try:
        yield database
    finally:
        database.close()


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the file system into :class:`StateError`, or :class:`DiskError` for a full disk."""
    with sqlite_translated(f"ledger {path}", "restore it from a backup, or move it away"):
        yield


@contextlib.contextmanager
def transaction(database: sqlite3.Connection, path: Path) -> Iterator[sqlite3.Connection]:
    """One transaction: committed at the end of the block, undone by any error in it."""
    with translated(path), sqlite_transaction(database):
        yield database


def _connect(path: Path, *, create: bool) -> sqlite3.Connection:
    _check_presence(path)
    kept = create or path.exists()
    if create:
        create_private_folder(path.parent)
    new = kept and not path.exists()
    if new:
        new_file(path)
    database = sqlite3.connect(str(path) if kept else ":memory:", timeout=BUSY_SECONDS, isolation_level=None)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        _check_format(database, path)
        if kept:
            _mark(database, path)
    except BaseException:
        database.close()
        raise
    if new:
        sync_path(path.parent)
    return database


def _check_presence(path: Path) -> None:
    """Refuse an emptied or missing file where there was one: SQLite would begin a new one in its place."""
    if marker_of(path).exists() and not (path.exists() and path.stat().st_size):
        hint = (
            f"restore it from a backup, or remove {marker_of(path)} too: all dead letters then count as never replayed"
        )
        raise StateError(f"ledger {path} is missing or empty, but there was one", hint=hint)


def _mark(database: sqlite3.Connection, path: Path) -> None:
    """Note beside the file that there is one, and which."""
    id = str(database.execute("SELECT value FROM facts WHERE name = 'id'").fetchone()[0])
    noted = read(marker_of(path))
    if noted is None:
        write_durably(marker_of(path), id.encode())
    elif noted.decode("ascii", "replace") != id:
        hint = f"restore the one that belongs here; if this is the one, remove {marker_of(path)}"
        raise StateError(f"ledger {path} is not the one recorded beside it", hint=hint)


def marker_of(path: Path) -> Path:
    """Return the file beside a ledger that holds its id."""
    return path.with_suffix(".id")


def _check_format(database: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new file, and refuse one that a later router wrote."""
    version = _version(database)
    if version == 0:
        database.execute("BEGIN IMMEDIATE")
        version = _version(database)  # Another process may have been first.
        if version == 0:
            if database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                database.execute("ROLLBACK")
                raise StateError(f"{path} is not a state database of this router", hint="move it away")
            for statement in _TABLES:
                database.execute(statement)
            database.execute("INSERT INTO facts VALUES ('id', ?)", (uuid.uuid4().hex,))
            database.execute(f"PRAGMA user_version = {FORMAT}")
            version = FORMAT
        database.execute("COMMIT")
    if version != FORMAT:
        raise StateError(
            f"ledger {path} has format {version}; this router knows {FORMAT}",
            hint="use the router version that wrote it",
        )


def _version(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA user_version").fetchone()[0])


# Instants as text, as the router writes arrivals and the ledger keeps them.


def instant(moment: datetime) -> str:
    """Write an instant as the router writes arrivals: RFC 3339 in UTC, to the microsecond."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def parse_instant(text: str | None) -> datetime | None:
    """Read an instant in UTC; None for a text that is none, or that no ``datetime`` can hold."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return (moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def instant_of(seconds: int | None) -> str | None:
    """Write a whole number of seconds since 1970 as an instant; None stays None."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


# Which dead letters hold up later records of their keys (``dead_letters.order: park``), in the letters' ledger.
#
# A key is blocked while a letter of it stands here. Letters of a key stand in order of arrival; the first is what the
# others wait for. One leaves when it was replayed, when no sink has it any more, or when an operator releases it. What
# a method changed is on the disk when it returns, wholly or not at all.

HELD: Final = "held by an earlier letter of its key"
"""The reason shown for a letter that a replay leaves out because of an earlier one."""
_MANY: Final = 500
"""Ids in one query; SQLite bounds the variables of a statement."""
_WAITS: Final = r"sink [^:;]+: waits for dead letter \S+ of the same key"
_ONLY_WAITS: Final = re.compile(rf"{_WAITS}(?:; {_WAITS})*")


def waits_for(letter: str) -> str:
    """Return what the letter of a held record says of each sink of its route."""
    return f"waits for dead letter {letter} of the same key"


def only_waits(detail: str) -> bool:
    """Return whether a letter's detail only says that it waits: then no sink has the record."""
    return _ONLY_WAITS.fullmatch(detail) is not None


class KeyOrder:
    """The blocked keys of one ledger, by its connection and of its thread.

    Methods raise :class:`~router.errors.StateError` when the disk refuses.
    """

    def __init__(self, database: sqlite3.Connection, path: Path) -> None:
        self._database = database
        self._path = path

    def heads(self) -> dict[str, str]:
        """Return every blocked key with the first letter of it."""
        return {row[0]: row[1] for row in self._all("SELECT key, letter, min(sequence) FROM waiting GROUP BY key")}

    def arrived(self, letters: Iterable[tuple[str, str]]) -> None:
        """Append these (key, letter) pairs, in this order; those that stood there already move to the end.

        A letter that was replayed holds up nothing: a batch may be repeated after a replay took its letters.
        """
        pairs = list(letters)
        with transaction(self._database, self._path) as database:
            freed(database, [letter for _, letter in pairs])
            database.executemany(
                "INSERT INTO waiting (key, letter) SELECT ?, ? WHERE NOT EXISTS "
                "(SELECT 1 FROM letters WHERE letter = ? AND standing = 'replayed')",
                [(key, letter, letter) for key, letter in pairs],
            )

    def keys(self, letters: Iterable[str]) -> dict[str, str]:
        """Return the key of each of these letters that stands here."""
        by_letter: dict[str, str] = {}
        for some in portions(letters):
            marks = ",".join("?" * len(some))
            by_letter.update(self._all(f"SELECT letter, key FROM waiting WHERE letter IN ({marks})", some))
        return by_letter

    def place(self, letter: str) -> tuple[str, int] | None:
        """Return the key of a letter, and its number in the order of arrival; None for one that holds up nothing."""
        rows = self._all("SELECT key, sequence FROM waiting WHERE letter = ?", [letter])
        return (rows[0][0], rows[0][1]) if rows else None

    def last_between(self, key: str, above: int, below: int) -> str | None:
        """Return the last letter of a key whose number lies between these two."""
        query = (
            "SELECT letter FROM waiting WHERE key = ? AND sequence > ? AND sequence < ? ORDER BY sequence DESC LIMIT 1"
        )
        rows = self._all(query, [key, above, below])
        return str(rows[0][0]) if rows else None

    def is_first(self, letter: str) -> bool:
        """Return whether nothing holds a letter up: no other of its key stands before it."""
        place = self.place(letter)
        return place is None or self.last_between(place[0], 0, place[1]) is None

    def of_keys(self, keys: Iterable[str]) -> set[str]:
        """Return the letters of these keys."""
        letters: set[str] = set()
        for some in portions(keys):
            marks = ",".join("?" * len(some))
            letters.update(row[0] for row in self._all(f"SELECT letter FROM waiting WHERE key IN ({marks})", some))
        return letters

    def catch_up(self, keys: Iterable[str]) -> None:
        """Note which keys a replay is about to free, in place of those noted before."""
        with transaction(self._database, self._path) as database:
            database.execute("DELETE FROM catching")
            database.executemany("INSERT OR IGNORE INTO catching VALUES (?)", [(key,) for key in keys])

    def catching(self) -> set[str]:
        """Return the keys that a replay is about to free, as long as it runs."""
        return {row[0] for row in self._all("SELECT key FROM catching")}

    def behind(self, letter: str) -> int:
        """Return how many letters of the same key wait behind a letter."""
        query = (
            "SELECT count(*) FROM waiting AS own JOIN waiting AS later "
            "ON later.key = own.key AND later.sequence > own.sequence WHERE own.letter = ?"
        )
        return int(self._all(query, [letter])[0][0])

    def numbers(self) -> dict[str, int]:
        """Return all letters that stand here, each with its number; a number is never given twice."""
        return dict(self._all("SELECT letter, sequence FROM waiting"))

    def gone(self, numbers: Mapping[str, int]) -> None:
        """Remove letters that no sink has, but for those that took another number since :meth:`numbers` was asked."""
        with transaction(self._database, self._path) as database:
            database.executemany("DELETE FROM waiting WHERE letter = ? AND sequence = ?", list(numbers.items()))

    def release(self, letters: Iterable[str]) -> int:
        """Remove these letters here, so that they hold up nothing; return how many did. They stay dead letters."""
        with transaction(self._database, self._path) as database:
            return freed(database, list(letters))

    def _all(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with translated(self._path):
            return self._database.execute(query, values).fetchall()


@dataclass(slots=True)
class Turns:
    """Whose turn it is in one replay. ``left`` has the letters it leaves out, since an earlier one of the key is there.

    In a dry run nothing is written, and :meth:`passed` stands in for the ledger.
    """

    order: KeyOrder
    left: set[str] = field(default_factory=set)
    _done: dict[str, int] = field(default_factory=dict)

    def earlier(self, letter: str) -> str | None:
        """Return the letter right before this one that holds up its key; None when its turn has come."""
        place = self.order.place(letter)
        if place is None:
            return None
        key, number = place
        return self.order.last_between(key, self._done.get(key, 0), number)

    def passed(self, letter: str) -> None:
        """Count a letter as replayed, and with it those of its key before it."""
        place = self.order.place(letter)
        if place is not None:
            self._done[place[0]] = place[1]


def held_up(letters: Iterable[str], dead: Iterable[str], keys: Mapping[str, str]) -> set[str]:
    """Return those of the letters, which are in order, that come after one of their key that stays dead."""
    stopped: set[str] = set()
    held: set[str] = set()
    lasting = set(dead)
    for letter in letters:
        key = keys.get(letter)
        if key is None:
            continue
        if key in stopped:
            held.add(letter)
        elif letter in lasting:
            stopped.add(key)
    return held


def freed(database: sqlite3.Connection, letters: Iterable[str]) -> int:
    """Remove letters inside a transaction of the ledger; return how many stood there."""
    count = 0
    for some in portions(letters):
        count += database.execute(f"DELETE FROM waiting WHERE letter IN ({','.join('?' * len(some))})", some).rowcount
    return count


def portions(ids: Iterable[str]) -> Iterator[list[str]]:
    """Yield ids, each once, in as many portions as SQLite needs."""
    wanted = list(dict.fromkeys(ids))
    for start in range(0, len(wanted), _MANY):
        yield wanted[start : start + _MANY]


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
                raise StateError(f"replay batch {pending[0]} is not finished", hint="finish it before starting another")
            if replay.number < self.next_number():
                raise StateError(f"replay batch {replay.number} was used before", hint="use the next number")
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
                raise StateError(f"replay batch {number} is not pending", hint="start it first")
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
        except LockInUse as holder:
            raise StateError(
                f"another replay or purge is running here (process {holder})", hint="wait until it ends, or stop it"
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
SIGHTINGS_BUSY_SECONDS: Final = 5.0
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
            self._database = _connect_to_sightings(self.path)
        except DiskError:
            raise
        except StateError as error:
            self.replaced = str(error)
            for suffix in ("", "-wal", "-shm"):
                with _translated(self.path):
                    self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            self._database = _connect_to_sightings(self.path)

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
        with _translated(self.path), sqlite_transaction(self._database):
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
    with _translated(path), contextlib.closing(sqlite3.connect(str(path), timeout=SIGHTINGS_BUSY_SECONDS)) as database:
        _check_sightings_format(database, path)
        return _all(database)


def _all(database: sqlite3.Connection) -> dict[DefinitionAtEndpoint, Sighting]:
    rows = database.execute("SELECT endpoint, message, epoch, since, first, last FROM sightings")
    return {DefinitionAtEndpoint(row[0], row[1]): Sighting(*row[2:]) for row in rows}


def _connect_to_sightings(path: Path) -> sqlite3.Connection:
    with _translated(path):
        create_private_folder(path.parent)
        if not path.exists():
            new_file(path)
            sync_path(path.parent)
        database = sqlite3.connect(
            str(path), timeout=SIGHTINGS_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            if not database.execute("PRAGMA user_version").fetchone()[0]:
                with sqlite_transaction(database):
                    database.execute(_TABLE)
                    database.execute(f"PRAGMA user_version = {FORMAT}")
            _check_sightings_format(database, path)
        except BaseException:
            database.close()
            raise
    return database


def _check_sightings_format(database: sqlite3.Connection, path: Path) -> None:
    version = int(database.execute("PRAGMA user_version").fetchone()[0])
    if version != FORMAT:
        hint = "use the router version that wrote it"
        raise StateError(f"{path} has format {version}; this router knows {FORMAT}", hint=hint)


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    hint = "remove it while no router is at work here: what has occurred is then noted anew"
    with sqlite_translated(str(path), hint):
        yield
