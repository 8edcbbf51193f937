"""Subscribers: progress, and blocked events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def _key() -> sa.types.TypeEngine[str]:
    return sa.Text().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "subscribers",
        sa.Column("id", _key(), primary_key=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("origin", "owner", "body", "permission")),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.Text),
    )
    op.create_table(
        "held",
        sa.Column("subscriber", _key(), primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    )
