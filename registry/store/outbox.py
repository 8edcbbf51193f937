"""The outbox: events in the order of their writes, which is that of their numbers, until nobody waits for them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, delete, func, select

from registry.store.tables import HELD, OUTBOX, SUBSCRIBERS

_PRUNED: Final = 5000
"""Rows that one transaction takes away, so that no write waits long for it."""
_ASKED: Final = 500


@dataclass(frozen=True, slots=True)
class Row:
    """One event as it was written with its cause; ``at`` is RFC 3339 in UTC, ``data`` JSON or None."""

    number: int
    interaction: str
    at: str
    type: str
    subject: str
    data: str | None


_ROWS: Final = select(*(OUTBOX.c[name] for name in Row.__slots__))


def newest(connection: Connection) -> int:
    """Return the number of the newest event there ever was, 0 before the first."""
    return connection.execute(select(func.max(OUTBOX.c.number))).scalar() or 0


def rows_after(connection: Connection, number: int, limit: int) -> list[Row]:
    """Return the first events after a number."""
    query = _ROWS.where(OUTBOX.c.number > number).order_by(OUTBOX.c.number).limit(limit)
    return [Row(*row) for row in connection.execute(query)]


def rows_at(connection: Connection, numbers: Collection[int]) -> list[Row]:
    """Return those of the events that are there, in order."""
    wanted, rows = sorted(numbers), list[Row]()
    for start in range(0, len(wanted), _ASKED):
        query = _ROWS.where(OUTBOX.c.number.in_(wanted[start : start + _ASKED])).order_by(OUTBOX.c.number)
        rows += [Row(*row) for row in connection.execute(query)]
    return rows


def count_between(connection: Connection, after: int, upto: int) -> int:
    """Return how many events there are after one number and up to another."""
    query = select(func.count()).select_from(OUTBOX).where(OUTBOX.c.number > after, OUTBOX.c.number <= upto)
    return connection.execute(query).scalar_one()


def newest_before(connection: Connection, at: str) -> int:
    """Return the number of the last event before the first that was written at a time or later, in RFC 3339 and UTC."""
    query = select(OUTBOX.c.number).where(OUTBOX.c.at >= at).order_by(OUTBOX.c.number).limit(1)
    first = connection.execute(query).scalar()
    return newest(connection) if first is None else first - 1


def prune(connection: Connection) -> bool:
    """Take away the first events that nobody waits for; tell whether there may be more of them.

    The newest stays, since it says where a new subscriber begins.
    """
    first, last = connection.execute(select(func.min(OUTBOX.c.number), func.max(OUTBOX.c.number))).one()
    if first is None:
        return False
    reached = connection.execute(select(func.min(SUBSCRIBERS.c.position))).scalar()
    upto = min(last - 1 if reached is None else min(reached, last - 1), _end(connection, first))
    held = select(HELD.c.number)
    done = connection.execute(delete(OUTBOX).where(OUTBOX.c.number <= upto, OUTBOX.c.number.not_in(held)))
    return done.rowcount == _PRUNED


def _end(connection: Connection, first: int) -> int:
    """Return the last number that one transaction goes up to: old held events do not count as work."""
    held = select(HELD.c.number)
    query = select(OUTBOX.c.number).where(OUTBOX.c.number >= first, OUTBOX.c.number.not_in(held))
    numbers: Sequence[int] = connection.execute(query.order_by(OUTBOX.c.number).limit(_PRUNED)).scalars().all()
    return numbers[-1] if numbers else first
