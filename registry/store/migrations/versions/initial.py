"""The tables of the first release, and the random id of a new catalog."""

# Small: the one migration there is. A change after the first release is a migration of its own, and then the columns
# of this one are written out here.

from __future__ import annotations

import uuid

from alembic import op

from registry.store.engine import METADATA, REPLICA

revision = "0007"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create all tables."""
    connection = op.get_bind()
    METADATA.create_all(connection)
    connection.execute(REPLICA.insert().values(id=uuid.uuid4().hex, clock=0))
