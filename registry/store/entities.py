"""Stored entities: classes, reading, and writing. Derived attributes (URLs, counts) are not stored."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec
from sqlalchemy import (
    Connection,
    Select,
    Table,
    bindparam,
    delete,
    exists,
    func,
    insert,
    select,
    update,
)

from registry.store.engine import (
    DOCUMENTS,
    GROUPS,
    HISTORY,
    OUTBOX,
    REGISTRY,
    RESOURCES,
    VERSIONS,
    Row,
    Statement,
    in_keys,
)


@dataclass(slots=True)
class Entity:
    """The common part of all entities; ``parent`` is the path of the collection, such as ``/endpoints``."""

    parent: str
    id: str
    epoch: int
    createdat: str
    modifiedat: str
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def xid(self) -> str:
        """The path from the root, such as ``/endpoints/e1``."""
        return f"{self.parent}/{self.id}"


@dataclass(slots=True)
class Registry(Entity):
    """The registry entity; ``id`` is its ``registryid``, ``capabilities`` those that clients have changed."""

    modelsource: dict[str, Any] = field(default_factory=dict)
    capabilities: dict[str, Any] = field(default_factory=dict)

    @property
    def xid(self) -> str:
        """The path of the root."""
        return "/"


@dataclass(slots=True)
class GroupEntity(Entity):
    """A group."""


@dataclass(slots=True)
class Resource(Entity):
    """A resource: times, epoch and attributes are its ``meta``'s; ``counter`` is the last assigned version number.

    With an ``xref`` it has no versions and no default version.
    """

    xref: str | None = None
    defaultversionid: str | None = None
    sticky: bool = False
    counter: int = 0

    @property
    def group(self) -> str:
        """The xid of its group."""
        return self.parent.rsplit("/", 1)[0]

    @property
    def versions(self) -> str:
        """The path of its versions."""
        return f"{self.xid}/versions"


@dataclass(slots=True)
class Version(Entity):
    """A version; its document is stored separately. A version that is its own ancestor is a root."""

    ancestorid: str = ""


def to_json_text(tree: Mapping[str, Any]) -> str:
    """Return the JSON text of a tree as stored."""
    return msgspec.json.encode(tree).decode("utf-8")


# Reading entities within one transaction: single ones, and collections in order of ids, a page at a time.

Counted = tuple[Resource, Version | None, int]
"""A resource, its default version, and the number of its versions."""
PAGE_ROWS: Final = 500
"""Rows fetched, and keys queried, at a time."""
_FOLDED_COLUMN: Final = 3
_RESOURCE_COLUMNS: Final = 12
_COMMON_COLUMNS: Final = 8
"""Leading columns common to all entity tables. Access by index costs a third of access by name."""


_KINDS: Final = (GROUPS, RESOURCES, VERSIONS)
_REGISTRY: Final = Statement(select(REGISTRY))
_BY_XID: Final = {each: Statement(select(each).where(each.c.xid == bindparam("xid"))) for each in _KINDS}
_BY_XIDS: Final = {each: Statement(select(each).where(in_keys(each.c.xid))) for each in _KINDS}
_PAGE: Final = {
    each: Statement(
        select(each)
        .where(each.c.parent == bindparam("parent"), each.c.folded > bindparam("after"))
        .order_by(each.c.folded)
        .limit(PAGE_ROWS)
    )
    for each in _KINDS
}
_COUNT: Final = {each: Statement(select(func.count()).where(each.c.parent == bindparam("parent"))) for each in _KINDS}
_COUNTS: Final = {
    each: Statement(select(each.c.parent, func.count()).where(in_keys(each.c.parent)).group_by(each.c.parent))
    for each in _KINDS
}
_DOCUMENT: Final = Statement(select(DOCUMENTS.c.body).where(DOCUMENTS.c.xid == bindparam("xid")))
_MAIN_VERSION: Final = VERSIONS.alias("main")
_WITH_DEFAULT: Final = select(RESOURCES, _MAIN_VERSION).outerjoin_from(
    RESOURCES, _MAIN_VERSION, _MAIN_VERSION.c.xid == RESOURCES.c.xid + "/versions/" + RESOURCES.c.defaultversionid
)
_WITH_COUNT: Final = _WITH_DEFAULT.add_columns(
    select(func.count()).where(VERSIONS.c.parent == RESOURCES.c.xid + "/versions").scalar_subquery()
)
_SHOWN_ONE: Final = Statement(_WITH_DEFAULT.where(RESOURCES.c.xid == bindparam("xid")))
_SHOWN_PAGE: Final = Statement(
    _WITH_COUNT.where(RESOURCES.c.parent == bindparam("parent"), RESOURCES.c.folded > bindparam("after"))
    .order_by(RESOURCES.c.folded)
    .limit(PAGE_ROWS)
)
_SHOWN_NAMED: Final = Statement(_WITH_COUNT.where(in_keys(RESOURCES.c.xid)))
_REFERRING: Final = Statement(select(RESOURCES).where(RESOURCES.c.xref == bindparam("xid")))
_FIND_ID: Final = {
    each: Statement(select(each.c.id).where(each.c.parent == bindparam("parent"), each.c.folded == bindparam("folded")))
    for each in _KINDS
}
_LAST_ENTRY: Final = Statement(
    select(HISTORY.c.number, HISTORY.c.interaction, HISTORY.c.at).order_by(HISTORY.c.number.desc()).limit(1)
)
_CHILD: Final = VERSIONS.alias("child")
_IS_LEAF: Final = ~exists().where(
    _CHILD.c.parent == VERSIONS.c.parent, _CHILD.c.ancestorid == VERSIONS.c.id, _CHILD.c.id != VERSIONS.c.id
)
_LEAVES_BUT: Final = select(VERSIONS).where(
    VERSIONS.c.parent == bindparam("parent"), in_keys(VERSIONS.c.id, "NOT IN"), _IS_LEAF
)
_NEWEST_LEAF: Final = Statement(
    _LEAVES_BUT.with_only_columns(VERSIONS.c.createdat).order_by(VERSIONS.c.createdat.desc()).limit(1)
)
_LEAVES: Final = Statement(_LEAVES_BUT.where(VERSIONS.c.createdat >= bindparam("since")))
_CHILDREN: Final = Statement(
    select(VERSIONS).where(
        VERSIONS.c.parent == bindparam("parent"),
        in_keys(VERSIONS.c.ancestorid),
        VERSIONS.c.id != VERSIONS.c.ancestorid,
    )
)
_OTHER_VERSION: Final = Statement(
    select(VERSIONS).where(VERSIONS.c.parent == bindparam("parent"), in_keys(VERSIONS.c.id, "NOT IN")).limit(1)
)


def level_of(xid: str) -> int:
    """Return how deep an entity is: 0 for the registry, 1 for groups, 2 for resources, 3 for versions."""
    return 0 if xid == "/" else xid.count("/") // 2


def bounds_below(xid: str) -> tuple[str, str]:
    """Return the bounds, from (inclusive) and to (exclusive), of the xids below *xid*."""
    return f"{xid}/", f"{xid}0"  # "0" is what follows "/"


class EntityReader:
    """Reads entities over one connection; callers may change what it returns."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def registry(self) -> Registry | None:
        """Return the registry entity, None before it is created."""
        row = _REGISTRY.fetch_first(self.connection, {})
        if row is None:
            return None
        name, epoch, createdat, modifiedat, attributes, source, capabilities = row
        trees = _parse_tree(attributes), _parse_source(source), _parse_tree(capabilities)
        return Registry("", name, epoch, createdat, modifiedat, *trees)

    def last_change(self) -> tuple[int, str]:
        """Return number and interaction of the last history entry; every write that changes anything has one.

        Without an entry they are 0 and the registry's creation time, so they identify the state of one registry.
        """
        row = _LAST_ENTRY.fetch_first(self.connection, {})
        if row is not None:
            return int(row[0]), str(row[1])
        return 0, str(self.connection.execute(select(REGISTRY.c.createdat)).scalar() or "")

    def last_change_time(self) -> str:
        """Return the time of the last history entry, '' before the first; times never decrease."""
        return next((str(row[2]) for row in _LAST_ENTRY.fetch_all(self.connection, {})), "")

    def group(self, xid: str) -> GroupEntity | None:
        """Return a group."""
        row = _BY_XID[GROUPS].fetch_first(self.connection, {"xid": xid})
        return None if row is None else _to_group(row)

    def resource(self, xid: str) -> Resource | None:
        """Return a resource."""
        row = _BY_XID[RESOURCES].fetch_first(self.connection, {"xid": xid})
        return None if row is None else _to_resource(row)

    def version(self, xid: str) -> Version | None:
        """Return a version."""
        row = _BY_XID[VERSIONS].fetch_first(self.connection, {"xid": xid})
        return None if row is None else _to_version(row)

    def document(self, xid: str) -> bytes | None:
        """Return the document of a version, None if it has none."""
        row = _DOCUMENT.fetch_first(self.connection, {"xid": xid})
        return None if row is None else bytes(row[0])

    def iter_groups(self, parent: str, after: str = "") -> Iterator[GroupEntity]:
        """Yield the groups of a collection after *after*, in order of lower-case ids."""
        return (_to_group(row) for row in self._iter_rows(_PAGE[GROUPS], parent, after))

    def iter_resources(self, parent: str, after: str = "") -> Iterator[Resource]:
        """Yield the resources of a collection, like :meth:`iter_groups`."""
        return (_to_resource(row) for row in self._iter_rows(_PAGE[RESOURCES], parent, after))

    def iter_versions(self, parent: str, after: str = "") -> Iterator[Version]:
        """Yield the versions of a collection, like :meth:`iter_groups`."""
        return (_to_version(row) for row in self._iter_rows(_PAGE[VERSIONS], parent, after))

    def newest_leaves(self, parent: str, excluded: Collection[str]) -> list[Version]:
        """Return the newest versions of a collection without descendants, except those *excluded*.

        These are some of the last ones, which include the newest.
        """
        connection, names = self.connection, excluded or ("",)
        last = _NEWEST_LEAF.fetch_by_keys(connection, names, parent=parent)
        if not last:
            return []
        # As text .51Z sorts before .5Z: a later time than the last text begins with that text without the Z.
        rows = _LEAVES.fetch_by_keys(connection, names, parent=parent, since=last[0][0].removesuffix("Z"))
        return [_to_version(row) for row in rows]

    def child_versions(self, parent: str, names: Collection[str]) -> list[Version]:
        """Return the versions of a collection that descend directly from the named ones."""
        return [_to_version(row) for row in _CHILDREN.fetch_by_keys(self.connection, names, parent=parent)]

    def other_version(self, parent: str, excluded: Collection[str]) -> Version | None:
        """Return any version of a collection that is not among those *excluded*."""
        rows = _OTHER_VERSION.fetch_by_keys(self.connection, excluded or ("",), parent=parent)
        return _to_version(rows[0]) if rows else None

    def groups_by_xid(self, xids: Sequence[str]) -> dict[str, GroupEntity]:
        """Return the groups that exist, by xid."""
        return {each.xid: each for each in map(_to_group, _BY_XIDS[GROUPS].fetch_by_keys(self.connection, xids))}

    def versions_by_xid(self, xids: Sequence[str]) -> dict[str, Version]:
        """Return the versions that exist, by xid."""
        return {each.xid: each for each in map(_to_version, _BY_XIDS[VERSIONS].fetch_by_keys(self.connection, xids))}

    def resources_by_xid(self, xids: Sequence[str]) -> dict[str, Resource]:
        """Return the resources that exist, by xid."""
        return {each.xid: each for each in map(_to_resource, _BY_XIDS[RESOURCES].fetch_by_keys(self.connection, xids))}

    def resource_with_default(self, xid: str) -> tuple[Resource, Version | None] | None:
        """Return a resource with its default version, None if the resource does not exist."""
        row = _SHOWN_ONE.fetch_first(self.connection, {"xid": xid})
        return None if row is None else (_to_resource(row[:_RESOURCE_COLUMNS]), _to_default_version(row))

    def iter_with_defaults(self, parent: str, after: str = "") -> Iterator[Counted]:
        """Yield the resources of a collection with default version and number of versions."""
        return (_to_counted(row) for row in self._iter_rows(_SHOWN_PAGE, parent, after))

    def with_defaults_by_xid(self, xids: Sequence[str]) -> dict[str, Counted]:
        """Return the resources that exist, by xid, with default version and number of versions."""
        return {row[0]: _to_counted(row) for row in _SHOWN_NAMED.fetch_by_keys(self.connection, xids)}

    def count(self, parent: str) -> int:
        """Return the number of entities of a collection."""
        row = _COUNT[_table_of(parent)].fetch_first(self.connection, {"parent": parent})
        return row[0] if row is not None else 0

    def count_each(self, parents: Sequence[str]) -> Mapping[str, int]:
        """Return the number of entities in each of these collections; empty collections are left out."""
        if not parents:
            return {}
        return {row[0]: row[1] for row in _COUNTS[_table_of(parents[0])].fetch_by_keys(self.connection, parents)}

    def find_referring(self, xid: str) -> list[Resource]:
        """Return the resources whose ``xref`` is *xid*."""
        return [_to_resource(row) for row in _REFERRING.fetch_all(self.connection, {"xid": xid})]

    def find_id(self, parent: str, folded: str) -> str | None:
        """Return the id of a collection's entity by its lower-case id, None if there is none."""
        row = _FIND_ID[_table_of(parent)].fetch_first(self.connection, {"parent": parent, "folded": folded})
        return None if row is None else str(row[0])

    def group_types(self) -> set[str]:
        """Return the plural names of group types that have groups."""
        return {row[0].removeprefix("/") for row in self._fetch_all(select(GROUPS.c.parent).distinct())}

    def resource_types(self, group: str) -> set[str]:
        """Return the plural names of resource types that have resources in a group."""
        first, last = bounds_below(group)
        query = select(RESOURCES.c.parent).where(RESOURCES.c.xid >= first, RESOURCES.c.xid < last).distinct()
        return {row[0].rpartition("/")[2] for row in self._fetch_all(query)}

    def _fetch_all(self, query: Select[Any]) -> Sequence[Any]:
        return self.connection.execute(query).all()

    def _iter_rows(self, page: Statement, parent: str, after: str) -> Iterator[Row]:
        """Fetch page by page, so that only one page is in memory."""
        while True:
            rows = page.fetch_all(self.connection, {"parent": parent, "after": after})
            yield from rows
            if len(rows) < PAGE_ROWS:
                return
            after = rows[-1][_FOLDED_COLUMN]


