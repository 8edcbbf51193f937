"""Create, update and delete the registry's entities: groups, resources, their ``meta`` and versions.

Ancestry, default versions, formats and compatibility can only be checked after the whole request.
:meth:`EntityWriter.finish` does so; call it once, at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from registry.core.ancestry import as_object, compare_epoch, compare_id, constraints_of, merge_body, set_times, value_at
from registry.core.requests import GivenDocument, ResourcePath, check_id, parse_xref
from registry.core.resource_rules import MAX_LOOKUPS, EntityCreator, ResourceRules
from registry.errors import Refusal
from registry.model.attributes import GroupType, check_values
from registry.store.entities import Entity, GroupEntity, Resource, Version

_SHOWN_OF_XREF: Final = frozenset(("self", "shortself", "xid", "metaurl", "versionsurl", "versionscount", "$schema"))


class EntityWriter(EntityCreator):
    """Writes within one :class:`WriteTransaction`. *root* is whether the entity is the target of the request.

    All methods raise :class:`Refusal`; the changes made must then not be flushed.
    """

    def finish(self) -> None:
        """Apply the rules that depend on the whole request."""
        settler = ResourceRules(self.work, self.model, self.options, self.raise_epoch)
        for each in self.pending.values():
            settler.apply_rules(each)

    def write_registry(self, body: Mapping[str, Any], *, patch: bool) -> None:
        """Update the registry's own attributes and the groups in the body; the model is ignored."""
        registry = self.work.registry
        if "id" not in self.options.ignore:
            compare_id(body, "registry", registry.id, "/")
        compare_epoch(body, registry, "/", self.options)
        own = {name: value for name, value in body.items() if name not in self.model.groups}
        registry.attributes = check_values(
            "/", merge_body(registry.attributes, own, self.model.attributes, patch=patch), self.model.attributes
        )
        set_times(registry, body, "/", self.options)
        self.raise_epoch(registry)
        self.work.registry_touched = True
        for plural, kind in self.model.groups.items():
            if body.get(plural) is not None:
                self.write_groups(ResourcePath("groups", kind), body[plural], patch=patch)

    def write_groups(self, place: ResourcePath, body: object, *, patch: bool) -> list[str]:
        """Write each group of a map; return their ids."""
        entries = self.parse_entries(place, body)
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
            group = self.create_group(place)
        else:
            compare_epoch(body, group, place.xid, self.options)
        if not (root and "id" in self.options.ignore):
            compare_id(body, kind.singular, place.gid, place.xid)
        own = {name: value for name, value in body.items() if name not in kind.resources}
        values = merge_body(group.attributes, own, kind.attributes, patch=patch)
        group.attributes = check_values(place.xid, values, kind.attributes)
        set_times(group, body, place.xid, self.options)
        self.raise_epoch(group)
        self.work.groups.record_changed(group)
        self._recheck_constraints(group, kind)
        for plural in kind.resources:
            if body.get(plural) is not None:
                self.write_resources(place.collection(plural), body[plural], patch=patch)
        return group

    def write_resources(self, place: ResourcePath, body: object, *, patch: bool) -> list[str]:
        """Write each resource of a map; return the ids of those not skipped as read-only."""
        entries = self.parse_entries(place, body)
        self._require_group(place)
        self.work.prefetch([place.child(name).xid for name in entries])
        written = (name for name, each in entries.items() if self.write_resource(place.child(name), each, patch=patch))
        return list(written)

    def write_resource(
        self,
        place: ResourcePath,
        body: Mapping[str, Any],
        *,
        patch: bool,
        root: bool = False,
        document: GivenDocument | None = None,
    ) -> Resource | None:
        """Write a resource: its versions, its default version and its ``meta``; None if it was skipped."""
        resource = self.work.resource(place.xid)
        if resource is not None and not self.is_writable(resource, root=root):
            return None
        if not (root and "id" in self.options.ignore):
            compare_id(body, place.resource.singular, place.rid, place.xid)
        meta = body.get("meta")
        if meta is not None:
            meta = as_object(meta, f"{place.xid}/meta")
        xref = self._requested_xref(resource, meta, patch=patch)
        if xref is not None:
            return self._turn_into_reference(place, resource, body, meta or {}, xref)
        created = resource is None or resource.xref is not None
        if resource is None:
            resource = self.create_resource(place, self._require_group(place))
        elif resource.xref is not None:
            self._turn_into_resource(resource)
        self._write_parts(place, resource, body, meta, patch=patch, created=created, document=document)
        return resource

    def write_meta(self, place: ResourcePath, body: Mapping[str, Any], *, patch: bool) -> Resource:
        """Write the ``meta`` of a resource, which may be new; *place* is the resource's."""
        resource = self.work.resource(place.xid)
        if resource is None:
            created = self.write_resource(place, {"meta": body}, patch=patch, root=True)
            assert created is not None
            return created
        self.is_writable(resource, root=True)
        xref = self._requested_xref(resource, body, patch=patch)
        if xref is not None:
            return self._turn_into_reference(place, resource, {}, body, xref)
        if resource.xref is not None:
            self._turn_into_resource(resource)
            self._write_parts(place, resource, {}, body, patch=False, created=True, document=None)
            return resource
        self._write_meta(place, resource, body, patch=patch)
        return resource

    def write_versions(self, place: ResourcePath, body: object, *, patch: bool) -> list[str]:
        """Write each version of a map, into a resource that may be new; return their ids."""
        entries = self.parse_entries(place, body)
        owner = place.owner
        resource = self.work.resource(owner.xid)
        if resource is None:
            if not entries:
                raise Refusal("missing_versions", place.xid)
            resource = self.create_resource(owner, self._require_group(owner))
        self.is_writable(resource, root=True)
        self._refuse_reference(resource, owner)
        self.pending_of(owner, resource)
        self._write_versions(owner, resource, entries, patch=patch)
        return list(entries)

    def add_version(self, place: ResourcePath, body: Mapping[str, Any], document: GivenDocument | None) -> Version:
        """Write the version that a body names, or a new one, into a resource that may be new."""
        resource = self.work.resource(place.xid) or self.create_resource(place, self._require_group(place))
        self.is_writable(resource, root=True)
        self._refuse_reference(resource, place)
        _check_version_body(body, place.xid)
        ignored = "id" in self.options.ignore
        if not ignored:
            compare_id(body, place.resource.singular, place.rid, place.xid)
        named = _given_version_id(body.get("versionid"), place)
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
        self, place: ResourcePath, body: Mapping[str, Any], *, patch: bool, document: GivenDocument | None = None
    ) -> bool:
        """Write the version at *place*, into a resource that may be new; return whether the version is new."""
        owner = place.owner
        resource = self.work.resource(owner.xid) or self.create_resource(owner, self._require_group(owner))
        self.is_writable(resource, root=True)
        self._refuse_reference(resource, owner)
        _check_version_body(body, place.xid)
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
        document: GivenDocument | None,
    ) -> None:
        versions = (
            self.parse_entries(
                ResourcePath("versions", place.group, place.gid, place.resource, place.rid), body["versions"]
            )
            if body.get("versions") is not None
            else {}
        )
        self._write_versions(place, resource, versions, patch=patch)
        self._write_default(place, resource, body, versions, meta, patch=patch, created=created, document=document)
        if meta is not None:
            self._write_meta(place, resource, meta, patch=patch)

    def _write_versions(
        self, place: ResourcePath, resource: Resource, entries: Mapping[str, Any], *, patch: bool
    ) -> None:
        if len(entries) > MAX_LOOKUPS:
            self.work.versions_of(resource)
        for name, each in entries.items():
            _check_version_body(each, f"{resource.versions}/{name}")
            self.write_version(place, resource, name, each, patch=patch)

    def _write_default(
        self,
        place: ResourcePath,
        resource: Resource,
        body: Mapping[str, Any],
        versions: Mapping[str, Any],
        meta: Mapping[str, Any] | None,
        *,
        patch: bool,
        created: bool,
        document: GivenDocument | None,
    ) -> None:
        """Write the body's own attributes to the default version, unless ``versions`` includes it."""
        name = _given_version_id(body.get("versionid"), place)
        if created:
            if name is None and meta is not None and "defaultversionid" not in self.options.ignore:
                name = _given_version_id(meta.get("defaultversionid"), place)
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

    def _write_meta(self, place: ResourcePath, resource: Resource, body: Mapping[str, Any], *, patch: bool) -> None:
        subject = f"{place.xid}/meta"
        kind = place.resource
        pending = self.pending_of(place, resource)
        if "id" not in self.options.ignore:
            compare_id(body, kind.singular, place.rid, subject)
        if pending.existed:
            given = body.get("epoch")
            if given is not None and pending.epoch != resource.epoch and given == pending.epoch:
                body = {**body, "epoch": resource.epoch}
            compare_epoch(body, resource, subject, self.options)
        kept = resource.attributes.get("readonly")
        values = check_values(subject, merge_body(resource.attributes, body, kind.meta, patch=patch), kind.meta)
        values.pop("readonly", None)
        if self.options.administrator and isinstance(body.get("readonly"), bool):
            kept = body["readonly"]
        if kept:
            values["readonly"] = True
        resource.attributes = values
        pending.read_requested_default(body, patch=patch, ignore=self.options.ignore)
        set_times(resource, body, subject, self.options)
        self.raise_epoch(resource)
        self.work.resources.record_changed(resource)

    def _turn_into_reference(
        self,
        place: ResourcePath,
        resource: Resource | None,
        body: Mapping[str, Any],
        meta: Mapping[str, Any],
        xref: object,
    ) -> Resource:
        """Turn a resource into a reference (``xref``) to another; its own content is deleted."""
        kind = place.resource
        target = parse_xref(self.model, xref, place, place.xid)
        if "id" not in self.options.ignore:
            compare_id(meta, kind.singular, place.rid, f"{place.xid}/meta")
        allowed = {f"{kind.singular}id", "meta", *_SHOWN_OF_XREF}
        extra = [name for name, value in body.items() if name not in allowed and value is not None]
        allowed = {f"{kind.singular}id", "xref", "epoch", *_SHOWN_OF_XREF}
        extra += [name for name, value in meta.items() if name not in allowed and value is not None]
        if extra:
            raise Refusal("extra_xref_attribute", place.xid, name=extra[0], singular=kind.singular)
        if resource is None:
            resource = self.create_resource(place, self._require_group(place))
        elif resource.xref is None:
            compare_epoch(meta, resource, f"{place.xid}/meta", self.options)
            for each in self.work.versions_of(resource).values():
                self.work.delete_version(each)
        self.pending.pop(place.xid, None)
        self.pending_of(place, resource)
        resource.xref, resource.defaultversionid, resource.sticky, resource.attributes = target, None, False, {}
        self.mark_modified(resource)
        return resource

    def _turn_into_resource(self, resource: Resource) -> None:
        """Turn a reference back into a resource; its epoch never decreases for readers."""
        target = self.work.reader.resource(resource.xref or "")
        resource.epoch = max(resource.epoch, target.epoch if target is not None else 0)
        resource.xref = None
        self.work.versions_of(resource)
        self.mark_modified(resource)

    def _requested_xref(self, resource: Resource | None, meta: Mapping[str, Any] | None, *, patch: bool) -> object:
        if meta is not None and meta.get("xref") is not None:
            return meta["xref"]
        stays = meta is None or (patch and "xref" not in meta)
        return resource.xref if resource is not None and stays else None

    def _require_group(self, place: ResourcePath) -> GroupEntity:
        owner = place.owner
        group = self.work.group(owner.xid)
        return group if group is not None else self.write_group(owner, {}, patch=False)

    def _refuse_reference(self, resource: Resource, place: ResourcePath) -> None:
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
            for resource in list(self.work.reader.iter_resources(place.xid)):
                known = self.work.resource(resource.xid)
                if known is not None:
                    if known.xref is None:
                        self.work.versions_of(known)  # all are checked against the constraints
                    self.pending_of(place.child(resource.id), known)


