"""The database (an SQLite file, or PostgreSQL): opening, migrations, transactions, locks, and tables."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import psycopg
from alembic import command
from alembic.config import Config
from alembic.util.exc import CommandError
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
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
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import SchemaItem
from sqlalchemy.sql.expression import ClauseElement
from sqlalchemy.sql.functions import FunctionElement

# One writer at a time across processes: SQLite by ``BEGIN IMMEDIATE``, PostgreSQL by an advisory lock. Readers see one
# snapshot of the registry for their whole transaction, and never wait.

# Locks on a database that one process holds at a time, and that are released when it ends.

_DELIVERY_LOCK: Final = 7_218_904_117_442_316
"""Id of our advisory lock in PostgreSQL."""
_LOCK_SUFFIX: Final = "-delivery"
_FILE_MODE: Final = 0o600


@dataclass(frozen=True, slots=True)
class ProcessLock:
    """A lock that this process holds until it releases it, once, or ends."""

    release: Callable[[], None]
    check: Callable[[], bool] = lambda: True

    @property
    def is_held(self) -> bool:
        """Whether this process still holds it; queries the database."""
        return self.check()


def _lock_file(database: str | None) -> ProcessLock | None:
    """Return the lock of a database file, None if another process holds it; always granted for one in memory.

    It is on a file beside it, which stays; the system releases the lock when the process ends.

    Raises:
        OSError: the lock file cannot be created.
    """
    if not database or database == ":memory:":
        return ProcessLock(lambda: None)
    file = os.open(f"{database}{_LOCK_SUFFIX}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return ProcessLock(partial(os.close, file))


def _lock_postgresql(connection: Connection) -> ProcessLock | None:
    """Return our advisory lock, tied to a connection that nothing else uses; None while another one holds it.

    Raises:
        SQLAlchemyError: the database does not answer.
    """

    def release() -> None:
        connection.invalidate()
        connection.close()

    def is_alive() -> bool:
        try:
            connection.execute(text("SELECT 1"))
        except SQLAlchemyError:
            return False
        return not connection.invalidated

    try:
        connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        if connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": _DELIVERY_LOCK}).scalar_one():
            return ProcessLock(release, is_alive)
    except BaseException:
        release()
        raise
    connection.close()
    return None


MIGRATIONS: Final = Path(__file__).parent / "migrations"
_WRITE_LOCK: Final = 7_218_904_117_442_315
"""Id of our advisory lock in PostgreSQL."""
_BUSY_SECONDS: Final = 30.0
_CONNECT_SECONDS: Final = 10
_POOL: Final = 8
_LOCATION_PARAMETERS: Final = frozenset(("host", "port"))
"""libpq parameters of a URL that say where a database is; others may be secrets."""

_REMEDIES: Final[Mapping[str, str]] = {
    "SQLITE_NOTADB": "use another file, or restore a backup of the database",
    "SQLITE_CANTOPEN": "create the folder, and give this user write access to it",
    "SQLITE_READONLY": "give this user write access to the file and its folder",
    "SQLITE_FULL": "free space on the disk",
    "SQLITE_BUSY": "stop the process that uses it, or wait",
    "SQLITE_CORRUPT": "restore a backup of the file",
}
"""Hints for SQLite errors, by prefix of the error name."""
_SQLITE_HINT: Final = "check the file and its permissions"
_POSTGRESQL_HINT: Final = "check that the server runs and is reachable, and the user, password and database name"
_NEWER_HINT: Final = "use the version of xrouter that last served it, or a later one"


class StoreError(Exception):
    """The database cannot be opened, has an unknown schema, or does not answer.

    The message is one line with the location and without a password; ``hint`` is the remedy.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Database:
    """An open, migrated database; any thread may begin transactions."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sqlite = engine.dialect.name == "sqlite"
        self._watchers: list[Callable[[], None]] = []

    def on_write(self, written: Callable[[], None]) -> None:
        """Call *written* after every write of this process, on the writing thread; it must be fast."""
        self._watchers.append(written)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Begin a read-only transaction on one snapshot."""
        with self._engine.connect() as connection:
            if not self._sqlite:
                connection = connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with connection.begin():
                yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Begin an exclusive write transaction: committed durably when the block ends, rolled back when it raises.

        Raises:
            SQLAlchemyError: the database does not answer, or the wait for other writers timed out.
        """
        with self.writing_aside() as connection:
            if not self._sqlite:
                most = {"most": f"{_BUSY_SECONDS * 1000:.0f}ms"}
                connection.execute(text("SELECT set_config('lock_timeout', :most, true)"), most)
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _WRITE_LOCK})
            yield connection
        for written in self._watchers:
            written()

    @contextmanager
    def writing_aside(self) -> Iterator[Connection]:
        """Begin a transaction on tables outside the registry proper; registry writers wait for it only with SQLite."""
        with self._engine.connect() as connection:
            connection.info["writing"] = True
            try:
                with connection.begin():
                    yield connection
            finally:
                connection.info.pop("writing", None)

    def try_lock(self) -> ProcessLock | None:
        """Return a lock that one process holds at a time, None while another holds it.

        Raises:
            SQLAlchemyError, OSError: the database, or the folder of its file, is unavailable.
        """
        if self._sqlite:
            return _lock_file(self._engine.url.database)
        return _lock_postgresql(self._engine.connect())

    def close(self) -> None:
        """Close all connections; those in use are closed when they are returned."""
        self._engine.dispose()


def open_database(url: str) -> Database:
    """Open, or create, the database at an SQLAlchemy *url* (``sqlite:///FILE`` or ``postgresql+psycopg://...``).

    Raises:
        StoreError: it cannot be opened, or is not a registry database.
    """
    try:
        address = make_url(url)
        engine = _create_engine(url, sqlite=address.get_backend_name() == "sqlite")
    except ArgumentError as error:
        raise StoreError("the URL of the store is not a valid SQLAlchemy URL") from error
    database = Database(engine)
    try:
        with database.writing() as connection:
            _upgrade(connection)
    except CommandError as error:
        database.close()
        raise StoreError(f"the store at {_locate(url)} has an unknown schema", _NEWER_HINT) from error
    except (SQLAlchemyError, psycopg.Error, OSError) as error:
        database.close()
        raise store_error(url, error, "cannot be opened") from error
    return database


def store_error(url: str, error: Exception, problem: str = "does not answer") -> StoreError:
    """Return a database error for operators: one line, and a hint."""
    message = f"the store at {_locate(url)} {problem}: {_driver_message(error)}"
    if make_url(url).get_backend_name() != "sqlite":
        return StoreError(message, _POSTGRESQL_HINT)
    name = getattr(getattr(error, "orig", None) or error, "sqlite_errorname", "")
    return StoreError(message, next((hint for each, hint in _REMEDIES.items() if name.startswith(each)), _SQLITE_HINT))


def is_full(error: SQLAlchemyError) -> bool:
    """Whether an error means that the database has no space left."""
    cause = getattr(error, "orig", None)
    return getattr(cause, "sqlite_errorname", "") == "SQLITE_FULL" or getattr(cause, "sqlstate", "") == "53100"


def _locate(url: str) -> str:
    """Return where a database is: the file, or the URL without possible secrets."""
    address = make_url(url)
    if address.get_backend_name() == "sqlite":
        return str(address.database)
    shown = {name: value for name, value in address.query.items() if name in _LOCATION_PARAMETERS}
    return address.set(query=shown).render_as_string()


def _upgrade(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _create_engine(url: str, *, sqlite: bool) -> Engine:
    options = {"timeout": _BUSY_SECONDS} if sqlite else {"connect_timeout": _CONNECT_SECONDS}
    engine = create_engine(url, connect_args=options, pool_size=_POOL, max_overflow=_POOL, pool_pre_ping=not sqlite)
    if not sqlite:
        return engine

    @event.listens_for(engine, "connect")
    def configure_connection(connection: sqlite3.Connection, _record: Any) -> None:
        # SQLAlchemy begins transactions below: sqlite3 would begin them only at the first write.
        connection.isolation_level = None
        for setting in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "case_sensitive_like=ON"):
            connection.execute(f"PRAGMA {setting}")

    @event.listens_for(engine, "begin")
    def begin_transaction(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.info.get("writing") else "BEGIN")

    return engine


def _driver_message(error: Exception) -> str:
    """Return the message of the database driver; SQLAlchemy's contains statements and values."""
    cause = getattr(error, "orig", None) or error
    words = type(error).__name__ if isinstance(cause, SQLAlchemyError) else str(cause)
    return " ".join(words.split())


# The tables (entities by xid, documents, history, events, subscribers, replication), and frequent statements on them.
#
# An entity's attributes are one JSON text; queried values have their own columns. ``folded`` is the id in lower case,
# which is unique within a collection: it is the sort key and the page cursor.

METADATA: Final = MetaData(naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s"})
# Both databases compare bytes, so that the entities below an xid are one range.
_KEY_TYPE: Final = Text().with_variant(String(collation="C"), "postgresql")
_NUMBER_TYPE: Final = BigInteger().with_variant(Integer, "sqlite")


def _columns(kind: Any, names: str) -> list[Column[Any]]:
    return [Column(name, kind, nullable=False) for name in names.split()]


def _numbered_table(name: str, *more: SchemaItem) -> Table:
    """Return a table of rows numbered in the order of writes; numbers are never used again."""
    number = Column("number", _NUMBER_TYPE, primary_key=True, autoincrement=True)
    return Table(name, METADATA, number, *_columns(Text, "interaction at"), *more, sqlite_autoincrement=True)


def _entity_table(name: str, *more: SchemaItem) -> Table:
    """Return the table of one kind of entity: the common columns, and *more* columns and indexes."""
    keys, texts = _columns(_KEY_TYPE, "parent id folded"), _columns(Text, "createdat modifiedat attributes")
    common = (Column("xid", _KEY_TYPE, primary_key=True), *keys, *_columns(BigInteger, "epoch"), *texts)
    return Table(name, METADATA, *common, *more, Index(None, "parent", "folded", unique=True))


REGISTRY: Final = Table(
    "registry",
    METADATA,
    Column("id", Text, primary_key=True),
    *_columns(BigInteger, "epoch"),
    *_columns(Text, "createdat modifiedat attributes modelsource"),
    Column("capabilities", Text, nullable=False, server_default="{}"),
)
GROUPS: Final = _entity_table("groups")
RESOURCES: Final = _entity_table(
    "resources",
    Column("xref", _KEY_TYPE),
    Column("defaultversionid", _KEY_TYPE),
    *_columns(Boolean, "sticky"),
    *_columns(BigInteger, "counter"),
    Index(None, "xref"),
)
VERSIONS: Final = _entity_table(
    "versions",
    *_columns(_KEY_TYPE, "ancestorid"),
    Index(None, "parent", "ancestorid"),
    Index(None, "parent", "createdat"),
)
DOCUMENTS: Final = Table(
    "documents", METADATA, Column("xid", _KEY_TYPE, primary_key=True), *_columns(LargeBinary, "body")
)
HISTORY: Final = _numbered_table(
    "history",
    *_columns(Text, "who action"),
    *_columns(_KEY_TYPE, "xid"),
    *_columns(BigInteger, "epoch"),
    Column("entity", Text),
    Index(None, "xid", "number"),
)
OUTBOX: Final = _numbered_table(
    "outbox", *_columns(Text, "type"), *_columns(_KEY_TYPE, "subject"), Column("data", Text)
)
SUBSCRIBERS: Final = Table(
    "subscribers",
    METADATA,
    Column("id", _KEY_TYPE, primary_key=True),
    *_columns(Text, "origin owner body permission"),
    *_columns(BigInteger, "revision position"),
    Column("expires", Text),
)
BLOCKED: Final = Table(
    "held",
    METADATA,
    Column("subscriber", _KEY_TYPE, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
)
MARKS: Final = Table(
    "marks",
    METADATA,
    Column("key", _KEY_TYPE, primary_key=True),
    *_columns(_KEY_TYPE, "owner uid name"),
    *_columns(BigInteger, "position stamp"),
    *_columns(Text, "origin seen digest authority"),
    *_columns(Boolean, "deleted"),
    Index("ix_marks_owner_name", "owner", "name"),
    Index("ix_marks_uid", "uid"),
    Index("ix_marks_position", "position", unique=True),
)
REPLICA: Final = Table("replica", METADATA, Column("id", Text, primary_key=True), *_columns(BigInteger, "clock"))
PEERS: Final = Table(
    "peers",
    METADATA,
    Column("name", _KEY_TYPE, primary_key=True),
    *_columns(Text, "catalog"),
    *_columns(BigInteger, "position"),
)
Row = tuple[Any, ...]


class _Keys(FunctionElement[Any]):
    """The texts of a JSON array as rows, so that one statement takes any number of keys."""

    inherit_cache = True


@compiles(_Keys, "sqlite")
def _compile_for_sqlite(element: _Keys, compiler: Any, **options: Any) -> str:
    return f"(SELECT value FROM json_each({compiler.process(element.clauses, **options)}))"


@compiles(_Keys, "postgresql")
def _compile_for_postgresql(element: _Keys, compiler: Any, **options: Any) -> str:
    return f"(SELECT json_array_elements_text(CAST({compiler.process(element.clauses, **options)} AS JSON)))"


def in_keys(column: Column[Any], operator: str = "IN") -> ColumnElement[bool]:
    """Return the condition that a column has one of the keys that a statement is given."""
    return column.bool_op(operator)(_Keys(bindparam("keys", type_=Text)))


def _encode_keys(keys: Collection[str]) -> str:
    return msgspec.json.encode([each for each in keys if "\0" not in each]).decode("utf-8")


class Statement:
    """A statement that is compiled once for each kind of database, and executed by its driver.

    Executing it through SQLAlchemy costs some 100 us each time, many times what SQLite needs for a row. A key with NUL
    matches nothing: no entity has one, and PostgreSQL refuses it.
    """

    def __init__(self, clause: ClauseElement, columns: Collection[str] | None = None) -> None:
        self._clause = clause
        self._columns = columns
        self._compiled: dict[str, tuple[str, Sequence[str] | None, Mapping[str, Any]]] = {}

    def fetch_all(self, connection: Connection, values: Mapping[str, Any]) -> list[Row]:
        """Return all rows."""
        if any(isinstance(each, str) and "\0" in each for each in values.values()):
            return []
        return self._execute(connection, [values], fetch=True)

    def fetch_first(self, connection: Connection, values: Mapping[str, Any]) -> Row | None:
        """Return the first row, None if there is none."""
        rows = self.fetch_all(connection, values)
        return rows[0] if rows else None

    def fetch_by_keys(self, connection: Connection, keys: Collection[str], **values: Any) -> list[Row]:
        """Return all rows of a statement with :func:`in_keys`."""
        return self.fetch_all(connection, {**values, "keys": _encode_keys(keys)}) if keys else []

    def execute_by_keys(self, connection: Connection, keys: Collection[str]) -> None:
        """Execute a statement with :func:`in_keys`."""
        self.execute(connection, [{"keys": _encode_keys(keys)}] if keys else [])

    def execute(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Execute it with the values of each row."""
        if rows:
            self._execute(connection, rows, fetch=False)

    def _execute(self, connection: Connection, rows: Sequence[Mapping[str, Any]], *, fetch: bool) -> list[Row]:
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
