"""Responses to reads within one transaction; writes show what they wrote in the same way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from catalog.parsing.pointers import to_pointer
from registry.compatibility.rules import CHECKERS, RULES
from registry.compatibility.schemas import FORMATS
from registry.core.ancestry import IGNORE_VALUES
from registry.core.requests import (
    EXPORT,
    NO_CLAUSES,
    Flags,
    RegistryRequest,
    ResourcePath,
    Response,
    body_etag,
    clauses_within,
    parse_filters,
    parse_sorting,
)
from registry.core.views import (
    INLINE_ALL,
    INLINE_NONE,
    SPECVERSION,
    EntityView,
    Inline,
    Scope,
    ViewOptions,
    find_shown,
    inline_below,
    parse_inline,
    require_owner,
    require_shown,
)
from registry.errors import Refusal, join_values
from registry.model.attributes import Model
from registry.model.compiler import VERSION_MODES
from registry.store.entities import EntityReader, Registry, Version

# Capabilities. Clients may turn off flags, values of ``ignore``, and pagination.
#
# All others are fixed: an update may only repeat them (core ``spec.md``, Updating the Capabilities).

FLAGS: Final = (
    "binary",
    "collections",
    "doc",
    "epoch",
    "filter",
    "ignore",
    "inline",
    "setdefaultversionid",
    "sort",
    "specversion",
)
_PAGING: Final[Mapping[str, Any]] = {"limit": None, "cursor": ""}
"""Pagination parameters and their defaults."""
_LISTS: Final = ("flags", "ignores", "pagination")
_MUTABLE: Final = ("capabilities", "entities", "modelsource")
_READABLE: Final = ("capabilities", "capabilitiesoffered", "entities", "export", "model", "modelsource")
CAPABILITIES: Final[Mapping[str, Any]] = {
    "available": {name: {"mutable": name in _MUTABLE} for name in _READABLE},
    "compatibilities": {f"{family}*": list(RULES) for family in CHECKERS},
    "flags": list(FLAGS),
    "formats": list(FORMATS),
    "ignores": list(IGNORE_VALUES),
    "pagination": True,
    "shortself": False,
    "specversions": [SPECVERSION],
    "versionmodes": list(VERSION_MODES),
}


def offered_capabilities() -> dict[str, Any]:
    """Return the offered capabilities: each with its allowed values."""
    offer: dict[str, Any] = _offer(CAPABILITIES)["attributes"]
    offer["pagination"]["enum"] = [False, True]
    return offer


def _offer(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {"type": "object", "attributes": {name: _offer(each) for name, each in value.items()}}
    if isinstance(value, list):
        return {"type": "array", "item": {"type": "string"}, "enum": value}
    return {"type": "boolean", "enum": [value]}


def effective_capabilities(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return all capabilities, with the values that clients have *chosen* instead of the defaults.

    For a list *chosen* has the values that are off, so that values added by a later release are on.
    """
    capabilities = dict(CAPABILITIES)
    for name, value in chosen.items():
        if isinstance(value, Mapping):
            capabilities[name] = [each for each in CAPABILITIES[name] if each not in value["off"]]
        else:
            capabilities[name] = value
    return capabilities


def is_enabled(parameter: str, capabilities: Mapping[str, Any]) -> bool:
    """Whether a query parameter is enabled; parameters that no capability controls always are."""
    if parameter in _PAGING:
        return bool(capabilities["pagination"])
    return parameter not in FLAGS or parameter in capabilities["flags"]


def without_disabled_flags(request: RegistryRequest, chosen: Mapping[str, Any]) -> RegistryRequest:
    """Return a request without query parameters that are turned off, which are ignored (``http.md``)."""
    if not chosen or not request.from_client:
        return request
    have = effective_capabilities(chosen)
    none = Flags()
    off = {name: getattr(none, name) for name in FLAGS if not is_enabled(name, have)}
    pages = {name: value for name, value in _PAGING.items() if not is_enabled(name, have)}
    return replace(request, flags=replace(request.flags, **off), **pages)


def ignorable_values(request: RegistryRequest, chosen: Mapping[str, Any]) -> Sequence[str]:
    """Return the allowed values of the flag ``ignore``."""
    return effective_capabilities(chosen)["ignores"] if request.from_client else IGNORE_VALUES


