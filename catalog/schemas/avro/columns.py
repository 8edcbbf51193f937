"""Columns of Avro payloads: the shape of a schema, and the values of bodies.

Logical types have columns of their own types, except times of day, which are text because Delta has no such type.
Instants have microseconds. A union of null and one type is a nullable column of that type. Any other union is a struct
with a field per branch, named after its type, of which one is set. A recursive type is JSON text, with bytes in base64.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter, methodcaller
from typing import Any, Final

import msgspec

from catalog.schemas import columns as shapes
from catalog.schemas.avro.types import (
    PRIMITIVES,
    TypeMismatch,
    branch_labels,
    decimal_scale,
    is_fixed_uuid,
    logical_type,
)
from catalog.schemas.avro.validating import AvroValidator, compile_schema
from catalog.schemas.contract import Library, SchemaSource, UnfitValue

_PLAIN: Final[Mapping[str, shapes.Leaf]] = {
    "boolean": shapes.BOOLEAN,
    "int": shapes.integer_leaf(32),
    "long": shapes.integer_leaf(64),
    "float": shapes.FLOAT,
    "double": shapes.DOUBLE,
    "bytes": shapes.BINARY,
    "string": shapes.TEXT,
    "fixed": shapes.BINARY,
    "enum": shapes.TEXT,
}
_LOGICAL: Final[Mapping[str, shapes.Leaf]] = {
    "int-date": shapes.DATE,
    "int-time-millis": shapes.TEXT,
    "long-time-micros": shapes.TEXT,
    **{f"long-timestamp-{unit}": shapes.TIMESTAMP for unit in ("millis", "micros", "nanos")},
    **{f"long-local-timestamp-{unit}": shapes.LOCAL_TIMESTAMP for unit in ("millis", "micros", "nanos")},
}


def open_columns(
    source: SchemaSource, library: Library, survey: shapes.Survey
) -> tuple[shapes.Shape, shapes.BodyReader] | None:
    """Return the shape of payloads and their reader; None when nothing of them can be typed."""
    validator = compile_schema(source, library)
    shape = _ShapeFinder(validator.schema.named, survey).shape(validator.schema.root, (), ())
    return None if shape == shapes.JSON else (shape, AvroReader(validator))


class _ShapeFinder:
    def __init__(self, named: Mapping[str, Any], survey: shapes.Survey) -> None:
        self._named = named
        self._survey = survey

    def shape(self, schema: Any, path: shapes.Path, within: tuple[str, ...]) -> shapes.Shape:
        passed = self._survey.check_limits(path)
        if passed:
            return self._survey.add_json_text(path, passed)
        if isinstance(schema, list):
            return self._union_shape(schema, path, within)
        if isinstance(schema, str) and schema not in PRIMITIVES:
            schema = self._named[schema]
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind in ("record", "error"):
            return self._record_shape(schema, path, within)
        if kind == "array":
            return shapes.ListShape(self.shape(schema["items"], (*path, "*"), within))
        if kind == "map":
            return shapes.MapShape(self.shape(schema["values"], (*path, "*"), within), shapes.TEXT)
        return self._leaf_shape(schema, kind, path)

    def _record_shape(self, schema: Mapping[str, Any], path: shapes.Path, within: tuple[str, ...]) -> shapes.Shape:
        name = schema["name"]
        if name in within:
            return self._survey.add_json_text(path, "the type contains itself")
        fields = {each["name"]: each["type"] for each in schema["fields"]}
        return self._struct_shape(fields, list(fields), path, (*within, name))

    def _struct_shape(
        self, fields: Mapping[str, Any], shown: list[str], path: shapes.Path, within: tuple[str, ...]
    ) -> shapes.Shape:
        members = list(fields.items())

        def make_member(at: int, own: str, column: str) -> shapes.Member:
            name, kind = members[at]
            return shapes.Member(name, column, self.shape(kind, (*path, own), within))

        return self._survey.build_struct(path, shown, make_member)

    def _union_shape(self, schema: list[Any], path: shapes.Path, within: tuple[str, ...]) -> shapes.Shape:
        labels = branch_labels(schema)
        several = {label: branch for label, branch in zip(labels, schema, strict=True) if label is not None}
        if several:
            return self._struct_shape(several, [label.rpartition(".")[2] for label in several], path, within)
        others = [branch for branch in schema if branch not in ("null", {"type": "null"})]
        if not others:
            return self._survey.add_json_text(path, "no value but null is allowed")
        return self.shape(others[0], path, within)

    def _leaf_shape(self, schema: Any, kind: str, path: shapes.Path) -> shapes.Leaf:
        if kind == "null":
            return self._survey.add_json_text(path, "no value but null is allowed")
        scale = decimal_scale(schema)
        if scale is not None:
            leaf = shapes.decimal_leaf(schema["precision"], scale)
            if leaf.kind == "numeral":
                self._survey.add_finding(path, "stays text: it is a decimal of more than 38 digits")
            return leaf
        if kind == "fixed" and is_fixed_uuid(schema):
            return shapes.TEXT
        return _LOGICAL.get(logical_type(schema), _PLAIN[kind])


class AvroReader(shapes.BodyReader):
    """Reads bodies in any of Avro's encodings, chosen by content type as in validation."""

    def __init__(self, validator: AvroValidator) -> None:
        self._decoder = validator

    def read_value(self, body: bytes, content_type: str | None) -> Any:
        try:
            return self._decoder.decode(body, content_type)
        except TypeMismatch as mismatch:
            raise shapes.UnreadableBody(mismatch.message, mismatch.field_path()) from None

    def getters_of(self, struct: shapes.Struct) -> shapes.Getters:
        return [methodcaller("get", member.name) for member in struct.members]

    def to_json(self, value: Any) -> str | None:
        if isinstance(value, UnfitValue):
            raise TypeError(value.why)
        return msgspec.json.encode(value, enc_hook=attrgetter("raw")).decode("utf-8")  # of an unfit value inside
