"""Resources with what they show of others: their default version, and the resource behind an ``xref``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from registry.core.places import Place
from registry.store.entities import Resource, Version
from registry.store.reading import PAGE, Reader


@dataclass(frozen=True, slots=True)
class Shown:
    """A resource to be shown at *place*.

    ``source`` is the resource that its attributes and versions are of: itself, or what its ``xref`` names; None when
    that is not there, or is a reference itself. ``count`` is the number of versions.
    """

    place: Place
    resource: Resource
    source: Resource | None
    default: Version | None
    count: int


def shown_resources(reader: Reader, place: Place, after: str = "", only: str | None = None) -> Iterator[Shown]:
    """Yield the resources of a collection, behind *after*, or the one called *only*; *place* may be that one's too."""
    collection = place if place.kind == "resources" else Place("resources", place.group, place.gid, place.resource)
    if only is not None:
        one = reader.resource(collection.child(only).xid)
        resources = iter([one] if one is not None else [])
    else:
        resources = reader.resources(collection.xid, after)
    while batch := list(islice(resources, PAGE)):
        yield from _resolved(reader, collection, batch)


def named_resources(reader: Reader, place: Place, names: Sequence[str]) -> Iterator[Shown]:
    """Yield those resources of a collection that are there."""
    yield from _resolved(reader, place, list(reader.resources_of([place.child(each).xid for each in names]).values()))


def _resolved(reader: Reader, place: Place, batch: list[Resource]) -> Iterator[Shown]:
    targets = reader.resources_of([each.xref for each in batch if each.xref is not None])
    sources = [_source(each, targets) for each in batch]
    there = [each for each in sources if each is not None]
    if len(there) == 1:
        [(versions, name)] = [(each.versions, each.defaultversionid) for each in there]
        one = reader.version(f"{versions}/{name}")
        defaults = {} if one is None else {one.xid: one}
        counts: Mapping[str, int] = {versions: reader.count(versions)}
    else:
        defaults = reader.versions_of([f"{each.versions}/{each.defaultversionid}" for each in there])
        counts = reader.counts([each.versions for each in there])
    for resource, source in zip(batch, sources, strict=True):
        default, count = None, 0
        if source is not None:
            default = defaults.get(f"{source.versions}/{source.defaultversionid}")
            count = counts.get(source.versions, 0)
        yield Shown(place.child(resource.id), resource, source, default, count)


def _source(resource: Resource, targets: dict[str, Resource]) -> Resource | None:
    if resource.xref is None:
        return resource
    target = targets.get(resource.xref)
    return target if target is not None and target.xref is None else None
