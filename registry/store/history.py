"""History: who did what to which entity, newest last; how it is read, and how old entries are removed.

The newest entry of an entity that is there stays, whatever its age, and so does the newest of all: ETags and the next
number depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, delete, exists, func, or_, select

from registry.store.reading import below
from registry.store.tables import HISTORY

_LOOKED_AT: Final = 1000
"""Entries that one transaction looks at, and may take away, so that no write waits long for it."""
_ASKED: Final = 500
_FETCHED: Final = 50
"""Entries that are read at a time: each brings its entity as it was, and as it was before."""


def newest(connection: Connection) -> int:
    """Return the number of the newest entry, 0 before the first."""
    return connection.execute(select(func.max(HISTORY.c.number))).scalar() or 0


def count(connection: Connection) -> int:
    """Return how many entries there are."""
    return connection.execute(select(func.count()).select_from(HISTORY)).scalar_one()


def entries(connection: Connection, xid: str, after: int | None, *, oldest: bool, deep: bool) -> Iterator[Row[Any]]:
    """Yield entries with ``earlier``, the number of the entry before of the same entity, and ``before``, its entity.

    Those of one entity alone where *xid* is not '', with what is below it where *deep*; from the newest on, or the
    *oldest*, and those that follow the number *after*.
    """
    former, last = HISTORY.alias(), HISTORY.alias()
    number = HISTORY.c.number
    found = select(func.max(last.c.number)).where(last.c.xid == HISTORY.c.xid, last.c.number < number)
    joined = HISTORY.outerjoin(former, former.c.number == found.scalar_subquery())
    query = select(HISTORY, former.c.number.label("earlier"), former.c.entity.label("before")).select_from(joined)
    if xid and deep:
        first, end = below(xid.rstrip("/"))
        query = query.where(or_(HISTORY.c.xid == xid, and_(HISTORY.c.xid >= first, HISTORY.c.xid < end)))
    elif xid:
        query = query.where(HISTORY.c.xid == xid)
    query = query.order_by(number.asc() if oldest else number.desc()).limit(_FETCHED)
    while True:
        page = query if after is None else query.where(number > after if oldest else number < after)
        rows = connection.execute(page).all()
        yield from rows
        if len(rows) < _FETCHED:
            return
        after = rows[-1].number


def beyond(connection: Connection, after: int, upto: int, before: str | None) -> tuple[list[int], int]:
    """Look at the first entries after *after*, and find those that are up to *upto* or older than *before*, if given.

    Returns:
        Those that may go, and the number after which to go on, 0 when there is nothing more.
    """
    old = HISTORY.c.number <= upto
    if before is not None:
        old = or_(old, HISTORY.c.at < before)
    query = select(HISTORY.c.number, HISTORY.c.at).where(HISTORY.c.number > after)
    looked_at = connection.execute(query.order_by(HISTORY.c.number).limit(_LOOKED_AT)).all()
    if not looked_at:
        return [], 0
    last, at = looked_at[-1]
    later = HISTORY.alias()
    followed = exists().where(and_(later.c.xid == HISTORY.c.xid, later.c.number > HISTORY.c.number))
    within = and_(HISTORY.c.number > after, HISTORY.c.number <= last, HISTORY.c.number < newest(connection))
    removable = select(HISTORY.c.number).where(within, old, or_(HISTORY.c.action == "deleted", followed))
    # Numbers grow with time, so nothing may go after an entry that is young and within the number.
    done = last > upto and (before is None or at >= before)
    return list(connection.execute(removable).scalars()), 0 if done else last


def remove(connection: Connection, numbers: Sequence[int]) -> int:
    """Take entries away that may go, as they may from then on; return how many were there."""
    gone = 0
    for start in range(0, len(numbers), _ASKED):
        few = HISTORY.c.number.in_(numbers[start : start + _ASKED])
        gone += connection.execute(delete(HISTORY).where(few)).rowcount
    return gone
