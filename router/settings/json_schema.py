"""The JSON Schema of settings files, for editors: made of the models, so that no key is forgotten.

It takes what :func:`router.settings.load.load_settings` takes, but for rules between settings; every value may be a
reference. ``router/settings/settings.schema.json`` is it as a file, held equal by a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

import msgspec

from router.settings.model import Settings

SCHEMA_NAME: Final = "settings.schema.json"
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE: Final = {"type": "string", "pattern": r"\$\{|^file:"}
_LEFT_OUT: Final = ("default", "title", "format", "writeOnly", "discriminator")
"""Keys that tell an editor nothing, or that do not hold for values as a file has them."""


def settings_json_schema() -> dict[str, Any]:
    """Return the schema, as JSON Schema 2020-12."""
    schema = Settings.model_json_schema()
    definitions = {name: _schema(each) for name, each in schema.pop("$defs").items()}
    # These have defaults that the loader fills in.
    schema.pop("required", None)
    described = {"title": "Settings of xrouter", "description": "What `xrouter run` is started with."}
    return {"$schema": _DIALECT, **_schema(schema), **described, "$defs": definitions}


def schema_document() -> bytes:
    """Return the schema as the file has it."""
    return msgspec.json.format(msgspec.json.encode(settings_json_schema()), indent=1) + b"\n"


def packaged_schema() -> bytes:
    """Return the file that is part of the package."""
    return (files("router.settings") / SCHEMA_NAME).read_bytes()


def _schema(form: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without what is left out, in which each value but an object or a list may be a reference."""
    schema: dict[str, Any] = {}
    for name, value in form.items():
        if name in _LEFT_OUT:
            continue
        if name == "properties":
            schema[name] = {key: _schema(each) for key, each in value.items()}
        elif name in ("anyOf", "oneOf"):
            schema["anyOf"] = [_schema(each) for each in value]
        elif name in ("items", "additionalProperties") and isinstance(value, Mapping):
            schema[name] = _schema(value)
        else:
            schema[name] = value
    return _or_reference(schema)


def _or_reference(form: dict[str, Any]) -> dict[str, Any]:
    narrow = {"pattern", "enum", "const", "minLength"} & form.keys() or form.get("type") in (
        "integer",
        "number",
        "boolean",
    )
    if not narrow or form.get("type") in ("object", "array"):
        return form
    described = {"description": form.pop("description")} if "description" in form else {}
    return {**described, "anyOf": [form, _REFERENCE]}
