"""What OpenAPI says of ``/subscriptions``: documents of the CloudEvents Subscriptions API, as they are taken here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from registry.delivery.filters import MAX_EXPRESSIONS
from registry.delivery.filters import MAX_TEXT as MAX_VALUE
from registry.delivery.subscriptions import CREDENTIALS, MAX_TEXT, MAX_TYPES, PATH
from registry.delivery.targets import PROTOCOLS
from registry.http.openapi.operations import JSON, answers, content
from registry.http.openapi.schemas import Schema, reference

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
