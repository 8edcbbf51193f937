"""Marks: who wrote an entity last, and what that writer had seen; deletions leave marks too.

A mark outlives what it marks. ``position`` orders marks by when this catalog learnt of their state, and both it and
``stamp`` come from one clock, which is ahead of all that this catalog has seen (Lamport).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, delete, insert, select, update

from registry.store.reading import PAGE, below
from registry.store.tables import MARKS, PEERS, REPLICA

SCOPE: Final = "/messagegroups/"
"""What is marked: groups of messages, and versions of messages in them."""


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


class Marks:
    """The marks within one transaction; what is put is written by :meth:`flush`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        row = connection.execute(select(REPLICA)).one()
        self.catalog: Final = str(row._mapping["id"])
        self._clock = int(row._mapping["clock"])
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
        for start in range(0, len(xids), _NAMED):
            query = select(MARKS).where(MARKS.c.key.in_(xids[start : start + _NAMED]))
            for mark in map(_mark, self._connection.execute(query)):
                found.setdefault(mark.group, mark)
        return found

    def group(self, xid: str) -> Mark | None:
        """Return the mark of a group, or of what else is marked by its xid."""
        if xid in self._put:
            return self._put[xid]
        row = self._connection.execute(select(MARKS).where(MARKS.c.key == xid)).first()
        return None if row is None else _mark(row)

    def versions(self, definitions: Sequence[str]) -> dict[str, dict[str, Mark]]:
        """Return the marks of all versions of definitions, by definition and uid."""
        by_definition: dict[str, dict[str, Mark]] = {each: {} for each in definitions}
        for start in range(0, len(definitions), PAGE):
            query = select(MARKS).where(MARKS.c.owner.in_(definitions[start : start + PAGE]))
            for row in self._connection.execute(query):
                mark = _mark(row)
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
        keys = list(self._put)
        for start in range(0, len(keys), PAGE):
            self._connection.execute(delete(MARKS).where(MARKS.c.key.in_(keys[start : start + PAGE])))
        self._connection.execute(insert(MARKS), [_row(each) for each in self._put.values()])
        self._connection.execute(update(REPLICA).values(clock=self._clock))
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
_NAMED: Final = 500
"""Marks that are asked for by their xids at a time."""


def is_by_xid(xid: str) -> bool:
    """Tell whether something is marked by its xid alone: all but message groups and what the messages in them have."""
    parts = xid.split("/")
    return parts[1] != SCOPE.strip("/") or (len(parts) > 3 and parts[3] != "messages")


def marked(versions: Iterable[Mark]) -> dict[str, Mark]:
    """Return the marks of versions that are there, by their ids."""
    return {each.name: each for each in versions if not each.deleted}


def _mark(row: Row[Any]) -> Mark:
    values = row._mapping
    owner = str(values["owner"])
    seen = msgspec.json.decode(values["seen"], type=dict[str, int])
    return Mark(
        owner,
        str(values["uid"]),
        str(values["name"]),
        int(values["stamp"]),
        str(values["origin"]),
        seen,
        str(values["digest"]),
        str(values["authority"]),
        bool(values["deleted"]),
        int(values["position"]),
        "" if owner else str(values["key"]),
    )


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
