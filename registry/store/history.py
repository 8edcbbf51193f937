"""History, replication marks, event outbox, and subscribers: reading, writing and pruning.

The newest history entry of an existing entity is never pruned, nor is the newest of all: ETags and the next number
depend on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import Connection, Row, Table, and_, bindparam, delete, exists, func, insert, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from registry.store.engine import BLOCKED, HISTORY, MARKS, OUTBOX, PEERS, REPLICA, SUBSCRIBERS, Statement, in_keys
from registry.store.entities import bounds_below

_PRUNE_SCANNED: Final = 1000
"""Entries that one pruning transaction scans, so that no write waits long for it."""
_KEYS_PER_QUERY: Final = 500
_FETCH_SIZE: Final = 50
"""Entries read at a time: each has its entity's state, and the previous one."""


def newest_number(connection: Connection) -> int:
    """Return the number of the newest entry, 0 before the first."""
    return connection.execute(select(func.max(HISTORY.c.number))).scalar() or 0


def count_entries(connection: Connection) -> int:
    """Return how many entries there are."""
    return connection.execute(select(func.count()).select_from(HISTORY)).scalar_one()


def iter_entries(
    connection: Connection, xid: str, after: int | None, *, oldest: bool, deep: bool
) -> Iterator[Row[Any]]:
    """Yield entries with number (``earlier``) and entity (``before``) of the previous entry of the same entity.

    Only of the entity *xid* unless that is '', with entities below it if *deep*; the newest first, or the *oldest*,
    and after the entry number *after*.
    """
    former, last = HISTORY.alias(), HISTORY.alias()
    number = HISTORY.c.number
    found = select(func.max(last.c.number)).where(last.c.xid == HISTORY.c.xid, last.c.number < number)
    joined = HISTORY.outerjoin(former, former.c.number == found.scalar_subquery())
    query = select(HISTORY, former.c.number.label("earlier"), former.c.entity.label("before")).select_from(joined)
    if xid and deep:
        first, end = bounds_below(xid.rstrip("/"))
        query = query.where(or_(HISTORY.c.xid == xid, and_(HISTORY.c.xid >= first, HISTORY.c.xid < end)))
    elif xid:
        query = query.where(HISTORY.c.xid == xid)
    query = query.order_by(number.asc() if oldest else number.desc()).limit(_FETCH_SIZE)
    while True:
        page = query if after is None else query.where(number > after if oldest else number < after)
        rows = connection.execute(page).all()
        yield from rows
        if len(rows) < _FETCH_SIZE:
            return
        after = rows[-1].number


def find_prunable(connection: Connection, after: int, upto: int, before: str | None) -> tuple[list[int], int]:
    """Find prunable entries after number *after*: up to number *upto*, or older than *before* if given.

    Returns:
        Their numbers, and the number to continue after, 0 at the end.
    """
    old = HISTORY.c.number <= upto
    if before is not None:
        old = or_(old, HISTORY.c.at < before)
    query = select(HISTORY.c.number, HISTORY.c.at).where(HISTORY.c.number > after)
    looked_at = connection.execute(query.order_by(HISTORY.c.number).limit(_PRUNE_SCANNED)).all()
    if not looked_at:
        return [], 0
    last, at = looked_at[-1]
    later = HISTORY.alias()
    followed = exists().where(and_(later.c.xid == HISTORY.c.xid, later.c.number > HISTORY.c.number))
    within = and_(HISTORY.c.number > after, HISTORY.c.number <= last, HISTORY.c.number < newest_number(connection))
    removable = select(HISTORY.c.number).where(within, old, or_(HISTORY.c.action == "deleted", followed))
    # Numbers grow with time, so the first entry within both limits ends the scan.
    done = last > upto and (before is None or at >= before)
    return list(connection.execute(removable).scalars()), 0 if done else last


def delete_entries(connection: Connection, numbers: Sequence[int]) -> int:
    """Delete prunable entries; return how many existed."""
    return connection.execute(delete(HISTORY).where(HISTORY.c.number.in_(numbers))).rowcount


