"""The SQLite file of the letters' ledger: opening it, its format, and its errors as ours."""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bindings.private import private_folder, sync_path
from router.errors import StateError
from router.state import sqlite
from router.state.durable import read, write_durably

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
    with sqlite.translated(f"ledger {path}", "restore it from a backup, or move it away"):
        yield


@contextlib.contextmanager
def transaction(database: sqlite3.Connection, path: Path) -> Iterator[sqlite3.Connection]:
    """One transaction: committed at the end of the block, undone by any error in it."""
    with translated(path), sqlite.transaction(database):
        yield database


def _connect(path: Path, *, create: bool) -> sqlite3.Connection:
    _check_presence(path)
    kept = create or path.exists()
    if create:
        private_folder(path.parent)
    new = kept and not path.exists()
    if new:
        sqlite.new_file(path)
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
        hint = f"restore it from a backup, or remove {marker_of(path)} too: all letters then count as never replayed"
        raise StateError(f"ledger {path} is missing or empty, and there was one", hint=hint)


def _mark(database: sqlite3.Connection, path: Path) -> None:
    """Note beside the file that there is one, and which."""
    id = str(database.execute("SELECT value FROM facts WHERE name = 'id'").fetchone()[0])
    noted = read(marker_of(path))
    if noted is None:
        write_durably(marker_of(path), id.encode())
    elif noted.decode("ascii", "replace") != id:
        hint = f"restore the one that belongs here; if this is the one, remove {marker_of(path)}"
        raise StateError(f"ledger {path} is another one than was noted beside it", hint=hint)


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
                raise StateError(f"{path} is no ledger of this router", hint="move it away")
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
