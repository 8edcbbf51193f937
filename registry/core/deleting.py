"""Deleting: one entity, some of a collection, or all of it (core ``spec.md``, Deleting Entities)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from registry.core.merging import as_object, compare_epoch, compare_id
from registry.core.places import Place
from registry.core.writing import Writer
from registry.errors import Refusal
from registry.store.entities import Entity, Resource


class Deleter:
    """Deletes through a :class:`Writer`, whose ``finish`` is due afterwards. All methods raise :class:`Refusal`."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._work = writer.work
        self._options = writer.options

    def delete(self, place: Place, epoch: int | None) -> None:
        """Delete one entity, if its epoch is the given one."""
        entity = self._find(place)
        if entity is None:
            raise Refusal("not_found", place.xid)
        compare_epoch({"epoch": epoch}, entity, place.xid, self._options)
        self._drop(place, entity, root=True)

    def delete_all(self, place: Place, body: object) -> None:
        """Delete the entities of a collection that a map names; without a map (None) all of them."""
        self._owner(place)
        entries = None if body is None else as_object(body, place.xid)
        for name in self._names(place) if entries is None else list(entries):
            where = place.child(name)
            given = {} if entries is None else as_object(entries[name], where.xid)
            entity = self._find(where)
            if entity is not None:
                self._compare(where, entity, given)
                self._drop(where, entity, root=False)

    def _compare(self, place: Place, entity: Entity, given: Mapping[str, Any]) -> None:
        compare_id(given, _singular(place), entity.id, place.xid)
        if isinstance(entity, Resource):
            if given.get("epoch") is not None and not (given.get("meta") or {}).get("epoch"):
                raise Refusal("misplaced_epoch", place.xid)
            given = as_object(given.get("meta") or {}, place.xid)
            compare_id(given, _singular(place), entity.id, f"{place.xid}/meta")
        compare_epoch(given, entity, place.xid, self._options)

    def _drop(self, place: Place, entity: Entity, *, root: bool) -> None:
        if place.kind == "group":
            self._refuse_readonly(place)
            self._work.drop_group(entity.xid)
            self._writer.touch(self._work.registry)
        elif isinstance(entity, Resource):
            if self._writer.writable(entity, root=root):
                self._drop_resource(place, entity)
        else:
            self._drop_version(place, root=root)

    def _drop_resource(self, place: Place, resource: Resource) -> None:
        self._writer.pending.pop(place.xid, None)
        self._work.drop_resource(resource)
        group = self._work.group(place.owner.xid)
        assert group is not None
        self._writer.touch(group)

    def _drop_version(self, place: Place, *, root: bool) -> None:
        owner = place.owner
        resource = self._work.resource(owner.xid)
        assert resource is not None
        if not self._writer.writable(resource, root=root):
            return
        self._writer.pend(owner, resource)
        self._work.drop_version(self._work.versions_of(resource)[place.vid])
        self._writer.touch(resource)

    def _refuse_readonly(self, place: Place) -> None:
        """Keep a group that has a read-only resource."""
        for plural in place.group.resources:
            where = place.collection(plural)
            for each in self._work.reader.resources(where.xid):
                if each.attributes.get("readonly") and not self._options.administrator:
                    raise Refusal("readonly", each.xid)

    def _find(self, place: Place) -> Entity | None:
        if place.kind == "group":
            return self._work.group(place.xid)
        if place.kind == "resource":
            return self._work.resource(place.xid)
        resource = self._work.resource(place.owner.xid)
        if resource is None or resource.xref is not None:
            return None
        return self._work.versions_of(resource).get(place.vid)

    def _owner(self, place: Place) -> None:
        """Make sure that what the collection belongs to is there."""
        if place.kind == "resources" and self._work.group(place.owner.xid) is None:
            raise Refusal("not_found", place.owner.xid)
        if place.kind == "versions" and self._work.resource(place.owner.xid) is None:
            raise Refusal("not_found", place.owner.xid)

    def _names(self, place: Place) -> Iterable[str]:
        reader = self._work.reader
        if place.kind == "groups":
            return [each.id for each in reader.groups(place.xid)]
        if place.kind == "resources":
            return [each.id for each in reader.resources(place.xid)]
        return [each.id for each in reader.versions(place.xid)]


def _singular(place: Place) -> str:
    if place.kind == "group":
        return place.group.singular
    return place.resource.singular if place.kind == "resource" else "version"