# Replication marks: the last writer of an entity, and what that writer had seen; deleted entities keep their marks.
#
# ``position`` orders marks by when this catalog received their state. It and ``stamp`` come from one Lamport clock.

MESSAGE_GROUPS: Final = "/messagegroups/"
"""Versions of messages of message groups have uids; everything else is marked by xid."""
_MAX_SINGLE_LOOKUPS: Final = 16
"""Up to this many names are queried one by one."""


_REPLICA: Final = Statement(select(REPLICA.c.id, REPLICA.c.clock))
_SET_CLOCK: Final = Statement(update(REPLICA).values(clock=bindparam("now")))
_BY_KEYS: Final = Statement(select(MARKS).where(in_keys(MARKS.c.key)))
_BY_OWNER: Final = Statement(select(MARKS).where(in_keys(MARKS.c.owner)))
_BY_NAME: Final = Statement(select(MARKS).where(in_keys(MARKS.c.owner), MARKS.c.name == bindparam("name")))
_DELETE: Final = Statement(delete(MARKS).where(in_keys(MARKS.c.key)))
_INSERT: Final = Statement(insert(MARKS), MARKS.c.keys())


@dataclass(slots=True)
class Mark:
    """The mark of an entity with the xid ``group`` (``owner`` is ''), or of a version of the definition ``owner``.

    ``uid`` identifies the version in all catalogs; ``name`` is its id here, which may change. ``stamp`` and ``origin``
    identify the write of its state, and ``seen`` has the last stamp of each origin that the state includes.
    ``authority`` is '' if the version names none.
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
        """The primary key of the mark."""
        return f"{self.owner}#{self.uid}" if self.owner else self.group


class Marks:
    """The replication marks in one transaction; changes are written by :meth:`flush`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        [(catalog, clock)] = _REPLICA.fetch_all(connection, {})
        self.catalog: Final = str(catalog)
        self._clock = int(clock)
        self._put: dict[str, Mark] = {}

    @property
    def latest_stamp(self) -> int:
        """The last stamp that was issued or seen."""
        return self._clock

    def issue_stamp(self, seen: int = 0) -> int:
        """Issue the next stamp, higher than *seen*."""
        self._clock = max(self._clock, seen) + 1
        return self._clock

    def marks_by_xid(self, xids: Sequence[str]) -> dict[str, Mark]:
        """Return the marks of entities marked by xid."""
        found = {xid: self._put[xid] for xid in xids if xid in self._put}
        for mark in map(_to_mark, _BY_KEYS.fetch_by_keys(self._connection, xids)):
            found.setdefault(mark.group, mark)
        return found

    def mark_of(self, xid: str) -> Mark | None:
        """Return the mark of a group, or of another entity marked by xid."""
        return self.marks_by_xid([xid]).get(xid)

    def version_marks(self, definitions: Sequence[str], names: Collection[str] = ()) -> dict[str, dict[str, Mark]]:
        """Return the marks of versions of definitions, by definition and uid: all, or at least those of *names*."""
        by_definition: dict[str, dict[str, Mark]] = {each: {} for each in definitions}
        connection = self._connection
        if 0 < len(names) <= _MAX_SINGLE_LOOKUPS:
            found = [row for each in names for row in _BY_NAME.fetch_by_keys(connection, definitions, name=each)]
        else:
            found = _BY_OWNER.fetch_by_keys(connection, definitions)
        for mark in map(_to_mark, found):
            by_definition[mark.owner][mark.uid] = mark
        for mark in self._put.values():
            if mark.owner in by_definition:
                by_definition[mark.owner][mark.uid] = mark
        return by_definition

    def version_ids(self, definition: str) -> list[str]:
        """Return the current and former version ids of a definition."""
        query = select(MARKS.c.name).where(MARKS.c.owner == definition)
        return [str(row[0]) for row in self._connection.execute(query)]

    def owner_of(self, uid: str) -> str:
        """Return the definition that has a version, '' if unknown."""
        known = next((each.owner for each in self._put.values() if each.uid == uid), None)
        if known is not None:
            return known
        row = self._connection.execute(select(MARKS.c.owner).where(MARKS.c.uid == uid)).first()
        return "" if row is None else str(row[0])

    def has_versions(self, group: str) -> bool:
        """Whether a group has versions or resources that were not deleted."""
        self.flush()
        first, last = bounds_below(group)
        query = select(MARKS.c.key).where(MARKS.c.key >= first, MARKS.c.key < last, MARKS.c.deleted.is_(False))
        return self._connection.execute(query.limit(1)).first() is not None

    def store_mark(self, mark: Mark) -> None:
        """Store a mark, new or changed, at the next position."""
        mark.position = self.issue_stamp(mark.stamp)
        self._put[mark.key] = mark

    def flush(self) -> None:
        """Write the stored marks."""
        if not self._put:
            return
        _DELETE.execute_by_keys(self._connection, self._put)
        _INSERT.execute(self._connection, [_to_row(each) for each in self._put.values()])
        _SET_CLOCK.execute(self._connection, [{"now": self._clock}])
        self._put.clear()

    def discard(self) -> None:
        """Discard the marks stored since the last flush."""
        self._put.clear()

    def marks_after(self, position: int, limit: int) -> list[Mark]:
        """Return marks after a position, in order."""
        query = select(MARKS).where(MARKS.c.position > position).order_by(MARKS.c.position).limit(limit)
        return [_to_mark(row) for row in self._connection.execute(query)]

    def peer_position(self, peer: str) -> tuple[str, int]:
        """Return the catalog id of a peer, and the position reached with it."""
        row = self._connection.execute(select(PEERS).where(PEERS.c.name == peer)).first()
        return ("", 0) if row is None else (str(row._mapping["catalog"]), int(row._mapping["position"]))

    def set_peer_position(self, peer: str, catalog: str, position: int) -> None:
        """Store the position reached with a peer."""
        self._connection.execute(delete(PEERS).where(PEERS.c.name == peer))
        self._connection.execute(insert(PEERS).values(name=peer, catalog=catalog, position=position))


