"""History by entity and number: whether an entry is the newest of its entity is one look."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make one index of the other."""
    op.drop_index("ix_history_xid", "history")
    op.create_index("ix_history_xid_number", "history", ["xid", "number"])
