"""Entities as responses show them: with URLs, counts and inlined collections; whole, filtered, or as a document.

Each entity is encoded as JSON as soon as it is complete, and collections hold these texts: a response needs little more
memory than its size, which is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from catalog.parsing.pointers import to_pointer
from registry.core.requests import (
    EXCLUDE_ALL,
    NO_CLAUSES,
    Clause,
    Clauses,
    ResourcePath,
    Sorting,
    SortKey,
    clauses_within,
    document_member,
    remaining_clauses,
)
from registry.errors import Refusal
from registry.model.attributes import Model, ModelAttribute
from registry.store.entities import PAGE_ROWS, Counted, EntityReader, GroupEntity, Registry, Resource, Version

# Inlined collections and attributes (core ``spec.md``, Inline Flag).

Inline = Mapping[str, "Inline"]
"""Inlined names, each with the names inlined below it; ``*`` is all names at all levels."""
INLINE_ALL: Final[Inline] = {"*": {}}
INLINE_NONE: Final[Inline] = {}
CONFIGURATION: Final = ("capabilities", "model", "modelsource")
"""Attributes of the registry that ``*`` does not include."""


def parse_inline(texts: Sequence[str], model: Model, place: ResourcePath, path: str) -> Inline:
    """Parse the values of the flag ``inline`` of a request to *place*.

    Raises:
        Refusal: a name is unknown, or cannot be inlined.
    """
    tree: dict[str, Inline] = {}
    for text in texts:
        for each in text.split(",") if text else ["*"]:
            names = each.strip().split(".")
            _check_inline(names, each, model, place, path)
            at = tree
            for name in names:
                below = at.setdefault(name, {})
                assert isinstance(below, dict)
                at = below
    return tree


def inline_below(inline: Inline, name: str) -> Inline | None:
    """Return what is inlined below a name, None if the name is not inlined itself."""
    if "*" in inline and name not in CONFIGURATION:
        return INLINE_ALL
    return inline.get(name)


def _check_inline(names: Sequence[str], text: str, model: Model, place: ResourcePath, path: str) -> None:
    at: ResourcePath | None = place
    for index, name in enumerate(names):
        last = index == len(names) - 1
        if name == "*" and last and at is not None:
            return
        if at is None:
            raise Refusal("bad_inline", path, value=text, error_detail=f"{names[index - 1]} has nothing to inline")
        inlineable, attributes, following = inlinable_at(at, model)
        if name not in inlineable:
            if name in attributes and last:
                raise Refusal("inline_noninlineable", path, name=name)
            raise Refusal("bad_inline", path, value=text, error_detail=f"{name} is unknown")
        at = following.get(name)


def inlinable_at(
    place: ResourcePath, model: Model
) -> tuple[tuple[str, ...], Mapping[str, ModelAttribute], dict[str, ResourcePath]]:
    """Return what can be inlined at a path, all attributes, and the collections below."""
    if place.kind == "registry":
        deeper = {name: ResourcePath("groups", kind) for name, kind in model.groups.items()}
        return (*CONFIGURATION, *deeper), model.attributes, deeper
    kind = place.resource_type
    if kind is None:
        owner = ResourcePath("group", place.group, place.gid)
        deeper = {name: owner.collection(name) for name in place.group.resources}
        return tuple(deeper), place.group.attributes, deeper
    if place.kind == "meta":
        return (), kind.meta, {}
    document = (kind.singular,) if kind.hasdocument else ()
    if place.kind in ("versions", "version"):
        return document, kind.attributes, {}
    deeper = {"versions": place.collection("versions")}
    return ("meta", *document, "versions"), {**kind.attributes, **kind.resource}, deeper


# Resources with their default version, and with the target of an ``xref``.


@dataclass(frozen=True, slots=True)
class ShownResource:
    """A resource to show at *place*.

    ``source`` is the resource that has its attributes and versions: itself, or the target of its ``xref``; None if
    that does not exist or has an ``xref`` itself.
    """

    place: ResourcePath
    resource: Resource
    source: Resource | None
    default: Version | None
    known: int | None
    reader: EntityReader

    @property
    def count(self) -> int:
        """The number of versions."""
        if self.known is not None:
            return self.known
        return self.reader.count(self.source.versions) if self.source is not None else 0


def iter_shown(
    reader: EntityReader, place: ResourcePath, after: str = "", only: str | None = None
) -> Iterator[ShownResource]:
    """Yield the resources of a collection after *after*, or only the one called *only*; *place* may be its own."""
    collection = (
        place if place.kind == "resources" else ResourcePath("resources", place.group, place.gid, place.resource)
    )
    if only is not None:
        where = collection.child(only)
        one = reader.resource_with_default(where.xid)
        if one is not None and one[0].xref is None:
            yield ShownResource(where, one[0], *one, None, reader)
        elif one is not None:
            yield from _iter_resolved(reader, collection, [(*one, 0)])
        return
    resources = reader.iter_with_defaults(collection.xid, after)
    while batch := list(islice(resources, PAGE_ROWS)):
        yield from _iter_resolved(reader, collection, batch)


def find_shown(reader: EntityReader, place: ResourcePath) -> ShownResource | None:
    """Return the resource at *place*, or above it, None if it does not exist."""
    return next(iter_shown(reader, place, "", place.rid), None)


def require_shown(reader: EntityReader, place: ResourcePath) -> ShownResource:
    """Return the resource at *place*, or above it.

    Raises:
        Refusal: ``not_found``.
    """
    shown = find_shown(reader, place)
    if shown is None:
        raise Refusal("not_found", place.xid if place.kind == "resource" else place.owner.xid)
    return shown


def require_group(reader: EntityReader, place: ResourcePath) -> GroupEntity:
    """Return the group at *place*, or above it.

    Raises:
        Refusal: ``not_found``.
    """
    xid = ResourcePath("group", place.group, place.gid).xid
    group = reader.group(xid)
    if group is None:
        raise Refusal("not_found", xid)
    return group


def require_owner(reader: EntityReader, place: ResourcePath) -> None:
    """Raise unless the group of a collection of resources, or the resource of one of versions, exists.

    Raises:
        Refusal: ``not_found``.
    """
    find = {"resources": reader.group, "versions": reader.resource}.get(place.kind)
    if find is not None and find(place.owner.xid) is None:
        raise Refusal("not_found", place.owner.xid)


def iter_named_resources(reader: EntityReader, place: ResourcePath, names: Sequence[str]) -> Iterator[ShownResource]:
    """Yield the named resources of a collection that exist."""
    yield from _iter_resolved(
        reader, place, reader.with_defaults_by_xid([place.child(each).xid for each in names]).values()
    )


def _iter_resolved(reader: EntityReader, place: ResourcePath, batch: Iterable[Counted]) -> Iterator[ShownResource]:
    xrefs = [resource.xref for resource, _, _ in batch if resource.xref is not None]
    targets = reader.with_defaults_by_xid(xrefs) if xrefs else {}
    for resource, default, count in batch:
        source: Resource | None = resource
        if resource.xref is not None:
            source, default, count = targets.get(resource.xref, (None, None, 0))
            if source is not None and source.xref is not None:
                source, default, count = None, None, 0
        yield ShownResource(place.child(resource.id), resource, source, default, count, reader)


SPECVERSION: Final = "1.0-rc4"
MAX_ANSWER: Final = 64 * 2**20
CHECKS: Final = ("formatvalidated", "formatvalidatedreason", "compatibilityvalidated", "compatibilityvalidatedreason")
"""Results of the registry's checks of a version's document."""
_Names = Sequence[str] | None


class Scope(NamedTuple):
    """What is inlined below a place, which filters apply there, and its JSON pointer in the document view."""

    inline: Inline = INLINE_NONE
    clauses: Clauses = None
    pointer: str = ""


EVERYTHING: Final = Scope()


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """How entities are shown. ``base`` is the registry's URL without a final slash; ``path`` is the request's."""

    base: str
    path: str = "/"
    scope: Scope = EVERYTHING
    doc: bool = False
    binary: bool = False
    max_answer: int = MAX_ANSWER


class ResponseBudget:
    """Encodes the entities of one response as they become complete, and bounds the size of the response."""

    def __init__(self, max_bytes: int, path: str) -> None:
        self._left = max_bytes
        self._path = path

    def to_json(self, shown: Mapping[str, Any]) -> msgspec.Raw:
        """Return an entity as JSON.

        Raises:
            Refusal: ``too_large``: the response would be too large.
        """
        text = msgspec.json.encode(shown)
        self._left -= len(text)
        for value in shown.values():
            nested = value.values() if type(value) is dict else value if type(value) is list else ()
            if nested and type(next(iter(nested))) is msgspec.Raw:
                self._left += sum(memoryview(each).nbytes for each in nested)  # they were counted
        if self._left < 0:
            raise Refusal("too_large", self._path, detail="use filters, inline less, or read page by page")
        return msgspec.Raw(text)


class EntityView:
    """Renders entities from a reader.

    All methods raise :class:`Refusal`; those for one entity return None if it does not match the filters.
    """

    def __init__(self, reader: EntityReader, model: Model, view: ViewOptions) -> None:
        self._reader = reader
        self._model = model
        self._view = view
        self._to_json = ResponseBudget(view.max_answer, view.path).to_json

    def render_registry(self, entity: Registry, capabilities: Mapping[str, Any]) -> dict[str, Any] | None:
        """Show the registry."""
        view = self._view
        shown: dict[str, Any] = {"specversion": SPECVERSION, "registryid": entity.id, "self": self._self_url("/", "")}
        shown |= {"xid": "/", "epoch": entity.epoch, **entity.attributes}
        shown |= {"createdat": entity.createdat, "modifiedat": entity.modifiedat}
        places = {plural: ResourcePath("groups", kind) for plural, kind in self._model.groups.items()}
        scope = self._narrow(view.scope, shown, places)
        if scope.clauses == NO_CLAUSES:
            return None
        inlined = {"capabilities": capabilities, "model": None, "modelsource": entity.modelsource}
        for name, value in inlined.items():
            if name in scope.inline:
                shown[name] = self._model.document if name == "model" else value
        for place in places.values():
            self._add_collection(shown, place, scope)
        return shown

    def render_group(self, place: ResourcePath, entity: GroupEntity, scope: Scope) -> dict[str, Any] | None:
        """Show a group."""
        kind = place.group
        shown: dict[str, Any] = {f"{kind.singular}id": entity.id, "self": self._self_url(entity.xid, scope.pointer)}
        shown |= {"xid": entity.xid, "epoch": entity.epoch, **entity.attributes}
        shown |= {"createdat": entity.createdat, "modifiedat": entity.modifiedat}
        places = {plural: place.collection(plural) for plural in kind.resources}
        scope = self._narrow(scope, shown, places)
        if scope.clauses == NO_CLAUSES:
            return None
        for where in places.values():
            self._add_collection(shown, where, scope)
        return shown

    def render_resource(
        self, place: ResourcePath, shown_resource: ShownResource, scope: Scope
    ) -> dict[str, Any] | None:
        """Show a resource with the attributes of its default version, except in the document view."""
        kind, resource, version = place.resource, shown_resource.resource, shown_resource.default
        inline, clauses, pointer = scope
        versions = place.collection("versions")
        shown: dict[str, Any] = {f"{kind.singular}id": resource.id}
        if version is not None:
            shown |= self._version_attributes(place, version, is_default=True)
        shown |= {"self": self._self_url(place.xid, pointer, details=kind.hasdocument), "xid": place.xid}
        shown_meta = inline_below(inline, "meta") is not None
        meta = self.render_meta(place, shown_resource, f"{pointer}/meta") if shown_meta or clauses is not None else None
        scope = self._narrow(scope, {**shown, "meta": meta}, {"versions": versions}, shown_resource)
        if scope.clauses == NO_CLAUSES:
            return None
        if self._view.doc:
            shown = {name: shown[name] for name in (f"{kind.singular}id", "self", "xid")}
        elif version is not None and inline_below(inline, kind.singular) is not None:
            self._add_document(place, version, shown)
        shown["metaurl"] = self._entity_url(f"{place.xid}/meta", f"{pointer}/meta", inlined=shown_meta)
        if shown_meta and meta is not None:
            shown["meta"] = self._with_default_link(place, shown_resource, meta, inline, pointer)
        if not (self._view.doc and resource.xref) and shown_resource.source is not None:
            self._add_collection(shown, versions, scope, shown_resource)
        return shown

    def render_meta(self, place: ResourcePath, shown_resource: ShownResource, pointer: str) -> dict[str, Any]:
        """Show the ``meta`` of a resource; *place* is the resource's."""
        kind, resource, source = place.resource, shown_resource.resource, shown_resource.source
        xid = f"{place.xid}/meta"
        shown: dict[str, Any] = {f"{kind.singular}id": resource.id, "self": self._self_url(xid, pointer), "xid": xid}
        if resource.xref is not None:
            shown["xref"] = resource.xref
            if self._view.doc or source is None:
                return shown
        assert source is not None
        shown |= {"epoch": source.epoch, "readonly": False, **source.attributes}
        shown |= {"createdat": source.createdat, "modifiedat": source.modifiedat}
        default = f"{place.xid}/versions/{source.defaultversionid}"
        shown["defaultversionid"] = source.defaultversionid
        shown["defaultversionurl"] = self._url(default, details=kind.hasdocument)
        shown["defaultversionsticky"] = source.sticky
        return shown

    def render_version(
        self, place: ResourcePath, entity: Version, scope: Scope, *, is_default: bool
    ) -> dict[str, Any] | None:
        """Show a version at *place*, which differs from its xid behind an ``xref``."""
        kind = place.resource
        shown: dict[str, Any] = {f"{kind.singular}id": place.rid}
        shown |= self._version_attributes(place, entity, is_default=is_default)
        shown |= {"self": self._self_url(place.xid, scope.pointer, details=kind.hasdocument), "xid": place.xid}
        if self._narrow(scope, shown, {}).clauses == NO_CLAUSES:
            return None
        if inline_below(scope.inline, kind.singular) is not None:
            self._add_document(place, entity, shown)
        return shown

    def render_entities(self, place: ResourcePath, names: Sequence[str], scope: Scope) -> dict[str, Any]:
        """Show the named entities of a collection."""
        entities: dict[str, Any] = {}
        for start in range(0, len(names), PAGE_ROWS):
            part = names[start : start + PAGE_ROWS]
            there = dict(self._iter_shown(place, scope, only=part))
            entities |= {name: self._to_json(there[name]) for name in part if name in there}
        return entities

    def render_page(
        self, place: ResourcePath, limit: int | None, after: str, sorting: Sorting | None
    ) -> tuple[dict[str, Any], str]:
        """Return a page of a collection, and where the next one begins ('' for none).

        It begins after a lower-case id or, if sorted, at a number.
        """
        if sorting is not None:
            return self._render_sorted_page(place, limit, int(after or 0), sorting)
        entries: dict[str, Any] = {}
        last = ""
        for name, shown in self._iter_shown(place, self._view.scope, after):
            if limit is not None and len(entries) == limit:
                return entries, last.lower()
            entries[name], last = self._to_json(shown), name
        return entries, ""

    def _render_sorted_page(
        self, place: ResourcePath, limit: int | None, start: int, sorting: Sorting
    ) -> tuple[dict[str, Any], str]:
        """Sort by keys, then show only the entities of the page."""
        keys: list[tuple[SortKey, str]] = []
        for name, shown in self._iter_shown(place, self._view.scope._replace(inline=INLINE_NONE)):
            keys.append((sorting.sort_key(shown, name), name))
        keys.sort(reverse=sorting.descending)
        end = len(keys) if limit is None else start + limit
        entries = self.render_entities(place, [name for _, name in keys[start:end]], self._view.scope)
        return entries, str(end) if end < len(keys) else ""

    def _iter_shown(
        self,
        place: ResourcePath,
        scope: Scope,
        after: str = "",
        only: _Names = None,
        owner: ShownResource | None = None,
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the entities of a collection that match the clauses, by id; *only* restricts to some, in any order.

        *owner* is the resource of versions if it is known.
        """
        if scope.clauses == NO_CLAUSES:
            return
        reader = self._reader
        if place.kind == "groups":
            xids = [place.child(name).xid for name in only or ()]
            for group in reader.iter_groups(place.xid, after) if only is None else reader.groups_by_xid(xids).values():
                at = self._scope_of(scope, group.id)
                if (shown := self.render_group(place.child(group.id), group, at)) is not None:
                    yield group.id, shown
        elif place.kind == "resources":
            for each in iter_shown(reader, place, after) if only is None else iter_named_resources(reader, place, only):
                at = self._scope_of(scope, each.resource.id)
                if (shown := self.render_resource(each.place, each, at)) is not None:
                    yield each.resource.id, shown
        else:
            owner = owner if owner is not None else require_shown(reader, place)
            main = "" if owner.source is None else owner.source.defaultversionid
            for version in self._iter_versions(owner, after, only):
                where, at = place.child(version.id), self._scope_of(scope, version.id)
                shown = self.render_version(where, version, at, is_default=version.id == main)
                if shown is not None:
                    yield version.id, shown

    def _iter_versions(self, owner: ShownResource, after: str, only: _Names) -> Iterable[Version]:
        if owner.source is None:
            return ()
        if only is not None:
            return self._reader.versions_by_xid([f"{owner.source.versions}/{name}" for name in only]).values()
        if owner.count == 1 and owner.default is not None and not after:
            # Most resources have one version, already loaded; a query for each would dominate the cost of a response.
            return (owner.default,)
        return self._reader.iter_versions(owner.source.versions, after)

    def _add_collection(
        self, shown: dict[str, Any], place: ResourcePath, scope: Scope, owner: ShownResource | None = None
    ) -> None:
        """Add the three attributes of a collection, counted and inlined after filtering."""
        xid = place.xid
        plural = xid.rpartition("/")[2]
        deeper, pointer = inline_below(scope.inline, plural), f"{scope.pointer}/{plural}"
        wanted: Clauses = None if scope.clauses is None else clauses_within(scope.clauses, plural)
        inlined: dict[str, Any] = {}
        if deeper is not None:
            each = self._iter_shown(place, Scope(deeper, wanted, pointer), owner=owner)
            inlined = {name: self._to_json(one) for name, one in each}
            count = len(inlined)
        elif wanted is not None:
            count = sum(1 for _ in self._iter_shown(place, Scope(clauses=wanted), owner=owner))
        else:
            count = self._reader.count(xid) if owner is None else owner.count
        shown[f"{plural}url"] = self._collection_url(xid, pointer, deeper is not None, wanted, count)
        shown[f"{plural}count"] = count
        if deeper is not None:
            shown[plural] = inlined

    def _narrow(
        self,
        scope: Scope,
        shown: Mapping[str, Any],
        places: Mapping[str, ResourcePath],
        owner: ShownResource | None = None,
    ) -> Scope:
        """Return the scope of the collections of an entity: with the clauses that remain."""

        def exists(name: str, clause: Clause) -> bool:
            return any(True for _ in self._iter_shown(places[name], Scope(clauses=(clause,)), owner=owner))

        if scope.clauses is None:
            return scope
        return scope._replace(clauses=remaining_clauses(scope.clauses, shown, places, exists))

    def _version_attributes(self, place: ResourcePath, version: Version, *, is_default: bool) -> dict[str, Any]:
        shown: dict[str, Any] = {"versionid": version.id, "epoch": version.epoch, "isdefault": is_default}
        shown |= version.attributes
        shown |= {"createdat": version.createdat, "modifiedat": version.modifiedat, "ancestorid": version.ancestorid}
        if self._view.doc:
            for name in CHECKS:
                shown.pop(name, None)
        return shown

    def _add_document(self, place: ResourcePath, version: Version, shown: dict[str, Any]) -> None:
        kind = place.resource
        if not kind.hasdocument or kind.document_names[2] in shown:
            return
        document = self._reader.document(version.xid) or b""
        name, value = document_member(kind, document, version.attributes.get("contenttype"), binary=self._view.binary)
        shown[name] = value

    def _with_default_link(
        self, place: ResourcePath, resource: ShownResource, meta: dict[str, Any], inline: Inline, pointer: str
    ) -> dict[str, Any]:
        """In the document view, point the default version of an inlined ``meta`` at the inlined version."""
        if self._view.doc and "defaultversionid" in meta and inline_below(inline, "versions") is not None:
            meta["defaultversionurl"] = f"#{pointer}{to_pointer(['versions', meta['defaultversionid']])}"
        return meta

    def _self_url(self, xid: str, pointer: str, *, details: bool = False) -> str:
        return f"#{pointer or '/'}" if self._view.doc else self._url(xid, details=details)

    def _scope_of(self, scope: Scope, name: str) -> Scope:
        """Return the scope of an entity of a collection; only the document view needs pointers."""
        return scope._replace(pointer=scope.pointer + to_pointer([name])) if self._view.doc else scope

    def _entity_url(self, xid: str, pointer: str, *, inlined: bool) -> str:
        return f"#{pointer}" if self._view.doc and inlined else self._url(xid)

    def _collection_url(self, xid: str, pointer: str, inlined: bool, clauses: Clauses, count: int) -> str:
        url = self._entity_url(xid, pointer, inlined=inlined)
        return f"{url}?filter={EXCLUDE_ALL}" if clauses is not None and not count and url[0] != "#" else url

    def _url(self, xid: str, *, details: bool = False) -> str:
        return f"{self._view.base}{xid}{'$details' if details else ''}"