def digest_of(state: Mapping[str, Any], ignored: Collection[str] = ("authority",)) -> str:
    """Return a digest of an entity's state without the *ignored* members."""
    plain = {name: value for name, value in state.items() if name not in ignored}
    return hashlib.sha256(msgspec.json.encode(plain, order="deterministic")).hexdigest()


MODEL_XID: Final = "/modelsource"
"""The xid of the model's mark."""


def is_by_xid(xid: str) -> bool:
    """Whether an entity is marked by xid: all except messages of message groups and their versions."""
    return not xid.startswith(MESSAGE_GROUPS) or xid.split("/")[3:4] != ["messages"]


def marks_by_version(versions: Iterable[Mark]) -> dict[str, Mark]:
    """Return the marks of existing versions, by version id."""
    return {each.name: each for each in versions if not each.deleted}


def _to_mark(row: Sequence[Any]) -> Mark:
    key, owner, uid, name, position, stamp, origin, seen, digest, authority, deleted = row
    known = msgspec.json.decode(seen, type=dict[str, int])
    group = "" if owner else key
    return Mark(owner, uid, name, stamp, origin, known, digest, authority, bool(deleted), position, group)


def _to_row(mark: Mark) -> dict[str, Any]:
    row = {name: getattr(mark, name) for name in MARKS.c.keys()}
    return {**row, "seen": msgspec.json.encode(mark.seen).decode("ascii")}


# The outbox: events numbered in the order of their writes, until all subscribers have them.

_MAX_PRUNED: Final = 5000
"""Rows that one pruning transaction deletes, so that no write waits long for it."""


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """One stored event; ``at`` is RFC 3339 in UTC, ``data`` JSON or None."""

    number: int
    interaction: str
    at: str
    type: str
    subject: str
    data: str | None


_ROWS: Final = select(*(OUTBOX.c[name] for name in OutboxRow.__slots__))


def newest_outbox_row(connection: Connection) -> int:
    """Return the number of the newest event ever written, 0 before the first."""
    return connection.execute(select(func.max(OUTBOX.c.number))).scalar() or 0


