"""Capabilities that clients have changed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, empty."""
    op.add_column("registry", sa.Column("capabilities", sa.Text, nullable=False, server_default="{}"))
