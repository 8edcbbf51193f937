"""The tables: entities by their xid, documents beside their versions, history, events, and those to whom they go; and
the statements of frequent use over them.

An entity's attributes are one JSON text. What queries look at has a column of its own. ``folded`` is the id in lower
case: ids differ in more than case within a collection, so it orders a collection and is where a page begins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Boolean,
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    bindparam,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import SchemaItem
from sqlalchemy.sql.expression import ClauseElement

METADATA: Final = MetaData(naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s"})
# Bytes decide what comes first, on both databases: the range after a prefix is then what lies below an xid.
_KEY: Final = Text().with_variant(String(collation="C"), "postgresql")
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
        Column("xid", _KEY, primary_key=True),
        Column("parent", _KEY, nullable=False),
        Column("id", _KEY, nullable=False),
        Column("folded", _KEY, nullable=False),
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
    Column("xref", _KEY, nullable=True),
    Column("defaultversionid", _KEY, nullable=True),
    Column("sticky", Boolean, nullable=False),
    Column("counter", BigInteger, nullable=False),
    Index(None, "xref"),
)
VERSIONS: Final = _entities(
    "versions",
    Column("ancestorid", _KEY, nullable=False),
    Index(None, "parent", "ancestorid"),
    Index(None, "parent", "createdat"),
)
DOCUMENTS: Final = Table(
    "documents",
    METADATA,
    Column("xid", _KEY, primary_key=True),
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
    Column("xid", _KEY, nullable=False),
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
    Column("subject", _KEY, nullable=False),
    Column("data", Text, nullable=True),
    sqlite_autoincrement=True,
)
SUBSCRIBERS: Final = Table(
    "subscribers",
    METADATA,
    Column("id", _KEY, primary_key=True),
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
    Column("subscriber", _KEY, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
)
MARKS: Final = Table(
    "marks",
    METADATA,
    Column("key", _KEY, primary_key=True),
    Column("owner", _KEY, nullable=False),
    Column("uid", _KEY, nullable=False),
    Column("name", _KEY, nullable=False),
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
    Column("name", _KEY, primary_key=True),
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
                statement = Statement(self._build([bindparam(f"key{number}", type_=_KEY) for number in range(size)]))
                self._statements[size] = statement
            part += part[-1:] * (size - len(part))
            yield statement, {**values, **{f"key{number}": each for number, each in enumerate(part)}}
