"""The shape of the settings, read off the models: which keys may stand where, and the reference table.

One walk serves overriding by environment, the nearest known key in errors, and the table of deploy/SETTINGS.md.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from importlib.resources import files
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from router.settings.model import Settings
from router.settings.values import TYPE_NAMES, Section

_SIZES: Final = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_PLAIN: Final = {str: "string", int: "integer", float: "number", bool: "boolean", SecretStr: "secret"}


@dataclass(frozen=True, slots=True)
class Spot:
    """What may stand at one place: the annotation of the field there."""

    annotation: Any

    @property
    def models(self) -> tuple[type[BaseModel], ...]:
        """The models that the value may be; empty for plain values, lists and free maps."""
        return tuple(member for member in self._members() if isinstance(member, type) and issubclass(member, BaseModel))

    @property
    def is_list(self) -> bool:
        """Whether a list stands here."""
        return any(get_origin(member) is tuple for member in self._members())

    def keys(self) -> tuple[str, ...]:
        """The known keys; empty where any key may stand."""
        return tuple(dict.fromkeys(key for model in self.models for key in fields_of(model)))

    def child(self, key: str, value: Any) -> Spot:
        """The spot below *key*; *value* (its ``type`` member) settles which model of a union is meant."""
        for member in self._members():
            if get_origin(member) in (dict, Mapping):
                return Spot(get_args(member)[1])._settled(value)
            if get_origin(member) is tuple:
                return Spot(get_args(member)[0])._settled(value)
        for model in self.models:
            if key in fields_of(model):
                return Spot(_annotation(fields_of(model)[key]))
        return Spot(str)

    def _settled(self, value: Any) -> Spot:
        kind = value.get("type") if isinstance(value, Mapping) else None
        for model in self.models if len(self.models) > 1 else ():
            if kind in get_args(fields_of(model)["type"].annotation):
                return Spot(model)
        return self

    def _members(self) -> tuple[Any, ...]:
        return _members(self.annotation)


ROOT: Final = Spot(Settings)


def fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a model by the keys they have in the file."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def settings_reference() -> list[tuple[str, str, str, str]]:
    """Return ``(key, type, default, doc)`` of every option, in the order of the models.

    List items are ``[]`` and free names ``NAME``; options of one kind of sink are ``sinks.NAME[kafka].topic``.
    """
    return _rows("", Settings)


def _rows(prefix: str, model: type[BaseModel]) -> list[tuple[str, str, str, str]]:
    rows: list[tuple[str, str, str, str]] = []
    for key, field in fields_of(model).items():
        annotation = _annotation(field)
        nested = _nested(f"{prefix}{key}", annotation)
        if not nested:
            rows.append((f"{prefix}{key}", _type_name(annotation), _default(field), field.description or ""))
        for name, inner in nested:
            rows.extend(_rows(f"{name}.", inner))
    return rows


def _nested(key: str, annotation: Any) -> list[tuple[str, type[BaseModel]]]:
    for member in _members(annotation):
        if isinstance(member, type) and issubclass(member, Section):
            return [(key, member)]
        if get_origin(member) is tuple and Spot(get_args(member)[0]).models:
            return [(f"{key}[]", model) for model in Spot(get_args(member)[0]).models]
        if get_origin(member) is dict and Spot(get_args(member)[1]).models:
            models = Spot(get_args(member)[1]).models
            if len(models) == 1:
                return [(f"{key}.NAME", models[0])]
            return [(f"{key}.NAME[{get_args(fields_of(model)['type'].annotation)[0]}]", model) for model in models]
    return []


def _annotation(field: FieldInfo) -> Any:
    """The annotation as written: pydantic strips ``Annotated`` off the outermost level into the metadata."""
    for known in TYPE_NAMES:
        if get_origin(known) is Annotated and set(known.__metadata__) & set(_hashable(field.metadata)):
            return known
    return field.annotation


def _hashable(values: list[Any]) -> list[Any]:
    return [value for value in values if getattr(type(value), "__hash__", None) is not None]


def _members(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(part for member in get_args(annotation) for part in _members(member))
    return () if annotation is type(None) else (annotation,)


def _type_name(annotation: Any) -> str:
    if annotation in TYPE_NAMES:
        return TYPE_NAMES[annotation]
    names = []
    for member in _members(annotation):
        if get_origin(member) is Literal:
            names.append(" | ".join(str(value) for value in get_args(member)))
        elif get_origin(member) is dict:
            names.append("map of strings")
        else:
            names.append(_PLAIN.get(member, getattr(member, "__name__", str(member))))
    return " | ".join(names)


def _default(field: FieldInfo) -> str:
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
    if isinstance(value, int) and _type_name(_annotation(field)) == "size":
        return next((f"{value // unit}{name}" for name, unit in _SIZES if value % unit == 0), str(value))
    return ", ".join(value) if isinstance(value, tuple) else str(value)


# The JSON Schema of settings files, for editors: made of the models, so that no key is forgotten.
#
# It takes what :func:`router.settings.load.load_settings` takes, but for rules between settings; every value may be a
# reference. ``router/settings/settings.schema.json`` is it as a file, held equal by a test.

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
