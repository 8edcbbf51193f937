"""Index versions by ancestor and time, and marks by name, so that writes scale to many versions."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the indexes."""
    op.create_index("ix_versions_parent_ancestorid", "versions", ["parent", "ancestorid"])
    op.create_index("ix_versions_parent_createdat", "versions", ["parent", "createdat"])
    op.drop_index("ix_marks_owner", "marks")
    op.create_index("ix_marks_owner_name", "marks", ["owner", "name"])
