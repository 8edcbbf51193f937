"""The first version of the tables."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _key() -> sa.types.TypeEngine[str]:
    return sa.Text().with_variant(sa.String(collation="C"), "postgresql")


def _number() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _entity(*more: sa.Column[Any]) -> list[sa.Column[Any]]:
    first = [sa.Column("xid", _key(), primary_key=True)]
    names = [sa.Column(name, _key(), nullable=False) for name in ("parent", "id", "folded")]
    counted = [sa.Column("epoch", sa.BigInteger, nullable=False)]
    texts = [sa.Column(name, sa.Text, nullable=False) for name in ("createdat", "modifiedat", "attributes")]
    return [*first, *names, *counted, *texts, *more]


def upgrade() -> None:
    """Create all tables."""
    op.create_table(
        "registry",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("createdat", "modifiedat", "attributes")),
        sa.Column("modelsource", sa.Text, nullable=False),
    )
    op.create_table("groups", *_entity())
    op.create_table(
        "resources",
        *_entity(
            sa.Column("xref", _key()),
            sa.Column("defaultversionid", _key()),
            sa.Column("sticky", sa.Boolean, nullable=False),
            sa.Column("counter", sa.BigInteger, nullable=False),
        ),
    )
    op.create_table("versions", *_entity(sa.Column("ancestorid", _key(), nullable=False)))
    for table in ("groups", "resources", "versions"):
        op.create_index(f"ix_{table}_parent_folded", table, ["parent", "folded"], unique=True)
    op.create_index("ix_resources_xref", "resources", ["xref"])
    op.create_table(
        "documents", sa.Column("xid", _key(), primary_key=True), sa.Column("body", sa.LargeBinary, nullable=False)
    )
    op.create_table(
        "history",
        sa.Column("number", _number(), primary_key=True, autoincrement=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("interaction", "at", "who", "action")),
        sa.Column("xid", _key(), nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("entity", sa.Text),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_history_xid", "history", ["xid"])
    op.create_table(
        "outbox",
        sa.Column("number", _number(), primary_key=True, autoincrement=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("interaction", "at", "type")),
        sa.Column("subject", _key(), nullable=False),
        sa.Column("data", sa.Text),
        sqlite_autoincrement=True,
    )
