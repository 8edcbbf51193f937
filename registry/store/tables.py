"""The tables: entities by their xid, documents beside their versions, history, events, and those to whom they go.

An entity's attributes are one JSON text. What queries look at has a column of its own. ``folded`` is the id in lower
case: ids differ in more than case within a collection, so it orders a collection and is where a page begins.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, LargeBinary, MetaData, String, Table, Text
from sqlalchemy.schema import SchemaItem

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
