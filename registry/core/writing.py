"""Create, update and delete the registry's entities: groups, resources, their ``meta`` and versions.

Ancestry, default versions, formats and compatibility can only be checked after the whole request.
:meth:`EntityWriter.finish` does so; call it once, at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from registry.core.ancestry import as_object, compare_epoch, compare_id, constraints_of, merged, set_times, value_at
from registry.core.requests import Given, ResourcePath, check_id, target_of
from registry.core.resource_rules import FEW, EntityCreator, ResourceRules
from registry.errors import Refusal
from registry.model.attributes import GroupType, validated
from registry.store.entities import Entity, GroupEntity, Resource, Version

_SHOWN_OF_XREF: Final = frozenset(("self", "shortself", "xid", "metaurl", "versionsurl", "versionscount", "$schema"))


class EntityWriter(EntityCreator):
    """Writes into one :class:`Work`. *root* is whether the entity is the target of the request.

    All methods raise :class:`Refusal`; the changes made must then not be flushed.
    """

    def finish(self) -> None:
        """Apply the rules that depend on the whole request."""
        settler = ResourceRules(self.work, self.model, self.options, self.bump)
        for each in self.pending.values():
            settler.settle(each)

    def write_registry(self, body: Mapping[str, Any], *, patch: bool) -> None:
        """Update the registry's own attributes and the groups in the body; the model is ignored."""
        registry = self.work.registry
        if "id" not in self.options.ignore:
            compare_id(body, "registry", registry.id, "/")
        compare_epoch(body, registry, "/", self.options)
        own = {name: value for name, value in body.items() if name not in self.model.groups}
        registry.attributes = validated(
            "/", merged(registry.attributes, own, self.model.attributes, patch=patch), self.model.attributes
        )
        set_times(registry, body, "/", self.options)
        self.bump(registry)
        self.work.registry_touched = True
        for plural, kind in self.model.groups.items():
            if body.get(plural) is not None:
                self.write_groups(ResourcePath("groups", kind), body[plural], patch=patch)

    def write_groups(self, place: ResourcePath, body: object, *, patch: bool) -> list[str]:
        """Write each group of a map; return their ids."""
        entries = self.entries(place, body)
        for name, each in entries.items():
            self.write_group(place.child(name), each, patch=patch)
        return list(entries)

    def write_group(
        self, place: ResourcePath, body: Mapping[str, Any], *, patch: bool, root: bool = False
    ) -> GroupEntity:
        """Write a group, and the resources in the body."""
        kind = place.group
        group = self.work.group(place.xid)
        if group is None:
            group = self.new_group(place)
        else:
            compare_epoch(body, group, place.xid, self.options)
        if not (root and "id" in self.options.ignore):
            compare_id(body, kind.singular, place.gid, place.xid)
        own = {name: value for name, value in body.items() if name not in kind.resources}
        values = merged(group.attributes, own, kind.attributes, patch=patch)
        group.attributes = validated(place.xid, values, kind.attributes)
        set_times(group, body, place.xid, self.options)
        self.bump(group)
        self.work.groups.put(group)
        self._recheck_constraints(group, kind)
        for plural in kind.resources:
            if body.get(plural) is not None:
                self.write_resources(place.collection(plural), body[plural], patch=patch)
        return group

    def write_resources(self, place: ResourcePath, body: object, *, patch: bool) -> list[str]:
        """Write each resource of a map; return the ids of those not skipped as read-only."""
        entries = self.entries(place, body)
        self._owner(place)
        self.work.expect([place.child(name).xid for name in entries])
        written = (name for name, each in entries.items() if self.write_resource(place.child(name), each, patch=patch))
        return list(written)

    def write_resource(
        self,
        place: ResourcePath,
        body: Mapping[str, Any],
        *,
        patch: bool,
        root: bool = False,
        document: Given | None = None,
    ) -> Resource | None:
        """Write a resource: its versions, its default version and its ``meta``; None if it was skipped."""
        resource = self.work.resource(place.xid)
        if resource is not None and not self.writable(resource, root=root):
            return None
        if not (root and "id" in self.options.ignore):
            compare_id(body, place.resource.singular, place.rid, place.xid)
        meta = body.get("meta")
        if meta is not None:
            meta = as_object(meta, f"{place.xid}/meta")
        xref = self._xref(resource, meta, patch=patch)
        if xref is not None:
            return self._refer(place, resource, body, meta or {}, xref)
        created = resource is None or resource.xref is not None
        if resource is None:
            resource = self.new_resource(place, self._owner(place))
        elif resource.xref is not None:
            self._revert(resource)
        self._write_parts(place, resource, body, meta, patch=patch, created=created, document=document)
        return resource

    def write_meta(self, place: ResourcePath, body: Mapping[str, Any], *, patch: bool) -> Resource:
        """Write the ``meta`` of a resource, which may be new; *place* is the resource's."""
        resource = self.work.resource(place.xid)
        if resource is None:
            created = self.write_resource(place, {"meta": body}, patch=patch, root=True)
            assert created is not None
            return created
        self.writable(resource, root=True)
        xref = self._xref(resource, body, patch=patch)
        if xref is not None:
            return self._refer(place, resource, {}, body, xref)
        if resource.xref is not None:
            self._revert(resource)
            self._write_parts(place, resource, {}, body, patch=False, created=True, document=None)
            return resource
        self._meta(place, resource, body, patch=patch)
        return resource

    def write_versions(self, place: ResourcePath, body: object, *, patch: bool) -> list[str]:
        """Write each version of a map, into a resource that may be new; return their ids."""
        entries = self.entries(place, body)
        owner = place.owner
        resource = self.work.resource(owner.xid)
        if resource is None:
            if not entries:
                raise Refusal("missing_versions", place.xid)
            resource = self.new_resource(owner, self._owner(owner))
        self.writable(resource, root=True)
        self._no_xref(resource, owner)
        self.pend(owner, resource)
        self._write_versions(owner, resource, entries, patch=patch)
        return list(entries)

    def add_version(self, place: ResourcePath, body: Mapping[str, Any], document: Given | None) -> Version:
        """Write the version that a body names, or a new one, into a resource that may be new."""
        resource = self.work.resource(place.xid) or self.new_resource(place, self._owner(place))
        self.writable(resource, root=True)
        self._no_xref(resource, place)
        _check_plain(body, place.xid)
        ignored = "id" in self.options.ignore
        if not ignored:
            compare_id(body, place.resource.singular, place.rid, place.xid)
        named = _text_id(body.get("versionid"), place)
        return self.write_version(
            place,
            resource,
            None if ignored or named is None else named,
            body,
            patch=False,
            root=ignored,
            document=document,
        )

    def put_version(
        self, place: ResourcePath, body: Mapping[str, Any], *, patch: bool, document: Given | None = None
    ) -> bool:
        """Write the version at *place*, into a resource that may be new; return whether the version is new."""
        owner = place.owner
        resource = self.work.resource(owner.xid) or self.new_resource(owner, self._owner(owner))
        self.writable(resource, root=True)
        self._no_xref(resource, owner)
        _check_plain(body, place.xid)
        created = self.work.version(resource, place.vid) is None
        self.write_version(owner, resource, place.vid, body, patch=patch, root=True, document=document)
        return created

    def _write_parts(
        self,
        place: ResourcePath,
        resource: Resource,
        body: Mapping[str, Any],
        meta: Mapping[str, Any] | None,
        *,
        patch: bool,
        created: bool,
        document: Given | None,
    ) -> None:
        versions = (
            self.entries(ResourcePath("versions", place.group, place.gid, place.resource, place.rid), body["versions"])
            if body.get("versions") is not None
            else {}
        )
        self._write_versions(place, resource, versions, patch=patch)
        self._default(place, resource, body, versions, meta, patch=patch, created=created, document=document)
        if meta is not None:
            self._meta(place, resource, meta, patch=patch)

    def _write_versions(
        self, place: ResourcePath, resource: Resource, entries: Mapping[str, Any], *, patch: bool
    ) -> None:
        if len(entries) > FEW:
            self.work.versions_of(resource)
        for name, each in entries.items():
            _check_plain(each, f"{resource.versions}/{name}")
            self.write_version(place, resource, name, each, patch=patch)

    def _default(
        self,
        place: ResourcePath,
        resource: Resource,
        body: Mapping[str, Any],
        versions: Mapping[str, Any],
        meta: Mapping[str, Any] | None,
        *,
        patch: bool,
        created: bool,
        document: Given | None,
    ) -> None:
        """Write the body's own attributes to the default version, unless ``versions`` includes it."""
        name = _text_id(body.get("versionid"), place)
        if created:
            if name is None and meta is not None and "defaultversionid" not in self.options.ignore:
                name = _text_id(meta.get("defaultversionid"), place)
            if name is None and versions:
                return
        else:
            current = resource.defaultversionid
            if name is not None and name != current and "id" not in self.options.ignore:
                raise Refusal(
                    "mismatched_id", place.xid, singular="version", invalid_id=str(name), expected_id=str(current)
                )
            name = current
            said = body.keys() - place.resource.resource.keys() - {"versionid", "$schema"}
            if patch and not said and (meta is not None or versions):
                return
        if name not in versions:
            self.write_version(place, resource, name, body, patch=patch, root=True, document=document)

    def _meta(self, place: ResourcePath, resource: Resource, body: Mapping[str, Any], *, patch: bool) -> None:
        subject = f"{place.xid}/meta"
        kind = place.resource
        pending = self.pend(place, resource)
        if "id" not in self.options.ignore:
            compare_id(body, kind.singular, place.rid, subject)
        if pending.existed:
            given = body.get("epoch")
            if given is not None and pending.epoch != resource.epoch and given == pending.epoch:
                body = {**body, "epoch": resource.epoch}
            compare_epoch(body, resource, subject, self.options)
        kept = resource.attributes.get("readonly")
        values = validated(subject, merged(resource.attributes, body, kind.meta, patch=patch), kind.meta)
        values.pop("readonly", None)
        if self.options.administrator and isinstance(body.get("readonly"), bool):
            kept = body["readonly"]
        if kept:
            values["readonly"] = True
        resource.attributes = values
        pending.asks(body, patch=patch, ignore=self.options.ignore)
        set_times(resource, body, subject, self.options)
        self.bump(resource)
        self.work.resources.put(resource)

    def _refer(
        self,
        place: ResourcePath,
        resource: Resource | None,
        body: Mapping[str, Any],
        meta: Mapping[str, Any],
        xref: object,
    ) -> Resource:
        """Turn a resource into a reference (``xref``) to another; its own content is deleted."""
        kind = place.resource
        target = target_of(self.model, xref, place, place.xid)
        if "id" not in self.options.ignore:
            compare_id(meta, kind.singular, place.rid, f"{place.xid}/meta")
        allowed = {f"{kind.singular}id", "meta", *_SHOWN_OF_XREF}
        extra = [name for name, value in body.items() if name not in allowed and value is not None]
        allowed = {f"{kind.singular}id", "xref", "epoch", *_SHOWN_OF_XREF}
        extra += [name for name, value in meta.items() if name not in allowed and value is not None]
        if extra:
            raise Refusal("extra_xref_attribute", place.xid, name=extra[0], singular=kind.singular)
        if resource is None:
            resource = self.new_resource(place, self._owner(place))
        elif resource.xref is None:
            compare_epoch(meta, resource, f"{place.xid}/meta", self.options)
            for each in self.work.versions_of(resource).values():
                self.work.drop_version(each)
        self.pending.pop(place.xid, None)
        self.pend(place, resource)
        resource.xref, resource.defaultversionid, resource.sticky, resource.attributes = target, None, False, {}
        self.touch(resource)
        return resource

    def _revert(self, resource: Resource) -> None:
        """Turn a reference back into a resource; its epoch never decreases for readers."""
        target = self.work.reader.resource(resource.xref or "")
        resource.epoch = max(resource.epoch, target.epoch if target is not None else 0)
        resource.xref = None
        self.work.versions_of(resource)
        self.touch(resource)

    def _xref(self, resource: Resource | None, meta: Mapping[str, Any] | None, *, patch: bool) -> object:
        if meta is not None and meta.get("xref") is not None:
            return meta["xref"]
        stays = meta is None or (patch and "xref" not in meta)
        return resource.xref if resource is not None and stays else None

    def _owner(self, place: ResourcePath) -> GroupEntity:
        owner = place.owner
        group = self.work.group(owner.xid)
        return group if group is not None else self.write_group(owner, {}, patch=False)

    def _no_xref(self, resource: Resource, place: ResourcePath) -> None:
        if resource.xref is not None:
            raise Refusal("extra_xref_attribute", place.xid, name="versions", singular=place.resource.singular)

    def _recheck_constraints(self, group: GroupEntity, kind: GroupType) -> None:
        """Check resources again whose constraints changed with the group."""
        before = self.work.groups.before.get(group.xid)
        now, was = constraints_of(kind, group), constraints_of(kind, before)
        if before is None:
            return
        kinds = {each.resources for each in set(now) - set(was)}
        kinds |= {
            each.resources
            for each in now
            if each.equals and value_at(before.attributes, each.equals) != value_at(group.attributes, each.equals)
        }
        for name in kinds:
            place = ResourcePath("resources", kind, group.id, kind.resources[name])
            for resource in list(self.work.reader.resources(place.xid)):
                known = self.work.resource(resource.xid)
                if known is not None:
                    if known.xref is None:
                        self.work.versions_of(known)  # all are checked against the constraints
                    self.pend(place.child(resource.id), known)


