"""One operation: what a method takes and answers at a place."""

from __future__ import annotations

from typing import Any, Final

from registry.core.places import Place
from registry.core.requests import Verb
from registry.http.openapi import parameters
from registry.http.openapi.schemas import Schema, map_of, name_of, name_of_resource, reference
from registry.model.types import Model

JSON: Final = "application/json"
_ANY: Final = "*/*"
_DOCUMENTS: Final = ("application/json", "application/octet-stream", "text/plain")
_LINK: Final = {"Link": {"description": "The root of the registry, and the next page.", "schema": {"type": "string"}}}
_TAG: Final = {"ETag": {"description": "What the entity is compared by.", "schema": {"type": "string"}}}
HISTORY: Final = "/history.json"
"""No type of groups can have this path."""
HISTORY_SORTS: Final = ("number", "number=asc", "number=desc")
_ENTRIES: Final[Schema] = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["number", "at", "action", "xid", "epoch", "interaction"],
        "properties": {
            "number": {"type": "integer", "minimum": 1},
            "at": {"type": "string", "format": "date-time"},
            "who": {"type": "string", "description": "Not for those without credentials."},
            "action": {"type": "string", "enum": ["created", "updated", "deleted"]},
            "xid": {"type": "string"},
            "epoch": {"type": "integer", "minimum": 0},
            "interaction": {"type": "string", "description": "The same for all that one request changed."},
            "changed": {
                "type": "object",
                "description": "Not there where the entry before is kept no more.",
                "additionalProperties": {"type": "object", "properties": {"old": {}, "new": {}}},
            },
        },
    },
}
_KNOWN: Final[Schema] = {"description": "The client has it.", "headers": dict(_TAG)}


def operation(place: Place, model: Model, verb: Verb, *, document: bool) -> dict[str, Any]:
    """Return what OpenAPI calls an operation; where *document* is true, the entity's document is read and written."""
    taken = [*parameters.flags_of(place, model, verb), *parameters.conditions_of(verb, guarded=not place.is_collection)]
    if document and verb in ("replace", "add"):
        taken += parameters.attributes_of(place.resource)
    members: dict[str, Any] = {"tags": [_tag(place)], "parameters": taken}
    body = _body(place, model, verb, document=document)
    if body is not None:
        members["requestBody"] = body
    members["responses"] = _responses(place, model, verb, document=document)
    return members


def configured(name: str, verb: Verb) -> dict[str, Any]:
    """Return the operation of a path that is no place of entities, such as ``/model``."""
    schema = reference("registry") if name == "export" else {"type": "object"}
    shown: dict[str, Any] = {"200": {**content("What it is.", schema), "headers": dict(_TAG)}}
    if verb == "read":
        shown["304"] = _KNOWN
    members: dict[str, Any] = {"tags": ["registry"], "responses": answers(shown)}
    members["parameters"] = list(parameters.conditions_of(verb, guarded=True))
    if verb != "read":
        members["requestBody"] = {"required": True, "content": {JSON: {"schema": {"type": "object"}}}}
    return members


def history() -> dict[str, Any]:
    """Return what can be done at :data:`HISTORY`."""
    text: Schema = {"type": "string"}
    number: Schema = {"type": "integer", "minimum": 1}
    flags: dict[str, tuple[Schema, str]] = {
        "xid": (text, "The entity whose history it is, as its path; without it that of all."),
        "below": ({"type": "string", "maxLength": 0}, "Entities below that one too."),
        "sort": ({"type": "string", "enum": list(HISTORY_SORTS)}, "The oldest first, or the newest."),
        "limit": (number, "How many entries a page has at most."),
        "cursor": (number, "The number of the last entry that the client has, as a link says it."),
    }
    taken = [
        {"name": name, "in": "query", "schema": schema, "description": what} for name, (schema, what) in flags.items()
    ]
    shown = content("Who did what, and when; old and new values of `changed` are by JSON pointer.", _ENTRIES)
    answer = {"tags": ["history"], "parameters": taken, "responses": answers({"200": {**shown, "headers": _LINK}})}
    return {"parameters": [], "get": answer}


def _tag(place: Place) -> str:
    if place.group_type is None:
        return "registry"
    return place.group.plural if place.resource_type is None else f"{place.group.plural}.{place.resource.plural}"


def _shown(place: Place) -> str:
    """Return the name of the schema of an entity at a place, or in a collection there."""
    if place.kind == "registry":
        return "registry"
    if place.kind in ("groups", "group"):
        return name_of(place.group)
    part = {"meta": "meta", "versions": "versions", "version": "versions"}.get(place.kind, "")
    return name_of_resource(place.resource, part)


def _body(place: Place, model: Model, verb: Verb, *, document: bool) -> dict[str, Any] | None:
    if verb == "read" or (verb == "delete" and not place.is_collection):
        return None
    if document:
        return {"content": {media: {"schema": {}} for media in _DOCUMENTS}}
    given = reference(_shown(place), given=True)
    if place.is_collection:
        given = map_of(given)
    elif verb == "add":
        given = _added(place, model)
    return {"required": verb != "delete", "content": {JSON: {"schema": given}}}


def _added(place: Place, model: Model, *, given: bool = True) -> Schema:
    """Return the schema of what is added below a place: a version, or collections by their names."""
    if place.kind == "resource":
        return reference(name_of_resource(place.resource, "versions"), given=given)
    names = (
        {plural: name_of(each) for plural, each in model.groups.items()}
        if place.kind == "registry"
        else {plural: name_of_resource(each) for plural, each in place.group.resources.items()}
    )
    collections = {plural: map_of(reference(name, given=given)) for plural, name in names.items()}
    return {"type": "object", "properties": collections, "additionalProperties": False}


def _responses(place: Place, model: Model, verb: Verb, *, document: bool) -> dict[str, Any]:
    if verb == "delete":
        return answers({"204": {"description": "It is gone."}})
    schema = map_of(reference(_shown(place))) if place.is_collection else reference(_shown(place))
    if verb == "add" and not place.is_collection:
        schema = _added(place, model, given=False)
    content = {_ANY: {"schema": {}}} if document else {JSON: {"schema": schema}}
    shown = {"description": "As it is.", "headers": {**_LINK, **_TAG}, "content": content}
    by_status = {"200": shown}
    if verb != "read" and not place.is_collection and place.kind != "registry":
        by_status["201"] = {**shown, "description": "It was created."}
    if verb == "read":
        by_status["304"] = _KNOWN
    if document and verb == "read":
        by_status["303"] = {**shown, "description": "The document is elsewhere."}
    return answers(by_status)


def answers(by_status: dict[str, Any]) -> dict[str, Any]:
    """Return answers by status, with that of refusals."""
    problem = reference("problem")
    media = {each: {"schema": problem} for each in (JSON, "application/problem+json")}
    return {**by_status, "4XX": {"description": "It is refused, and nothing has changed.", "content": media}}


def content(description: str, schema: Schema) -> dict[str, Any]:
    """Return an answer that is JSON."""
    return {"description": description, "content": {JSON: {"schema": schema}}}
