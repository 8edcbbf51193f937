"""A new model: compiled, and held against all that the registry has (``model.md``, Creating or Updating).

What has a new default gets it, and what another rule orders or prunes (``versionmode``, ``maxversions``) is ordered and
pruned. All else that does not comply with the model refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from registry.core.places import Place
from registry.core.writing import Writer
from registry.errors import Refusal
from registry.model.attributes import Attribute
from registry.model.checking import settled
from registry.model.reading import read_model
from registry.model.types import GroupType, Model, ResourceType
from registry.store.entities import Entity, Group
from registry.store.reading import Reader

_SHOWN_FAULTS: Final = 20


def change_model(writer: Writer, source: object) -> None:
    """Give the registry a model, from its source; the registry counts as updated.

    From then on the writer writes by it, and its :meth:`~Writer.finish` settles the resources that it concerns.

    Raises:
        Refusal: the source is not a model, or entities do not comply with it.
    """
    given: Mapping[str, Any] = source if isinstance(source, Mapping) else {}
    before, model = writer.model, read_model({} if source is None else source)
    _keep_names(before, model)
    broken: list[str] = []
    for fault in _faults(writer.work.reader, model):
        broken.append(fault)
        if len(broken) == _SHOWN_FAULTS:
            break
    if broken:
        raise Refusal("model_compliance_error", "/model", detail="; ".join(broken))
    writer.model = model
    writer.work.registry.modelsource = dict(given)
    writer.work.registry_touched = True
    _Following(writer, before).run()


class _Following:
    """Has what is there follow a new model, type by type where the two differ."""

    def __init__(self, writer: Writer, before: Model) -> None:
        self._writer = writer
        self._work = writer.work
        self._before = before

    def run(self) -> None:
        for plural, kind in self._writer.model.groups.items():
            was = self._before.groups.get(plural)
            if was is None or was == kind:
                continue
            for each in list(self._work.reader.groups(f"/{plural}")):
                group = self._work.group(each.xid)
                assert group is not None
                if was.attributes != kind.attributes and self._fill(group, kind.attributes):
                    self._work.groups.put(group)
                for name, resources in kind.resources.items():
                    if was.constraints != kind.constraints or was.resources.get(name) != resources:
                        self._settle(kind, group, resources)

    def _settle(self, kind: GroupType, group: Group, resources: ResourceType) -> None:
        place = Place("resources", kind, group.id, resources)
        for each in list(self._work.reader.resources(place.xid)):
            resource = self._work.resource(each.xid)
            assert resource is not None
            self._writer.pend(place.child(resource.id), resource)
            if resource.xref is not None:
                continue
            if self._fill(resource, resources.meta):
                self._work.resources.put(resource)
            for version in self._work.versions_of(resource).values():
                if self._fill(version, resources.attributes):
                    self._work.versions.put(version)

    def _fill(self, entity: Entity, attributes: Mapping[str, Attribute]) -> bool:
        """Give an entity the defaults that it lacks; return whether there were any."""
        kept = {name: value for name, value in entity.attributes.items() if name == "readonly"}
        own = {name: value for name, value in entity.attributes.items() if name not in kept}
        values = {**settled(entity.xid, own, attributes), **kept}
        if values == entity.attributes:
            return False
        entity.attributes = values
        entity.modifiedat = self._writer.options.now
        self._writer.bump(entity)
        return True


def _keep_names(before: Model, model: Model) -> None:
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


def _faults(reader: Reader, model: Model) -> Iterator[str]:
    for plural in sorted(reader.group_types() - model.groups.keys()):
        yield f"there are {plural}"
    for plural, kind in model.groups.items():
        for group in reader.groups(f"/{plural}"):
            yield from _fault(group.xid, group.attributes, kind.attributes)
            for name in sorted(reader.resource_types(group.xid) - kind.resources.keys()):
                yield f"there are {group.xid}/{name}"
            for name, resource_kind in kind.resources.items():
                yield from _resource_faults(reader, resource_kind, f"{group.xid}/{name}")


def _resource_faults(reader: Reader, kind: ResourceType, parent: str) -> Iterator[str]:
    for resource in reader.resources(parent):
        yield from _fault(f"{resource.xid}/meta", resource.attributes, kind.meta)
        if resource.sticky and kind.maxversions == 1:
            raise Refusal("setdefaultversionsticky_false", resource.xid)
        for version in reader.versions(resource.versions):
            kept = {name: value for name, value in version.attributes.items() if not _served(kind, name)}
            yield from _fault(version.xid, kept, kind.attributes)
            if not kind.hasdocument and reader.document(version.xid):
                raise Refusal("hasdocument_violation", version.xid, plural=kind.plural)


def _served(kind: ResourceType, name: str) -> bool:
    return name in kind.attributes and kind.attributes[name].served


def _fault(xid: str, values: Mapping[str, Any], attributes: Any) -> Iterator[str]:
    try:
        settled(xid, {name: value for name, value in values.items() if name != "readonly"}, attributes)
    except Refusal as error:
        yield error.title
