"""One write: entities that are looked up, changed in memory, and written together with their history and events.

Whoever changes an entity takes it from here and marks it; nothing reaches the database before :meth:`Work.flush`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import BindParameter, Connection, Delete, Table, bindparam, delete, insert, select, update

from registry.store.entities import Entity, Group, Registry, Resource, Version, text_of
from registry.store.reading import Reader, below
from registry.store.tables import (
    DOCUMENTS,
    GROUPS,
    HISTORY,
    OUTBOX,
    REGISTRY,
    RESOURCES,
    VERSIONS,
    Among,
    Statement,
)

E = TypeVar("E", Group, Resource, Version)


def _deleted(table: Table, keys: Sequence[BindParameter[str]]) -> Delete:
    return delete(table).where(table.c.xid.in_(keys))


_ENTITIES: Final = (GROUPS, RESOURCES, VERSIONS)
_UPDATE: Final = {
    table: Statement(
        update(table).where(table.c.xid == bindparam("of")).values({each: bindparam(each) for each in table.c.keys()})
    )
    for table in _ENTITIES
}
_INSERT: Final = {
    table: Statement(insert(table), [each for each in table.c.keys() if each != "number"])
    for table in (*_ENTITIES, DOCUMENTS, HISTORY, OUTBOX)
}
_DELETE: Final = {table: Among(partial(_deleted, table)) for table in (*_ENTITIES, DOCUMENTS)}


@dataclass(slots=True)
class Changes(Generic[E]):
    """Entities of one kind that a write has met: ``before`` as they were, ``now`` as they are, None for not there.

    Values of attributes are replaced and never changed in place, so that ``before`` shares them.
    """

    before: dict[str, E | None] = field(default_factory=dict)
    now: dict[str, E | None] = field(default_factory=dict)
    touched: dict[str, None] = field(default_factory=dict)

    def met(self, xid: str, entity: E | None) -> E | None:
        """Take note of what the database has."""
        self.before[xid] = None if entity is None else replace(entity, attributes=dict(entity.attributes))
        self.now[xid] = entity
        return entity

    def put(self, entity: E) -> None:
        """Take an entity as new or changed."""
        self.before.setdefault(entity.xid, None)
        self.now[entity.xid] = entity
        self.touched[entity.xid] = None

    def drop(self, xid: str) -> None:
        """Take an entity away."""
        self.now[xid] = None
        self.touched[xid] = None


class Work:
    """The entities of one write; see the module."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.reader: Final = Reader(connection)
        registry = self.reader.registry()
        assert registry is not None, "the registry was not created"
        self.registry: Final = registry
        self.registry_before: Final = replace(registry)
        self.registry_touched = False
        self.groups: Final = Changes[Group]()
        self.resources: Final = Changes[Resource]()
        self.versions: Final = Changes[Version]()
        self._complete: dict[str, list[str]] = {}
        self._made: dict[str, dict[str, str]] = {}
        self._documents: dict[str, bytes | None] = {}
        self._read: dict[str, bytes | None] = {}

    def group(self, xid: str) -> Group | None:
        """Return a group as it is now."""
        return self.groups.now[xid] if xid in self.groups.now else self.groups.met(xid, self.reader.group(xid))

    def resource(self, xid: str) -> Resource | None:
        """Return a resource as it is now."""
        known = self.resources.now
        return known[xid] if xid in known else self.resources.met(xid, self.reader.resource(xid))

    def referring(self, xid: str) -> list[Resource]:
        """Return the resources whose ``xref`` is *xid*, as they are now."""
        kept = (self.resource(each.xid) for each in self.reader.referring(xid))
        changed = (self.resources.now[each] for each in self.resources.touched)
        there = {each.xid: each for each in (*kept, *changed) if each is not None and each.xref == xid}
        return list(there.values())

    def expect(self, xids: Sequence[str]) -> None:
        """Fetch resources, with their versions, that will be looked up: many at once are quicker than one by one."""
        wanted = [xid for xid in xids if xid not in self.resources.now]
        resources = self.reader.resources_of(wanted)
        for xid in wanted:
            each = resources.get(xid)
            self.resources.met(xid, each)
            if each is None:
                self._complete[f"{xid}/versions"] = []

    def put(self, entity: Registry | Group | Resource) -> None:
        """Take an entity as changed, or as new."""
        if isinstance(entity, Registry):
            self.registry_touched = True
        elif isinstance(entity, Group):
            self.groups.put(entity)
        else:
            self.resources.put(entity)

    def versions_of(self, resource: Resource) -> dict[str, Version]:
        """Return all versions of a resource as they are now, by id."""
        parent = resource.versions
        if parent not in self._complete:
            versions = list(self.reader.versions(parent))
            for each in versions:
                if each.xid not in self.versions.now:
                    self.versions.met(each.xid, each)
            made = self._made.setdefault(parent, {})
            there = dict.fromkeys((*(each.xid for each in versions), *(f"{parent}/{name}" for name in made.values())))
            self._complete[parent] = list(there)
            made.update({each.id.lower(): each.id for each in versions})
        kept = (self.versions.now[xid] for xid in self._complete[parent])
        return {each.id: each for each in kept if each is not None}

    def has_all(self, resource: Resource) -> bool:
        """Whether all versions of a resource were looked up already."""
        return resource.versions in self._complete

    def version(self, resource: Resource, name: str) -> Version | None:
        """Return one version of a resource as it is now."""
        xid, known = f"{resource.versions}/{name}", self.versions.now
        if xid in known or self.has_all(resource):
            return known.get(xid)
        return self.versions.met(xid, self.reader.version(xid))

    def version_like(self, resource: Resource, name: str) -> str | None:
        """Return the id of a version that differs from *name* by case alone, None when there is none."""
        like = self._made.get(resource.versions, {}).get(name.lower())
        if like is None and not self.has_all(resource):
            like = self.id_like(resource.versions, name)
        return like if like is not None and like != name and self.version(resource, like) is not None else None

    def leaves(self, resource: Resource, apart: Collection[str]) -> list[Version]:
        """Return :meth:`Reader.leaves` as they are now; no other version may have got another ancestor."""
        return self._current(self.reader.leaves(resource.versions, apart))

    def children(self, resource: Resource, names: Collection[str]) -> list[Version]:
        """Return :meth:`Reader.children` as they are now; no version may have got another ancestor."""
        return self._current(self.reader.children(resource.versions, names))

    def other_version(self, resource: Resource, apart: Collection[str]) -> Version | None:
        """Return a version of a resource that is not among those *apart*, None when there is no more."""
        other = self.reader.other_version(resource.versions, apart)
        return None if other is None else self._current([other])[0]

    def versions_before(self, resource: Resource) -> dict[str, Version]:
        """Return the versions of a resource that were looked up as they were before the write, by id."""
        parent = resource.versions
        known = self._complete.get(parent)
        if known is None:
            known = [xid for xid in self.versions.before if xid.rpartition("/")[0] == parent]
        kept = (self.versions.before.get(xid) for xid in known)
        return {each.id: each for each in kept if each is not None}

    def add_version(self, version: Version) -> None:
        """Take a version as new."""
        known, made = self._complete.get(version.parent), self._made.setdefault(version.parent, {})
        if known is not None and self.versions.now.get(version.xid) is None:
            known.append(version.xid)
        made[version.id.lower()] = version.id
        self.versions.put(version)

    def document(self, version: Version) -> bytes | None:
        """Return the document of a version as it is now, None when it has none."""
        if version.xid in self._documents:
            return self._documents[version.xid]
        if version.xid not in self._read:
            self._read[version.xid] = self.reader.document(version.xid)
        return self._read[version.xid]

    def set_document(self, version: Version, body: bytes | None) -> None:
        """Give a version its document; None takes it away."""
        self._documents[version.xid] = body

    def id_like(self, parent: str, identifier: str) -> str | None:
        """Return the id in a collection that differs from *identifier* by case alone, None when there is none."""
        found = self.reader.id_of(parent, identifier.lower())
        return None if found == identifier else found

    def flush(self) -> None:
        """Write all that changed, but history and events."""
        if self.registry_touched:
            self._connection.execute(update(REGISTRY).values(_registry_row(self.registry)))
        self._flush(GROUPS, self.groups)
        self._flush(RESOURCES, self.resources)
        self._flush(VERSIONS, self.versions)
        gone = [xid for xid, body in self._documents.items() if body is None]
        written = self._written_documents()
        self._delete(DOCUMENTS, [*gone, *written])
        self._insert(DOCUMENTS, [{"xid": xid, "body": self._documents[xid]} for xid in written])

    def record(self, history: Sequence[dict[str, Any]], events: Sequence[dict[str, Any]]) -> None:
        """Record who did what, and the events about it."""
        self._insert(HISTORY, history)
        self._insert(OUTBOX, events)

    def add_resource(self, resource: Resource) -> None:
        """Take a resource as new, without versions."""
        self._complete.setdefault(resource.versions, [])
        self.resources.put(resource)

    def drop_group(self, xid: str) -> None:
        """Take a group away, with all that is in it."""
        first, last = below(xid)
        for table, changes in ((RESOURCES, self.resources), (VERSIONS, self.versions)):
            query = select(table.c.xid).where(table.c.xid >= first, table.c.xid < last)
            there = [row[0] for row in self._connection.execute(query).all()]
            self._meet(changes, [each for each in there if each not in changes.now])
            for each in there:
                changes.drop(each)
        for xid_of_version in list(self.versions.now):
            if first <= xid_of_version < last:
                self._documents[xid_of_version] = None
        self.groups.drop(xid)

    def drop_resource(self, resource: Resource) -> None:
        """Take a resource away, with its versions."""
        for version in self.versions_of(resource).values():
            self.drop_version(version)
        self.resources.drop(resource.xid)

    def drop_version(self, version: Version) -> None:
        """Take a version away, with its document."""
        self.versions.drop(version.xid)
        self._documents[version.xid] = None

    def _current(self, versions: Iterable[Version]) -> list[Version]:
        """Return versions as they are now; those that this write has not met are met."""
        current = []
        for each in versions:
            if each.xid not in self.versions.now:
                self.versions.met(each.xid, each)
            now = self.versions.now[each.xid]
            if now is not None:
                current.append(now)
        return current

    def _meet(self, changes: Changes[Any], xids: list[str]) -> None:
        entities = self.reader.resources_of(xids) if changes is self.resources else self.reader.versions_of(xids)
        for xid, each in entities.items():
            changes.met(xid, each)

    def _written_documents(self) -> list[str]:
        return [xid for xid, body in self._documents.items() if body is not None and self.versions.now.get(xid)]

    def _flush(self, table: Table, changes: Changes[Any]) -> None:
        gone = [xid for xid in changes.touched if changes.now[xid] is None and changes.before.get(xid) is not None]
        self._delete(table, gone)
        new: list[dict[str, Any]] = []
        for xid in changes.touched:
            entity = changes.now[xid]
            if entity is None:
                continue
            row = _row(entity)
            if changes.before.get(xid) is None:
                new.append(row)
            else:
                _UPDATE[table].run(self._connection, [{**row, "of": xid}])
        self._insert(table, new)

    def _delete(self, table: Table, xids: Sequence[str]) -> None:
        _DELETE[table].run(self._connection, xids)

    def _insert(self, table: Table, rows: Sequence[dict[str, Any]]) -> None:
        _INSERT[table].run(self._connection, rows)


def create_registry(connection: Connection, registry: Registry) -> None:
    """Create the registry in a database that has none."""
    connection.execute(insert(REGISTRY).values(_registry_row(registry)))


def _registry_row(registry: Registry) -> dict[str, Any]:
    times = {"epoch": registry.epoch, "createdat": registry.createdat, "modifiedat": registry.modifiedat}
    texts = {name: text_of(getattr(registry, name)) for name in ("attributes", "modelsource", "capabilities")}
    return {"id": registry.id, **times, **texts}


def _row(entity: Entity) -> dict[str, Any]:
    row: dict[str, Any] = {
        "xid": entity.xid,
        "parent": entity.parent,
        "id": entity.id,
        "folded": entity.id.lower(),
        "epoch": entity.epoch,
        "createdat": entity.createdat,
        "modifiedat": entity.modifiedat,
        "attributes": text_of(entity.attributes),
    }
    if isinstance(entity, Resource):
        row.update(
            xref=entity.xref,
            defaultversionid=entity.defaultversionid,
            sticky=entity.sticky,
            counter=entity.counter,
        )
    if isinstance(entity, Version):
        row["ancestorid"] = entity.ancestorid
    return row
