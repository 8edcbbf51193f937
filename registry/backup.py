"""Backup and restore of the store, and pruning of its history."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sqlalchemy import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

from bindings.background import Background
from bindings.private_files import sync_path
from registry.model.attributes import format_time
from registry.store import history
from registry.store.engine import REGISTRY, Database, StoreError, open_database, store_error

# Backup while in use, and restore: SQLite's online backup, or PostgreSQL's tools.

_BUSY_SECONDS: Final = 5.0
_SIDE_SUFFIXES: Final = ("-wal", "-shm", "-journal")
"""Suffixes of files that SQLite creates beside the database."""
_TOOLS_HINT: Final = "install PostgreSQL's client programs (Debian: postgresql-client), at least as new as the server"
_UNREADABLE: Final = "use a file written by `xrouter registry backup`"


def back_up(store: str, target: Path) -> None:
    """Back up the store at an SQLAlchemy URL to a file, which appears whole or not at all; writers continue.

    Raises:
        StoreError: the store cannot be read, the copy is damaged, or PostgreSQL's tools are missing.
        OSError: the file cannot be written.
    """
    address = make_url(store)
    target = target.resolve()
    beside = target.with_name(f".{target.name}.part")
    beside.unlink(missing_ok=True)
    os.close(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        if address.get_backend_name() == "sqlite":
            _copy_snapshot(store, Path(str(address.database)), beside)
        else:
            _run_tool("pg_dump", address, "--format=custom", f"--file={beside}")
        _rename(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def restore_backup(store: str, source: Path, *, force: bool) -> None:
    """Restore a store from a backup; an existing one is replaced only with *force*. No server may be using it.

    SQLite: the copy is checked and migrated before it replaces the file. PostgreSQL: one transaction.

    Raises:
        StoreError: the backup is damaged, the store exists or is in use, or PostgreSQL's tools are missing.
        OSError: a file cannot be read or written.
    """
    address = make_url(store)
    with source.open("rb"):
        pass  # else the error would be in the tools' words
    if address.get_backend_name() != "sqlite":
        if not force and _has_registry(store):
            raise StoreError(f"the database {address.database} already has a registry", "overwrite it with --force")
        _run_tool("pg_restore", address, "--clean", "--if-exists", "--no-owner", "--single-transaction", str(source))
        open_database(store).close()
        return
    target = Path(str(address.database))
    if target.exists() and not force:
        raise StoreError(f"{target} already exists", "stop its server and overwrite it with --force")
    beside = target.with_name(f".{target.name}.part")
    _remove(beside)
    try:
        _copy_snapshot(f"sqlite:///{source.resolve()}", source, beside)
        open_database(f"sqlite:///{beside}").close()  # refuses a backup of a later version
        _merge_log(beside)
        if target.exists():
            _merge_log(target)
        for each in _SIDE_SUFFIXES:
            target.with_name(f"{target.name}{each}").unlink(missing_ok=True)
        _rename(beside, target)
    finally:
        _remove(beside)


def _copy_snapshot(store: str, source: Path, target: Path) -> None:
    """Copy a consistent snapshot of an SQLite file, and check the copy."""
    try:
        with closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)) as one:
            _check_has_registry(one, source)
            with closing(sqlite3.connect(target)) as other:
                one.backup(other)
                other.execute("PRAGMA journal_mode=DELETE")
                _check_has_registry(other, target)
                faults = [str(each) for (each,) in other.execute("PRAGMA integrity_check(3)") if each != "ok"]
    except sqlite3.Error as error:
        raise store_error(store, error, "cannot be copied") from error
    if faults:
        raise StoreError(f"{source} is damaged: {'; '.join(faults)}", "restore an older backup")


def _check_has_registry(connection: sqlite3.Connection, path: Path) -> None:
    """Raise if a database has no registry."""
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (REGISTRY.name,)).fetchone()
    if known is None:
        raise StoreError(f"{path} has no registry", _UNREADABLE)


def _merge_log(path: Path) -> None:
    """Fold the write-ahead log into the SQLite file, which needs exclusive access."""
    try:
        with closing(sqlite3.connect(path, timeout=_BUSY_SECONDS)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE").fetchone()
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
            return  # not a database, so nobody uses it
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise StoreError(f"{path} is in use", "stop the registry that serves it, then retry") from error
        raise store_error(f"sqlite:///{path}", error) from error


def _rename(source: Path, target: Path) -> None:
    sync_path(source)
    source.replace(target)
    sync_path(target.parent)


def _remove(path: Path) -> None:
    for each in ("", *_SIDE_SUFFIXES):
        path.with_name(f"{path.name}{each}").unlink(missing_ok=True)


def _has_registry(store: str) -> bool:
    database = open_database(store)
    try:
        with database.reading() as connection:
            return connection.execute(REGISTRY.select()).first() is not None
    finally:
        database.close()


def _run_tool(program: str, address: URL, *arguments: str) -> None:
    """Run a PostgreSQL tool on a database; the password is passed in the environment, which other users cannot read."""
    path = shutil.which(program)
    if path is None:
        raise StoreError(f"{program} is missing", _TOOLS_HINT)
    shown = address.set(drivername="postgresql", password=None)
    environment = {**os.environ, **({"PGPASSWORD": str(address.password)} if address.password else {})}
    command: Sequence[str] = (
        path,
        "--no-password",
        f"--dbname={shown.render_as_string(hide_password=False)}",
        *arguments,
    )
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        lines = done.stderr.strip().split("\n")
        raise StoreError(
            f"{program} failed with exit code {done.returncode}: {lines[0]}",
            _TOOLS_HINT if "version" in lines[0] else "",
        )


# Pruning of history by a background thread, a few entries at a time.

_logger = logging.getLogger(__name__)
_PAUSE_SECONDS = 0.01
"""Seconds between two transactions, so that waiting writers get a turn."""


@dataclass(frozen=True, slots=True)
class HistoryLimits:
    """How much history is kept: entries of the last ``keep`` seconds (None: no limit), at most the newest ``entries``.

    The newest entry of an existing entity is always kept. Pruning runs every ``every`` seconds.
    """

    keep: float | None = None
    entries: int = 10_000_000
    every: float = 300.0


class HistoryKeeper:
    """Prunes history until stopped; several processes over one database may do so.

    ``entries`` is how many were left after the last pass, ``pruned`` how many this process deleted.
    """

    def __init__(self, database: Database, limits: HistoryLimits) -> None:
        self.entries = 0
        self.pruned = 0
        self._database = database
        self._limits = limits
        self._stopping = threading.Event()
        self._thread = Background("history", self._run)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def request_stop(self) -> None:
        """Stop after the current transaction."""
        self._stopping.set()
        self._thread.ask_to_end()

    def join(self, seconds: float) -> None:
        """Wait up to *seconds* for the thread to end."""
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._prune_history()
            except SQLAlchemyError as error:
                _logger.warning("cannot prune history: the store does not answer: %s", type(error).__name__)
            self._stopping.wait(self._limits.every)

    def _prune_history(self) -> None:
        """Delete all entries beyond the limits."""
        with self._database.reading() as connection:
            upto = history.newest_number(connection) - self._limits.entries
        before = None
        if self._limits.keep is not None:
            before = format_time(datetime.fromtimestamp(max(time.time() - self._limits.keep, 0.0), UTC))
        gone, at, more = 0, 0, upto > 0 or before is not None
        while more and not self._stopping.is_set():
            with self._database.reading() as connection:
                numbers, at = history.find_prunable(connection, at, upto, before)
            if numbers:  # else no write lock is needed
                with self._database.writing_aside() as connection:
                    gone += history.delete_entries(connection, numbers)
            more = at > 0
            self._stopping.wait(_PAUSE_SECONDS)
        self.pruned += gone
        with self._database.reading() as connection:
            self.entries = history.count_entries(connection)
