"""Columns of payloads with a JSON Structure schema, whose types nearly correspond to column types.

Unsigned types become the next larger signed one; 128-bit integers and decimals of unknown precision are text; floating
point of any width is ``double``, because few JSON numbers are exact as ``float``. A tuple is a struct of its members,
and so is a tagged choice, with one member set.
"""

# Small: what JSON Structure adds to the columns of JSON Schema.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from catalog.schemas import columns as shapes
from catalog.schemas.contract import Library, SchemaSource
from catalog.schemas.filling import UnsupportedSchema
from catalog.schemas.json.columns import JsonReader
from catalog.schemas.json.references import Schema
from catalog.schemas.jsonschema.columns import ShapeBuilder, Within
from catalog.schemas.jsonstructure.validating import FLOATS, INTEGERS, WRITTEN, translate

_TEXTS: Final = ("string", "time", "duration", "uuid", "uri", "jsonpointer")
_LEAVES: Final[Mapping[str, shapes.Leaf]] = {
    **dict.fromkeys(_TEXTS, shapes.TEXT),
    **dict.fromkeys(FLOATS, shapes.DOUBLE),
    **{
        kind: shapes.integer_leaf((high - low).bit_length(), signed=low < 0, written=kind in WRITTEN)
        for kind, (low, high) in INTEGERS.items()
    },
    "boolean": shapes.BOOLEAN,
    "date": shapes.DATE,
    "datetime": shapes.TIMESTAMP,
}


def open_columns(
    source: SchemaSource, library: Library, survey: shapes.Survey
) -> tuple[shapes.Shape, shapes.BodyReader] | None:
    """Return the shape of payloads and their reader; None if they have no typed columns."""
    schema = translate(source, library)
    shape = _StructureShapes(SchemaSource("JsonSchema", "", schema), library, survey).root_shape(schema)
    return None if shape is None else (shape, JsonReader(shape))


class _StructureShapes(ShapeBuilder):
    def plain_shape(self, schema: Schema, path: shapes.Path, within: Within) -> shapes.Shape:
        kind: Any = schema.get("x-type")
        if kind == "decimal" or kind in _LEAVES:
            leaf = (
                shapes.decimal_leaf(schema.get("precision"), schema.get("scale"))
                if kind == "decimal"
                else _LEAVES[kind]
            )
            if leaf.kind == "numeral":
                self.survey.add_finding(
                    path, f"stays text: it is a number of more than {shapes.MAX_PRECISION} digits, or of unknown ones"
                )
            return leaf
        if kind == "binary":
            return shapes.BINARY if schema.get("contentEncoding", "base64") == "base64" else shapes.TEXT
        if kind == "tuple":
            order = schema.get("x-order", [])
            if len(set(order)) < len(order):
                raise UnsupportedSchema("one member occurs twice")
            members = dict(zip(order, schema.get("prefixItems", ()), strict=True))
            return self.struct_shape(members, path, within, positional=True)
        return super().plain_shape(schema, path, within)
