"""What the router's SQLite files have in common: a file for its owner alone, transactions, and errors as ours."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from bindings.private import private_file
from router.errors import DiskError, StateError


def new_file(path: Path) -> None:
    """Make an empty file for its owner alone; SQLite gives the files beside it the same mode."""
    private_file(path, "ab").close()


@contextlib.contextmanager
def translated(name: str, damaged: str) -> Iterator[None]:
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
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """One transaction: on the disk at the end of the block, undone by any error in it."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