def _table_of(parent: str) -> Table:
    """Return the table of the entities of a collection."""
    return _KINDS[parent.count("/") // 2]


def _parse_tree(text: str) -> dict[str, Any]:
    tree: dict[str, Any] = msgspec.json.decode(text)
    return tree


@lru_cache(4)
def _parse_source(text: str) -> dict[str, Any]:
    """Parse a model source; cached, since it is large and rarely changes. Callers must not modify it."""
    return _parse_tree(text)


def _to_group(row: Row) -> GroupEntity:
    return GroupEntity(*_common_fields(row))


def _to_resource(row: Row) -> Resource:
    xref, default, sticky, counter = row[_COMMON_COLUMNS:]
    return Resource(*_common_fields(row), xref, default, bool(sticky), counter)


def _to_default_version(row: Row) -> Version | None:
    return None if row[_RESOURCE_COLUMNS] is None else _to_version(row[_RESOURCE_COLUMNS:])


def _to_counted(row: Row) -> Counted:
    return _to_resource(row[:_RESOURCE_COLUMNS]), _to_default_version(row), row[-1]


def _to_version(row: Row) -> Version:
    return Version(*_common_fields(row), row[_COMMON_COLUMNS])


def _common_fields(row: Row) -> tuple[str, str, int, str, str, dict[str, Any]]:
    _, parent, name, _, epoch, createdat, modifiedat, attributes = row[:_COMMON_COLUMNS]
    return parent, name, epoch, createdat, modifiedat, _parse_tree(attributes)


# One write: entities are looked up, changed in memory, and written together with their history and events.
#
# To change an entity, get it from here and put it back; nothing reaches the database before
# :meth:`WriteTransaction.flush`.

E = TypeVar("E", GroupEntity, Resource, Version)


_UPDATE: Final = {
    table: Statement(
        update(table).where(table.c.xid == bindparam("of")).values({each: bindparam(each) for each in table.c.keys()})
    )
    for table in _KINDS
}
_INSERT: Final = {
    table: Statement(insert(table), [each for each in table.c.keys() if each != "number"])
    for table in (*_KINDS, DOCUMENTS, HISTORY, OUTBOX)
}
_DELETE: Final = {table: Statement(delete(table).where(in_keys(table.c.xid))) for table in (*_KINDS, DOCUMENTS)}


class WriteTransaction:
    """The entities that one write reads and changes.

    ``before`` are those loaded or changed as they were before the write, ``now`` as they are; None if one does not
    exist. ``touched`` are the xids of changed ones. Attribute values are replaced, never modified in place, so that
    ``before`` can share them.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.reader: Final = EntityReader(connection)
        registry = self.reader.registry()
        assert registry is not None, "the registry was not created"
        self.registry: Final = registry
        self.before: Final[dict[str, Any]] = {"/": replace(registry)}
        self.now: Final[dict[str, Any]] = {"/": registry}
        self.touched: Final[dict[str, None]] = {}
        self._references: dict[str, None] = {}
        self._complete: dict[str, list[str]] = {}
        self._made: dict[str, dict[str, str]] = {}
        self._documents: dict[str, bytes | None] = {}
        self._read: dict[str, bytes | None] = {}

    def changes(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield xid, former and new state of changed entities: the registry, groups, resources, then versions."""
        for xid in sorted(self.touched, key=level_of):
            if (before := self.before.get(xid)) is not (now := self.now[xid]):
                yield xid, before, now

    def record_changed(self, entity: Entity) -> None:
        """Record an entity as new or changed."""
        self.before.setdefault(entity.xid, None)
        self.now[entity.xid] = entity
        self.touched[entity.xid] = None
        if isinstance(entity, Resource) and entity.xref is not None:
            self._references[entity.xid] = None

    def group(self, xid: str) -> GroupEntity | None:
        """Return the current state of a group."""
        return self._load(xid, self.reader.group)

    def resource(self, xid: str) -> Resource | None:
        """Return the current state of a resource."""
        return self._load(xid, self.reader.resource)

    def find_referring(self, xid: str) -> list[Resource]:
        """Return the current resources whose ``xref`` is *xid*."""
        kept = (self.resource(each.xid) for each in self.reader.find_referring(xid))
        changed = (self.now[each] for each in self._references)
        there = {each.xid: each for each in (*kept, *changed) if each is not None and each.xref == xid}
        return list(there.values())

    def prefetch(self, xids: Sequence[str]) -> None:
        """Prefetch resources with their versions, which is faster than one by one."""
        wanted = [xid for xid in xids if xid not in self.now]
        resources = self.reader.resources_by_xid(wanted)
        for xid in wanted:
            each = resources.get(xid)
            self._add_loaded(xid, each)
            if each is None:
                self._complete[f"{xid}/versions"] = []

    def _load(self, xid: str, read: Callable[[str], E | None]) -> E | None:
        if xid not in self.now:
            self._add_loaded(xid, read(xid))
        entity: E | None = self.now[xid]
        return entity

    def _add_loaded(self, xid: str, entity: Entity | None) -> None:
        self.before[xid] = None if entity is None else replace(entity, attributes=dict(entity.attributes))
        self.now[xid] = entity

    def _record_deleted(self, xid: str) -> None:
        self.now[xid] = None
        self.touched[xid] = None

    def versions_of(self, resource: Resource) -> dict[str, Version]:
        """Return all current versions of a resource, by id."""
        parent = resource.versions
        if parent not in self._complete:
            versions = list(self.reader.iter_versions(parent))
            for each in versions:
                if each.xid not in self.now:
                    self._add_loaded(each.xid, each)
            made = self._made.setdefault(parent, {})
            there = dict.fromkeys((*(each.xid for each in versions), *(f"{parent}/{name}" for name in made.values())))
            self._complete[parent] = list(there)
            made.update({each.id.lower(): each.id for each in versions})
        kept = (self.now[xid] for xid in self._complete[parent])
        return {each.id: each for each in kept if each is not None}

    def has_all_versions(self, resource: Resource) -> bool:
        """Whether all versions of a resource are already loaded."""
        return resource.versions in self._complete

    def version(self, resource: Resource, name: str) -> Version | None:
        """Return the current state of a version of a resource."""
        xid = f"{resource.versions}/{name}"
        if self.has_all_versions(resource):
            self.now.setdefault(xid)
        return self._load(xid, self.reader.version)

    def version_id_like(self, resource: Resource, name: str) -> str | None:
        """Return the id of a version that differs from *name* only in case, None if there is none."""
        like = self._made.get(resource.versions, {}).get(name.lower())
        if like is None and not self.has_all_versions(resource):
            like = self.id_like(resource.versions, name)
        return like if like is not None and like != name and self.version(resource, like) is not None else None

    def newest_leaves(self, resource: Resource, excluded: Collection[str]) -> list[Version]:
        """Return the current :meth:`EntityReader.newest_leaves`; requires that no version has changed its ancestor."""
        return self._current_versions(self.reader.newest_leaves(resource.versions, excluded))

    def child_versions(self, resource: Resource, names: Collection[str]) -> list[Version]:
        """Return the current :meth:`EntityReader.child_versions`; requires that no version has changed its ancestor."""
        return self._current_versions(self.reader.child_versions(resource.versions, names))

    def other_version(self, resource: Resource, excluded: Collection[str]) -> Version | None:
        """Return a version of a resource that is not among those *excluded*, None if there is none."""
        other = self.reader.other_version(resource.versions, excluded)
        return None if other is None else self._current_versions([other])[0]

    def versions_before(self, resource: Resource) -> dict[str, Version]:
        """Return the loaded versions of a resource as they were before the write, by id."""
        parent = resource.versions
        known = self._complete.get(parent)
        if known is None:
            known = [xid for xid in self.before if xid.rpartition("/")[0] == parent]
        kept = (self.before.get(xid) for xid in known)
        return {each.id: each for each in kept if each is not None}

    def add_version(self, version: Version) -> None:
        """Record a version as new."""
        known, made = self._complete.get(version.parent), self._made.setdefault(version.parent, {})
        if known is not None and self.now.get(version.xid) is None:
            known.append(version.xid)
        made[version.id.lower()] = version.id
        self.record_changed(version)

    def document(self, version: Version) -> bytes | None:
        """Return the current document of a version, None if it has none."""
        if version.xid in self._documents:
            return self._documents[version.xid]
        if version.xid not in self._read:
            self._read[version.xid] = self.reader.document(version.xid)
        return self._read[version.xid]

    def set_document(self, version: Version, body: bytes | None) -> None:
        """Set the document of a version; None deletes it."""
        self._documents[version.xid] = body

    def id_like(self, parent: str, identifier: str) -> str | None:
        """Return the id in a collection that differs from *identifier* only in case, None if there is none."""
        found = self.reader.find_id(parent, identifier.lower())
        return None if found == identifier else found

    def flush(self) -> None:
        """Write all changes, except history and events."""
        if "/" in self.touched:
            self._connection.execute(update(REGISTRY).values(_to_registry_row(self.registry)))
        for level, table in enumerate(_KINDS, 1):
            self._flush_table(level, table)
        written = {xid: body for xid, body in self._documents.items() if body is None or self.now.get(xid)}
        _DELETE[DOCUMENTS].execute_by_keys(self._connection, written)
        new = [{"xid": xid, "body": body} for xid, body in written.items() if body is not None]
        _INSERT[DOCUMENTS].execute(self._connection, new)

    def store_history(self, history: Sequence[dict[str, Any]], events: Sequence[dict[str, Any]]) -> None:
        """Store history and events."""
        _INSERT[HISTORY].execute(self._connection, history)
        _INSERT[OUTBOX].execute(self._connection, events)

    def add_resource(self, resource: Resource) -> None:
        """Record a resource as new, without versions."""
        self._complete.setdefault(resource.versions, [])
        self.record_changed(resource)

    def delete_group(self, xid: str) -> None:
        """Delete a group with everything in it."""
        first, last = bounds_below(xid)
        for table, read in ((RESOURCES, self.reader.resources_by_xid), (VERSIONS, self.reader.versions_by_xid)):
            query = select(table.c.xid).where(table.c.xid >= first, table.c.xid < last)
            there = [row[0] for row in self._connection.execute(query)]
            for each, entity in read([each for each in there if each not in self.now]).items():
                self._add_loaded(each, entity)
            for each in there:
                self._record_deleted(each)
        self._documents |= dict.fromkeys(each for each in self.now if first <= each < last)
        self._record_deleted(xid)

    def delete_resource(self, resource: Resource) -> None:
        """Delete a resource with its versions."""
        for version in self.versions_of(resource).values():
            self.delete_version(version)
        self._record_deleted(resource.xid)

    def delete_version(self, version: Version) -> None:
        """Delete a version with its document."""
        self._record_deleted(version.xid)
        self._documents[version.xid] = None

    def _current_versions(self, versions: Iterable[Version]) -> list[Version]:
        """Return the current state of versions; those not loaded yet are recorded."""
        current = []
        for each in versions:
            if each.xid not in self.now:
                self._add_loaded(each.xid, each)
            now = self.now[each.xid]
            if now is not None:
                current.append(now)
        return current

    def _flush_table(self, level: int, table: Table) -> None:
        gone: list[str] = []
        new: list[dict[str, Any]] = []
        for xid in self.touched:
            entity, is_new = self.now[xid], self.before.get(xid) is None
            if level_of(xid) != level or (is_new and entity is None):
                continue
            if entity is None:
                gone.append(xid)
            elif is_new:
                new.append(_to_row(table, entity))
            else:
                _UPDATE[table].execute(self._connection, [{**_to_row(table, entity), "of": xid}])
        _DELETE[table].execute_by_keys(self._connection, gone)
        _INSERT[table].execute(self._connection, new)


def create_registry(connection: Connection, registry: Registry) -> None:
    """Create the registry in a database that has none."""
    connection.execute(insert(REGISTRY).values(_to_registry_row(registry)))


def _to_registry_row(registry: Registry) -> dict[str, Any]:
    times = {"epoch": registry.epoch, "createdat": registry.createdat, "modifiedat": registry.modifiedat}
    texts = {name: to_json_text(getattr(registry, name)) for name in ("attributes", "modelsource", "capabilities")}
    return {"id": registry.id, **times, **texts}


def _to_row(table: Table, entity: Entity) -> dict[str, Any]:
    attributes = to_json_text(entity.attributes)
    derived = {"xid": entity.xid, "folded": entity.id.lower(), "attributes": attributes}
    return {name: derived[name] if name in derived else getattr(entity, name) for name in table.c.keys()}
