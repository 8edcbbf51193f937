"""History: who did what to which entity, newest last; how it is read, and how old entries are removed.

The newest entry of an entity that is there stays, whatever its age, and so does the newest of all: ETags and the next
number depend on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, and_, bindparam, delete, exists, func, insert, or_, select, update

from registry.store.engine import HISTORY, MARKS, PEERS, REPLICA, Among, Statement
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