def _check_version_body(body: Mapping[str, Any], subject: str) -> None:
    """Raise if the body of a version has members of a resource, which would be lost."""
    for name in ("meta", "versions"):
        if body.get(name):
            raise Refusal("unknown_attribute", subject, name=name)


def _given_version_id(given: object, place: ResourcePath) -> str | None:
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
        entity = self._find_entity(place)
        if entity is None:
            raise Refusal("not_found", place.xid)
        compare_epoch({"epoch": epoch}, entity, place.xid, self._options)
        self._delete_entity(place, entity, root=True)

    def delete_all(self, place: ResourcePath, body: object) -> None:
        """Delete the entities of a collection that *body* names; all of them if it is None."""
        self._require_owner(place)
        entries = None if body is None else as_object(body, place.xid)
        for name in self._entity_ids(place) if entries is None else list(entries):
            where = place.child(name)
            given = {} if entries is None else as_object(entries[name], where.xid)
            entity = self._find_entity(where)
            if entity is not None:
                self._check_body(where, entity, given)
                self._delete_entity(where, entity, root=False)

    def _check_body(self, place: ResourcePath, entity: Entity, given: Mapping[str, Any]) -> None:
        compare_id(given, _singular_name(place), entity.id, place.xid)
        if isinstance(entity, Resource):
            if given.get("epoch") is not None and not (given.get("meta") or {}).get("epoch"):
                raise Refusal("misplaced_epoch", place.xid)
            given = as_object(given.get("meta") or {}, place.xid)
            compare_id(given, _singular_name(place), entity.id, f"{place.xid}/meta")
        compare_epoch(given, entity, place.xid, self._options)

    def _delete_entity(self, place: ResourcePath, entity: Entity, *, root: bool) -> None:
        if place.kind == "group":
            self._refuse_readonly(place)
            self._work.delete_group(entity.xid)
            self._writer.mark_modified(self._work.registry)
        elif isinstance(entity, Resource):
            if self._writer.is_writable(entity, root=root):
                self._delete_resource(place, entity)
        else:
            self._delete_version(place, root=root)

    def _delete_resource(self, place: ResourcePath, resource: Resource) -> None:
        self._writer.pending.pop(place.xid, None)
        self._work.delete_resource(resource)
        group = self._work.group(place.owner.xid)
        assert group is not None
        self._writer.mark_modified(group)

    def _delete_version(self, place: ResourcePath, *, root: bool) -> None:
        owner = place.owner
        resource = self._work.resource(owner.xid)
        assert resource is not None
        if not self._writer.is_writable(resource, root=root):
            return
        self._writer.pending_of(owner, resource)
        self._work.delete_version(self._work.versions_of(resource)[place.vid])
        self._writer.mark_modified(resource)

    def _refuse_readonly(self, place: ResourcePath) -> None:
        """Raise if a group has a read-only resource."""
        for plural in place.group.resources:
            where = place.collection(plural)
            for each in self._work.reader.iter_resources(where.xid):
                if each.attributes.get("readonly") and not self._options.administrator:
                    raise Refusal("readonly", each.xid)

    def _find_entity(self, place: ResourcePath) -> Entity | None:
        if place.kind == "group":
            return self._work.group(place.xid)
        if place.kind == "resource":
            return self._work.resource(place.xid)
        resource = self._work.resource(place.owner.xid)
        if resource is None or resource.xref is not None:
            return None
        return self._work.versions_of(resource).get(place.vid)

    def _require_owner(self, place: ResourcePath) -> None:
        """Raise if the owner of the collection does not exist."""
        if place.kind == "resources" and self._work.group(place.owner.xid) is None:
            raise Refusal("not_found", place.owner.xid)
        if place.kind == "versions" and self._work.resource(place.owner.xid) is None:
            raise Refusal("not_found", place.owner.xid)

    def _entity_ids(self, place: ResourcePath) -> Iterable[str]:
        reader = self._work.reader
        if place.kind == "groups":
            return [each.id for each in reader.iter_groups(place.xid)]
        if place.kind == "resources":
            return [each.id for each in reader.iter_resources(place.xid)]
        return [each.id for each in reader.iter_versions(place.xid)]


def _singular_name(place: ResourcePath) -> str:
    if place.kind == "group":
        return place.group.singular
    return place.resource.singular if place.kind == "resource" else "version"
