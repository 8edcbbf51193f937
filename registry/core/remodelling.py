"""A new model: compiled, and held against all that the registry has (``model.md``, Creating or Updating)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from registry.core.merging import Options
from registry.errors import Refusal
from registry.model.checking import settled
from registry.model.reading import read_model
from registry.model.types import GroupType, Model, ResourceType
from registry.store.reading import Reader
from registry.store.work import Work

_SHOWN_FAULTS: Final = 20


def change_model(work: Work, source: object, options: Options) -> Model:
    """Give the registry a model, from its source; the registry counts as updated.

    Raises:
        Refusal: the source is no model, or entities do not comply with it.
    """
    given: Mapping[str, Any] = source if isinstance(source, Mapping) else {}
    model = read_model({} if source is None else source)
    broken: list[str] = []
    for fault in _faults(work.reader, model):
        broken.append(fault)
        if len(broken) == _SHOWN_FAULTS:
            break
    if broken:
        raise Refusal("model_compliance_error", "/model", detail="; ".join(broken))
    work.registry.modelsource = dict(given)
    work.registry_touched = True
    return model


def _faults(reader: Reader, model: Model) -> Iterator[str]:
    for plural in sorted(reader.group_types() - model.groups.keys()):
        yield f"there are {plural}"
    for plural, kind in model.groups.items():
        for group in reader.groups(f"/{plural}"):
            yield from _fault(group.xid, group.attributes, kind.attributes)
            yield from _unknown_resources(reader, kind, group.xid)
            for name, resource_kind in kind.resources.items():
                yield from _resource_faults(reader, resource_kind, f"{group.xid}/{name}")


def _unknown_resources(reader: Reader, kind: GroupType, xid: str) -> Iterator[str]:
    for name in sorted(reader.resource_types(xid) - kind.resources.keys()):
        yield f"there are {xid}/{name}"


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
