"""The SQLite file of open exchanges: its tables, opening it, and its errors as ours.

| table | a row is |
|---|---|
| ``halves`` | a question (``asked``) that may yet be answered, or an answer whose question has not come |
| ``keys`` | a key by which a half is sought; ``asked``: 0 of an answer, 1 of a question, 2 of one that has an answer |
| ``outbox`` | a pair, or a half that is given up, on its way to the sink |
| ``commits`` | the last batch, or part of one, whose records are in here |
| ``facts`` | the file's id, the time of its last change, and the delivery that is under way |
"""

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

FORMAT: Final = 1
_TABLES: Final = (
    "CREATE TABLE halves (number INTEGER PRIMARY KEY AUTOINCREMENT, asked INTEGER NOT NULL, paired INTEGER NOT NULL, "
    "due REAL NOT NULL, told TEXT NOT NULL)",
    "CREATE INDEX halves_by_due ON halves (due)",
    "CREATE TABLE keys (key TEXT NOT NULL, asked INTEGER NOT NULL, number INTEGER NOT NULL, "
    "PRIMARY KEY (key, asked, number)) WITHOUT ROWID",
    "CREATE INDEX keys_by_number ON keys (number)",
    "CREATE TABLE outbox (number INTEGER PRIMARY KEY AUTOINCREMENT, told TEXT NOT NULL)",
    "CREATE TABLE commits (app TEXT PRIMARY KEY, query TEXT NOT NULL, whole TEXT NOT NULL, version INTEGER NOT NULL) "
    "WITHOUT ROWID",
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID",
)


def connect(path: Path) -> sqlite3.Connection:
    """Open the database, made with its tables if it is new; any thread may use it, one at a time.

    Raises:
        StateError: it cannot be used, or is of another format.
        DiskError: the disk is full.
    """
    with translated(path):
        private_folder(path.parent)
        if not path.exists():
            sqlite.new_file(path)
            sync_path(path.parent)
        database = sqlite3.connect(str(path), isolation_level=None, check_same_thread=False)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            _check_format(database, path)
        except BaseException:
            database.close()
            raise
    return database


@contextlib.contextmanager
def transaction(database: sqlite3.Connection, path: Path) -> Iterator[None]:
    """One transaction: on the disk at the end of the block, undone by any error in it."""
    with translated(path), sqlite.transaction(database):
        yield


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn what SQLite and the file system say into :class:`StateError`, or :class:`DiskError` for a full disk."""
    with sqlite.translated(str(path), "move it away: what is open in it is then never paired"):
        try:
            yield
        except sqlite3.ProgrammingError as error:
            hint = "none is needed: the batch comes again after a start"
            raise StateError(f"{path} is closed", hint=hint) from error


def _check_format(database: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new file, and refuse one that a later router wrote."""
    version = int(database.execute("PRAGMA user_version").fetchone()[0])
    if version == 0:
        database.execute("BEGIN IMMEDIATE")
        for statement in _TABLES:
            database.execute(statement)
        database.execute("INSERT INTO facts VALUES ('id', ?), ('delivery', 0)", (uuid.uuid4().hex,))
        database.execute(f"PRAGMA user_version = {FORMAT}")
        database.execute("COMMIT")
    elif version != FORMAT:
        hint = "use the router version that wrote it"
        raise StateError(f"{path} has format {version}; this router knows {FORMAT}", hint=hint)
