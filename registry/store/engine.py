"""The database: SQLite in one file, or PostgreSQL; opened, brought to the newest form, and its transactions.

One writer at a time, over all processes: SQLite by ``BEGIN IMMEDIATE``, PostgreSQL by an advisory lock. Readers see
one state of the whole registry for as long as their transaction lasts, and wait for nobody.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
from alembic import command
from alembic.config import Config
from alembic.util.exc import CommandError
from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from registry.store.claims import Claim, FileClaim, SessionClaim

MIGRATIONS: Final = Path(__file__).parent / "migrations"
_LOCK: Final = 7_218_904_117_442_315
"""Our number among PostgreSQL's advisory locks."""
_BUSY_SECONDS: Final = 30.0
_CONNECT_SECONDS: Final = 10
_POOL: Final = 8
_WHERE: Final = frozenset(("host", "port"))
"""Of libpq's parameters in a URL those that say where a database is; others may be secrets."""

_REMEDIES: Final[Mapping[str, str]] = {
    "SQLITE_NOTADB": "name another file, or put back the database that was there",
    "SQLITE_CANTOPEN": "make the folder, and let this user write in it",
    "SQLITE_READONLY": "let this user write to the file and in its folder",
    "SQLITE_FULL": "make room on the disk",
    "SQLITE_BUSY": "end the process that holds it, or wait for it",
    "SQLITE_CORRUPT": "put a copy of the file in its place",
}
"""What to do about errors of SQLite, by the beginnings of their names."""
_OF_SQLITE: Final = "check the file, and who may read and write there"
_OF_POSTGRESQL: Final = "check that the server runs and can be reached, and user, password and name of the database"
_NEWER: Final = "use the version of xrouter that served it last, or a later one"


class StoreError(Exception):
    """The database cannot be opened, is of a newer form, or does not answer.

    The message is one line that names the place, without a password; ``hint`` is the remedy.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Database:
    """An open database of the newest form; any thread may begin transactions."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sqlite = engine.dialect.name == "sqlite"
        self._watchers: list[Callable[[], None]] = []

    def watch(self, written: Callable[[], None]) -> None:
        """Call *written* after every write of this process, on the thread of the write; it has to be quick."""
        self._watchers.append(written)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state and changes nothing."""
        with self._engine.connect() as connection:
            if not self._sqlite:
                connection = connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with connection.begin():
                yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that no other writer overlaps; durable when the block ends, undone when it raises.

        Raises:
            SQLAlchemyError: the database does not answer, or others write for too long.
        """
        with self._engine.connect() as connection:
            connection.info["writing"] = True
            try:
                with connection.begin():
                    if not self._sqlite:
                        most = {"most": f"{_BUSY_SECONDS * 1000:.0f}ms"}
                        connection.execute(text("SELECT set_config('lock_timeout', :most, true)"), most)
                        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
                    yield connection
            finally:
                connection.info.pop("writing", None)
        for written in self._watchers:
            written()

    @contextmanager
    def noting(self) -> Iterator[Connection]:
        """A transaction on what is no part of the registry. Its writers wait for it with SQLite alone."""
        with self._engine.connect() as connection:
            connection.info["writing"] = True
            try:
                with connection.begin():
                    yield connection
            finally:
                connection.info.pop("writing", None)

    def claim(self) -> Claim | None:
        """Return a claim that one process has at a time, None while another has it.

        Raises:
            SQLAlchemyError, OSError: the database, or the folder of its file, does not answer.
        """
        if self._sqlite:
            return FileClaim.of(self._engine.url.database)
        return SessionClaim.of(self._engine.connect())

    def close(self) -> None:
        """Close all connections; those in use are closed when they are given back."""
        self._engine.dispose()


def open_database(url: str) -> Database:
    """Open the database at an SQLAlchemy *url* (``sqlite:///FILE`` or ``postgresql+psycopg://...``), made if need be.

    Raises:
        StoreError: it cannot be opened, or is no database of ours.
    """
    try:
        address = make_url(url)
        engine = _sqlite(url) if address.get_backend_name() == "sqlite" else _postgresql(url)
    except ArgumentError as error:
        raise StoreError("the store's address is no URL of SQLAlchemy") from error
    database = Database(engine)
    try:
        with database.writing() as connection:
            _upgrade(connection)
    except CommandError as error:
        database.close()
        raise StoreError(f"the form of the store at {_place(url)} is newer than this version", _NEWER) from error
    except (SQLAlchemyError, psycopg.Error, OSError) as error:
        database.close()
        raise store_error(url, error, "cannot be opened") from error
    return database


def store_error(url: str, error: Exception, what: str = "does not answer") -> StoreError:
    """Return an error of the database at a URL as its operator needs it: one line, and the remedy."""
    message = f"the store at {_place(url)} {what}: {_cause(error)}"
    if make_url(url).get_backend_name() != "sqlite":
        return StoreError(message, _OF_POSTGRESQL)
    name = getattr(getattr(error, "orig", None) or error, "sqlite_errorname", "")
    return StoreError(message, next((hint for each, hint in _REMEDIES.items() if name.startswith(each)), _OF_SQLITE))


def is_full(error: SQLAlchemyError) -> bool:
    """Whether an error says that the database has no more room."""
    cause = getattr(error, "orig", None)
    return getattr(cause, "sqlite_errorname", "") == "SQLITE_FULL" or getattr(cause, "sqlstate", "") == "53100"


def _place(url: str) -> str:
    """Return where a database is, as its settings say it: the file, or the URL without what may be a secret."""
    address = make_url(url)
    if address.get_backend_name() == "sqlite":
        return str(address.database)
    shown = {name: value for name, value in address.query.items() if name in _WHERE}
    return address.set(query=shown).render_as_string()


def _upgrade(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _sqlite(url: str) -> Engine:
    engine = create_engine(url, connect_args={"timeout": _BUSY_SECONDS}, pool_size=_POOL, max_overflow=_POOL)

    @event.listens_for(engine, "connect")
    def _opened(connection: sqlite3.Connection, _record: Any) -> None:
        # SQLAlchemy begins transactions below: sqlite3 would begin them at the first write only.
        connection.isolation_level = None
        for setting in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "case_sensitive_like=ON"):
            connection.execute(f"PRAGMA {setting}")

    @event.listens_for(engine, "begin")
    def _began(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.info.get("writing") else "BEGIN")

    return engine


def _postgresql(url: str) -> Engine:
    return create_engine(
        url, pool_size=_POOL, max_overflow=_POOL, pool_pre_ping=True, connect_args={"connect_timeout": _CONNECT_SECONDS}
    )


def _cause(error: Exception) -> str:
    """Return the words of the database's own client: those of SQLAlchemy have statements and values in them."""
    cause = getattr(error, "orig", None) or error
    words = type(error).__name__ if isinstance(cause, SQLAlchemyError) else str(cause)
    return " ".join(words.split())
