"""The database: its tables, SQLite in one file or PostgreSQL, opened and brought to the newest form."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

import psycopg
from alembic import command
from alembic.config import Config
from alembic.util.exc import CommandError
from sqlalchemy import (
    BigInteger,
    BindParameter,
    Boolean,
    Column,
    Connection,
    Engine,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    bindparam,
    create_engine,
    event,
    make_url,
    text,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.schema import SchemaItem
from sqlalchemy.sql.expression import ClauseElement

# The database: SQLite in one file, or PostgreSQL; opened, brought to the newest form, and its transactions.
#
# One writer at a time, over all processes: SQLite by ``BEGIN IMMEDIATE``, PostgreSQL by an advisory lock. Readers see
# one state of the whole registry for as long as their transaction lasts, and wait for nobody.

# Claims that one process has at a time over a database, and that end with it however it ends.

_KEY: Final = 7_218_904_117_442_316
"""Our number among PostgreSQL's advisory locks."""
_SUFFIX: Final = "-delivery"
_FILE_MODE: Final = 0o600


class Claim(Protocol):
    """Something that is ours until it is released, or until this process ends."""

    @property
    def holds(self) -> bool:
        """Whether it is ours still; it asks the database."""
        ...

    def release(self) -> None:
        """Let others have it."""
        ...


