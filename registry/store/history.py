"""History: who did what to which entity, newest last; how it is read, and how old entries are removed.

The newest entry of an entity that is there stays, whatever its age, and so does the newest of all: ETags and the next
number depend on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import Connection, Row, Table, and_, bindparam, delete, exists, func, insert, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from registry.store.engine import HELD, HISTORY, MARKS, OUTBOX, PEERS, REPLICA, SUBSCRIBERS, Among, Statement
from registry.store.entities import below

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


# Marks: who wrote an entity last, and what that writer had seen; deletions leave marks too.
#
# A mark outlives what it marks. ``position`` orders marks by when this catalog learnt of their state, and both it and
# ``stamp`` come from one clock, which is ahead of all that this catalog has seen (Lamport).

SCOPE: Final = "/messagegroups/"
"""Groups of messages, and versions of messages in them, which have uids; all else is marked by its xid."""
_FEW: Final = 16
"""Names that are asked for one by one."""


_REPLICA: Final = Statement(select(REPLICA.c.id, REPLICA.c.clock))
_TICK: Final = Statement(update(REPLICA).values(clock=bindparam("now")))
_BY_KEY: Final = Statement(select(MARKS).where(MARKS.c.key == bindparam("key")))
_BY_KEYS: Final = Among(lambda keys: select(MARKS).where(MARKS.c.key.in_(keys)))
_BY_OWNER: Final = Among(lambda owners: select(MARKS).where(MARKS.c.owner.in_(owners)))
_BY_NAME: Final = Among(
    lambda owners: select(MARKS).where(MARKS.c.owner.in_(owners), MARKS.c.name == bindparam("name"))
)
_DELETE: Final = Among(lambda keys: delete(MARKS).where(MARKS.c.key.in_(keys)))
_INSERT: Final = Statement(insert(MARKS), MARKS.c.keys())


@dataclass(slots=True)
class Mark:
    """The mark of an entity by its xid, which is ``group`` (``owner`` ''), or of a version of the definition ``owner``.

    ``uid`` is the version's in all catalogs; ``name`` is its id here, which may change. ``stamp`` and ``origin`` are
    the write that its state comes from, and ``seen`` has the last stamp by each origin that this state builds on.
    ``authority`` is '' where the version names none.
    """

    owner: str
    uid: str
    name: str
    stamp: int
    origin: str
    seen: dict[str, int] = field(default_factory=dict)
    digest: str = ""
    authority: str = ""
    deleted: bool = False
    position: int = 0
    group: str = ""

    @property
    def key(self) -> str:
        """What a mark is kept by."""
        return f"{self.owner}#{self.uid}" if self.owner else self.group


class WriteMarks:
    """The marks within one transaction; what is put is written by :meth:`flush`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        [(catalog, clock)] = _REPLICA.rows(connection, {})
        self.catalog: Final = str(catalog)
        self._clock = int(clock)
        self._put: dict[str, Mark] = {}

    @property
    def latest(self) -> int:
        """The last stamp that was given out or seen."""
        return self._clock

    def tick(self, seen: int = 0) -> int:
        """Return the next stamp, which is higher than one that was *seen*."""
        self._clock = max(self._clock, seen) + 1
        return self._clock

    def named(self, xids: Sequence[str]) -> dict[str, Mark]:
        """Return the marks of entities that have one by their xids."""
        found = {xid: self._put[xid] for xid in xids if xid in self._put}
        for mark in map(_mark, _BY_KEYS.rows(self._connection, xids, {})):
            found.setdefault(mark.group, mark)
        return found

    def group(self, xid: str) -> Mark | None:
        """Return the mark of a group, or of what else is marked by its xid."""
        if xid in self._put:
            return self._put[xid]
        row = _BY_KEY.first(self._connection, {"key": xid})
        return None if row is None else _mark(row)

    def versions(self, definitions: Sequence[str], names: Collection[str] = ()) -> dict[str, dict[str, Mark]]:
        """Return the marks of versions of definitions, by definition and uid: of all, or at least of those named."""
        by_definition: dict[str, dict[str, Mark]] = {each: {} for each in definitions}
        connection = self._connection
        if 0 < len(names) <= _FEW:
            found = chain.from_iterable(_BY_NAME.rows(connection, definitions, {"name": each}) for each in names)
        else:
            found = chain(_BY_OWNER.rows(connection, definitions, {}))
        for mark in map(_mark, found):
            by_definition[mark.owner][mark.uid] = mark
        for mark in self._put.values():
            if mark.owner in by_definition:
                by_definition[mark.owner][mark.uid] = mark
        return by_definition

    def names(self, definition: str) -> list[str]:
        """Return the ids that versions of a definition have or had."""
        query = select(MARKS.c.name).where(MARKS.c.owner == definition)
        return [str(row[0]) for row in self._connection.execute(query)]

    def owner_of(self, uid: str) -> str:
        """Return the definition here that has a version, '' when it is not known."""
        known = next((each.owner for each in self._put.values() if each.uid == uid), None)
        if known is not None:
            return known
        row = self._connection.execute(select(MARKS.c.owner).where(MARKS.c.uid == uid)).first()
        return "" if row is None else str(row[0])

    def has_versions(self, group: str) -> bool:
        """Tell whether a group has versions, or resources, that were not deleted."""
        self.flush()
        first, last = below(group)
        query = select(MARKS.c.key).where(MARKS.c.key >= first, MARKS.c.key < last, MARKS.c.deleted.is_(False))
        return self._connection.execute(query.limit(1)).first() is not None

    def put(self, mark: Mark) -> None:
        """Take a mark as new or changed: it is the latest that this catalog learnt of."""
        mark.position = self.tick(mark.stamp)
        self._put[mark.key] = mark

    def flush(self) -> None:
        """Write what was put."""
        if not self._put:
            return
        _DELETE.run(self._connection, self._put)
        _INSERT.run(self._connection, [_row(each) for each in self._put.values()])
        _TICK.run(self._connection, [{"now": self._clock}])
        self._put.clear()

    def forget(self) -> None:
        """Discard what was put since the last flush."""
        self._put.clear()

    def after(self, position: int, limit: int) -> list[Mark]:
        """Return marks after a position, in their order."""
        query = select(MARKS).where(MARKS.c.position > position).order_by(MARKS.c.position).limit(limit)
        return [_mark(row) for row in self._connection.execute(query)]

    def reached(self, peer: str) -> tuple[str, int]:
        """Return which catalog a peer was, and how far we have got with it."""
        row = self._connection.execute(select(PEERS).where(PEERS.c.name == peer)).first()
        return ("", 0) if row is None else (str(row._mapping["catalog"]), int(row._mapping["position"]))

    def reach(self, peer: str, catalog: str, position: int) -> None:
        """Keep how far we have got with a peer."""
        self._connection.execute(delete(PEERS).where(PEERS.c.name == peer))
        self._connection.execute(insert(PEERS).values(name=peer, catalog=catalog, position=position))


