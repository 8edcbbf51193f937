"""Dead letters in the state database: what became of each, which hold up their keys, and replays of them.

It is used beside a running router and does not need ``state/lock``. The letters themselves stay where they are; a
letter without a row is open and was never tried again. Also here: what has occurred so far, and when last.
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from bindings.private_files import LockInUse, create_private_folder, is_locked, take_lock
from router.errors import StateError
from router.state.database import StateDatabase, store_plan

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
# others wait for. One leaves when it was replayed, when no sink has it any more, or when an operator releases it.

HELD: Final = "held by an earlier letter of its key"
"""The reason shown for a letter that a replay leaves out because of an earlier one."""
_AMONG: Final = "IN (SELECT value FROM json_each(?))"
"""Ends a condition on a column that must be one of the ids of :func:`_as_array`."""
_WAITS: Final = r"sink [^:;]+: waits for dead letter \S+ of the same key"
_ONLY_WAITS: Final = re.compile(rf"{_WAITS}(?:; {_WAITS})*")


def waits_for(letter: str) -> str:
    """Return what the letter of a held record says of each sink of its route."""
    return f"waits for dead letter {letter} of the same key"


def only_waits(detail: str) -> bool:
    """Return whether a letter's detail only says that it waits: then no sink has the record."""
    return _ONLY_WAITS.fullmatch(detail) is not None


class KeyOrder:
    """The blocked keys of one ledger."""

    def __init__(self, database: StateDatabase) -> None:
        self._database = database

    def first_letters(self) -> dict[str, str]:
        """Return every blocked key with its first letter."""
        query = "SELECT key, letter, min(sequence) FROM waiting GROUP BY key"
        return {key: letter for key, letter, _ in self._database.read(query)}

    def append_letters(self, letters: Iterable[tuple[str, str]]) -> None:
        """Append these (key, letter) pairs, in this order; those that are there already move to the end.

        A letter that was replayed holds up nothing: a batch may be repeated after a replay took its letters.
        """
        pairs = list(letters)
        with self._database.transaction() as database:
            remove_waiting(database, [letter for _, letter in pairs])
            database.executemany(
                "INSERT INTO waiting (key, letter) SELECT ?, ? WHERE NOT EXISTS "
                "(SELECT 1 FROM letters WHERE letter = ? AND standing = 'replayed')",
                [(key, letter, letter) for key, letter in pairs],
            )

    def keys_of_letters(self, letters: Iterable[str]) -> dict[str, str]:
        """Return the keys of those of these letters that hold up a key."""
        return dict(self._database.read(f"SELECT letter, key FROM waiting WHERE letter {_AMONG}", _as_array(letters)))

    def earlier(self, letter: str) -> str | None:
        """Return the letter right before this one of its key; None if nothing holds it up."""
        query = (
            "SELECT before.letter FROM waiting AS own JOIN waiting AS before ON before.key = own.key AND "
            "before.sequence < own.sequence WHERE own.letter = ? ORDER BY before.sequence DESC LIMIT 1"
        )
        return next((row[0] for row in self._database.read(query, [letter])), None)

    def letters_of_keys(self, keys: Iterable[str]) -> set[str]:
        """Return the letters that hold up these keys."""
        rows = self._database.read(f"SELECT letter FROM waiting WHERE key {_AMONG}", _as_array(keys))
        return {row[0] for row in rows}

    def note_keys_to_free(self, keys: Iterable[str]) -> None:
        """Note which keys a replay is about to free, in place of those noted before."""
        with self._database.transaction() as database:
            database.execute("DELETE FROM catching")
            database.executemany("INSERT OR IGNORE INTO catching VALUES (?)", [(key,) for key in keys])

    def keys_to_free(self) -> set[str]:
        """Return the keys that a running replay is about to free."""
        return {row[0] for row in self._database.read("SELECT key FROM catching")}

    def count_behind(self, letter: str) -> int:
        """Return how many letters of the same key wait behind a letter."""
        query = (
            "SELECT count(*) FROM waiting AS own JOIN waiting AS later "
            "ON later.key = own.key AND later.sequence > own.sequence WHERE own.letter = ?"
        )
        return int(self._database.read(query, [letter])[0][0])

    def positions(self) -> dict[str, int]:
        """Return all letters that hold up a key, each with its number; a number is never used twice."""
        return dict(self._database.read("SELECT letter, sequence FROM waiting"))

    def remove_gone(self, numbers: Mapping[str, int]) -> None:
        """Remove letters that no sink has, except those with another number than :meth:`positions` returned."""
        with self._database.transaction() as database:
            database.executemany("DELETE FROM waiting WHERE letter = ? AND sequence = ?", list(numbers.items()))

    def release(self, letters: Iterable[str]) -> int:
        """Let these letters hold up nothing, and return how many did. They stay dead letters."""
        with self._database.transaction() as database:
            return remove_waiting(database, list(letters))


