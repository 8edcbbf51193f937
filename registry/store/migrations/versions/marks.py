"""Replication marks of message groups."""

from __future__ import annotations

import uuid
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None
_CHUNK = 500


def _key() -> sa.types.TypeEngine[str]:
    return sa.Text().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    """Create the tables, and mark existing entities as written by this catalog."""
    marks = op.create_table(
        "marks",
        sa.Column("key", _key(), primary_key=True),
        *(sa.Column(name, _key(), nullable=False) for name in ("owner", "uid", "name")),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("stamp", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("origin", "seen", "digest", "authority")),
        sa.Column("deleted", sa.Boolean, nullable=False),
    )
    op.create_index("ix_marks_owner", "marks", ["owner"])
    op.create_index("ix_marks_uid", "marks", ["uid"])
    op.create_index("ix_marks_position", "marks", ["position"], unique=True)
    replica = op.create_table(
        "replica", sa.Column("id", sa.Text, primary_key=True), sa.Column("clock", sa.BigInteger, nullable=False)
    )
    op.create_table(
        "peers",
        sa.Column("name", _key(), primary_key=True),
        sa.Column("catalog", sa.Text, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
    )
    name = uuid.uuid4().hex
    clock = _mark_all(marks, name)
    op.get_bind().execute(sa.insert(replica).values(id=name, clock=clock))


def _mark_all(marks: sa.Table, origin: str) -> int:
    """Mark all groups and versions; digests are computed by the next write of each."""
    connection = op.get_bind()
    query = "SELECT xid FROM {} WHERE xid >= '/messagegroups/' AND xid < '/messagegroups0' ORDER BY xid"
    clock = 0
    rows: list[dict[str, Any]] = []
    for table in ("groups", "versions"):
        for (xid,) in connection.execute(sa.text(query.format(table))):
            clock += 1
            owner, _, name = xid.rpartition("/versions/") if table == "versions" else ("", "", "")
            uid = f"{clock:016d}.{origin}" if owner else ""
            key = f"{owner}#{uid}" if owner else xid
            more = {"seen": f'{{"{origin}":{clock}}}', "digest": "", "authority": "", "deleted": False}
            row = {"key": key, "owner": owner, "uid": uid, "name": name, "position": clock, "stamp": clock}
            rows.append({**row, "origin": origin, **more})
    for start in range(0, len(rows), _CHUNK):
        connection.execute(sa.insert(marks), rows[start : start + _CHUNK])
    return clock
