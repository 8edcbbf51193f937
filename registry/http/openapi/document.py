"""The whole OpenAPI document of a registry; it is made of the model in force, so it is true of any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from bindings.http.access import Access
from registry.core.answering import CONFIGURED
from registry.core.places import Place
from registry.core.service import METHODS
from registry.core.views import SPECVERSION
from registry.delivery.service import PERMISSIONS
from registry.delivery.subscriptions import PATH
from registry.http.openapi import operations
from registry.http.openapi.operations import HISTORY
from registry.http.openapi.parameters import parameters_on, path_parameters
from registry.http.openapi.schemas import Schema, all_schemas
from registry.http.openapi.subscriptions import subscription_paths, subscription_schemas
from registry.http.requests import DETAILS, VERBS
from registry.model.types import Model

OPENAPI: Final = "3.1.0"
_TAKEN: Final = frozenset((PATH, PERMISSIONS))
"""Paths of subscriptions, which come before types of the model."""
_PROBLEM: Final[Schema] = {
    "type": "object",
    "required": ["type", "title", "status"],
    "properties": {
        "type": {"type": "string", "description": "The error, as the specification names it."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "subject": {"type": "string", "description": "The xid or path that it is about."},
        "args": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}


def openapi_of(
    model: Model,
    capabilities: Mapping[str, Any],
    base: str,
    access: Access | None = None,
    *,
    subscriptions: bool = False,
) -> dict[str, Any]:
    """Return the document for a registry at *base*, its URL, whose clients *access* lets in.

    Flags that *capabilities* do not list are not in it. With *subscriptions* it has those of events too, and not the
    types of the model whose paths they have.
    """
    paths = {path: _with_what_is_on(item, capabilities) for path, item in _paths(model)}
    components: dict[str, Any] = {"schemas": {"problem": _PROBLEM, **all_schemas(model)}}
    if subscriptions:
        paths = {path: item for path, item in paths.items() if f"/{path.split('/')[1]}" not in _TAKEN}
        paths |= subscription_paths()
        components["schemas"] |= subscription_schemas()
    paths[HISTORY] = operations.history()
    document: dict[str, Any] = {
        "openapi": OPENAPI,
        "info": {"title": "xRegistry", "version": SPECVERSION},
        "servers": [{"url": base or "/"}],
        "paths": paths,
        "components": components,
    }
    schemes = {} if access is None else _schemes(access)
    if schemes:
        components["securitySchemes"] = schemes
        document["security"] = [{name: []} for name in schemes]
    return document


def _schemes(access: Access) -> dict[str, Any]:
    schemes: dict[str, Any] = {}
    if access.bearer:
        schemes["bearer"] = {"type": "http", "scheme": "bearer"}
    if access.basic:
        schemes["basic"] = {"type": "http", "scheme": "basic"}
    if access.api_keys:
        schemes["key"] = {"type": "apiKey", "in": "header", "name": access.api_key_header}
    return schemes


def _paths(model: Model) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "/", _item(Place("registry"), model)
    for name in sorted(CONFIGURED):
        verbs = METHODS[name]
        methods = {word.lower(): operations.configured(name, verb) for word, verb in VERBS.items() if verb in verbs}
        yield f"/{name}", _without_head(methods)
    for place in _places(model):
        documents = place.kind in ("resource", "version") and place.resource.hasdocument
        path = place.xid
        yield path, _item(place, model, document=documents)
        if documents:
            yield f"{path}{DETAILS}", _item(place, model)


def _places(model: Model) -> Iterator[Place]:
    """Yield all places below the root, where parameters stand for ids."""
    for group in model.groups.values():
        groups = Place("groups", group)
        one = groups.child(f"{{{group.singular}id}}")
        yield from (groups, one)
        for plural, kind in group.resources.items():
            resources = one.collection(plural)
            # A group and a resource of it may have the same singular name.
            prefix = "resource" if kind.singular == group.singular else ""
            resource = resources.child(f"{{{prefix}{kind.singular}id}}")
            versions = resource.collection("versions")
            yield from (resources, resource, replace(resource, kind="meta"), versions, versions.child("{versionid}"))


def _item(place: Place, model: Model, *, document: bool = False) -> dict[str, Any]:
    methods: Mapping[str, Any] = {
        word.lower(): operations.operation(place, model, verb, document=document)
        for word, verb in VERBS.items()
        if verb in METHODS[place.kind] and not (document and verb == "patch")
    }
    return {"parameters": list(path_parameters(place)), **_without_head(methods)}


def _with_what_is_on(item: dict[str, Any], capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out of all operations of a path the flags that are turned off."""
    for method, each in item.items():
        if method != "parameters" and "parameters" in each:
            each["parameters"] = list(parameters_on(each["parameters"], capabilities))
    return item


def _without_head(methods: Mapping[str, Any]) -> dict[str, Any]:
    """Leave HEAD out, which answers as GET without a body."""
    return {method: each for method, each in methods.items() if method != "head"}