@dataclass(slots=True)
class ReplayOrder:
    """Whose turn it is in one replay. ``left`` has the letters it leaves out, since an earlier one of the key is there.

    In a dry run nothing is written, and ``passed``, the letters that would be replayed, stands in for the ledger.
    """

    order: KeyOrder
    left: set[str] = field(default_factory=set)
    passed: set[str] = field(default_factory=set)

    def earlier(self, letter: str) -> str | None:
        """Return the letter right before this one that holds up its key; None when its turn has come."""
        before = self.order.earlier(letter)
        return None if before in self.passed else before


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


def remove_waiting(database: sqlite3.Connection, letters: Iterable[str]) -> int:
    """Remove letters inside a transaction of the ledger; return how many stood there."""
    return database.execute(f"DELETE FROM waiting WHERE letter {_AMONG}", _as_array(letters)).rowcount


def _as_array(ids: Iterable[str]) -> tuple[str]:
    """Return ids as the only value of a statement, however many they are."""
    return (json.dumps(list(ids)),)


LOCK: Final = Path("ledger", "replay.lock")
"""Where replays of earlier routers look for it too."""
GONE: Final = "letters removed"
"""The name of the count of letters that no sink has any more."""

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
class HistoryEntry:
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
    """The ledger of dead letters; methods raise as those of :class:`~router.state.database.StateDatabase`."""

    def __init__(self, root: Path, database: StateDatabase) -> None:
        self._lock = root / LOCK
        self.database = database
        self.order = KeyOrder(database)
        """Which letters hold up later records of their keys."""

    @classmethod
    @contextlib.contextmanager
    def open(cls, root: Path, *, create: bool = True) -> Iterator[LetterLedger]:
        """Open the ledger of the state folder *root*; without *create* one that is missing reads as empty.

        Raises:
            StateError: it cannot be used, or is of another format.
        """
        with StateDatabase(root, create=create) as database:
            yield cls(root, database)

    @property
    def id(self) -> str:
        """The ledger's own id: part of the names that replays commit under."""
        return self.database.id

    def standing(self, ids: Iterable[str]) -> dict[str, Standing]:
        """Return the standing of each of these letters; one that the ledger does not know is open."""
        wanted = list(ids)
        known = self.entries(wanted)
        return {letter: known[letter].standing if letter in known else "open" for letter in wanted}

    def entries(self, ids: Iterable[str]) -> dict[str, LedgerEntry]:
        """Return what is known of these letters; those without an entry are left out."""
        columns = "letter, standing, attempts, reason, detail, changed"
        rows = self.database.read(f"SELECT {columns} FROM letters WHERE letter {_AMONG}", _as_array(ids))
        return {row[0]: LedgerEntry(row[0], row[1], row[2], row[3], row[4], parse_instant(row[5])) for row in rows}

    def history(self, letter: str) -> list[HistoryEntry]:
        """Return what happened to a letter, oldest first."""
        query = "SELECT at, what, replay, reason, detail FROM history WHERE letter = ? ORDER BY rowid"
        return [HistoryEntry(parse_instant(row[0]), *row[1:]) for row in self.database.read(query, [letter])]

    def park(self, ids: Iterable[str], when: datetime | None = None) -> int:
        """Park those of the letters that are open; return how many were."""
        at = instant(when or datetime.now(UTC))
        with self.database.transaction() as database:
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
        """Delete what is known of letters that no longer exist; they hold up nothing any more."""
        wanted = set(ids)
        with self.database.transaction() as database:
            remove_waiting(database, wanted)
            database.execute(
                "INSERT INTO facts VALUES (?, ?) ON CONFLICT DO UPDATE SET value = CAST(value AS INTEGER) + ?",
                (GONE, str(len(wanted)), len(wanted)),
            )
            for table in ("letters", "history"):
                database.execute(f"DELETE FROM {table} WHERE letter {_AMONG}", _as_array(wanted))

    def count_settled(self) -> int:
        """Return how many letters need nobody's attention any more: they were replayed, or removed everywhere."""
        (replayed,) = self.database.read("SELECT count(*) FROM letters WHERE standing = 'replayed'")[0]
        return int(replayed) + int(self.database.fact(GONE) or 0)

    def next_number(self) -> int:
        """Return the number of the next replay batch: above every one before it."""
        return int(self.database.read("SELECT coalesce(max(number), 0) + 1 FROM replays")[0][0])

    def begin(self, replay: PendingReplay, document: bytes = b"") -> None:
        """Store a replay batch, and the document of its plan, before its first write.

        Raises:
            StateError: another one is pending, or its number was used before.
        """
        with self.database.transaction() as database:
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
            if document:
                store_plan(database, replay.plan, document)

    def pending(self) -> PendingReplay | None:
        """Return the replay batch that was begun and not finished."""
        rows = self.database.read("SELECT number, plan, content FROM replays WHERE ended IS NULL")
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
        with self.database.transaction() as database:
            ended = database.execute(
                "UPDATE replays SET ended = ?, content = '' WHERE number = ? AND ended IS NULL", (at, number)
            )
            if ended.rowcount != 1:
                raise StateError(f"replay batch {number} is not pending", hint="start it first")
            database.execute("DELETE FROM replays WHERE number < ?", (number,))
            for each in settled:
                _count_attempt(database, each, at, number)
            remove_waiting(database, [each.letter for each in settled if each.reason is None])

    @property
    def is_locked(self) -> bool:
        """Whether a process holds the lock of :meth:`exclusive` now."""
        return is_locked(self._lock)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock of replays and purges: one at a time, across processes; a killed holder leaves it free.

        Raises:
            StateError: another process holds it; says which.
        """
        path = self._lock
        try:
            create_private_folder(path.parent)
            lock = take_lock(path)
        except OSError as error:
            raise StateError(f"{path} cannot be used: {error.strerror}", hint="make it writable") from error
        except LockInUse as holder:
            raise StateError(
                f"another replay or purge is running here (process {holder})", hint="wait until it ends, or stop it"
            ) from holder
        with lock:
            yield


def _count_attempt(database: sqlite3.Connection, outcome: Outcome, at: str, replay: int) -> None:
    """Count one attempt, inside a transaction."""
    letter, reason, detail = outcome.letter, outcome.reason, outcome.detail
    if reason is None:
        database.execute(
            "INSERT INTO letters VALUES (?, 'replayed', 1, '', '', ?) ON CONFLICT DO UPDATE SET "
            "standing = 'replayed', attempts = attempts + 1, changed = excluded.changed",
            (letter, at),
        )
    else:
        database.execute(
            "INSERT INTO letters VALUES (?, 'open', 1, ?, ?, ?) ON CONFLICT DO UPDATE SET attempts = attempts + 1, "
            "reason = excluded.reason, detail = excluded.detail, changed = excluded.changed",
            (letter, reason, detail, at),
        )
    what = "replayed" if reason is None else "failed"
    row = (letter, at, what, replay, reason or "", "" if reason is None else detail)
    database.execute("INSERT INTO history VALUES (?, ?, ?, ?, ?, ?)", row)


# What has occurred so far, and when last: a row for each endpoint that is read, and for each definition that one of
# them expects, and no others. The router that has the state folder writes it. Without it no record is lost.


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


def read_sightings(database: StateDatabase) -> dict[DefinitionAtEndpoint, Sighting]:
    """Return all sightings."""
    rows = database.read("SELECT endpoint, message, epoch, since, first, last FROM sightings")
    return {DefinitionAtEndpoint(row[0], row[1]): Sighting(*row[2:]) for row in rows}


def write_sightings(
    database: StateDatabase, changed: Mapping[DefinitionAtEndpoint, Sighting], gone: Iterable[DefinitionAtEndpoint] = ()
) -> None:
    """Store changed sightings, and delete others, in one transaction."""
    rows = ((*place, each.epoch, each.since, each.first, each.last) for place, each in changed.items())
    with database.transaction() as connection:
        connection.executemany("DELETE FROM sightings WHERE endpoint = ? AND message = ?", gone)
        connection.executemany("INSERT OR REPLACE INTO sightings VALUES (?, ?, ?, ?, ?, ?)", rows)


def sightings_in(root: Path) -> dict[DefinitionAtEndpoint, Sighting] | None:
    """Return the sightings in a state folder, also beside a running router; None if there are none.

    Raises:
        StateError: the database cannot be read.
    """
    with StateDatabase(root, create=False) as database:
        return read_sightings(database) or None
