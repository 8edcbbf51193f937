"""Index history by entity and number, to find the newest entry of an entity."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Replace the index."""
    op.drop_index("ix_history_xid", "history")
    op.create_index("ix_history_xid_number", "history", ["xid", "number"])