def rows_after(connection: Connection, number: int, limit: int) -> list[OutboxRow]:
    """Return the first events after a number."""
    query = _ROWS.where(OUTBOX.c.number > number).order_by(OUTBOX.c.number).limit(limit)
    return [OutboxRow(*row) for row in connection.execute(query)]


def rows_at(connection: Connection, numbers: Collection[int]) -> list[OutboxRow]:
    """Return the events that still exist, in order."""
    wanted, rows = sorted(numbers), list[OutboxRow]()
    for start in range(0, len(wanted), _KEYS_PER_QUERY):
        query = _ROWS.where(OUTBOX.c.number.in_(wanted[start : start + _KEYS_PER_QUERY])).order_by(OUTBOX.c.number)
        rows += [OutboxRow(*row) for row in connection.execute(query)]
    return rows


def count_between(connection: Connection, after: int, upto: int) -> int:
    """Return the number of events after one number and up to another."""
    query = select(func.count()).select_from(OUTBOX).where(OUTBOX.c.number > after, OUTBOX.c.number <= upto)
    return connection.execute(query).scalar_one()


def newest_before(connection: Connection, at: str) -> int:
    """Return the number of the last event written before a time (RFC 3339, UTC)."""
    query = select(OUTBOX.c.number).where(OUTBOX.c.at >= at).order_by(OUTBOX.c.number).limit(1)
    first = connection.execute(query).scalar()
    return newest_outbox_row(connection) if first is None else first - 1


def prune_outbox(connection: Connection) -> bool:
    """Delete the oldest events that no subscriber needs; return whether there may be more.

    The newest stays, since new subscribers begin there.
    """
    first, last = connection.execute(select(func.min(OUTBOX.c.number), func.max(OUTBOX.c.number))).one()
    if first is None:
        return False
    reached = connection.execute(select(func.min(SUBSCRIBERS.c.position))).scalar()
    upto = min(last - 1 if reached is None else min(reached, last - 1), _prunable_end(connection, first))
    held = select(BLOCKED.c.number)
    done = connection.execute(delete(OUTBOX).where(OUTBOX.c.number <= upto, OUTBOX.c.number.not_in(held)))
    return done.rowcount == _MAX_PRUNED


def _prunable_end(connection: Connection, first: int) -> int:
    """Return the last number that one pruning transaction covers; skipped blocked events do not count."""
    held = select(BLOCKED.c.number)
    query = select(OUTBOX.c.number).where(OUTBOX.c.number >= first, OUTBOX.c.number.not_in(held))
    numbers: Sequence[int] = connection.execute(query.order_by(OUTBOX.c.number).limit(_MAX_PRUNED)).scalars().all()
    return numbers[-1] if numbers else first


# Subscribers, from the settings or the API: the position of each, and its blocked events.
#
# A subscriber has received every event up to its ``position``, except the blocked ones. Events delivered since the last
# recorded position are sent again after a crash.

Origin = Literal["settings", "api"]


@dataclass(frozen=True, slots=True)
class SubscriberRow:
    """One row. ``body`` is JSON that may contain secrets; empty for a subscriber of the settings.

    ``permission`` is JSON: what a webhook has granted by callback. ``revision`` grows with every change that affects
    delivery. ``expires`` is RFC 3339 in UTC, None for never.
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
    """The progress of a subscriber: all events up to ``position``, except the ``blocked`` ones."""

    position: int
    blocked: frozenset[int] = frozenset()


def list_subscribers(connection: Connection) -> list[SubscriberRow]:
    """Return all subscribers, in order of ids."""
    query = select(SUBSCRIBERS).order_by(SUBSCRIBERS.c.id)
    return [SubscriberRow(*row) for row in connection.execute(query)]


def list_revisions(connection: Connection) -> dict[str, tuple[int, str | None]]:
    """Return revision and expiry of all subscribers, by id."""
    rows = connection.execute(select(SUBSCRIBERS.c.id, SUBSCRIBERS.c.revision, SUBSCRIBERS.c.expires))
    return {identifier: (revision, expires) for identifier, revision, expires in rows}


def find_subscriber(connection: Connection, identifier: str, *, changing: bool = False) -> SubscriberRow | None:
    """Return a subscriber, None if it does not exist; *changing* locks its row."""
    query = select(SUBSCRIBERS).where(SUBSCRIBERS.c.id == identifier)
    query = query.with_for_update() if changing else query
    row = connection.execute(query).first()
    return None if row is None else SubscriberRow(*row)


def add_subscriber(connection: Connection, subscriber: SubscriberRow) -> bool:
    """Insert a subscriber unless it exists; return whether it was new."""
    query = _insert(connection, SUBSCRIBERS).values(asdict(subscriber)).on_conflict_do_nothing()
    return connection.execute(query).rowcount > 0


def replace_subscriber(connection: Connection, subscriber: SubscriberRow) -> None:
    """Replace a subscriber's configuration, and raise its revision; its progress stays."""
    values = {"body": subscriber.body, "permission": subscriber.permission, "expires": subscriber.expires}
    where = SUBSCRIBERS.c.id == subscriber.id
    connection.execute(update(SUBSCRIBERS).where(where).values(revision=SUBSCRIBERS.c.revision + 1, **values))