def digest_of(attributes: Mapping[str, Any]) -> str:
    """Return a digest, which is equal for two states of an entity that differ in their authority at most."""
    plain = {name: value for name, value in attributes.items() if name != "authority"}
    return hashlib.sha256(msgspec.json.encode(plain, order="deterministic")).hexdigest()


MODEL: Final = "/modelsource"
"""The xid that the model is marked by."""


def is_by_xid(xid: str) -> bool:
    """Tell whether something is marked by its xid alone: all but message groups and what the messages in them have."""
    parts = xid.split("/")
    return parts[1] != SCOPE.strip("/") or (len(parts) > 3 and parts[3] != "messages")


def marked(versions: Iterable[Mark]) -> dict[str, Mark]:
    """Return the marks of versions that are there, by their ids."""
    return {each.name: each for each in versions if not each.deleted}


def _mark(row: Sequence[Any]) -> Mark:
    key, owner, uid, name, position, stamp, origin, seen, digest, authority, deleted = row
    known = msgspec.json.decode(seen, type=dict[str, int])
    group = "" if owner else key
    return Mark(owner, uid, name, stamp, origin, known, digest, authority, bool(deleted), position, group)


def _row(mark: Mark) -> dict[str, Any]:
    return {
        "key": mark.key,
        "owner": mark.owner,
        "uid": mark.uid,
        "name": mark.name,
        "position": mark.position,
        "stamp": mark.stamp,
        "origin": mark.origin,
        "seen": msgspec.json.encode(mark.seen).decode("ascii"),
        "digest": mark.digest,
        "authority": mark.authority,
        "deleted": mark.deleted,
    }


# The outbox: events in the order of their writes, which is that of their numbers, until nobody waits for them.

_PRUNED: Final = 5000
"""Rows that one transaction takes away, so that no write waits long for it."""


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


def newest_outbox_row(connection: Connection) -> int:
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
    return newest_outbox_row(connection) if first is None else first - 1


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


def remove_subscriber(connection: Connection, identifier: str, revision: int | None = None) -> bool:
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
