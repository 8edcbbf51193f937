"""The outbox: events in the order of their writes, which is that of their numbers, until nobody waits for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy import Connection, Table, delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from registry.store.engine import HELD, OUTBOX, SUBSCRIBERS

_PRUNED: Final = 5000
"""Rows that one transaction takes away, so that no write waits long for it."""
_ASKED: Final = 500


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """One event as it was written with its cause; ``at`` is RFC 3339 in UTC, ``data`` JSON or None."""

    number: int
    interaction: str
    at: str
    type: str
    subject: str
    data: str | None


_ROWS: Final = select(*(OUTBOX.c[name] for name in OutboxRow.__slots__))


def newest(connection: Connection) -> int:
    """Return the number of the newest event there ever was, 0 before the first."""
    return connection.execute(select(func.max(OUTBOX.c.number))).scalar() or 0


def rows_after(connection: Connection, number: int, limit: int) -> list[OutboxRow]:
    """Return the first events after a number."""
    query = _ROWS.where(OUTBOX.c.number > number).order_by(OUTBOX.c.number).limit(limit)
    return [OutboxRow(*row) for row in connection.execute(query)]


def rows_at(connection: Connection, numbers: Collection[int]) -> list[OutboxRow]:
    """Return those of the events that are there, in order."""
    wanted, rows = sorted(numbers), list[OutboxRow]()
    for start in range(0, len(wanted), _ASKED):
        query = _ROWS.where(OUTBOX.c.number.in_(wanted[start : start + _ASKED])).order_by(OUTBOX.c.number)
        rows += [OutboxRow(*row) for row in connection.execute(query)]
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


# Those to whom events go: of the settings or of the API, how far each has got, and which events are held for it.
#
# A subscriber has got every event up to its ``position``, but for those that are held. What it has got beyond that
# counts only when it is recorded: after a crash it comes again.

Origin = Literal["settings", "api"]
_COLUMNS: Final = ("id", "origin", "owner", "body", "permission", "revision", "position", "expires")


@dataclass(frozen=True, slots=True)
class SubscriberRow:
    """One row. ``body`` is JSON, empty for one of the settings; it may hold secrets.

    ``permission`` is JSON: what a webhook has allowed by callback. ``revision`` grows with every change that delivery
    has to take note of. ``expires`` is RFC 3339 in UTC, None for never.
    """

    id: str
    origin: Origin
    owner: str
    body: str
    permission: str
    revision: int
    position: int
    expires: str | None = None


@dataclass(frozen=True, slots=True)
class DeliveryProgress:
    """How far one has got: everything up to ``position`` but what is ``held``."""

    position: int
    held: frozenset[int] = frozenset()


def subscribers(connection: Connection) -> list[SubscriberRow]:
    """Return all, in the order of their ids."""
    query = select(*(SUBSCRIBERS.c[name] for name in _COLUMNS)).order_by(SUBSCRIBERS.c.id)
    return [SubscriberRow(*row) for row in connection.execute(query)]


def revisions(connection: Connection) -> dict[str, tuple[int, str | None]]:
    """Return revision and expiry of all, by id."""
    rows = connection.execute(select(SUBSCRIBERS.c.id, SUBSCRIBERS.c.revision, SUBSCRIBERS.c.expires))
    return {identifier: (revision, expires) for identifier, revision, expires in rows}


def subscriber(connection: Connection, identifier: str, *, changing: bool = False) -> SubscriberRow | None:
    """Return one, None when there is none; with *changing*, others who change it wait."""
    query = select(*(SUBSCRIBERS.c[name] for name in _COLUMNS)).where(SUBSCRIBERS.c.id == identifier)
    query = query.with_for_update() if changing else query
    row = connection.execute(query).first()
    return None if row is None else SubscriberRow(*row)


def add(connection: Connection, given: SubscriberRow) -> bool:
    """Write one down, unless somebody has; tell whether it was new."""
    values = {name: getattr(given, name) for name in _COLUMNS}
    return connection.execute(_insert(connection, SUBSCRIBERS).values(values).on_conflict_do_nothing()).rowcount > 0


def change(connection: Connection, given: SubscriberRow) -> None:
    """Replace what one says of itself, and raise its revision; how far it has got stays."""
    values = {"body": given.body, "permission": given.permission, "expires": given.expires}
    where = SUBSCRIBERS.c.id == given.id
    connection.execute(update(SUBSCRIBERS).where(where).values(revision=SUBSCRIBERS.c.revision + 1, **values))


def permit(connection: Connection, given: SubscriberRow, permission: str) -> None:
    """Replace what a target has allowed, and raise the revision, unless it has changed since *given* was read."""
    where = (SUBSCRIBERS.c.id == given.id) & (SUBSCRIBERS.c.permission == given.permission)
    connection.execute(
        update(SUBSCRIBERS).where(where).values(revision=SUBSCRIBERS.c.revision + 1, permission=permission)
    )


def remove(connection: Connection, identifier: str, revision: int | None = None) -> bool:
    """Take one away, with what is held for it, unless its *revision* is another by now; tell whether it was there."""
    where = SUBSCRIBERS.c.id == identifier
    if revision is not None:
        where &= SUBSCRIBERS.c.revision == revision
    if not connection.execute(delete(SUBSCRIBERS).where(where)).rowcount:
        return False
    connection.execute(delete(HELD).where(HELD.c.subscriber == identifier))
    return True


def held(connection: Connection, identifier: str) -> frozenset[int]:
    """Return the events that are held for one."""
    return frozenset(connection.execute(select(HELD.c.number).where(HELD.c.subscriber == identifier)).scalars())


def record(connection: Connection, reached: Mapping[str, DeliveryProgress]) -> None:
    """Write down how far some have got; those that are gone are left out."""
    for identifier in set(reached) & set(revisions(connection)):
        progress, before = reached[identifier], held(connection, identifier)
        where = SUBSCRIBERS.c.id == identifier
        if not connection.execute(update(SUBSCRIBERS).where(where).values(position=progress.position)).rowcount:
            continue  # it was removed since
        _release(connection, identifier, sorted(before - progress.held))
        more: Collection[int] = sorted(progress.held - before)
        if more:
            rows = [{"subscriber": identifier, "number": number} for number in more]
            connection.execute(_insert(connection, HELD).on_conflict_do_nothing(), rows)


def advance(connection: Connection, identifier: str, upto: int) -> int:
    """Drop what one has not got up to a number; return how many events that is, wanted or not."""
    where = SUBSCRIBERS.c.id == identifier
    position = connection.execute(select(SUBSCRIBERS.c.position).where(where)).scalar()
    if position is None:
        return 0
    lost = connection.execute(delete(HELD).where(HELD.c.subscriber == identifier, HELD.c.number <= upto)).rowcount
    if position < upto:
        lost += count_between(connection, position, upto)
        connection.execute(update(SUBSCRIBERS).where(where).values(position=upto))
    return lost


def _insert(connection: Connection, table: Table) -> sqlite.Insert | postgresql.Insert:
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def _release(connection: Connection, identifier: str, numbers: Sequence[int]) -> None:
    for start in range(0, len(numbers), 500):
        few = HELD.c.number.in_(numbers[start : start + 500])
        connection.execute(delete(HELD).where(HELD.c.subscriber == identifier, few))
