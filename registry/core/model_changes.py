"""A new model, against which all entities are checked; and exact epochs and times of an import."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from registry.core.ancestry import parse_given_time
from registry.core.requests import ResourcePath
from registry.core.transaction import Transaction
from registry.errors import Refusal
from registry.model.attributes import Model, ModelAttribute, ResourceType, check_values
from registry.model.compiler import compile_model
from registry.store.entities import Entity, EntityReader, WriteTransaction, level_of


def set_exact_values(work: WriteTransaction, tree: Mapping[str, Any]) -> None:
    """Set the epochs and times of the written entities to those in a document of the whole registry."""
    work.record_changed(work.registry)
    for xid in work.touched:
        names = [] if xid == "/" else xid.split("/")[1:]
        body: Any = tree
        for name in (*names, "meta") if level_of(xid) == 2 else names:
            body = body.get(name) if isinstance(body, Mapping) else None
        _set_exact(work.now[xid], body)


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


def change_model(transaction: Transaction, source: object) -> None:
    """Replace the registry's model by the one of a source; the registry counts as updated.

    The transaction uses it from then on, and its :meth:`~Transaction.finish` checks the affected resources.

    Raises:
        Refusal: the source is not a valid model, or entities do not comply with it.
    """
    given: Mapping[str, Any] = source if isinstance(source, Mapping) else {}
    before, model = transaction.model, compile_model({} if source is None else source)
    _check_names_kept(before, model)
    if broken := list(islice(_iter_faults(transaction.work.reader, model), _MAX_SHOWN_FAULTS)):
        raise Refusal("model_compliance_error", "/model", detail="; ".join(broken))
    transaction.model = model
    transaction.work.registry.modelsource = dict(given)
    transaction.work.record_changed(transaction.work.registry)
    _migrate(transaction, before)


def _migrate(transaction: Transaction, before: Model) -> None:
    """Adapt existing entities to a new model, for each type that differs."""
    work = transaction.work
    for plural, kind in transaction.model.groups.items():
        was = before.groups.get(plural)
        if was is None or was == kind:
            continue
        for each in list(work.reader.iter_groups(f"/{plural}")):
            group = work.group(each.xid)
            assert group is not None
            if was.attributes != kind.attributes:
                _fill_defaults(transaction, group, kind.attributes)
            for name, resources in kind.resources.items():
                if was.constraints != kind.constraints or was.resources.get(name) != resources:
                    _recheck_resources(transaction, ResourcePath("resources", kind, group.id, resources))


def _recheck_resources(transaction: Transaction, place: ResourcePath) -> None:
    work = transaction.work
    for each in list(work.reader.iter_resources(place.xid)):
        resource = work.resource(each.xid)
        assert resource is not None
        transaction.pending_of(place.child(resource.id), resource)
        if resource.xref is None:
            _fill_defaults(transaction, resource, place.resource.meta)
            for version in work.versions_of(resource).values():
                _fill_defaults(transaction, version, place.resource.attributes)


def _fill_defaults(transaction: Transaction, entity: Entity, attributes: Mapping[str, ModelAttribute]) -> None:
    """Fill in missing defaults of an entity."""
    kept = {name: value for name, value in entity.attributes.items() if name == "readonly"}
    own = {name: value for name, value in entity.attributes.items() if name not in kept}
    values = {**check_values(entity.xid, own, attributes), **kept}
    if values != entity.attributes:
        entity.attributes = values
        entity.modifiedat = transaction.options.now
        transaction.raise_epoch(entity)
        transaction.work.record_changed(entity)


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
    served = {name for name, each in kind.attributes.items() if each.served}
    for resource in reader.iter_resources(parent):
        yield from _iter_entity_faults(f"{resource.xid}/meta", resource.attributes, kind.meta)
        if resource.sticky and kind.maxversions == 1:
            raise Refusal("setdefaultversionsticky_false", resource.xid)
        for version in reader.iter_versions(resource.versions):
            kept = {name: value for name, value in version.attributes.items() if name not in served}
            yield from _iter_entity_faults(version.xid, kept, kind.attributes)
            if not kind.hasdocument and reader.document(version.xid):
                raise Refusal("hasdocument_violation", version.xid, plural=kind.plural)


def _iter_entity_faults(xid: str, values: Mapping[str, Any], attributes: Any) -> Iterator[str]:
    try:
        check_values(xid, {name: value for name, value in values.items() if name != "readonly"}, attributes)
    except Refusal as error:
        yield error.title
