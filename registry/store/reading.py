"""Reading entities within one transaction: one by one, and collections in order of their ids, a page at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, Select, Table, and_, bindparam, exists, func, select
from sqlalchemy.sql.elements import ColumnElement

from registry.store.entities import Group, Registry, Resource, Version
from registry.store.tables import DOCUMENTS, GROUPS, HISTORY, REGISTRY, RESOURCES, VERSIONS

PAGE: Final = 500
"""Rows that are fetched, and keys that are asked for, at a time."""
_OWN: Final = 8
"""Columns that all tables of entities begin with; those of one kind follow. By place they cost a third of by name."""

_BY_XID: Final = {
    table: select(table).where(table.c.xid == bindparam("xid")) for table in (GROUPS, RESOURCES, VERSIONS)
}
"""Statements that are made once: to build one and its key anew is a third of what reading one entity costs."""
_COUNT: Final = {
    table: select(func.count()).where(table.c.parent == bindparam("parent")) for table in (GROUPS, RESOURCES, VERSIONS)
}
_DOCUMENT: Final = select(DOCUMENTS.c.body).where(DOCUMENTS.c.xid == bindparam("xid"))
_LAST: Final = select(HISTORY.c.number, HISTORY.c.interaction).order_by(HISTORY.c.number.desc()).limit(1)
_LAST_MOMENT: Final = select(HISTORY.c.at).order_by(HISTORY.c.number.desc()).limit(1)
_SECOND: Final = 19
"""Characters of a timestamp to its second. Below that texts are not in the order of times: ``.51Z`` < ``.5Z``."""
_CHILD: Final = VERSIONS.alias("child")
_LEAF: Final = and_(
    VERSIONS.c.parent == bindparam("parent"),
    VERSIONS.c.id.not_in(bindparam("apart", expanding=True)),
    ~exists().where(
        _CHILD.c.parent == VERSIONS.c.parent,
        _CHILD.c.ancestorid == VERSIONS.c.id,
        _CHILD.c.id != VERSIONS.c.id,
    ),
)
_NEWEST_LEAF: Final = select(VERSIONS.c.createdat).where(_LEAF).order_by(VERSIONS.c.createdat.desc()).limit(1)
_LEAVES: Final = select(VERSIONS).where(_LEAF, VERSIONS.c.createdat >= bindparam("second"))
_CHILDREN: Final = select(VERSIONS).where(
    VERSIONS.c.parent == bindparam("parent"),
    VERSIONS.c.ancestorid.in_(bindparam("names", expanding=True)),
    VERSIONS.c.id != VERSIONS.c.ancestorid,
)
_OTHER: Final = (
    select(VERSIONS)
    .where(VERSIONS.c.parent == bindparam("parent"), VERSIONS.c.id.not_in(bindparam("apart", expanding=True)))
    .limit(1)
)


def below(xid: str) -> tuple[str, str]:
    """Return the bounds, from (inclusive) and to (exclusive), of the xids below *xid*."""
    return f"{xid}/", f"{xid}0"  # "0" is what follows "/"


class Reader:
    """Reads over one connection; what it returns is the caller's own."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def registry(self) -> Registry | None:
        """Return the registry itself, None before it was made."""
        row = self.connection.execute(select(REGISTRY)).first()
        if row is None:
            return None
        values = row._mapping
        return Registry(
            "",
            values["id"],
            values["epoch"],
            values["createdat"],
            values["modifiedat"],
            _tree(values["attributes"]),
            _tree(values["modelsource"]),
            _tree(values["capabilities"]),
        )

    def last_change(self) -> tuple[int, str]:
        """Return number and interaction of the last entry of history; each write that changes anything has some.

        Without one they are 0 and when the registry began: so what is returned is never that of another registry.
        """
        row = self.connection.execute(_LAST).first()
        if row is not None:
            return int(row[0]), str(row[1])
        return 0, str(self.connection.execute(select(REGISTRY.c.createdat)).scalar() or "")

    def last_moment(self) -> str:
        """Return the time of the last entry of history, '' before the first: times never go back with the clock."""
        return str(self.connection.execute(_LAST_MOMENT).scalar() or "")

    def group(self, xid: str) -> Group | None:
        """Return a group."""
        row = self.connection.execute(_BY_XID[GROUPS], {"xid": xid}).first()
        return None if row is None else _group(row)

    def resource(self, xid: str) -> Resource | None:
        """Return a resource."""
        row = self.connection.execute(_BY_XID[RESOURCES], {"xid": xid}).first()
        return None if row is None else _resource(row)

    def version(self, xid: str) -> Version | None:
        """Return a version."""
        row = self.connection.execute(_BY_XID[VERSIONS], {"xid": xid}).first()
        return None if row is None else _version(row)

    def document(self, xid: str) -> bytes | None:
        """Return the document of a version, None when it has none."""
        row = self.connection.execute(_DOCUMENT, {"xid": xid}).first()
        return None if row is None else bytes(row[0])

    def groups(self, parent: str, after: str = "") -> Iterator[Group]:
        """Yield the groups of a collection in the order of their ids in lower case, those behind *after*."""
        return (_group(row) for row in self._paged(select(GROUPS), GROUPS.c, parent, after))

    def resources(self, parent: str, after: str = "") -> Iterator[Resource]:
        """Yield the resources of a collection, as :meth:`groups`."""
        return (_resource(row) for row in self._paged(select(RESOURCES), RESOURCES.c, parent, after))

    def versions(self, parent: str, after: str = "") -> Iterator[Version]:
        """Yield the versions of a collection, as :meth:`groups`."""
        return (_version(row) for row in self._paged(select(VERSIONS), VERSIONS.c, parent, after))

    def leaves(self, parent: str, apart: Collection[str]) -> list[Version]:
        """Return the versions of a collection that no other descends from, those *apart* left out; of these the ones
        that were created in the last second of all, which have the newest among them.
        """
        given = {"parent": parent, "apart": list(apart)}
        last = self.connection.execute(_NEWEST_LEAF, given).scalar()
        if last is None:
            return []
        rows = self.connection.execute(_LEAVES, {**given, "second": last[:_SECOND]})
        return [_version(row) for row in rows]

    def children(self, parent: str, names: Collection[str]) -> list[Version]:
        """Return the versions of a collection that descend from those named, each from one of them at once."""
        rows = self.connection.execute(_CHILDREN, {"parent": parent, "names": list(names)})
        return [_version(row) for row in rows]

    def other_version(self, parent: str, apart: Collection[str]) -> Version | None:
        """Return a version of a collection, whichever it is, that is not among those *apart*."""
        row = self.connection.execute(_OTHER, {"parent": parent, "apart": list(apart)}).first()
        return None if row is None else _version(row)

    def groups_of(self, xids: Sequence[str]) -> dict[str, Group]:
        """Return those of the groups that are there, by xid."""
        return {each.xid: each for each in map(_group, self._named(GROUPS, xids))}

    def versions_of(self, xids: Sequence[str]) -> dict[str, Version]:
        """Return those of the versions that are there, by xid."""
        return {each.xid: each for each in map(_version, self._named(VERSIONS, xids))}

    def resources_of(self, xids: Sequence[str]) -> dict[str, Resource]:
        """Return those of the resources that are there, by xid."""
        return {each.xid: each for each in map(_resource, self._named(RESOURCES, xids))}

    def count(self, parent: str) -> int:
        """Return how many entities a collection has."""
        return self.connection.execute(_COUNT[_table_of(parent)], {"parent": parent}).scalar_one()

    def counts(self, parents: Sequence[str]) -> Mapping[str, int]:
        """Return how many entities collections of one kind have; those with none are left out."""
        if not parents:
            return {}
        table = _table_of(parents[0])
        counts: dict[str, int] = {}
        for part in _parts(parents):
            query = select(table.c.parent, func.count()).where(table.c.parent.in_(part)).group_by(table.c.parent)
            counts.update({row[0]: row[1] for row in self._all(query)})
        return counts

    def referring(self, xid: str) -> list[Resource]:
        """Return the resources whose ``xref`` is *xid*."""
        return [_resource(row) for row in self._all(select(RESOURCES).where(RESOURCES.c.xref == xid))]

    def group_types(self) -> set[str]:
        """Return the plural names of the types that there are groups of."""
        return {row[0].removeprefix("/") for row in self._all(select(GROUPS.c.parent).distinct())}

    def resource_types(self, group: str) -> set[str]:
        """Return the plural names of the types of resources that a group has."""
        first, last = below(group)
        query = select(RESOURCES.c.parent).where(RESOURCES.c.xid >= first, RESOURCES.c.xid < last).distinct()
        return {row[0].rpartition("/")[2] for row in self._all(query)}

    def _named(self, table: Table, xids: Sequence[str]) -> Iterator[Row[Any]]:
        for part in _parts(xids):
            yield from self._all(select(table).where(table.c.xid.in_(part)))

    def _all(self, query: Select[Any]) -> Sequence[Row[Any]]:
        return self.connection.execute(query).all()

    def _paged(self, query: Select[Any], columns: Any, parent: str, after: str) -> Iterator[Row[Any]]:
        """Fetch page by page, so that no more than one is in memory however many rows there are."""
        while True:
            condition: ColumnElement[bool] = (columns.parent == parent) & (columns.folded > after)
            rows = self._all(query.where(condition).order_by(columns.folded).limit(PAGE))
            yield from rows
            if len(rows) < PAGE:
                return
            after = rows[-1]._mapping["folded"]


def _table_of(parent: str) -> Table:
    """Return the table of the entities of a collection."""
    return (GROUPS, RESOURCES, VERSIONS)[parent.count("/") // 2]


def _parts(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(keys), PAGE):
        yield keys[start : start + PAGE]


def _tree(text: str) -> dict[str, Any]:
    tree: dict[str, Any] = msgspec.json.decode(text)
    return tree


def _group(row: Row[Any]) -> Group:
    return Group(*_first(row))


def _resource(row: Row[Any]) -> Resource:
    xref, default, sticky, counter = row[_OWN:]
    return Resource(*_first(row), xref, default, bool(sticky), counter)


def _version(row: Row[Any]) -> Version:
    return Version(*_first(row), row[_OWN])


def _first(row: Row[Any]) -> tuple[str, str, int, str, str, dict[str, Any]]:
    _, parent, name, _, epoch, createdat, modifiedat, attributes = row[:_OWN]
    return parent, name, epoch, createdat, modifiedat, _tree(attributes)
