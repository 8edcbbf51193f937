"""One write: entities are created, updated and deleted in memory, then checked as a whole.

Ancestry, default versions, formats and compatibility can only be checked after the whole request.
:meth:`Transaction.finish` does so; call it once, at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from registry.core.ancestry import (
    WriteOptions,
    add_constraint_defaults,
    as_object,
    compare_epoch,
    compare_id,
    constraints_of,
    merge_body,
    set_times,
    value_at,
)
from registry.core.requests import (
    ABSENT,
    GivenDocument,
    RegistryRequest,
    ResourcePath,
    check_id,
    parse_document,
    parse_epoch,
    parse_xref,
)
from registry.core.resource_rules import MAX_LOOKUPS, PendingResource, ResourceRules
from registry.core.views import require_owner
from registry.errors import Refusal, invalid_value
from registry.model.attributes import GroupType, Model, ModelAttribute, check_values
from registry.store.entities import Entity, GroupEntity, Registry, Resource, Version, WriteTransaction

Body = Mapping[str, Any]
"""An object in the body of a request."""
_SHOWN_OF_XREF: Final = frozenset(("self", "shortself", "xid", "metaurl", "versionsurl", "versionscount", "$schema"))


@dataclass(frozen=True, slots=True)
class WrittenEntity:
    """The target of a write to one entity: whether it is new, and whether it has a new version."""

    place: ResourcePath
    created: bool
    version: bool = False


class Transaction:
    """One write of a request; ``pending`` are the resources to check at the end.

    A write *of the root* is one to the target of the request, rather than to an entity in a map of its body. All
    methods raise :class:`Refusal`; the changes made must then not be flushed.
    """

    def __init__(self, work: WriteTransaction, model: Model, request: RegistryRequest, options: WriteOptions) -> None:
        self.work: Final = work
        self.model = model
        self.request: Final = request
        self.options: Final = options
        # Attributes in headers are a patch: attributes without a header are unchanged.
        self.patch = request.verb == "patch" or (request.document is not None and request.verb != "add")
        self.pending: dict[str, PendingResource] = {}
        self._raised: set[str] = set()

    def run(self, place: ResourcePath) -> Any:
        """Carry out the request to *place*, except the checks of :meth:`finish`; return what the response shows.

        That is a :class:`WrittenEntity`, or the names of entities in one or several collections.
        """
        request, body = self.request, self.request.body
        if request.verb == "delete":
            if place.is_collection:
                self._delete_listed(place, None if body is ABSENT else body)
            else:
                self._delete(place, parse_epoch(request.flags.epoch, request.path))
            return None
        if request.document is None and body is ABSENT:
            raise Refusal("missing_body", request.path)
        if not isinstance(body, Mapping):
            raise Refusal("parsing_data", request.path, error_detail="the body must be a JSON object")
        if place.is_collection:
            return self._write_all(place, body)
        if request.verb != "add":
            return self._update(place, body)
        if place.kind in ("registry", "group"):
            return self._write_collections(place, body)
        version = self.add_version(place, body)
        created = version.id in self.pending[place.xid].fresh
        return WrittenEntity(replace(place, kind="version", vid=version.id), created, version=True)

    def finish(self) -> None:
        """Apply the rules that depend on the whole request."""
        rules = ResourceRules(self.work, self.model, self.options, self.raise_epoch)
        for each in self.pending.values():
            rules.apply_rules(each)

    def _update(self, place: ResourcePath, body: Body) -> WrittenEntity:
        if place.kind == "registry":
            self.write_registry(body)
            return WrittenEntity(place, created=False)
        if place.kind == "group":
            created = self.work.group(place.xid) is None
            self.write_group(place, body, root=True)
            return WrittenEntity(place, created)
        owner = place if place.kind == "resource" else place.owner
        created = self.work.resource(owner.xid) is None
        if place.kind == "resource":
            self.write_resource(place, body, root=True)
        elif place.kind == "meta":
            self.write_resource(owner, {"meta": body}, root=True, only_meta=True)
        else:
            resource = self._open_resource(owner)
            _check_version_body(body, place.xid)
            created = self.work.version(resource, place.vid) is None
            self.write_version(owner, resource, place.vid, body, root=True)
        pending = self.pending.get(owner.xid)
        return WrittenEntity(place, created, version=pending is not None and bool(pending.fresh))

    def _write_collections(self, place: ResourcePath, body: Body) -> dict[str, Any]:
        places = self._collections_of(place)
        for name in body:
            if name not in places:
                kind = "groups_only" if place.kind == "registry" else "resources_only"
                raise Refusal(kind, place.xid, name=name)
        if place.kind == "group" and self.work.group(place.xid) is None:
            self.write_group(place, {})
        return {name: (places[name], self._write_all(places[name], each)) for name, each in body.items()}

    def _collections_of(self, place: ResourcePath) -> dict[str, ResourcePath]:
        if place.kind == "registry":
            return {name: ResourcePath("groups", kind) for name, kind in self.model.groups.items()}
        return {name: place.collection(name) for name in place.group.resources}

    def _write_all(self, place: ResourcePath, body: object) -> list[str]:
        """Write the entities of a map; return the ids of those not skipped as read-only."""
        entries = self.parse_entries(place, body)
        if place.kind == "groups":
            for name, each in entries.items():
                self.write_group(place.child(name), each)
            return list(entries)
        if place.kind == "resources":
            self._require_group(place)
            self.work.prefetch([place.child(name).xid for name in entries])
            return [name for name, each in entries.items() if self.write_resource(place.child(name), each)]
        owner = place.owner
        if self.work.resource(owner.xid) is None and not entries:
            raise Refusal("missing_versions", place.xid)
        resource = self._open_resource(owner)
        self.pending_of(owner, resource)
        self._write_versions(owner, resource, entries)
        return list(entries)

    def write_registry(self, body: Body) -> None:
        """Update the registry's own attributes and the groups in the body; the model is ignored."""
        registry = self.work.registry
        if "id" not in self.options.ignore:
            compare_id(body, "registry", registry.id, "/")
        compare_epoch(body, registry, "/", self.options)
        self._write_holder(ResourcePath("registry"), registry, body, self.model.attributes)

    def write_group(self, place: ResourcePath, body: Body, *, root: bool = False) -> GroupEntity:
        """Write a group, and the resources in the body."""
        kind = place.group
        group = self.work.group(place.xid)
        if group is None:
            group = self.create_group(place)
        else:
            compare_epoch(body, group, place.xid, self.options)
        if not (root and "id" in self.options.ignore):
            compare_id(body, kind.singular, place.gid, place.xid)
        self._write_holder(place, group, body, kind.attributes)
        return group

    def _write_holder(
        self, place: ResourcePath, entity: Registry | GroupEntity, body: Body, attributes: Mapping[str, ModelAttribute]
    ) -> None:
        """Write the attributes of the registry or of a group, and the entities in its collections in the body."""
        collections = self._collections_of(place)
        own = {name: value for name, value in body.items() if name not in collections}
        values = merge_body(entity.attributes, own, attributes, patch=self.patch)
        entity.attributes = check_values(place.xid, values, attributes)
        self._store(entity, body, place.xid)
        if isinstance(entity, GroupEntity):
            self._recheck_constraints(entity, place.group)
        for plural, where in collections.items():
            if body.get(plural) is not None:
                self._write_all(where, body[plural])

    def _store(self, entity: Entity, body: Body, subject: str) -> None:
        """Set times and epoch of an entity with new attributes."""
        set_times(entity, body, subject, self.options)
        self.raise_epoch(entity)
        self.work.record_changed(entity)

    def write_resource(
        self, place: ResourcePath, body: Body, *, root: bool = False, only_meta: bool = False
    ) -> Resource | None:
        """Write a resource: its versions, its default version and its ``meta``; None if it was skipped.

        With *only_meta* an existing one keeps its versions.
        """
        resource = self.work.resource(place.xid)
        if resource is not None and not self.is_writable(resource, root=root):
            return None
        if not (root and "id" in self.options.ignore):
            compare_id(body, place.resource.singular, place.rid, place.xid)
        meta = body.get("meta")
        if meta is not None:
            meta = as_object(meta, f"{place.xid}/meta")
        xref = self._requested_xref(resource, meta)
        if xref is not None:
            return self._turn_into_reference(place, resource, body, meta or {}, xref)
        was_reference = resource is not None and resource.xref is not None
        created = resource is None or was_reference
        if resource is None:
            resource = self.create_resource(place, self._require_group(place))
        elif was_reference:
            self._turn_into_resource(resource)
        if created or not only_meta:
            self._write_parts(place, resource, body, meta, created=created)
        if meta is not None:
            self._write_meta(place, resource, meta, patch=self.patch and not (only_meta and was_reference))
        return resource

    def add_version(self, place: ResourcePath, body: Body) -> Version:
        """Write the version that a body names, or a new one, into a resource that may be new."""
        resource = self._open_resource(place)
        _check_version_body(body, place.xid)
        ignored = "id" in self.options.ignore
        if not ignored:
            compare_id(body, place.resource.singular, place.rid, place.xid)
        named = _given_version_id(body.get("versionid"), place)
        return self.write_version(place, resource, None if ignored else named, body, root=True)

    def _open_resource(self, place: ResourcePath) -> Resource:
        """Return a resource for writing its versions, created if it is new."""
        resource = self.work.resource(place.xid) or self.create_resource(place, self._require_group(place))
        self.is_writable(resource, root=True)
        if resource.xref is not None:
            raise Refusal("extra_xref_attribute", place.xid, name="versions", singular=place.resource.singular)
        return resource

    def _write_parts(
        self, place: ResourcePath, resource: Resource, body: Body, meta: Body | None, *, created: bool
    ) -> None:
        """Write the versions in a body, and its own attributes to the default version unless they include it."""
        where, given = place.collection("versions"), body.get("versions")
        versions = self.parse_entries(where, given) if given is not None else {}
        self._write_versions(place, resource, versions)
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
            if self.patch and not said and (meta is not None or versions):
                return
        if name not in versions:
            self.write_version(place, resource, name, body, root=True)

    def _write_versions(self, place: ResourcePath, resource: Resource, entries: Body) -> None:
        if len(entries) > MAX_LOOKUPS:
            self.work.versions_of(resource)
        for name, each in entries.items():
            _check_version_body(each, f"{resource.versions}/{name}")
            self.write_version(place, resource, name, each)

    def _write_meta(self, place: ResourcePath, resource: Resource, body: Body, *, patch: bool) -> None:
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
        if self.request.administrator and isinstance(body.get("readonly"), bool):
            kept = body["readonly"]
        if kept:
            values["readonly"] = True
        resource.attributes = values
        pending.read_requested_default(body, patch=patch, ignore=self.options.ignore)
        self._store(resource, body, subject)

    def _turn_into_reference(
        self, place: ResourcePath, resource: Resource | None, body: Body, meta: Body, xref: object
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

    def _requested_xref(self, resource: Resource | None, meta: Body | None) -> object:
        if meta is not None and meta.get("xref") is not None:
            return meta["xref"]
        stays = meta is None or (self.patch and "xref" not in meta)
        return resource.xref if resource is not None and stays else None

    def _require_group(self, place: ResourcePath) -> GroupEntity:
        return self.work.group(place.owner.xid) or self.write_group(place.owner, {})

    def _recheck_constraints(self, group: GroupEntity, kind: GroupType) -> None:
        """Check resources again whose constraints changed with the group."""
        before = self.work.before.get(group.xid)
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

    # Deleting one entity, some of a collection, or all of it (core ``spec.md``, Deleting Entities).

    def _delete(self, place: ResourcePath, epoch: int | None) -> None:
        """Delete one entity if its epoch is *epoch*, or in any case if that is None."""
        entity = self._find_entity(place)
        if entity is None:
            raise Refusal("not_found", place.xid)
        compare_epoch({"epoch": epoch}, entity, place.xid, self.options)
        self._delete_entity(place, entity, root=True)

    def _delete_listed(self, place: ResourcePath, body: object) -> None:
        """Delete the entities of a collection that *body* names; all of them if it is None."""
        require_owner(self.work.reader, place)
        entries = None if body is None else as_object(body, place.xid)
        reader = self.work.reader
        iterate = {"groups": reader.iter_groups, "resources": reader.iter_resources, "versions": reader.iter_versions}
        names = [each.id for each in iterate[place.kind](place.xid)] if entries is None else list(entries)
        for name in names:
            where = place.child(name)
            given = {} if entries is None else as_object(entries[name], where.xid)
            entity = self._find_entity(where)
            if entity is not None:
                self._check_deletion(where, entity, given)
                self._delete_entity(where, entity, root=False)

    def _check_deletion(self, place: ResourcePath, entity: Entity, given: Body) -> None:
        singular = "version" if place.kind == "version" else (place.resource_type or place.group).singular
        compare_id(given, singular, entity.id, place.xid)
        if isinstance(entity, Resource):
            if given.get("epoch") is not None and not (given.get("meta") or {}).get("epoch"):
                raise Refusal("misplaced_epoch", place.xid)
            given = as_object(given.get("meta") or {}, place.xid)
            compare_id(given, singular, entity.id, f"{place.xid}/meta")
        compare_epoch(given, entity, place.xid, self.options)

    def _delete_entity(self, place: ResourcePath, entity: Entity, *, root: bool) -> None:
        if place.kind == "group":
            self._refuse_readonly(place)
            self.work.delete_group(entity.xid)
            self.mark_modified(self.work.registry)
            return
        resource = entity if isinstance(entity, Resource) else self.work.resource(place.owner.xid)
        assert resource is not None
        if not self.is_writable(resource, root=root):
            return
        if isinstance(entity, Version):
            self.pending_of(place.owner, resource)
            self.work.delete_version(entity)
            self.mark_modified(resource)
            return
        self.pending.pop(place.xid, None)
        self.work.delete_resource(resource)
        group = self.work.group(place.owner.xid)
        assert group is not None
        self.mark_modified(group)

    def _refuse_readonly(self, place: ResourcePath) -> None:
        """Raise if a group has a read-only resource."""
        for plural in place.group.resources:
            for each in self.work.reader.iter_resources(place.collection(plural).xid):
                if each.attributes.get("readonly") and not self.request.administrator:
                    raise Refusal("readonly", each.xid)

    def _find_entity(self, place: ResourcePath) -> Entity | None:
        if place.kind == "group":
            return self.work.group(place.xid)
        if place.kind == "resource":
            return self.work.resource(place.xid)
        resource = self.work.resource(place.owner.xid)
        if resource is None or resource.xref is not None:
            return None
        return self.work.versions_of(resource).get(place.vid)

    # Creating entities and updating versions.

    def raise_epoch(self, entity: Entity) -> None:
        """Raise the epoch of an entity, once in a request."""
        if entity.xid not in self._raised:
            entity.epoch += 1
            self._raised.add(entity.xid)

    def mark_modified(self, entity: Registry | GroupEntity | Resource) -> None:
        """Mark an entity as modified because of a change below it, and raise its epoch once."""
        entity.modifiedat = self.options.now
        self.raise_epoch(entity)
        self.work.record_changed(entity)

    def write_version(
        self, place: ResourcePath, resource: Resource, name: str | None, body: Body, *, root: bool = False
    ) -> Version:
        """Write a version of a resource; without a *name* it is a new one. *place* is the resource's."""
        pending = self.pending_of(place, resource)
        version = self.work.version(resource, name) if name is not None else None
        if version is None:
            version = self.create_version(place, resource, name)
            pending.fresh.append(version.id)
        else:
            compare_epoch(body, version, version.xid, self.options)
        if not (root and "id" in self.options.ignore):
            compare_id(body, place.resource.singular, resource.id, version.xid)
            compare_id(body, "version", version.id, version.xid)
        self._set_ancestor(pending, version, body)
        self._version_attributes(place, version, body, self.request.document if root else None)
        self._store(version, body, version.xid)
        pending.written[version.id] = None
        return version

    def _version_attributes(
        self, place: ResourcePath, version: Version, body: Body, document: GivenDocument | None
    ) -> None:
        kind = place.resource
        own = {name: value for name, value in body.items() if name not in kind.resource}
        values = merge_body(version.attributes, own, kind.attributes, patch=self.patch)
        given = document or parse_document(
            kind, body, values, version.xid, patch=self.patch, media=self.request.contenttype
        )
        values = add_constraint_defaults(
            constraints_of(place.group, self.work.group(place.owner.xid)), kind.plural, values
        )
        version.attributes = check_values(version.xid, values, kind.attributes)
        if given is not None:
            self.work.set_document(version, given.body)
        elif kind.hasdocument and not version.epoch and f"{kind.singular}url" not in version.attributes:
            self.work.set_document(version, b"")

    def _set_ancestor(self, pending: PendingResource, version: Version, body: Body) -> None:
        given = body.get("ancestorid")
        if given is None or given == version.ancestorid:
            return
        if not isinstance(given, str):
            raise invalid_value(version.xid, "ancestorid", "must be a string")
        version.ancestorid = version.id if given == "request" else given
        pending.asked[version.id] = None

    def create_group(self, place: ResourcePath) -> GroupEntity:
        """Create a group, and mark the registry as modified."""
        check_id(place.gid, place.xid)
        parent = place.xid.rpartition("/")[0]
        _check_case(self.work.id_like(parent, place.gid), place.gid, place.xid)
        self.mark_modified(self.work.registry)
        return GroupEntity(parent, place.gid, 0, self.options.now, self.options.now)

    def create_resource(self, place: ResourcePath, group: GroupEntity) -> Resource:
        """Create a resource of a group, without versions."""
        check_id(place.rid, place.xid)
        parent = place.xid.rpartition("/")[0]
        _check_case(self.work.id_like(parent, place.rid), place.rid, place.xid)
        self.mark_modified(group)
        resource = Resource(parent, place.rid, 0, self.options.now, self.options.now)
        resource.sticky = bool(place.resource.meta["defaultversionsticky"].default)
        self.raise_epoch(resource)
        self.work.add_resource(resource)
        return resource

    def create_version(self, place: ResourcePath, resource: Resource, name: str | None) -> Version:
        """Create a version; without a *name* its id is the next number."""
        if name is None:
            while name is None or self.work.version(resource, name) is not None:
                resource.counter += 1
                name = str(resource.counter)
        else:
            check_id(name, f"{place.xid}/versions/{name}", version=True)
            if not place.resource.setversionid:
                raise Refusal("versionid_not_allowed", place.xid, plural=place.resource.plural)
            _check_case(self.work.version_id_like(resource, name), name, place.xid)
        self.mark_modified(resource)
        version = Version(resource.versions, name, 0, self.options.now, self.options.now)
        self.work.add_version(version)
        return version

    def pending_of(self, place: ResourcePath, resource: Resource) -> PendingResource:
        """Return the pending state of a resource, which is checked at the end of the request."""
        pending = self.pending.get(place.xid)
        if pending is None:
            before = self.work.before.get(place.xid)
            pending = PendingResource(place, before is not None, before.epoch if before is not None else 0)
            self.pending[place.xid] = pending
        return pending

    def is_writable(self, resource: Resource, *, root: bool) -> bool:
        """Whether a resource may be written; False if it is read-only and must be skipped."""
        if not resource.attributes.get("readonly") or self.request.administrator:
            return True
        if "readonly" not in self.options.ignore:
            raise Refusal("readonly", resource.xid)
        if root:
            raise Refusal("bad_flag", resource.xid, flag="ignore")
        return False

    def parse_entries(self, place: ResourcePath, body: object) -> dict[str, Body]:
        """Return the entities of a map by id.

        Raises:
            Refusal: it is not a map of entities, or has ids that differ only in case.
        """
        entries = as_object(body, place.xid)
        _check_distinct_ids(place, entries)
        return {name: as_object(each, f"{place.xid}/{name}") for name, each in entries.items()}


def _check_version_body(body: Body, subject: str) -> None:
    """Raise if the body of a version has members of a resource, which would be lost."""
    for name in ("meta", "versions"):
        if body.get(name):
            raise Refusal("unknown_attribute", subject, name=name)


def _given_version_id(given: object, place: ResourcePath) -> str | None:
    """Return the version id in a body, None if it has none."""
    return None if given is None else check_id(given, place.xid)


def _check_distinct_ids(place: ResourcePath, names: Iterable[str]) -> None:
    folded: dict[str, str] = {}
    for name in names:
        other = folded.setdefault(name.lower(), name)
        _check_case(other if other != name else None, name, f"{place.xid}/{name}")


def _check_case(existing_id: str | None, name: str, subject: str) -> None:
    """Raise if there is an id that differs only in case."""
    if existing_id is not None:
        why = f"it differs only in case from the id {existing_id}"
        raise Refusal("malformed_id", subject, id=name, error_detail=why)