def store_permission(connection: Connection, before: SubscriberRow, permission: str) -> None:
    """Replace a target's permission and raise the revision, unless the subscriber has changed since *before*."""
    where = (SUBSCRIBERS.c.id == before.id) & (SUBSCRIBERS.c.permission == before.permission)
    connection.execute(
        update(SUBSCRIBERS).where(where).values(revision=SUBSCRIBERS.c.revision + 1, permission=permission)
    )


def remove_subscriber(connection: Connection, identifier: str, revision: int | None = None) -> bool:
    """Delete a subscriber with its blocked events, if its *revision* still matches; return whether it was deleted."""
    where = SUBSCRIBERS.c.id == identifier
    if revision is not None:
        where &= SUBSCRIBERS.c.revision == revision
    if not connection.execute(delete(SUBSCRIBERS).where(where)).rowcount:
        return False
    connection.execute(delete(BLOCKED).where(BLOCKED.c.subscriber == identifier))
    return True


def blocked_events(connection: Connection, identifier: str) -> frozenset[int]:
    """Return the blocked events of a subscriber."""
    return frozenset(connection.execute(select(BLOCKED.c.number).where(BLOCKED.c.subscriber == identifier)).scalars())


def store_progress(connection: Connection, by_subscriber: Mapping[str, DeliveryProgress]) -> None:
    """Store the progress of subscribers; deleted ones are skipped."""
    for identifier in set(by_subscriber) & set(list_revisions(connection)):
        progress, before = by_subscriber[identifier], blocked_events(connection, identifier)
        where = SUBSCRIBERS.c.id == identifier
        if not connection.execute(update(SUBSCRIBERS).where(where).values(position=progress.position)).rowcount:
            continue  # it was deleted meanwhile
        left = (BLOCKED.c.subscriber == bindparam("of")) & (BLOCKED.c.number == bindparam("gone"))
        if gone := [{"of": identifier, "gone": number} for number in sorted(before - progress.blocked)]:
            connection.execute(delete(BLOCKED).where(left), gone)
        if more := [{"subscriber": identifier, "number": number} for number in sorted(progress.blocked - before)]:
            connection.execute(_insert(connection, BLOCKED).on_conflict_do_nothing(), more)


def skip_events(connection: Connection, identifier: str, upto: int) -> int:
    """Drop the events of a subscriber up to a number; return how many that is, matching or not."""
    where = SUBSCRIBERS.c.id == identifier
    position = connection.execute(select(SUBSCRIBERS.c.position).where(where)).scalar()
    if position is None:
        return 0
    lost = connection.execute(
        delete(BLOCKED).where(BLOCKED.c.subscriber == identifier, BLOCKED.c.number <= upto)
    ).rowcount
    if position < upto:
        lost += count_between(connection, position, upto)
        connection.execute(update(SUBSCRIBERS).where(where).values(position=upto))
    return lost


def _insert(connection: Connection, table: Table) -> sqlite.Insert | postgresql.Insert:
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)
