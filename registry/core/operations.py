"""One write: what each HTTP method does to an entity or a collection, and changes of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from registry.core.ancestry import parse_given_time
from registry.core.requests import ABSENT, RegistryRequest, ResourcePath, parse_epoch
from registry.core.writing import EntityDeleter, EntityWriter
from registry.errors import Refusal
from registry.model.attributes import GroupType, Model, ModelAttribute, ResourceType, check_values
from registry.model.compiler import compile_model
from registry.store.entities import Entity, EntityReader, GroupEntity, WriteTransaction


class WrittenEntity:
    """The target of a write to one entity: whether it is new, and whether it has a new version."""

    def __init__(self, place: ResourcePath, *, created: bool, version: bool = False) -> None:
        self.place = place
        self.created = created
        self.version = version


class WriteOperation:
    """Carries out one write, except the checks of :meth:`EntityWriter.finish`."""

    def __init__(self, writer: EntityWriter, place: ResourcePath, request: RegistryRequest) -> None:
        self._writer = writer
        self._place = place
        self._request = request

    def run(self) -> Any:
        """Carry it out, and return what the response shows.

        That is a :class:`WrittenEntity`, or the names of entities in one or several collections.

        Raises:
            Refusal: it is invalid; nothing of it may be flushed.
        """
        request = self._request
        if request.verb == "delete":
            return self._delete()
        if request.document is None and request.body is ABSENT:
            raise Refusal("missing_body", request.path)
        if not isinstance(request.body, Mapping):
            raise Refusal("parsing_data", request.path, error_detail="the body must be a JSON object")
        return self._create_entities() if request.verb == "add" else self._update()

    def _delete(self) -> None:
        request, deleter = self._request, EntityDeleter(self._writer)
        if self._place.is_collection:
            deleter.delete_all(self._place, None if request.body is ABSENT else request.body)
        else:
            deleter.delete(self._place, parse_epoch(request.flags.epoch, request.path))

    def _update(self) -> Any:
        writer, place, body = self._writer, self._place, self._request.body
        # Attributes in headers are a patch: attributes without a header are unchanged.
        patch = self._request.verb == "patch" or self._request.document is not None
        if place.kind == "registry":
            writer.write_registry(body, patch=patch)
            return WrittenEntity(place, created=False)
        if place.is_collection:
            return self._write_all(place, body, patch=patch)
        if place.kind == "group":
            created = writer.work.group(place.xid) is None
            writer.write_group(place, body, patch=patch, root=True)
            return WrittenEntity(place, created=created)
        return self._update_resource(body, patch=patch)

    def _update_resource(self, body: Mapping[str, Any], *, patch: bool) -> WrittenEntity:
        writer, place, document = self._writer, self._place, self._request.document
        owner = place if place.kind == "resource" else place.owner
        created = writer.work.resource(owner.xid) is None
        if place.kind == "resource":
            writer.write_resource(place, body, patch=patch, root=True, document=document)
        elif place.kind == "meta":
            writer.write_meta(owner, body, patch=patch)
        else:
            created = writer.put_version(place, body, patch=patch, document=document)
        pending = writer.pending.get(owner.xid)
        return WrittenEntity(place, created=created, version=pending is not None and bool(pending.fresh))

    def _create_entities(self) -> Any:
        writer, place, body = self._writer, self._place, self._request.body
        if place.kind == "registry":
            return self._write_collections(
                body, {name: ResourcePath("groups", kind) for name, kind in writer.model.groups.items()}
            )
        if place.kind == "group":
            return self._write_collections(body, {name: place.collection(name) for name in place.group.resources})
        if place.is_collection:
            return self._write_all(place, body, patch=False)
        version = writer.add_version(place, body, self._request.document)
        created = version.id in writer.pending[place.xid].fresh
        return WrittenEntity(replace(place, kind="version", vid=version.id), created=created, version=True)

    def _write_collections(self, body: Mapping[str, Any], places: Mapping[str, ResourcePath]) -> dict[str, Any]:
        place = self._place
        for name in body:
            if name not in places:
                kind = "groups_only" if place.kind == "registry" else "resources_only"
                raise Refusal(kind, place.xid, name=name)
        if place.kind == "group" and self._writer.work.group(place.xid) is None:
            self._writer.write_group(place, {}, patch=False)
        return {name: (places[name], self._write_all(places[name], each, patch=False)) for name, each in body.items()}

    def _write_all(self, place: ResourcePath, body: object, *, patch: bool) -> list[str]:
        """Write entities of a collection, and return the ids of the processed ones."""
        writer = self._writer
        write = {"groups": writer.write_groups, "resources": writer.write_resources, "versions": writer.write_versions}[
            place.kind
        ]
        return write(place, body, patch=patch)


def set_exact_values(work: WriteTransaction, model: Model, tree: Mapping[str, Any]) -> None:
    """Set the epochs and times of the written entities to those in a document of the whole registry."""
    work.registry_touched = True
    _set_exact(work.registry, tree)
    for plural, kind in model.groups.items():
        for gid, group in _collection_members(tree, plural):
            place = ResourcePath("group", kind, gid)
            _set_exact(work.groups.now.get(place.xid), group)
            for name in kind.resources:
                for rid, resource in _collection_members(group, name):
                    owner = place.collection(name).child(rid).xid
                    _set_exact(work.resources.now.get(owner), resource.get("meta"))
                    for vid, version in _collection_members(resource, "versions"):
                        _set_exact(work.versions.now.get(f"{owner}/versions/{vid}"), version)


def _collection_members(tree: Mapping[str, Any], name: str) -> list[tuple[str, Mapping[str, Any]]]:
    found = tree.get(name)
    return [each for each in found.items() if isinstance(each[1], Mapping)] if isinstance(found, Mapping) else []


def _set_exact(entity: Entity | None, body: object) -> None:
    if entity is None or not isinstance(body, Mapping):
        return
    epoch = body.get("epoch")
    if isinstance(epoch, int) and not isinstance(epoch, bool) and epoch > 0:
        entity.epoch = epoch
    entity.createdat = parse_given_time(body.get("createdat"), "createdat", entity.xid) or entity.createdat
    entity.modifiedat = parse_given_time(body.get("modifiedat"), "modifiedat", entity.xid) or entity.modifiedat


# A new model: compile it, and check all entities against it (``model.md``, Creating or Updating).
#
# New defaults are filled in, and versions are reordered and pruned by ``versionmode`` and ``maxversions``. Any other
# entity that does not comply refuses the model.

_MAX_SHOWN_FAULTS: Final = 20


def change_model(writer: EntityWriter, source: object) -> None:
    """Replace the registry's model by the one of a source; the registry counts as updated.

    The writer uses it from then on, and its :meth:`~EntityWriter.finish` checks the affected resources.

    Raises:
        Refusal: the source is not a valid model, or entities do not comply with it.
    """
    given: Mapping[str, Any] = source if isinstance(source, Mapping) else {}
    before, model = writer.model, compile_model({} if source is None else source)
    _check_names_kept(before, model)
    broken: list[str] = []
    for fault in _iter_faults(writer.work.reader, model):
        broken.append(fault)
        if len(broken) == _MAX_SHOWN_FAULTS:
            break
    if broken:
        raise Refusal("model_compliance_error", "/model", detail="; ".join(broken))
    writer.model = model
    writer.work.registry.modelsource = dict(given)
    writer.work.registry_touched = True
    _ModelMigration(writer, before).run()


class _ModelMigration:
    """Adapts existing entities to a new model, for each type that differs."""

    def __init__(self, writer: EntityWriter, before: Model) -> None:
        self._writer = writer
        self._work = writer.work
        self._before = before

    def run(self) -> None:
        for plural, kind in self._writer.model.groups.items():
            was = self._before.groups.get(plural)
            if was is None or was == kind:
                continue
            for each in list(self._work.reader.iter_groups(f"/{plural}")):
                group = self._work.group(each.xid)
                assert group is not None
                if was.attributes != kind.attributes and self._fill_defaults(group, kind.attributes):
                    self._work.groups.record_changed(group)
                for name, resources in kind.resources.items():
                    if was.constraints != kind.constraints or was.resources.get(name) != resources:
                        self._recheck_resources(kind, group, resources)

    def _recheck_resources(self, kind: GroupType, group: GroupEntity, resources: ResourceType) -> None:
        place = ResourcePath("resources", kind, group.id, resources)
        for each in list(self._work.reader.iter_resources(place.xid)):
            resource = self._work.resource(each.xid)
            assert resource is not None
            self._writer.pending_of(place.child(resource.id), resource)
            if resource.xref is not None:
                continue
            if self._fill_defaults(resource, resources.meta):
                self._work.resources.record_changed(resource)
            for version in self._work.versions_of(resource).values():
                if self._fill_defaults(version, resources.attributes):
                    self._work.versions.record_changed(version)

    def _fill_defaults(self, entity: Entity, attributes: Mapping[str, ModelAttribute]) -> bool:
        """Fill in missing defaults of an entity; return whether there were any."""
        kept = {name: value for name, value in entity.attributes.items() if name == "readonly"}
        own = {name: value for name, value in entity.attributes.items() if name not in kept}
        values = {**check_values(entity.xid, own, attributes), **kept}
        if values == entity.attributes:
            return False
        entity.attributes = values
        entity.modifiedat = self._writer.options.now
        self._writer.raise_epoch(entity)
        return True


def _check_names_kept(before: Model, model: Model) -> None:
    for plural, kind in model.groups.items():
        was = before.groups.get(plural)
        if was is None:
            continue
        pairs = [(plural, was.singular, kind.singular)]
        pairs += [
            (f"{plural}.{name}", was.resources[name].singular, each.singular)
            for name, each in kind.resources.items()
            if name in was.resources
        ]
        for name, old, new in pairs:
            if old != new:
                detail = f"the singular name of {name} is {old} and cannot be changed to {new}"
                raise Refusal("model_error", "/model", error_detail=detail)


def _iter_faults(reader: EntityReader, model: Model) -> Iterator[str]:
    for plural in sorted(reader.group_types() - model.groups.keys()):
        yield f"there are {plural}"
    for plural, kind in model.groups.items():
        for group in reader.iter_groups(f"/{plural}"):
            yield from _iter_entity_faults(group.xid, group.attributes, kind.attributes)
            for name in sorted(reader.resource_types(group.xid) - kind.resources.keys()):
                yield f"there are {group.xid}/{name}"
            for name, resource_kind in kind.resources.items():
                yield from _iter_resource_faults(reader, resource_kind, f"{group.xid}/{name}")


def _iter_resource_faults(reader: EntityReader, kind: ResourceType, parent: str) -> Iterator[str]:
    for resource in reader.iter_resources(parent):
        yield from _iter_entity_faults(f"{resource.xid}/meta", resource.attributes, kind.meta)
        if resource.sticky and kind.maxversions == 1:
            raise Refusal("setdefaultversionsticky_false", resource.xid)
        for version in reader.iter_versions(resource.versions):
            kept = {name: value for name, value in version.attributes.items() if not _is_served(kind, name)}
            yield from _iter_entity_faults(version.xid, kept, kind.attributes)
            if not kind.hasdocument and reader.document(version.xid):
                raise Refusal("hasdocument_violation", version.xid, plural=kind.plural)


def _is_served(kind: ResourceType, name: str) -> bool:
    return name in kind.attributes and kind.attributes[name].served


def _iter_entity_faults(xid: str, values: Mapping[str, Any], attributes: Any) -> Iterator[str]:
    try:
        check_values(xid, {name: value for name, value in values.items() if name != "readonly"}, attributes)
    except Refusal as error:
        yield error.title