def parse_capabilities(body: object, present: Mapping[str, Any], *, patch: bool) -> dict[str, Any]:
    """Return the capabilities that differ from the defaults after a client wrote *body*; None resets to the defaults.

    Capabilities not named get their default, or with *patch* keep their *present* value.

    Raises:
        Refusal: a capability is unknown, has a value that is not offered, or cannot be changed.
    """
    if body is None:
        return {}
    if not isinstance(body, Mapping):
        raise Refusal("capability_error", "/capabilities", error_detail="the capabilities must be an object")
    chosen = dict(present) if patch else {}
    for name, value in body.items():
        if name not in CAPABILITIES:
            raise Refusal("capability_unknown", "/capabilities", field=name)
        first = CAPABILITIES[name]
        chosen.pop(name, None)
        if value is None:
            continue
        if isinstance(first, list):
            if off := _parse_list(name, value, first):
                chosen[name] = {"off": off}
        elif isinstance(first, Mapping):
            if value != first:
                raise Refusal("capability_error", "/capabilities", error_detail=f"{name} is read-only")
        elif not isinstance(value, bool) or (value != first and name not in _LISTS):
            allowed = ["false", "true"] if name in _LISTS else [str(first).lower()]
            raise _value_refusal(name, str(value).lower(), allowed)
        elif value != first:
            chosen[name] = value
    return chosen


def _parse_list(name: str, value: object, first: list[str]) -> list[str]:
    """Return the values of a list that are off; *first* has all."""
    if not isinstance(value, list):
        raise _value_refusal(name, str(value), first)
    folded = [str(each).lower() for each in value]
    if "*" in folded:
        if len(folded) > 1:
            raise Refusal("capability_wildcard", "/capabilities", field=name)
        return []
    if unknown := [each for each in folded if each not in {known.lower() for known in first}]:
        raise _value_refusal(name, unknown[0], first)
    off = [each for each in first if each.lower() not in folded]
    if off and name == "specversions":
        raise Refusal("capability_missing_value", "/capabilities", name=name, value=off[0])
    if off and name not in _LISTS:
        raise Refusal("capability_error", "/capabilities", error_detail=f"{name} must include {off[0]}")
    return off


def _value_refusal(name: str, value: str, allowed: list[str]) -> Refusal:
    return Refusal("capability_value", "/capabilities", value=value, field=name, list=join_values(allowed))


OPENAPI: Final = "openapi.json"
CONFIGURATION_PATHS: Final = frozenset(("capabilities", "capabilitiesoffered", "model", "modelsource", EXPORT, OPENAPI))
"""Paths below the root that are not group types."""


