"""Columns of payloads with a JSON Schema, drafts 04 to 2020-12.

``if``, ``not``, ``dependentSchemas`` and the like restrict values but do not add columns, so they are ignored. Members
that are not in ``properties`` have no columns. A ``date-time`` is an instant with microseconds, written as in RFC 3339
with an offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from catalog.schemas.columns import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    JSON,
    TEXT,
    TIMESTAMP,
    BodyReader,
    Leaf,
    ListShape,
    MapShape,
    Path,
    Shape,
    Survey,
    integer_leaf,
)
from catalog.schemas.contract import Library, SchemaSource
from catalog.schemas.families import compile_schema
from catalog.schemas.json.columns import JsonReader, OnlyNull, Schema, ShapeBuilder, Untypable, Within
from catalog.schemas.json.references import SchemaDocuments, allowed_types, mapping_of
from catalog.schemas.jsonschema.validating import draft_of, find_start

_REF_ALONE: Final = frozenset({"04", "06", "07"})
"""Drafts in which siblings of ``$ref`` are ignored."""
_OBJECT_SIZES: Final = ("minProperties", "maxProperties")
_ARRAY_SIZES: Final = ("contains", "minItems", "maxItems", "uniqueItems")
_IMPLIED: Final = (
    ("object", ("properties", "patternProperties", "additionalProperties", "required", *_OBJECT_SIZES)),
    ("array", ("items", "prefixItems", *_ARRAY_SIZES)),
    ("string", ("pattern", "minLength", "maxLength", "contentEncoding", "format")),
    ("number", ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
)
"""The type that the keywords of a schema without ``type`` suggest, though it allows other types as well."""
_WEAK: Final = frozenset((*_OBJECT_SIZES, *_ARRAY_SIZES))
"""Keywords that alone do not suggest objects or arrays, but that contradict other types."""
_DESCRIBING: Final = frozenset(keyword for _, keywords in _IMPLIED for keyword in keywords)
_FORMATS: Final[Mapping[str, Leaf]] = {"date-time": TIMESTAMP, "date": DATE}
_LONG: Final = integer_leaf(64)
_PLAIN: Final[Mapping[str, Leaf]] = {"boolean": BOOLEAN, "integer": _LONG, "number": DOUBLE}
_OF_VALUES: Final[Mapping[type, str]] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    dict: "object",
    list: "array",
}


def open_columns(source: SchemaSource, library: Library, survey: Survey) -> tuple[Shape, BodyReader] | None:
    """Return the shape of payloads and their reader; None if they have no typed columns."""
    compile_schema(source, library)  # rejects invalid schemas
    shape = _JsonSchemaShapes(source, library, survey).root_shape(find_start(source))
    return None if shape is None else (shape, JsonReader(shape))


class _JsonSchemaShapes(ShapeBuilder):
    keywords = frozenset({"type", "const", "enum", "unevaluatedProperties", "additionalItems", *_DESCRIBING})

    def __init__(self, source: SchemaSource, library: Library, survey: Survey) -> None:
        super().__init__(SchemaDocuments(source, library), survey)
        self._ref_alone = draft_of(source.document, source.version) in _REF_ALONE

    def iter_bases(self, schema: Schema) -> Iterable[tuple[Any, bool]]:
        target = self.documents.follow_reference(schema)
        if target is not None:
            yield target, True

    def own_keywords(self, schema: Schema) -> Schema:
        return {} if self._ref_alone and isinstance(schema.get("$ref"), str) else schema

    def plain_shape(self, schema: Schema, path: Path, within: Within) -> Shape:
        kinds = _value_types(schema)
        if not kinds:
            raise OnlyNull
        if kinds == {"integer", "number"}:
            return DOUBLE
        if len(kinds) > 1 or "any" in kinds:
            raise Untypable("any value is allowed" if "any" in kinds else f"it may be {' or '.join(sorted(kinds))}")
        kind = kinds.pop()
        if kind == "object":
            return self._object_shape(schema, path, within)
        if kind == "array":
            return self._array_shape(schema, path, within)
        return _string_leaf(schema) if kind == "string" else _PLAIN[kind]

    def _object_shape(self, schema: Schema, path: Path, within: Within) -> Shape:
        members = {name: part for name, part in mapping_of(schema, "properties").items() if part is not False}
        if members:
            return self.struct_shape(members, path, within)
        others = schema.get("additionalProperties", schema.get("unevaluatedProperties", True))
        asked = [*mapping_of(schema, "patternProperties").values(), others]
        shapes = [self.shape_at(each, (*path, "*"), within) for each in asked if each is not False]
        if shapes and all(each == shapes[0] for each in shapes):
            return MapShape(shapes[0], TEXT)
        if shapes:
            self.survey.add_json_text((*path, "*"), "its names leave open of which type it is")
        return MapShape(JSON, TEXT)

    def _array_shape(self, schema: Schema, path: Path, within: Within) -> Shape:
        items, places = schema.get("items", True), schema.get("prefixItems")
        if isinstance(items, list):
            places, items = items, schema.get("additionalItems", True)
        asked = [*(places if isinstance(places, list) else ()), items]
        shapes = [self.shape_at(each, (*path, "*"), within) for each in asked if each is not False]
        if shapes and all(each == shapes[0] for each in shapes):
            return ListShape(shapes[0])
        if shapes:
            self.survey.add_json_text((*path, "*"), "its types differ from place to place")
        return ListShape(JSON)


def _value_types(schema: Schema) -> set[str]:
    """Return the types that values may have, except null; with ``any`` if they are unknown."""
    if "type" in schema:
        return {each for each in allowed_types(schema) if each != "null"}
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return {_type_of_value(each) for each in values if each is not None}
    implied = {name for name, keywords in _IMPLIED if any(each in schema for each in keywords)}
    is_meant = len(implied) == 1 and not schema.keys() & _DESCRIBING <= _WEAK
    return implied if is_meant else {"any", "value"}


def _type_of_value(value: Any) -> str:
    if type(value) is int and not -(2**63) <= value < 2**63:
        return "any"
    return _OF_VALUES.get(type(value), "any")


def _string_leaf(schema: Schema) -> Leaf:
    encoding = schema.get("contentEncoding")
    if isinstance(encoding, str) and encoding.lower() == "base64":
        return BINARY
    form = schema.get("format")
    return _FORMATS.get(form, TEXT) if isinstance(form, str) else TEXT
