"""Reading: what a request asks to be shown, within one transaction. Writes show what they made in the same way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from catalog.parsing.pointers import as_pointer
from registry.core.capabilities import capabilities_of, offered
from registry.core.filters import NOTHING, read_filters, within
from registry.core.inlining import ALL, NONE, Inline, below, read_inline
from registry.core.places import Place
from registry.core.requests import Answer, Flags, Paging, Request
from registry.core.resolving import Shown, shown_resources
from registry.core.sorting import read_sorting
from registry.core.tagging import EXPORT, tag_of_body
from registry.core.views import SPECVERSION, Page, View, Viewer
from registry.errors import Refusal
from registry.model.types import Model
from registry.store.entities import Registry, Version
from registry.store.reading import Reader

OPENAPI: Final = "openapi.json"
CONFIGURED: Final = frozenset(("capabilities", "capabilitiesoffered", "model", "modelsource", EXPORT, OPENAPI))
"""Paths below the root that are no types of groups."""


class Answerer:
    """Answers requests from what a reader sees. All methods raise :class:`Refusal`."""

    def __init__(self, reader: Reader, model: Model, registry: Registry, request: Request) -> None:
        self._reader = reader
        self._model = model
        self._registry = registry
        self._request = request

    def configured(self, name: str) -> Answer:
        """Answer for a path of :data:`CONFIGURED` but OPENAPI."""
        check_specversion(self._request.flags, self._request.path)
        if name != EXPORT:
            bodies: Mapping[str, Mapping[str, Any]] = {
                "capabilities": capabilities_of(self._registry.capabilities),
                "capabilitiesoffered": offered(),
                "model": self._model.written,
                "modelsource": self._registry.modelsource,
            }
            return Answer(bodies[name], etag=tag_of_body(bodies[name]))
        flags = self._request.flags
        inline = flags.inline or ("*,capabilities,modelsource",)
        self._request = replace(self._request, flags=replace(flags, doc=True, inline=inline))
        return self.read(Place("registry"))

    def read(self, place: Place) -> Answer:
        """Answer with an entity, a document, or a page of a collection."""
        request, flags = self._request, self._request.flags
        if flags.doc and place.kind in ("versions", "version"):
            owner = self._reader.resource(place.owner.xid)
            if owner is not None and owner.xref is not None:
                raise Refusal("cannot_doc_xref", owner.xid)
        sorting = read_sorting(flags.sort, place, request.path) if flags.sort is not None else None
        view = self.view(place)
        if place.is_collection:
            _check_cursor(request, number=sorting is not None)
            self._owner(place)
            viewer = Viewer(self._reader, self._model, view)
            page = Page(request.limit, request.cursor, sorting)
            entries, after = viewer.entries(place, page, view.inline)
            count = self._count(place) if view.clauses is None else None
            return Answer(entries, paging=Paging(after, count))
        return self.entity(place, view)

    def view(self, place: Place, asked: Place | None = None) -> View:
        """Return how the request wants things shown; what it inlines begins at *asked*, where that is another place."""
        request, flags = self._request, self._request.flags
        check_flags(flags, place, request.path)
        inline: Inline = read_inline(flags.inline, self._model, asked or place, request.path)
        if flags.collections:
            inline = {**inline, **ALL}
        clauses = read_filters(flags.filter, request.path)
        base = request.base
        return View(base, request.path, inline, clauses, flags.doc, flags.binary, request.max_answer)

    def entity(self, place: Place, view: View) -> Answer:
        """Answer with one entity."""
        viewer = Viewer(self._reader, self._model, view)
        answer = {
            "registry": self._show_registry,
            "group": self._show_group,
            "resource": self._show_resource,
            "meta": self._show_meta,
            "version": self._show_version,
        }[place.kind](place, viewer, view)
        if answer is None:
            raise Refusal("not_found", place.xid)
        if self._request.flags.collections and answer.body is not None:
            kinds = self._model.groups if place.kind == "registry" else place.group.resources
            return replace(answer, body={name: answer.body[name] for name in kinds}, etag="")
        plain = not (view.inline or view.clauses or view.doc or view.binary)
        return answer if plain else replace(answer, etag="")

    def entities(self, place: Place, names: Sequence[str]) -> Mapping[str, Any]:
        """Show those entities of a collection that a request has processed."""
        if self._request.segments == tuple(place.xid.split("/")[1:]):
            view = self.view(place)
            return Viewer(self._reader, self._model, view).entities(place, names, view.inline)
        # One of several collections, of the entity that the request was directed at.
        plural = place.xid.rpartition("/")[2]
        view = self.view(place, Place("registry") if place.kind == "groups" else place.owner)
        inline = below(view.inline, plural) or NONE
        if view.clauses is not None:
            view = replace(view, clauses=within(view.clauses, plural))
        return Viewer(self._reader, self._model, view).entities(place, names, inline, as_pointer([plural]))

    def tags(self, place: Place) -> set[str]:
        """Return what conditions of a write may name of an entity: ``*`` and its ETag; nothing when it is not there."""
        try:
            plain = View(self._request.base)
            request = replace(self._request, flags=Flags(), details=True)
            etag = Answerer(self._reader, self._model, self._registry, request).entity(place, plain).etag
        except Refusal:
            return set()
        return {"*", etag} - {""}

    def _show_registry(self, place: Place, viewer: Viewer, view: View) -> Answer | None:
        shown = viewer.registry(self._registry, capabilities_of(self._registry.capabilities))
        return None if shown is None else Answer(shown, etag=f'"{self._registry.epoch}"')

    def _show_group(self, place: Place, viewer: Viewer, view: View) -> Answer | None:
        group = self._reader.group(place.xid)
        shown = None if group is None else viewer.group(place, group, view.inline, view.clauses, "")
        return None if group is None or shown is None else Answer(shown, etag=f'"{group.epoch}"')

    def _show_resource(self, place: Place, viewer: Viewer, view: View) -> Answer | None:
        resource = self._resource(place)
        shown = None if resource is None else viewer.resource(place, resource, view.inline, view.clauses, "")
        if resource is None or shown is None:
            return None
        source, default = resource.source, resource.default
        etag = f'"{source.epoch}-{default.epoch}"' if source is not None and default is not None else ""
        kind = place.resource
        details = "$details" if kind.hasdocument else ""
        version = f"{view.base}{place.xid}/versions/{default.id}{details}" if default is not None else ""
        answer = Answer(shown, name=place.rid, etag=etag, version=version)
        return self._with_document(place, answer, default)

    def _show_meta(self, place: Place, viewer: Viewer, view: View) -> Answer | None:
        resource = self._resource(place.owner)
        if resource is None:
            return None
        shown = viewer.meta(place.owner, resource, "")
        if view.clauses == NOTHING:
            return None
        return Answer(shown, etag=f'"{resource.source.epoch}"' if resource.source is not None else "")

    def _show_version(self, place: Place, viewer: Viewer, view: View) -> Answer | None:
        owner = self._resource(place.owner)
        if owner is None or owner.source is None:
            return None
        entity = self._reader.version(f"{owner.source.versions}/{place.vid}")
        is_default = owner.source.defaultversionid == place.vid
        shown = (
            None
            if entity is None
            else viewer.version(place, entity, view.inline, view.clauses, "", is_default=is_default)
        )
        if entity is None or shown is None:
            return None
        details = "$details" if place.resource.hasdocument else ""
        version = f"{view.base}{place.xid}{details}"
        answer = Answer(shown, name=place.rid, etag=f'"{entity.epoch}"', version=version)
        return self._with_document(place, answer, entity)

    def _with_document(self, place: Place, answer: Answer, version: Version | None) -> Answer:
        """Make the document the answer, where it is what is asked for."""
        kind = place.resource
        if self._request.details or self._request.flags.doc or not kind.hasdocument or answer.body is None:
            return answer
        body = {**answer.body, "self": f"{self._request.base}{place.xid}"}
        url = body.get(kind.document_names[2])
        if url is not None or version is None:
            return replace(answer, body=body, document=b"", elsewhere=str(url or ""))
        return replace(answer, body=body, document=self._reader.document(version.xid) or b"")

    def _resource(self, place: Place) -> Shown | None:
        return next(shown_resources(self._reader, place, "", place.rid), None)

    def _owner(self, place: Place) -> None:
        if place.kind == "resources" and self._reader.group(place.owner.xid) is None:
            raise Refusal("not_found", place.owner.xid)
        if place.kind == "versions" and self._reader.resource(place.owner.xid) is None:
            raise Refusal("not_found", place.owner.xid)

    def _count(self, place: Place) -> int:
        if place.kind != "versions":
            return self._reader.count(place.xid)
        resource = self._resource(place.owner)
        return resource.count if resource is not None else 0


def check_flags(flags: Flags, place: Place, path: str) -> None:
    """Make sure that flags are used where they can be.

    Raises:
        Refusal: ``bad_flag``, ``unsupported_specversion``.
    """
    check_specversion(flags, path)
    if flags.collections and place.kind not in ("registry", "group"):
        raise Refusal("bad_flag", path, flag="collections")


def check_specversion(flags: Flags, path: str) -> None:
    """Make sure that the version that a request asks for is the one that is spoken here.

    Raises:
        Refusal: ``unsupported_specversion``.
    """
    if flags.specversion is not None and flags.specversion.lower() != SPECVERSION:
        raise Refusal("unsupported_specversion", path, specversion=flags.specversion, list=SPECVERSION)


def _check_cursor(request: Request, *, number: bool) -> None:
    cursor = request.cursor
    ours = cursor.isascii() and (cursor.isdecimal() and len(cursor) < 10 if number else cursor.isprintable())
    if cursor and not ours:
        raise Refusal("bad_request", request.path, error_detail="the cursor is not from this registry")
