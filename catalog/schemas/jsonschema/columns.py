"""Columns of payloads with a JSON Schema, drafts 04 to 2020-12.

``if``, ``not``, ``dependentSchemas`` and the like restrict values but do not add columns, so they are ignored. Members
that are not in ``properties`` have no columns. A ``date-time`` is an instant with microseconds, written as in RFC 3339
with an offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from catalog.schemas import columns as shapes
from catalog.schemas.contract import Library, SchemaSource
from catalog.schemas.families import compile_schema
from catalog.schemas.filling import UnsupportedSchema
from catalog.schemas.json.columns import JsonReader
from catalog.schemas.json.references import Schema, SchemaDocuments, allowed_types, list_of, mapping_of, merge_schemas
from catalog.schemas.jsonschema.validating import REF_ALONE, draft_of, find_start

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
_KEYWORDS: Final = _DESCRIBING | frozenset(
    {"type", "const", "enum", "unevaluatedProperties", "additionalItems", "x-type", "x-order", "precision", "scale"}
)
"""Keywords that affect columns, except those for composition."""
_FORMATS: Final[Mapping[str, shapes.Leaf]] = {"date-time": shapes.TIMESTAMP, "date": shapes.DATE}
_LONG: Final = shapes.integer_leaf(64)
_PLAIN: Final[Mapping[str, shapes.Leaf]] = {"boolean": shapes.BOOLEAN, "integer": _LONG, "number": shapes.DOUBLE}
_OF_VALUES: Final[Mapping[type, str]] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    dict: "object",
    list: "array",
}


def open_columns(
    source: SchemaSource, library: Library, survey: shapes.Survey
) -> tuple[shapes.Shape, shapes.BodyReader] | None:
    """Return the shape of payloads and their reader; None if they have no typed columns."""
    compile_schema(source, library)  # rejects invalid schemas
    shape = ShapeBuilder(source, library, survey).root_shape(find_start(source))
    return None if shape is None else (shape, JsonReader(shape))


Within = tuple[int, ...]
"""The ids of the schemas being visited; negative for those that are only merged into another."""


class _OnlyNull(UnsupportedSchema):
    """A part of the payload can only be null."""

    def __init__(self) -> None:
        super().__init__("no value but null is allowed")


@dataclass(slots=True)
class _FlatSchema:
    """A schema with references resolved: parts that all apply, and unions of which one branch applies."""

    parts: list[Schema] = field(default_factory=list)
    groups: list[Sequence[Any]] = field(default_factory=list)
    within: Within = ()


class ShapeBuilder:
    """Converts the schemas of one document to shapes: references are followed, and composed schemas merged.

    A union has a column type if all its branches have the same shape, apart from null; integers with other numbers
    are numbers. All other unions stay JSON text, and so do recursive types.
    """

    def __init__(self, source: SchemaSource, library: Library, survey: shapes.Survey) -> None:
        self.survey = survey
        self._documents = SchemaDocuments(source, library)
        self._ref_alone = draft_of(source.document, source.version) in REF_ALONE

    def root_shape(self, schema: Any) -> shapes.Shape | None:
        """Return the shape of payloads; None if they have no typed columns."""
        try:
            return self._composed_shape(schema, (), (id(schema),))
        except UnsupportedSchema as error:
            self.survey.add_finding((), f"has no columns: {error}")
        return None

    def shape_at(self, schema: Any, path: shapes.Path, within: Within) -> shapes.Shape:
        """Return the shape at a path in payloads; JSON text if it has no type."""
        fields = self.survey.fields
        try:
            return self._composed_shape(schema, path, within)
        except UnsupportedSchema as error:
            self.survey.fields = fields
            return self.survey.add_json_text(path, str(error))

    def struct_shape(
        self, parts: Mapping[str, Any], path: shapes.Path, within: Within, *, positional: bool = False
    ) -> shapes.Struct:
        """Return the struct of an object with these members.

        Raises:
            UnsupportedSchema: there are no members, or too many fields.
        """
        if not parts:
            raise UnsupportedSchema("it has no members")
        columns = self.survey.assign_columns(path, list(parts))
        if not columns:
            raise UnsupportedSchema("the payload has too many fields")
        members = (
            shapes.Member(name, column, self.shape_at(parts[name], (*path, name), within)) for name, column in columns
        )
        return shapes.Struct(tuple(members), positional)

    def plain_shape(self, schema: Schema, path: shapes.Path, within: Within) -> shapes.Shape:
        """Return the shape of a schema that has no references or composition.

        Raises:
            UnsupportedSchema: it has no column type, or allows only null.
        """
        kinds = _value_types(schema)
        if not kinds:
            raise _OnlyNull
        if kinds == {"integer", "number"}:
            return shapes.DOUBLE
        if len(kinds) > 1 or "any" in kinds:
            raise UnsupportedSchema(
                "any value is allowed" if "any" in kinds else f"it may be {' or '.join(sorted(kinds))}"
            )
        kind = kinds.pop()
        if kind == "object":
            return self._object_shape(schema, path, within)
        if kind == "array":
            return self._array_shape(schema, path, within)
        return _string_leaf(schema) if kind == "string" else _PLAIN[kind]

    def _object_shape(self, schema: Schema, path: shapes.Path, within: Within) -> shapes.Shape:
        members = {name: part for name, part in mapping_of(schema, "properties").items() if part is not False}
        if members:
            return self.struct_shape(members, path, within)
        others = schema.get("additionalProperties", schema.get("unevaluatedProperties", True))
        asked = [*mapping_of(schema, "patternProperties").values(), others]
        return shapes.MapShape(
            self._common_shape(asked, "its names leave open of which type it is", path, within), shapes.TEXT
        )

    def _array_shape(self, schema: Schema, path: shapes.Path, within: Within) -> shapes.Shape:
        items, places = schema.get("items", True), list_of(schema, "prefixItems")
        if isinstance(items, list):
            places, items = items, schema.get("additionalItems", True)
        asked = [*places, items]
        return shapes.ListShape(self._common_shape(asked, "its types differ from place to place", path, within))

    def _common_shape(self, asked: Sequence[Any], why_not: str, path: shapes.Path, within: Within) -> shapes.Shape:
        """Return the one shape of all of these schemas; JSON text if they differ."""
        found = [self.shape_at(each, (*path, "*"), within) for each in asked if each is not False]
        if found and all(each == found[0] for each in found):
            return found[0]
        return self.survey.add_json_text((*path, "*"), why_not) if found else shapes.JSON

    def _composed_shape(self, schema: Any, path: shapes.Path, within: Within) -> shapes.Shape:
        passed = self.survey.check_limits(path)
        if passed:
            raise UnsupportedSchema(passed)
        flat = _FlatSchema(within=within)
        self._flatten(schema, flat, is_type=True)
        united = merge_schemas(flat.parts)
        if not flat.groups:
            return self.plain_shape(united, path, flat.within)
        others = [{"anyOf": list(group)} for group in flat.groups[1:]]
        return self._union_shape([united, *others] if united or others else [], flat.groups[0], path, flat.within)

    def _union_shape(
        self, base: Sequence[Schema], branches: Sequence[Any], path: shapes.Path, within: Within
    ) -> shapes.Shape:
        found: list[shapes.Shape] = []
        fields = max_fields = self.survey.fields
        for branch in branches:
            self.survey.fields = fields
            try:
                shape = self._composed_shape({"allOf": [*base, branch]} if base else branch, path, within)
            except _OnlyNull:
                continue
            max_fields = max(max_fields, self.survey.fields)
            if shape not in found:
                found.append(shape)
        self.survey.fields = max_fields
        if not found:
            raise _OnlyNull
        if len(found) == 1:
            return found[0]
        if all(isinstance(each, shapes.Leaf) and each.kind in ("integer", "number") for each in found):
            return shapes.DOUBLE
        raise UnsupportedSchema("it may be of several types")

    def _flatten(self, schema: Any, flat: _FlatSchema, *, is_type: bool) -> None:
        if schema is False:
            raise _OnlyNull
        if schema is True:
            return
        passed = self.survey.check_limits(())
        if passed or not isinstance(schema, Mapping):
            raise UnsupportedSchema(passed or "the schema is not an object there")
        target = self._documents.follow_reference(schema)
        if target is not None:
            if isinstance(target, Mapping):
                self._mark_entered(target, flat, is_type=is_type)
            self._flatten(target, flat, is_type=is_type)
            if self._ref_alone and isinstance(schema.get("$ref"), str):
                return
        own = {keyword: value for keyword, value in schema.items() if keyword in _KEYWORDS}
        if own:
            flat.parts.append(own)
        for each in list_of(schema, "allOf"):
            self._flatten(each, flat, is_type=False)
        flat.groups.extend(filter(None, (list_of(schema, keyword) for keyword in ("oneOf", "anyOf"))))

    def _mark_entered(self, target: Any, flat: _FlatSchema, *, is_type: bool) -> None:
        """Mark *target* as being visited. A type may be visited once as itself, and once as a part of others."""
        key = id(target)
        if key in flat.within or (not is_type and -key in flat.within):
            raise UnsupportedSchema("the type contains itself")
        flat.within = (*flat.within, key if is_type else -key)


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


def _string_leaf(schema: Schema) -> shapes.Leaf:
    encoding = schema.get("contentEncoding")
    if isinstance(encoding, str) and encoding.lower() == "base64":
        return shapes.BINARY
    form = schema.get("format")
    return _FORMATS.get(form, shapes.TEXT) if isinstance(form, str) else shapes.TEXT