class ResponseBuilder:
    """Builds responses from what a reader sees. All methods raise :class:`Refusal`."""

    def __init__(self, reader: EntityReader, model: Model, registry: Registry, request: RegistryRequest) -> None:
        self._reader = reader
        self._model = model
        self._registry = registry
        self._request = request

    def configuration(self, name: str) -> Response:
        """Return the response for a path of :data:`CONFIGURATION_PATHS` other than OPENAPI."""
        check_specversion(self._request.flags, self._request.path)
        if name != EXPORT:
            bodies: Mapping[str, Mapping[str, Any]] = {
                "capabilities": effective_capabilities(self._registry.capabilities),
                "capabilitiesoffered": offered_capabilities(),
                "model": self._model.document,
                "modelsource": self._registry.modelsource,
            }
            return Response(bodies[name], etag=body_etag(bodies[name]))
        flags = self._request.flags
        inline = flags.inline or ("*,capabilities,modelsource",)
        self._request = replace(self._request, flags=replace(flags, doc=True, inline=inline))
        return self.read_response(ResourcePath("registry"))

    def read_response(self, place: ResourcePath) -> Response:
        """Return an entity, a document, or a page of a collection."""
        request, flags = self._request, self._request.flags
        if flags.doc and place.kind in ("versions", "version"):
            owner = self._reader.resource(place.owner.xid)
            if owner is not None and owner.xref is not None:
                raise Refusal("cannot_doc_xref", owner.xid)
        sorting = parse_sorting(flags.sort, place, request.path) if flags.sort is not None else None
        view = self.view_options(place)
        if place.is_collection:
            _check_cursor(request, number=sorting is not None)
            require_owner(self._reader, place)
            viewer = EntityView(self._reader, self._model, view)
            entries, after = viewer.render_page(place, request.limit, request.cursor, sorting)
            count = None
            if view.scope.clauses is None:
                versions = place.kind == "versions"
                count = require_shown(self._reader, place).count if versions else self._reader.count(place.xid)
            return Response(entries, after=after, count=count)
        return self.show_entity(place, view)

    def view_options(self, place: ResourcePath, asked: ResourcePath | None = None) -> ViewOptions:
        """Return the view options of the request; ``inline`` is relative to *asked* if given."""
        request, flags = self._request, self._request.flags
        check_specversion(flags, request.path)
        if flags.collections and place.kind not in ("registry", "group"):
            raise Refusal("bad_flag", request.path, flag="collections")
        inline: Inline = parse_inline(flags.inline, self._model, asked or place, request.path)
        if flags.collections:
            inline = {**inline, **INLINE_ALL}
        clauses = parse_filters(flags.filter, request.path)
        scope = Scope(inline, clauses)
        return ViewOptions(request.base, request.path, scope, flags.doc, flags.binary, request.max_answer)

    def show_entity(self, place: ResourcePath, view: ViewOptions) -> Response:
        """Return the response with one entity."""
        answer = self._show_plain(place, EntityView(self._reader, self._model, view), view)
        if answer is None:
            raise Refusal("not_found", place.xid)
        if self._request.flags.collections and answer.body is not None:
            kinds = self._model.groups if place.kind == "registry" else place.group.resources
            return replace(answer, body={name: answer.body[name] for name in kinds}, etag="")
        plain = not (view.scope.inline or view.scope.clauses or view.doc or view.binary)
        return answer if plain else replace(answer, etag="")

    def show_entities(self, place: ResourcePath, names: Sequence[str]) -> Mapping[str, Any]:
        """Return the entities of a collection that a request has processed."""
        if self._request.segments == tuple(place.xid.split("/")[1:]):
            view = self.view_options(place)
            return EntityView(self._reader, self._model, view).render_entities(place, names, view.scope)
        # One of several collections of the requested entity.
        plural = place.xid.rpartition("/")[2]
        view = self.view_options(place, ResourcePath("registry") if place.kind == "groups" else place.owner)
        inline, clauses = inline_below(view.scope.inline, plural) or INLINE_NONE, view.scope.clauses
        scope = Scope(inline, None if clauses is None else clauses_within(clauses, plural), to_pointer([plural]))
        return EntityView(self._reader, self._model, view).render_entities(place, names, scope)

    def current_etags(self, place: ResourcePath) -> set[str]:
        """Return the values that ``If-Match`` may have for an entity: ``*`` and its ETag; none if it does not exist."""
        try:
            plain = ViewOptions(self._request.base)
            request = replace(self._request, flags=Flags(), details=True)
            etag = ResponseBuilder(self._reader, self._model, self._registry, request).show_entity(place, plain).etag
        except Refusal:
            return set()
        return {"*", etag} - {""}

    def _show_plain(self, place: ResourcePath, viewer: EntityView, view: ViewOptions) -> Response | None:
        """Return the response with one entity without flags, None if it does not exist or does not match."""
        if place.kind == "registry":
            registry = self._registry
            shown = viewer.render_registry(registry, effective_capabilities(registry.capabilities))
            return None if shown is None else Response(shown, etag=f'"{registry.epoch}"')
        if place.kind == "group":
            group = self._reader.group(place.xid)
            shown = None if group is None else viewer.render_group(place, group, view.scope)
            return None if group is None or shown is None else Response(shown, etag=f'"{group.epoch}"')
        resource = find_shown(self._reader, place)
        if resource is None:
            return None
        source, version = resource.source, resource.default
        if place.kind == "meta":
            etag = f'"{source.epoch}"' if source is not None else ""
            shown = None if view.scope.clauses == NO_CLAUSES else viewer.render_meta(place.owner, resource, "")
            return None if shown is None else Response(shown, etag=etag)
        etag, owner = "", place
        if place.kind == "resource":
            shown = viewer.render_resource(place, resource, view.scope)
            if source is not None and version is not None:
                etag = f'"{source.epoch}-{version.epoch}"'
        else:
            owner = place.owner
            version = self._reader.version(f"{source.versions}/{place.vid}") if source is not None else None
            if source is None or version is None:
                return None
            is_default, etag = source.defaultversionid == place.vid, f'"{version.epoch}"'
            shown = viewer.render_version(place, version, view.scope, is_default=is_default)
        if shown is None:
            return None
        details = "$details" if place.resource.hasdocument else ""
        url = f"{view.base}{owner.xid}/versions/{version.id}{details}" if version is not None else ""
        answer = Response(shown, name=place.rid, etag=etag, version=url)
        return self._replace_by_document(place, answer, version)

    def _replace_by_document(self, place: ResourcePath, response: Response, version: Version | None) -> Response:
        """Replace the response by the document if the document was requested."""
        kind = place.resource
        if self._request.details or self._request.flags.doc or not kind.hasdocument or response.body is None:
            return response
        body = {**response.body, "self": f"{self._request.base}{place.xid}"}
        url = body.get(kind.document_names[2])
        if url is not None or version is None:
            return replace(response, body=body, document=b"", document_url=str(url or ""))
        return replace(response, body=body, document=self._reader.document(version.xid) or b"")


def check_specversion(flags: Flags, path: str) -> None:
    """Raise if the requested ``specversion`` is not supported.

    Raises:
        Refusal: ``unsupported_specversion``.
    """
    if flags.specversion is not None and flags.specversion.lower() != SPECVERSION:
        raise Refusal("unsupported_specversion", path, specversion=flags.specversion, list=SPECVERSION)


def _check_cursor(request: RegistryRequest, *, number: bool) -> None:
    cursor = request.cursor
    ours = cursor.isascii() and (cursor.isdecimal() and len(cursor) < 10 if number else cursor.isprintable())
    if cursor and not ours:
        raise Refusal("bad_request", request.path, error_detail="the cursor is not valid for this registry")
