"""Replication marks for all entities, not only messages."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None
_CHUNK = 500
_NOT_MESSAGES = (
    "xid NOT LIKE '/messagegroups/%' OR xid LIKE '/messagegroups/%/%' AND xid NOT LIKE '/messagegroups/%/messages/%'"
)


def upgrade() -> None:
    """Mark the model and all entities as written by this catalog; digests are computed later."""
    connection = op.get_bind()
    row = connection.execute(sa.text("SELECT id, clock FROM replica")).one()
    origin, clock = str(row[0]), int(row[1])
    marks = sa.table("marks", *(sa.column(name) for name in _mark("", "", 0)))
    xids = ["/modelsource"] if connection.execute(sa.text("SELECT 1 FROM registry")).first() is not None else []
    for table in ("groups", "versions", "resources"):
        query = sa.text(f"SELECT xid FROM {table} WHERE {_NOT_MESSAGES} ORDER BY xid")
        xids += [str(each[0]) for each in connection.execute(query)]
    rows = [_mark(xid, origin, clock + number) for number, xid in enumerate(xids, 1)]
    for start in range(0, len(rows), _CHUNK):
        connection.execute(sa.insert(marks), rows[start : start + _CHUNK])
    connection.execute(sa.text("UPDATE replica SET clock = :clock"), {"clock": clock + len(rows)})


def _mark(xid: str, origin: str, clock: int) -> dict[str, Any]:
    named = {"key": xid, "owner": "", "uid": "", "name": "", "position": clock, "stamp": clock, "origin": origin}
    return {**named, "seen": f'{{"{origin}":{clock}}}', "digest": "", "authority": "", "deleted": False}
