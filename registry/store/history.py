"""History: who did what to which entity, newest last; and how what is older than anybody wants is taken away.

The newest entry of an entity that is there stays, whatever its age, and so does the newest of all: ETags and the next
number hang on it.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, and_, delete, exists, func, or_, select

from registry.store.tables import HISTORY

_LOOKED_AT: Final = 1000
"""Entries that one transaction looks at, so that no write waits long for it."""


def newest(connection: Connection) -> int:
    """Return the number of the newest entry, 0 before the first."""
    return connection.execute(select(func.max(HISTORY.c.number))).scalar() or 0


def count(connection: Connection) -> int:
    """Return how many entries there are."""
    return connection.execute(select(func.count()).select_from(HISTORY)).scalar_one()


def prune(connection: Connection, after: int, upto: int, before: str | None) -> tuple[int, int]:
    """Take away what may go of the first entries behind *after* and up to *upto*, or older than *before*, if given.

    Returns:
        How many went, and the number behind which to go on, 0 when there is nothing more.
    """
    old = HISTORY.c.number <= upto
    if before is not None:
        old = or_(old, HISTORY.c.at < before)
    query = select(HISTORY.c.number).where(HISTORY.c.number > after).order_by(HISTORY.c.number).limit(_LOOKED_AT)
    looked_at = connection.execute(query).scalars().all()
    if not looked_at:
        return 0, 0
    later = HISTORY.alias()
    followed = exists().where(and_(later.c.xid == HISTORY.c.xid, later.c.number > HISTORY.c.number))
    last = looked_at[-1]
    within = and_(HISTORY.c.number > after, HISTORY.c.number <= last, HISTORY.c.number < newest(connection))
    gone = connection.execute(delete(HISTORY).where(within, old, or_(HISTORY.c.action == "deleted", followed)))
    # Numbers grow with time, so behind an entry that is young and within the number nothing may go.
    final = connection.execute(select(HISTORY.c.at).where(HISTORY.c.number == last)).scalar()
    done = last > upto and (before is None or (final is not None and final >= before))
    return gone.rowcount, 0 if done else last
