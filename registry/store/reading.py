"""Reading entities within one transaction: one by one, and collections in order of their ids, a page at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final

import msgspec
from sqlalchemy import BindParameter, Connection, Select, Table, bindparam, exists, func, select

from registry.store.entities import Group, Registry, Resource, Version
from registry.store.tables import (
    DOCUMENTS,
    GROUPS,
    HISTORY,
    REGISTRY,
    RESOURCES,
    VERSIONS,
    Among,
    Row,
    Statement,
)

Counted = tuple[Resource, Version | None, int]
"""A resource, its default version, and the number of its versions."""
PAGE: Final = 500
"""Rows that are fetched, and keys that are asked for, at a time."""
_FOLDED: Final = 3
_OF_RESOURCE: Final = 12
_OWN: Final = 8
"""Columns that all tables of entities begin with; those of one kind follow. By place they cost a third of by name."""


def _named(table: Table, keys: Sequence[BindParameter[str]]) -> Select[Any]:
    return select(table).where(table.c.xid.in_(keys))


def _counted(table: Table, keys: Sequence[BindParameter[str]]) -> Select[Any]:
    return select(table.c.parent, func.count()).where(table.c.parent.in_(keys)).group_by(table.c.parent)


_KINDS: Final = (GROUPS, RESOURCES, VERSIONS)
_REGISTRY: Final = Statement(select(REGISTRY))
_BY_XID: Final = {each: Statement(select(each).where(each.c.xid == bindparam("xid"))) for each in _KINDS}
_BY_XIDS: Final = {each: Among(partial(_named, each)) for each in _KINDS}
_PAGE: Final = {
    each: Statement(
        select(each)
        .where(each.c.parent == bindparam("parent"), each.c.folded > bindparam("after"))
        .order_by(each.c.folded)
        .limit(PAGE)
    )
    for each in _KINDS
}
_COUNT: Final = {each: Statement(select(func.count()).where(each.c.parent == bindparam("parent"))) for each in _KINDS}
_COUNTS: Final = {each: Among(partial(_counted, each)) for each in _KINDS}
_DOCUMENT: Final = Statement(select(DOCUMENTS.c.body).where(DOCUMENTS.c.xid == bindparam("xid")))
_DEFAULT: Final = VERSIONS.alias("main")
_WITH_DEFAULT: Final = select(RESOURCES, _DEFAULT).outerjoin_from(
    RESOURCES, _DEFAULT, _DEFAULT.c.xid == RESOURCES.c.xid + "/versions/" + RESOURCES.c.defaultversionid
)
_WITH_COUNT: Final = _WITH_DEFAULT.add_columns(
    select(func.count()).where(VERSIONS.c.parent == RESOURCES.c.xid + "/versions").scalar_subquery()
)
_SHOWN_ONE: Final = Statement(_WITH_DEFAULT.where(RESOURCES.c.xid == bindparam("xid")))
_SHOWN_PAGE: Final = Statement(
    _WITH_COUNT.where(RESOURCES.c.parent == bindparam("parent"), RESOURCES.c.folded > bindparam("after"))
    .order_by(RESOURCES.c.folded)
    .limit(PAGE)
)
_SHOWN_NAMED: Final = Among(lambda xids: _WITH_COUNT.where(RESOURCES.c.xid.in_(xids)))
_REFERRING: Final = Statement(select(RESOURCES).where(RESOURCES.c.xref == bindparam("xid")))
_ID: Final = {
    each: Statement(select(each.c.id).where(each.c.parent == bindparam("parent"), each.c.folded == bindparam("folded")))
    for each in _KINDS
}
_LAST: Final = Statement(
    select(HISTORY.c.number, HISTORY.c.interaction, HISTORY.c.at).order_by(HISTORY.c.number.desc()).limit(1)
)
_CHILD: Final = VERSIONS.alias("child")
_IS_LEAF: Final = ~exists().where(
    _CHILD.c.parent == VERSIONS.c.parent, _CHILD.c.ancestorid == VERSIONS.c.id, _CHILD.c.id != VERSIONS.c.id
)
_NEWEST_LEAF: Final = Among(
    lambda apart: (
        select(VERSIONS.c.createdat)
        .where(VERSIONS.c.parent == bindparam("parent"), VERSIONS.c.id.not_in(apart), _IS_LEAF)
        .order_by(VERSIONS.c.createdat.desc())
        .limit(1)
    )
)
_LEAVES: Final = Among(
    lambda apart: select(VERSIONS).where(
        VERSIONS.c.parent == bindparam("parent"),
        VERSIONS.c.createdat >= bindparam("since"),
        VERSIONS.c.id.not_in(apart),
        _IS_LEAF,
    )
)
_CHILDREN: Final = Among(
    lambda names: select(VERSIONS).where(
        VERSIONS.c.parent == bindparam("parent"),
        VERSIONS.c.ancestorid.in_(names),
        VERSIONS.c.id != VERSIONS.c.ancestorid,
    )
)
_OTHER: Final = Among(
    lambda apart: select(VERSIONS).where(VERSIONS.c.parent == bindparam("parent"), VERSIONS.c.id.not_in(apart)).limit(1)
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
        row = _REGISTRY.first(self.connection, {})
        if row is None:
            return None
        name, epoch, createdat, modifiedat, attributes, source, capabilities = row
        trees = _tree(attributes), _source(source), _tree(capabilities)
        return Registry("", name, epoch, createdat, modifiedat, *trees)

    def last_change(self) -> tuple[int, str]:
        """Return number and interaction of the last entry of history; each write that changes anything has some.

        Without one they are 0 and when the registry began: so what is returned is never that of another registry.
        """
        row = _LAST.first(self.connection, {})
        if row is not None:
            return int(row[0]), str(row[1])
        return 0, str(self.connection.execute(select(REGISTRY.c.createdat)).scalar() or "")

    def last_moment(self) -> str:
        """Return the time of the last entry of history, '' before the first: times never go back with the clock."""
        row = _LAST.first(self.connection, {})
        return "" if row is None else str(row[2])

    def group(self, xid: str) -> Group | None:
        """Return a group."""
        row = _BY_XID[GROUPS].first(self.connection, {"xid": xid})
        return None if row is None else _group(row)

    def resource(self, xid: str) -> Resource | None:
        """Return a resource."""
        row = _BY_XID[RESOURCES].first(self.connection, {"xid": xid})
        return None if row is None else _resource(row)

    def version(self, xid: str) -> Version | None:
        """Return a version."""
        row = _BY_XID[VERSIONS].first(self.connection, {"xid": xid})
        return None if row is None else _version(row)

    def document(self, xid: str) -> bytes | None:
        """Return the document of a version, None when it has none."""
        row = _DOCUMENT.first(self.connection, {"xid": xid})
        return None if row is None else bytes(row[0])

    def groups(self, parent: str, after: str = "") -> Iterator[Group]:
        """Yield the groups of a collection in the order of their ids in lower case, those behind *after*."""
        return (_group(row) for row in self._paged(_PAGE[GROUPS], parent, after))

    def resources(self, parent: str, after: str = "") -> Iterator[Resource]:
        """Yield the resources of a collection, as :meth:`groups`."""
        return (_resource(row) for row in self._paged(_PAGE[RESOURCES], parent, after))

    def versions(self, parent: str, after: str = "") -> Iterator[Version]:
        """Yield the versions of a collection, as :meth:`groups`."""
        return (_version(row) for row in self._paged(_PAGE[VERSIONS], parent, after))

    def leaves(self, parent: str, apart: Collection[str]) -> list[Version]:
        """Return the versions of a collection that no other descends from, those *apart* left out; of these some
        of the last, which have the newest among them.
        """
        connection, names = self.connection, apart or ("",)
        last = next(_NEWEST_LEAF.rows(connection, names, {"parent": parent}), None)
        if last is None:
            return []
        # As texts .51Z is before .5Z: what is later than the last text begins with it, but for the Z.
        rows = _LEAVES.rows(connection, names, {"parent": parent, "since": last[0].removesuffix("Z")})
        return [_version(row) for row in rows]

    def children(self, parent: str, names: Collection[str]) -> list[Version]:
        """Return the versions of a collection that descend from those named, each from one of them at once."""
        return [_version(row) for row in _CHILDREN.rows(self.connection, names, {"parent": parent})]

    def other_version(self, parent: str, apart: Collection[str]) -> Version | None:
        """Return a version of a collection, whichever it is, that is not among those *apart*."""
        row = next(_OTHER.rows(self.connection, apart or ("",), {"parent": parent}), None)
        return None if row is None else _version(row)

    def groups_of(self, xids: Sequence[str]) -> dict[str, Group]:
        """Return those of the groups that are there, by xid."""
        return {each.xid: each for each in map(_group, _BY_XIDS[GROUPS].rows(self.connection, xids, {}))}

    def versions_of(self, xids: Sequence[str]) -> dict[str, Version]:
        """Return those of the versions that are there, by xid."""
        return {each.xid: each for each in map(_version, _BY_XIDS[VERSIONS].rows(self.connection, xids, {}))}

    def resources_of(self, xids: Sequence[str]) -> dict[str, Resource]:
        """Return those of the resources that are there, by xid."""
        return {each.xid: each for each in map(_resource, _BY_XIDS[RESOURCES].rows(self.connection, xids, {}))}

    def with_default(self, xid: str) -> tuple[Resource, Version | None] | None:
        """Return a resource with its default version, None for one that is not there."""
        row = _SHOWN_ONE.first(self.connection, {"xid": xid})
        return None if row is None else (_resource(row[:_OF_RESOURCE]), _default(row))

    def with_defaults(self, parent: str, after: str = "") -> Iterator[Counted]:
        """Yield the resources of a collection, as :meth:`resources`, with what they show of their versions."""
        return (_counted_of(row) for row in self._paged(_SHOWN_PAGE, parent, after))

    def with_defaults_of(self, xids: Sequence[str]) -> dict[str, Counted]:
        """Return those of the resources that are there, by xid, with what they show of their versions."""
        return {row[0]: _counted_of(row) for row in _SHOWN_NAMED.rows(self.connection, xids, {})}

    def count(self, parent: str) -> int:
        """Return how many entities a collection has."""
        row = _COUNT[_table_of(parent)].first(self.connection, {"parent": parent})
        return row[0] if row is not None else 0

    def counts(self, parents: Sequence[str]) -> Mapping[str, int]:
        """Return how many entities collections of one kind have; those with none are left out."""
        if not parents:
            return {}
        return {row[0]: row[1] for row in _COUNTS[_table_of(parents[0])].rows(self.connection, parents, {})}

    def referring(self, xid: str) -> list[Resource]:
        """Return the resources whose ``xref`` is *xid*."""
        return [_resource(row) for row in _REFERRING.rows(self.connection, {"xid": xid})]

    def id_of(self, parent: str, folded: str) -> str | None:
        """Return the id of the entity of a collection that has an id in lower case, None when there is none."""
        row = _ID[_table_of(parent)].first(self.connection, {"parent": parent, "folded": folded})
        return None if row is None else str(row[0])

    def group_types(self) -> set[str]:
        """Return the plural names of the types that there are groups of."""
        return {row[0].removeprefix("/") for row in self._all(select(GROUPS.c.parent).distinct())}

    def resource_types(self, group: str) -> set[str]:
        """Return the plural names of the types of resources that a group has."""
        first, last = below(group)
        query = select(RESOURCES.c.parent).where(RESOURCES.c.xid >= first, RESOURCES.c.xid < last).distinct()
        return {row[0].rpartition("/")[2] for row in self._all(query)}

    def _all(self, query: Select[Any]) -> Sequence[Any]:
        return self.connection.execute(query).all()

    def _paged(self, page: Statement, parent: str, after: str) -> Iterator[Row]:
        """Fetch page by page, so that no more than one is in memory however many rows there are."""
        while True:
            rows = page.rows(self.connection, {"parent": parent, "after": after})
            yield from rows
            if len(rows) < PAGE:
                return
            after = rows[-1][_FOLDED]


def _table_of(parent: str) -> Table:
    """Return the table of the entities of a collection."""
    return (GROUPS, RESOURCES, VERSIONS)[parent.count("/") // 2]


def _tree(text: str) -> dict[str, Any]:
    tree: dict[str, Any] = msgspec.json.decode(text)
    return tree


@lru_cache(4)
def _source(text: str) -> dict[str, Any]:
    """Read a model source, which is large and nearly always the same; nobody changes it in place."""
    return _tree(text)


def _group(row: Row) -> Group:
    return Group(*_first(row))


def _resource(row: Row) -> Resource:
    xref, default, sticky, counter = row[_OWN:]
    return Resource(*_first(row), xref, default, bool(sticky), counter)


def _default(row: Row) -> Version | None:
    return None if row[_OF_RESOURCE] is None else _version(row[_OF_RESOURCE:])


def _counted_of(row: Row) -> Counted:
    return _resource(row[:_OF_RESOURCE]), _default(row), row[-1]


def _version(row: Row) -> Version:
    return Version(*_first(row), row[_OWN])


def _first(row: Row) -> tuple[str, str, int, str, str, dict[str, Any]]:
    _, parent, name, _, epoch, createdat, modifiedat, attributes = row[:_OWN]
    return parent, name, epoch, createdat, modifiedat, _tree(attributes)
