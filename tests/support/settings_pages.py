"""Settings as their pages and editors have them: the rows of the reference, and the JSON Schema of a file.

The schema accepts what :func:`router.settings.load.load_settings` accepts, except for checks across settings; every
value may be a reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

import msgspec
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from router.settings import Settings
from router.settings.load import SettingsNode, fields_by_key, split_union, written_annotation
from router.settings.values import TYPE_NAMES, Section

_SIZES: Final = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_PLAIN: Final = {str: "string", int: "integer", float: "number", bool: "boolean", SecretStr: "secret"}
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE: Final = {"type": "string", "pattern": r"\$\{|^file:"}
_LEFT_OUT: Final = ("default", "title", "format", "writeOnly", "discriminator")
"""Keywords that do not help editors, or that do not apply to values as written in a file."""


def make_settings_reference() -> list[tuple[str, str, str, str]]:
    """Return ``(key, type, default, description)`` of every option, in the order of the models.

    List items are ``[]`` and free names ``NAME``; options of one kind of sink are ``sinks.NAME[kafka].topic``.
    """
    return _make_rows("", Settings)


def _make_rows(prefix: str, model: type[BaseModel]) -> list[tuple[str, str, str, str]]:
    rows: list[tuple[str, str, str, str]] = []
    for key, field in _own_first(model):
        annotation = written_annotation(field)
        nested = _find_nested(f"{prefix}{key}", annotation)
        if not nested:
            rows.append((f"{prefix}{key}", _type_name(annotation), _format_default(field), field.description or ""))
        for name, inner in nested:
            rows.extend(_make_rows(f"{name}.", inner))
    return rows


def _own_first(model: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    """Return the options of a model by key, its own before those that it inherits."""
    bases = [base for base in model.__mro__ if issubclass(base, BaseModel)]
    names = dict.fromkeys(name for base in bases for name in vars(base).get("__annotations__", ()))
    fields = ((name, model.model_fields[name]) for name in names if name in model.model_fields)
    return [(field.alias or name, field) for name, field in fields]


def _find_nested(key: str, annotation: Any) -> list[tuple[str, type[BaseModel]]]:
    for member in split_union(annotation):
        if isinstance(member, type) and issubclass(member, Section):
            return [(key, member)]
        if get_origin(member) is tuple and SettingsNode(get_args(member)[0]).models:
            return [(f"{key}[]", model) for model in SettingsNode(get_args(member)[0]).models]
        if get_origin(member) is dict and SettingsNode(get_args(member)[1]).models:
            models = SettingsNode(get_args(member)[1]).models
            if len(models) == 1:
                return [(f"{key}.NAME", models[0])]
            return [(f"{key}.NAME[{get_args(fields_by_key(model)['type'].annotation)[0]}]", model) for model in models]
    return []


def _type_name(annotation: Any) -> str:
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    if (name := next((TYPE_NAMES[each] for each in members if each in TYPE_NAMES), None)) is not None:
        return name
    names = []
    for member in split_union(annotation):
        if get_origin(member) is Literal:
            names.append(" | ".join(str(value) for value in get_args(member)))
        elif get_origin(member) is dict:
            names.append("map of strings")
        else:
            names.append(_PLAIN.get(member, getattr(member, "__name__", str(member))))
    return " | ".join(names)


def _format_default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "required"
    if value is None or value == () or value == {}:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        return f"{seconds:g}s" if seconds >= 1 else f"{seconds * 1000:g}ms"
    if isinstance(value, int) and _type_name(written_annotation(field)) == "size":
        return next((f"{value // unit}{name}" for name, unit in _SIZES if value % unit == 0), str(value))
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def make_json_schema() -> dict[str, Any]:
    """Return the schema, as JSON Schema 2020-12."""
    schema = Settings.model_json_schema()
    definitions = {name: _simplify_schema(each) for name, each in schema.pop("$defs").items()}
    # The loader fills in their defaults.
    schema.pop("required", None)
    described = {"title": "Settings of xrouter", "description": "Settings file of `xrouter run`."}
    return {"$schema": _DIALECT, **_simplify_schema(schema), **described, "$defs": definitions}


def encode_json_schema() -> bytes:
    """Return the schema as the bytes of its file."""
    return msgspec.json.format(msgspec.json.encode(make_json_schema()), indent=1) + b"\n"


def _simplify_schema(form: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without ignored keywords, in which each value except objects and lists may be a reference."""
    schema: dict[str, Any] = {}
    for name, value in form.items():
        if name in _LEFT_OUT:
            continue
        if name == "properties":
            schema[name] = {key: _simplify_schema(each) for key, each in value.items()}
        elif name in ("anyOf", "oneOf"):
            schema["anyOf"] = [_simplify_schema(each) for each in value]
        elif name in ("items", "additionalProperties") and isinstance(value, Mapping):
            schema[name] = _simplify_schema(value)
        else:
            schema[name] = value
    return _allow_reference(schema)


def _allow_reference(form: dict[str, Any]) -> dict[str, Any]:
    narrow = {"pattern", "enum", "const", "minLength"} & form.keys() or form.get("type") in (
        "integer",
        "number",
        "boolean",
    )
    if not narrow or form.get("type") in ("object", "array"):
        return form
    described = {"description": form.pop("description")} if "description" in form else {}
    return {**described, "anyOf": [form, _REFERENCE]}