def _check_plain(body: Mapping[str, Any], subject: str) -> None:
    """Raise if the body of a version has members of a resource, which would be lost."""
    for name in ("meta", "versions"):
        if body.get(name):
            raise Refusal("unknown_attribute", subject, name=name)


def _text_id(given: object, place: ResourcePath) -> str | None:
    """Return the version id in a body, None if it has none."""
    return None if given is None else check_id(given, place.xid)


# Deleting one entity, some of a collection, or all of it (core ``spec.md``, Deleting Entities).


class EntityDeleter:
    """Deletes through an :class:`EntityWriter`, whose ``finish`` must follow. All methods raise :class:`Refusal`."""

    def __init__(self, writer: EntityWriter) -> None:
        self._writer = writer
        self._work = writer.work
        self._options = writer.options

    def delete(self, place: ResourcePath, epoch: int | None) -> None:
        """Delete one entity if its epoch is *epoch*, or in any case if that is None."""
        entity = self._find(place)
        if entity is None:
            raise Refusal("not_found", place.xid)
        compare_epoch({"epoch": epoch}, entity, place.xid, self._options)
        self._drop(place, entity, root=True)

    def delete_all(self, place: ResourcePath, body: object) -> None:
        """Delete the entities of a collection that *body* names; all of them if it is None."""
        self._owner(place)
        entries = None if body is None else as_object(body, place.xid)
        for name in self._names(place) if entries is None else list(entries):
            where = place.child(name)
            given = {} if entries is None else as_object(entries[name], where.xid)
            entity = self._find(where)
            if entity is not None:
                self._compare(where, entity, given)
                self._drop(where, entity, root=False)

    def _compare(self, place: ResourcePath, entity: Entity, given: Mapping[str, Any]) -> None:
        compare_id(given, _singular(place), entity.id, place.xid)
        if isinstance(entity, Resource):
            if given.get("epoch") is not None and not (given.get("meta") or {}).get("epoch"):
                raise Refusal("misplaced_epoch", place.xid)
            given = as_object(given.get("meta") or {}, place.xid)
            compare_id(given, _singular(place), entity.id, f"{place.xid}/meta")
        compare_epoch(given, entity, place.xid, self._options)

    def _drop(self, place: ResourcePath, entity: Entity, *, root: bool) -> None:
        if place.kind == "group":
            self._refuse_readonly(place)
            self._work.drop_group(entity.xid)
            self._writer.touch(self._work.registry)
        elif isinstance(entity, Resource):
            if self._writer.writable(entity, root=root):
                self._drop_resource(place, entity)
        else:
            self._drop_version(place, root=root)

    def _drop_resource(self, place: ResourcePath, resource: Resource) -> None:
        self._writer.pending.pop(place.xid, None)
        self._work.drop_resource(resource)
        group = self._work.group(place.owner.xid)
        assert group is not None
        self._writer.touch(group)

    def _drop_version(self, place: ResourcePath, *, root: bool) -> None:
        owner = place.owner
        resource = self._work.resource(owner.xid)
        assert resource is not None
        if not self._writer.writable(resource, root=root):
            return
        self._writer.pend(owner, resource)
        self._work.drop_version(self._work.versions_of(resource)[place.vid])
        self._writer.touch(resource)

    def _refuse_readonly(self, place: ResourcePath) -> None:
        """Raise if a group has a read-only resource."""
        for plural in place.group.resources:
            where = place.collection(plural)
            for each in self._work.reader.resources(where.xid):
                if each.attributes.get("readonly") and not self._options.administrator:
                    raise Refusal("readonly", each.xid)

    def _find(self, place: ResourcePath) -> Entity | None:
        if place.kind == "group":
            return self._work.group(place.xid)
        if place.kind == "resource":
            return self._work.resource(place.xid)
        resource = self._work.resource(place.owner.xid)
        if resource is None or resource.xref is not None:
            return None
        return self._work.versions_of(resource).get(place.vid)

    def _owner(self, place: ResourcePath) -> None:
        """Raise if the owner of the collection does not exist."""
        if place.kind == "resources" and self._work.group(place.owner.xid) is None:
            raise Refusal("not_found", place.owner.xid)
        if place.kind == "versions" and self._work.resource(place.owner.xid) is None:
            raise Refusal("not_found", place.owner.xid)

    def _names(self, place: ResourcePath) -> Iterable[str]:
        reader = self._work.reader
        if place.kind == "groups":
            return [each.id for each in reader.groups(place.xid)]
        if place.kind == "resources":
            return [each.id for each in reader.resources(place.xid)]
        return [each.id for each in reader.versions(place.xid)]


def _singular(place: ResourcePath) -> str:
    if place.kind == "group":
        return place.group.singular
    return place.resource.singular if place.kind == "resource" else "version"
