"""Copies of a store that is in use, and stores put back from copies: of a file of SQLite, or by PostgreSQL's tools."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from sqlalchemy import URL, make_url

from bindings.private import sync_path
from registry.store.engine import StoreError, open_database, store_error
from registry.store.tables import REGISTRY

_BUSY_SECONDS: Final = 5.0
_BESIDE: Final = ("-wal", "-shm", "-journal")
"""What SQLite may keep beside its file."""
_NEEDED: Final = (
    "install PostgreSQL's client programs (Debian: postgresql-client), of the server's version or a later one"
)
_UNREADABLE: Final = "give a file that `xrouter registry backup` wrote"


def back_up(store: str, target: Path) -> None:
    """Copy a store, at its SQLAlchemy URL, to a file that is there as a whole or not at all; writers go on.

    Raises:
        StoreError: the store cannot be read, the copy is not sound, or PostgreSQL's tools are missing.
        OSError: the file cannot be written.
    """
    address = make_url(store)
    target = target.resolve()
    beside = target.with_name(f".{target.name}.part")
    beside.unlink(missing_ok=True)
    os.close(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        if address.get_backend_name() == "sqlite":
            _copy(store, Path(str(address.database)), beside)
        else:
            _run("pg_dump", address, "--format=custom", f"--file={beside}")
        _rename(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def put_back(store: str, source: Path, *, force: bool) -> None:
    """Make a store what a copy says; without *force* only where there is none yet. No server may be using it.

    SQLite: the copy is checked and brought to the newest form before it takes the place of the file. PostgreSQL: one
    transaction.

    Raises:
        StoreError: the copy is not sound, the store is there or in use, or PostgreSQL's tools are missing.
        OSError: a file cannot be read or written.
    """
    address = make_url(store)
    with source.open("rb"):
        pass  # or the tools' own words would be the error
    if address.get_backend_name() != "sqlite":
        if not force and _has_registry(store):
            raise StoreError(f"the database {address.database} has a registry", "write over it with --force")
        _run("pg_restore", address, "--clean", "--if-exists", "--no-owner", "--single-transaction", str(source))
        open_database(store).close()
        return
    target = Path(str(address.database))
    if target.exists() and not force:
        raise StoreError(f"{target} is there already", "write over it with --force, once its server has stopped")
    beside = target.with_name(f".{target.name}.part")
    _remove(beside)
    try:
        _copy(f"sqlite:///{source.resolve()}", source, beside)
        open_database(f"sqlite:///{beside}").close()  # which refuses a copy of a later version
        _alone(beside)
        if target.exists():
            _alone(target)
        for each in _BESIDE:
            target.with_name(f"{target.name}{each}").unlink(missing_ok=True)
        _rename(beside, target)
    finally:
        _remove(beside)


def _copy(store: str, source: Path, target: Path) -> None:
    """Copy a file of SQLite as it is at one moment, and check the copy."""
    try:
        with closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)) as one:
            _check(one, source)
            with closing(sqlite3.connect(target)) as other:
                one.backup(other)
                other.execute("PRAGMA journal_mode=DELETE")
                _check(other, target)
                faults = [str(each) for (each,) in other.execute("PRAGMA integrity_check(3)") if each != "ok"]
    except sqlite3.Error as error:
        raise store_error(store, error, "cannot be copied") from error
    if faults:
        raise StoreError(f"{source} is damaged: {'; '.join(faults)}", "put back an older copy")


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Make sure that a database is a registry."""
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (REGISTRY.name,)).fetchone()
    if known is None:
        raise StoreError(f"{path} has no registry", _UNREADABLE)


def _alone(path: Path) -> None:
    """Bring a file of SQLite into one file again, which only who is alone with it can."""
    try:
        with closing(sqlite3.connect(path, timeout=_BUSY_SECONDS)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE").fetchone()
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
            return  # nobody can be using it
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise StoreError(f"{path} is in use", "stop the registry that serves it, and try again") from error
        raise store_error(f"sqlite:///{path}", error) from error


def _rename(source: Path, target: Path) -> None:
    sync_path(source)
    source.replace(target)
    sync_path(target.parent)


def _remove(path: Path) -> None:
    for each in ("", *_BESIDE):
        path.with_name(f"{path.name}{each}").unlink(missing_ok=True)


def _has_registry(store: str) -> bool:
    database = open_database(store)
    try:
        with database.reading() as connection:
            return connection.execute(REGISTRY.select()).first() is not None
    finally:
        database.close()


def _run(program: str, address: URL, *arguments: str) -> None:
    """Run a tool of PostgreSQL on a database; the password goes by the environment, which other users cannot read."""
    path = shutil.which(program)
    if path is None:
        raise StoreError(f"{program} is missing", _NEEDED)
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
            f"{program} ended with {done.returncode}: {lines[0]}", _NEEDED if "version" in lines[0] else ""
        )