class FileClaim:
    """A lock on a file beside that of SQLite, which the system releases when the process ends."""

    def __init__(self, file: int | None) -> None:
        self._file = file

    @classmethod
    def of(cls, database: str | None) -> FileClaim | None:
        """Return the claim over the database in a file; over one in memory, which nobody else has, it is always ours.

        Raises:
            OSError: no file can be made there.
        """
        if not database or database == ":memory:":
            return cls(None)
        file = os.open(f"{database}{_SUFFIX}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        return cls(file)

    @property
    def holds(self) -> bool:
        """Whether it is ours still."""
        return True

    def release(self) -> None:
        """Let others have it; the file stays."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class SessionClaim:
    """An advisory lock of PostgreSQL: it ends with its connection, which nothing else uses."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    def of(cls, connection: Connection) -> SessionClaim | None:
        """Return the claim, None while another connection has it.

        Raises:
            SQLAlchemyError: the database does not answer.
        """
        try:
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            if connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": _KEY}).scalar_one():
                return cls(connection)
        except BaseException:
            connection.invalidate()
            connection.close()
            raise
        connection.close()
        return None

    @property
    def holds(self) -> bool:
        """Whether the connection lives, and so the lock."""
        try:
            self._connection.execute(text("SELECT 1"))
        except SQLAlchemyError:
            return False
        return not self._connection.invalidated

    def release(self) -> None:
        """Let others have it, by ending the connection."""
        self._connection.invalidate()
        self._connection.close()


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


# The tables: entities by their xid, documents beside their versions, history, events, and those to whom they go; and
# the statements of frequent use over them.
#
# An entity's attributes are one JSON text. What queries look at has a column of its own. ``folded`` is the id in lower
# case: ids differ in more than case within a collection, so it orders a collection and is where a page begins.

METADATA: Final = MetaData(naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s"})
# Bytes decide what comes first, on both databases: the range after a prefix is then what lies below an xid.
_KEY_TYPE: Final = Text().with_variant(String(collation="C"), "postgresql")
_NUMBER: Final = BigInteger().with_variant(Integer, "sqlite")

REGISTRY: Final = Table(
    "registry",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("createdat", Text, nullable=False),
    Column("modifiedat", Text, nullable=False),
    Column("attributes", Text, nullable=False),
    Column("modelsource", Text, nullable=False),
    Column("capabilities", Text, nullable=False, server_default="{}"),
)


def _entities(name: str, *more: SchemaItem) -> Table:
    """Return the table of one kind of entity, with *more* columns and indexes than all kinds have."""
    return Table(
        name,
        METADATA,
        Column("xid", _KEY_TYPE, primary_key=True),
        Column("parent", _KEY_TYPE, nullable=False),
        Column("id", _KEY_TYPE, nullable=False),
        Column("folded", _KEY_TYPE, nullable=False),
        Column("epoch", BigInteger, nullable=False),
        Column("createdat", Text, nullable=False),
        Column("modifiedat", Text, nullable=False),
        Column("attributes", Text, nullable=False),
        *more,
        Index(None, "parent", "folded", unique=True),
    )


GROUPS: Final = _entities("groups")
RESOURCES: Final = _entities(
    "resources",
    Column("xref", _KEY_TYPE, nullable=True),
    Column("defaultversionid", _KEY_TYPE, nullable=True),
    Column("sticky", Boolean, nullable=False),
    Column("counter", BigInteger, nullable=False),
    Index(None, "xref"),
)
VERSIONS: Final = _entities(
    "versions",
    Column("ancestorid", _KEY_TYPE, nullable=False),
    Index(None, "parent", "ancestorid"),
    Index(None, "parent", "createdat"),
)
DOCUMENTS: Final = Table(
    "documents",
    METADATA,
    Column("xid", _KEY_TYPE, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)
HISTORY: Final = Table(
    "history",
    METADATA,
    Column("number", _NUMBER, primary_key=True, autoincrement=True),
    Column("interaction", Text, nullable=False),
    Column("at", Text, nullable=False),
    Column("who", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("xid", _KEY_TYPE, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("entity", Text, nullable=True),
    Index(None, "xid", "number"),
    sqlite_autoincrement=True,
)
OUTBOX: Final = Table(
    "outbox",
    METADATA,
    Column("number", _NUMBER, primary_key=True, autoincrement=True),
    Column("interaction", Text, nullable=False),
    Column("at", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("subject", _KEY_TYPE, nullable=False),
    Column("data", Text, nullable=True),
    sqlite_autoincrement=True,
)
SUBSCRIBERS: Final = Table(
    "subscribers",
    METADATA,
    Column("id", _KEY_TYPE, primary_key=True),
    Column("origin", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("permission", Text, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("expires", Text, nullable=True),
)
HELD: Final = Table(
    "held",
    METADATA,
    Column("subscriber", _KEY_TYPE, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
)
MARKS: Final = Table(
    "marks",
    METADATA,
    Column("key", _KEY_TYPE, primary_key=True),
    Column("owner", _KEY_TYPE, nullable=False),
    Column("uid", _KEY_TYPE, nullable=False),
    Column("name", _KEY_TYPE, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("stamp", BigInteger, nullable=False),
    Column("origin", Text, nullable=False),
    Column("seen", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("authority", Text, nullable=False),
    Column("deleted", Boolean, nullable=False),
    Index("ix_marks_owner_name", "owner", "name"),
    Index("ix_marks_uid", "uid"),
    Index("ix_marks_position", "position", unique=True),
)
REPLICA: Final = Table(
    "replica", METADATA, Column("id", Text, primary_key=True), Column("clock", BigInteger, nullable=False)
)
PEERS: Final = Table(
    "peers",
    METADATA,
    Column("name", _KEY_TYPE, primary_key=True),
    Column("catalog", Text, nullable=False),
    Column("position", BigInteger, nullable=False),
)
_SIZES: Final = (1, 2, 4, 8, 16, 24, 32, 64, 128, 250, 500)
"""How many keys statements that name some have places for."""
Row = tuple[Any, ...]


class Statement:
    """A statement that is compiled once for each kind of database, and run by its driver.

    SQLAlchemy's own way costs a hundred microseconds each time, which is many times what SQLite takes for a row.
    """

    def __init__(self, clause: ClauseElement, columns: Collection[str] | None = None) -> None:
        self._clause = clause
        self._columns = columns
        self._compiled: dict[str, tuple[str, Sequence[str] | None, Mapping[str, Any]]] = {}

    def rows(self, connection: Connection, values: Mapping[str, Any]) -> list[Row]:
        """Return all rows."""
        return self._run(connection, [values], fetch=True)

    def first(self, connection: Connection, values: Mapping[str, Any]) -> Row | None:
        """Return the first row, None where there is none."""
        rows = self._run(connection, [values], fetch=True)
        return rows[0] if rows else None

    def run(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run it with the values of each row."""
        if rows:
            self._run(connection, rows, fetch=False)

    def _run(self, connection: Connection, rows: Sequence[Mapping[str, Any]], *, fetch: bool) -> list[Row]:
        dialect = connection.dialect
        text, names, fixed = self._compiled.get(dialect.name) or self._compile(connection)
        whole = [{**fixed, **each} for each in rows] if fixed else rows
        given: Sequence[Any] = whole if names is None else [[each[name] for name in names] for each in whole]
        cursor = connection.connection.cursor()
        assert dialect.dbapi is not None
        try:
            if len(given) == 1:
                cursor.execute(text, given[0])
            else:
                cursor.executemany(text, given)
            return list(cursor.fetchall()) if fetch else []
        except dialect.dbapi.Error as error:
            raise DBAPIError.instance(text, None, error, dialect.dbapi.Error, dialect=dialect) from error
        finally:
            cursor.close()

    def _compile(self, connection: Connection) -> tuple[str, Sequence[str] | None, Mapping[str, Any]]:
        compiled: Any = self._clause.compile(dialect=connection.dialect, column_keys=self._columns)
        fixed = {name: each.value for name, each in compiled.binds.items() if not each.required}
        found = str(compiled), compiled.positiontup, fixed
        self._compiled[connection.dialect.name] = found
        return found


class Among:
    """A statement about rows of which some keys are named, as many as there are; *build* is given places for them."""

    def __init__(self, build: Callable[[list[BindParameter[str]]], ClauseElement]) -> None:
        self._build = build
        self._statements: dict[int, Statement] = {}

    def rows(self, connection: Connection, keys: Collection[str], values: Mapping[str, Any]) -> Iterator[Row]:
        """Yield the rows, by as many statements as the keys need."""
        for statement, given in self._parts(keys, values):
            yield from statement.rows(connection, given)

    def run(self, connection: Connection, keys: Collection[str]) -> None:
        """Run it."""
        for statement, given in self._parts(keys, {}):
            statement.run(connection, [given])

    def _parts(self, keys: Collection[str], values: Mapping[str, Any]) -> Iterator[tuple[Statement, dict[str, Any]]]:
        left = iter(keys)
        while part := list(islice(left, _SIZES[-1])):
            size = next(each for each in _SIZES if each >= len(part))
            statement = self._statements.get(size)
            if statement is None:
                statement = Statement(
                    self._build([bindparam(f"key{number}", type_=_KEY_TYPE) for number in range(size)])
                )
                self._statements[size] = statement
            part += part[-1:] * (size - len(part))
            yield statement, {**values, **{f"key{number}": each for number, each in enumerate(part)}}
