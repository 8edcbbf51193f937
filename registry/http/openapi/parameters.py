"""The parameters of operations: ids in paths, flags, conditions, and attributes as headers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from registry.core.capabilities import is_on
from registry.core.merging import IGNORABLE
from registry.core.places import Place
from registry.core.requests import Verb
from registry.core.views import SPECVERSION
from registry.http.openapi.schemas import ID
from registry.model.attributes import Attribute
from registry.model.types import Model, ResourceType

Parameter = dict[str, Any]
_TAGS: Final = {"type": "string", "pattern": '^(\\*|"[^"]*")$'}
_PRESENT: Final = {"type": "string", "maxLength": 0}
_SHOWING: Final = ("replace", "patch", "add", "read")


def path_parameters(place: Place) -> Iterator[Parameter]:
    """Yield the ids in the path of a place, which has them as ``{NAME}``."""
    for name in (place.gid, place.rid, place.vid):
        if name:
            yield {"name": name[1:-1], "in": "path", "required": True, "schema": ID}


def flags_of(place: Place, model: Model, verb: Verb) -> Iterator[Parameter]:
    """Yield the flags that requests to a place may have (core ``spec.md``, Request Flags)."""
    yield _flag("specversion", {"type": "string", "enum": [SPECVERSION]}, "The version of the specification.")
    if verb in _SHOWING:
        yield from _showing(place, model)
    if verb == "read":
        if place.is_collection:
            yield _flag("sort", {"type": "string"}, "The attribute to order by, with =asc or =desc.")
            yield _flag("limit", {"type": "integer", "minimum": 1}, "How many entities a page has at most.")
            yield _flag("cursor", {"type": "string"}, "Where the page begins, as a link to it says.")
        return
    if verb == "delete" and not place.is_collection:
        yield _flag("epoch", {"type": "integer", "minimum": 0}, "The epoch that the entity needs to have.")
    yield _flag("ignore", _texts("*", *IGNORABLE), "What of the body does not count.")
    if place.kind in ("resource", "meta", "versions", "version"):
        text = "The id of the version that becomes the default one; null, or request for that of the request."
        yield _flag("setdefaultversionid", {"type": "string", "minLength": 1}, text)


def parameters_on(parameters: Iterable[Parameter], capabilities: Mapping[str, Any]) -> Iterator[Parameter]:
    """Yield the parameters that count under *capabilities*: all but flags, and parts of them, that are turned off."""
    for each in parameters:
        flag = each["name"] if each["in"] == "query" else ""
        if is_on(flag, capabilities):
            yield {**each, "schema": _texts("*", *capabilities["ignores"])} if flag == "ignore" else each


def conditions_of(verb: Verb, *, guarded: bool) -> Iterator[Parameter]:
    """Yield the conditions that requests may have (RFC 9110 section 13); writes only of what is *guarded* by ETags."""
    if verb == "read":
        yield _header("If-None-Match", _TAGS, "ETags of what the client has.")
    elif guarded:
        yield _header("If-Match", _TAGS, "ETags of which one needs to be that of what is there.")


def attributes_of(kind: ResourceType) -> Iterator[Parameter]:
    """Yield the headers that give attributes beside a document."""
    for name, each in kind.attributes.items():
        if each.scalar and not each.readonly and name not in ("contenttype", *kind.document_names[:2]):
            yield _header(f"xRegistry-{name}", _header_schema(each), each.description)


def _showing(place: Place, model: Model) -> Iterator[Parameter]:
    yield _flag("inline", _texts(*_inlineable(place, model)), "What is shown in place.")
    yield _flag("filter", {"type": "array", "items": {"type": "string"}}, "Which entities are shown.")
    yield _flag("doc", _PRESENT, "The document view, with links within it.")
    yield _flag("binary", _PRESENT, "Documents in base64.")
    if place.kind in ("registry", "group"):
        yield _flag("collections", _PRESENT, "Collections alone, with all that is in them.")


def _inlineable(place: Place, model: Model) -> Iterator[str]:
    """Yield all that can be inlined at a place, and below it."""
    yield "*"
    if place.kind == "registry":
        yield from ("capabilities", "model", "modelsource")
        for plural, group in model.groups.items():
            yield from _below(plural, Place("groups", group), model)
    elif place.kind in ("groups", "group"):
        for plural, each in place.group.resources.items():
            yield from _below(plural, Place("resources", place.group, "", each), model)
    elif place.kind in ("resources", "resource"):
        yield from ("meta", *_document(place.resource))
        yield from _below("versions", Place("versions", place.group, "", place.resource), model)
    elif place.kind in ("versions", "version"):
        yield from _document(place.resource)


def _below(name: str, place: Place, model: Model) -> Iterator[str]:
    yield name
    for each in _inlineable(place, model):
        yield f"{name}.{each}"


def _document(kind: ResourceType) -> tuple[str, ...]:
    return (kind.singular,) if kind.hasdocument else ()


def _texts(*values: str) -> Mapping[str, Any]:
    return {"type": "array", "items": {"type": "string", "enum": list(values)}}


def _flag(name: str, schema: Mapping[str, Any], description: str) -> Parameter:
    parameter: Parameter = {"name": name, "in": "query", "description": description, "schema": schema}
    if schema is _PRESENT:
        parameter["allowEmptyValue"] = True
    if schema["type"] == "array":
        parameter |= {"style": "form", "explode": True}
    return parameter


def _header(name: str, schema: Mapping[str, Any], description: str) -> Parameter:
    parameter: Parameter = {"name": name, "in": "header", "schema": schema}
    return {**parameter, "description": description} if description else parameter


def _header_schema(attribute: Attribute) -> Mapping[str, Any]:
    kinds = {"boolean": "boolean", "integer": "integer", "uinteger": "integer", "decimal": "number"}
    return {"type": kinds.get(attribute.type, "string")}
