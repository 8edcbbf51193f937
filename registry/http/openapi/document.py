"""The whole OpenAPI document of a registry; it is made of the model in force, so it is true of any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from bindings.http.routing import Access
from registry.core.answering import CONFIGURED
from registry.core.requests import ResourcePath
from registry.core.service import METHODS
from registry.core.views import SPECVERSION
from registry.delivery.service import PERMISSIONS
from registry.delivery.subscriptions import CREDENTIALS, MAX_EXPRESSIONS, MAX_TEXT, MAX_TYPES, PATH
from registry.delivery.subscriptions import MAX_FILTER_TEXT as MAX_VALUE
from registry.delivery.targets import PROTOCOLS
from registry.http.openapi import operations
from registry.http.openapi.operations import (
    HISTORY,
    JSON,
    Schema,
    all_schemas,
    answers,
    content,
    parameters_on,
    path_parameters,
    reference,
)
from registry.http.requests import DETAILS, VERBS
from registry.model.types import Model

# What OpenAPI says of ``/subscriptions``: documents of the CloudEvents Subscriptions API, as they are taken here.

MEDIA: Final = "application/cloudevents-subscription+json"
_NAME: Final = "Subscription"
"""Begins with a capital, which no name of the model does."""
_FILTER: Final = "Filter"
_SINK: Final = "^[A-Za-z]+://[!-~]+$"
_PARAMETER: Final = "subscriptionid"
_TAG: Final = "subscriptions"


def subscription_paths() -> dict[str, dict[str, Any]]:
    """Return what can be done where, by path."""
    shown = reference(_NAME)
    one = {"name": _PARAMETER, "in": "path", "required": True, "schema": {"type": "string", "pattern": "^[0-9a-f]+$"}}
    return {
        PATH: {
            "parameters": [],
            "get": _operation("200", "The subscriptions that the client may see.", {"type": "array", "items": shown}),
            "post": {**_operation("201", "It was made.", shown), "requestBody": _body()},
        },
        f"{PATH}/{{{_PARAMETER}}}": {
            "parameters": [one],
            "get": _operation("200", "As it is, without secrets.", shown),
            "put": {**_operation("200", "The subscription as it is from now on.", shown), "requestBody": _body()},
            "delete": _operation("200", "The subscription as it was before it ended.", shown),
        },
    }


def subscription_schemas() -> dict[str, Schema]:
    """Return the schemas of subscriptions and their filters, by name."""
    given = _given()
    shown = {"id": {"type": "string"}, **given["properties"]}
    return {
        _NAME: {**given, "required": ["id", *given["required"]], "properties": shown},
        f"{_NAME}.given": {**given, "properties": {**shown, "sinkCredential": _credential(secrets=True)}},
        _FILTER: _filter(),
    }


def _operation(status: str, description: str, schema: Schema) -> dict[str, Any]:
    return {"tags": [_TAG], "parameters": [], "responses": answers({status: content(description, schema)})}


def _body() -> dict[str, Any]:
    schema = {"schema": reference(_NAME, given=True)}
    return {"required": True, "content": {media: schema for media in (JSON, MEDIA)}}


def _given() -> Schema:
    text = {"type": "string", "minLength": 1, "maxLength": MAX_TEXT}
    one = reference(_FILTER)
    several = {"type": "array", "items": one, "maxItems": MAX_EXPRESSIONS}
    settings = sorted({name for each in PROTOCOLS.values() for name in each.settings})
    return {
        "type": "object",
        "required": ["protocol", "sink"],
        "properties": {
            "source": {**text, "description": "The URL of this registry, or of its Message Catalog."},
            "types": {"type": "array", "maxItems": MAX_TYPES, "items": text},
            "filters": {"anyOf": [several, one]},
            "filter": {"anyOf": [several, one], "deprecated": True},
            "config": {"type": "object", "maxProperties": 0},
            "protocol": {"type": "string", "enum": list(PROTOCOLS)},
            "protocolsettings": {
                "type": "object",
                "properties": {name: {} for name in settings},
                "additionalProperties": False,
            },
            "sink": {**text, "pattern": _SINK, "description": _sinks()},
            "sinkCredential": _credential(secrets=False),
            "expiration": {"type": "string", "format": "date-time"},
        },
        "additionalProperties": False,
    }


def _sinks() -> str:
    forms = (f"{name}: {', '.join(f'{scheme}://' for scheme in each.schemes)}" for name, each in PROTOCOLS.items())
    return f"A host, and the address there that the protocol needs. {'; '.join(forms)}."


def _credential(*, secrets: bool) -> Schema:
    names = [name for each in CREDENTIALS.values() for name in each if secrets or name == "identifier"]
    texts: Mapping[str, Schema] = {name: {"type": "string", "pattern": "^[ -~]+$"} for name in names}
    return {
        "type": "object",
        "required": ["credentialType"],
        "properties": {
            "credentialType": {"type": "string", "enum": list(CREDENTIALS)},
            **texts,
            "accessTokenType": {"type": "string", "description": "Bearer, in any letter case."},
            "accessTokenExpiresUtc": {"type": "string"},
        },
        "additionalProperties": False,
    }


def _filter() -> Schema:
    """Return the schema of one filter; those within it are filters too."""
    values = {"type": "string", "minLength": 1, "maxLength": MAX_VALUE}
    compared: Schema = {
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"minLength": 1},
        "additionalProperties": values,
    }
    inner = reference(_FILTER)
    several: Schema = {"type": "array", "minItems": 1, "maxItems": MAX_EXPRESSIONS, "items": inner}
    dialects = {"exact": compared, "prefix": compared, "suffix": compared, "all": several, "any": several, "not": inner}
    return {"type": "object", "minProperties": 1, "properties": dialects, "additionalProperties": False}


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
    yield "/", _item(ResourcePath("registry"), model)
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


def _places(model: Model) -> Iterator[ResourcePath]:
    """Yield all places below the root, where parameters stand for ids."""
    for group in model.groups.values():
        groups = ResourcePath("groups", group)
        one = groups.child(f"{{{group.singular}id}}")
        yield from (groups, one)
        for plural, kind in group.resources.items():
            resources = one.collection(plural)
            # A group and a resource of it may have the same singular name.
            prefix = "resource" if kind.singular == group.singular else ""
            resource = resources.child(f"{{{prefix}{kind.singular}id}}")
            versions = resource.collection("versions")
            yield from (resources, resource, replace(resource, kind="meta"), versions, versions.child("{versionid}"))


def _item(place: ResourcePath, model: Model, *, document: bool = False) -> dict[str, Any]:
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
