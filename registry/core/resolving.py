"""Resources with what they show of others: their default version, and the resource behind an ``xref``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from registry.core.places import Place
from registry.store.entities import Resource, Version
from registry.store.reading import PAGE, Counted, Reader


@dataclass(frozen=True, slots=True)
class Shown:
    """A resource to be shown at *place*.

    ``source`` is the resource that its attributes and versions are of: itself, or what its ``xref`` names; None when
    that is not there, or is a reference itself.
    """

    place: Place
    resource: Resource
    source: Resource | None
    default: Version | None
    known: int | None
    reader: Reader

    @property
    def count(self) -> int:
        """The number of versions."""
        if self.known is not None:
            return self.known
        return self.reader.count(self.source.versions) if self.source is not None else 0


def shown_resources(reader: Reader, place: Place, after: str = "", only: str | None = None) -> Iterator[Shown]:
    """Yield the resources of a collection, behind *after*, or the one called *only*; *place* may be that one's too."""
    collection = place if place.kind == "resources" else Place("resources", place.group, place.gid, place.resource)
    if only is not None:
        where = collection.child(only)
        one = reader.with_default(where.xid)
        if one is not None and one[0].xref is None:
            yield Shown(where, one[0], *one, None, reader)
        elif one is not None:
            yield from _resolved(reader, collection, [(*one, 0)])
        return
    resources = reader.with_defaults(collection.xid, after)
    while batch := list(islice(resources, PAGE)):
        yield from _resolved(reader, collection, batch)


def named_resources(reader: Reader, place: Place, names: Sequence[str]) -> Iterator[Shown]:
    """Yield those resources of a collection that are there."""
    yield from _resolved(reader, place, reader.with_defaults_of([place.child(each).xid for each in names]).values())


def _resolved(reader: Reader, place: Place, batch: Iterable[Counted]) -> Iterator[Shown]:
    xrefs = [resource.xref for resource, _, _ in batch if resource.xref is not None]
    targets = reader.with_defaults_of(xrefs) if xrefs else {}
    for resource, default, count in batch:
        source: Resource | None = resource
        if resource.xref is not None:
            source, default, count = targets.get(resource.xref, (None, None, 0))
            if source is not None and source.xref is not None:
                source, default, count = None, None, 0
        yield Shown(place.child(resource.id), resource, source, default, count, reader)
