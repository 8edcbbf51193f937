"""Columns of payloads with a JSON Structure schema, whose types nearly correspond to column types.

Unsigned types become the next larger signed one; 128-bit integers and decimals of unknown precision are text; floating
point of any width is ``double``, because few JSON numbers are exact as ``float``. A tuple is a struct of its members,
and so is a tagged choice, with one member set.
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
    MAX_PRECISION,
    TEXT,
    TIMESTAMP,
    BodyReader,
    Leaf,
    ListShape,
    MapShape,
    Path,
    Shape,
    Survey,
    decimal_leaf,
    integer_leaf,
)
from catalog.schemas.contract import Library, SchemaSource
from catalog.schemas.families import compile_schema
from catalog.schemas.filling import UnsupportedSchema
from catalog.schemas.json.columns import JsonReader, OnlyNull, Schema, ShapeBuilder, Untypable, Within
from catalog.schemas.json.references import SchemaDocuments, allowed_types
from catalog.schemas.jsonstructure.validating import find_start

_TEXTS: Final = ("string", "time", "duration", "uuid", "uri", "jsonpointer")
_FLOATS: Final = ("number", "float", "float8", "float16", "float32", "float64", "double")
_LEAVES: Final[Mapping[str, Leaf]] = {
    **dict.fromkeys(_TEXTS, TEXT),
    **dict.fromkeys(_FLOATS, DOUBLE),
    **{f"int{bits}": integer_leaf(bits, written=bits > 32) for bits in (8, 16, 32, 64, 128)},
    **{f"uint{bits}": integer_leaf(bits, signed=False, written=bits > 32) for bits in (8, 16, 32, 64, 128)},
    "integer": integer_leaf(32),
    "boolean": BOOLEAN,
    "date": DATE,
    "datetime": TIMESTAMP,
}
_IMPORTS: Final = ("$import", "$importdefs")


def open_columns(source: SchemaSource, library: Library, survey: Survey) -> tuple[Shape, BodyReader] | None:
    """Return the shape of payloads and their reader; None if they have no typed columns."""
    compile_schema(source, library)  # rejects invalid schemas
    shape = _JsonStructureShapes(SchemaDocuments(source, library), survey).root_shape(find_start(source))
    return None if shape is None else (shape, JsonReader(shape))


class _JsonStructureShapes(ShapeBuilder):
    keywords = frozenset(
        {"type", "properties", "additionalProperties", "items", "values", "tuple", "choices", "selector"}
        | {"precision", "scale", "contentEncoding"}
    )

    def iter_bases(self, schema: Schema) -> Iterable[tuple[Any, bool]]:
        if isinstance(schema.get("$ref"), str):
            yield self._find_target(schema["$ref"], schema), True
        if isinstance(schema.get("type"), Mapping):
            yield schema["type"], True
        extended = schema.get("$extends")
        for each in (extended if isinstance(extended, list) else [extended]) if schema.get("type") != "choice" else ():
            if isinstance(each, str):
                yield self._find_target(each, schema), False

    def own_keywords(self, schema: Schema) -> Schema:
        if isinstance(schema.get("type"), str):
            return schema
        return {keyword: value for keyword, value in schema.items() if keyword != "type"}

    def iter_unions(self, schema: Schema) -> Iterable[Any]:
        yield from super().iter_unions(schema)
        kinds = schema.get("type")
        if isinstance(kinds, list):
            yield [each if isinstance(each, Mapping) else {"type": each} for each in kinds]

    def plain_shape(self, schema: Schema, path: Path, within: Within) -> Shape:
        kinds = allowed_types(schema) if "type" in schema else ["any"]
        kind = kinds[0] if kinds else "null"
        if kind == "null":
            raise OnlyNull
        if kind in _LEAVES or kind == "decimal":
            return self._leaf_shape(kind, schema, path)
        if kind == "binary":
            return BINARY if schema.get("contentEncoding", "base64") == "base64" else TEXT
        if kind in ("array", "set"):
            return ListShape(self.shape_at(schema.get("items", True), (*path, "*"), within))
        if kind == "map":
            return MapShape(self.shape_at(schema.get("values", True), (*path, "*"), within), TEXT)
        if kind in ("object", "tuple", "choice"):
            return self._members_shape(kind, schema, path, within)
        raise Untypable("any value is allowed" if kind == "any" else f"the type {kind} is unknown")

    def _leaf_shape(self, kind: str, schema: Schema, path: Path) -> Leaf:
        leaf = decimal_leaf(schema.get("precision"), schema.get("scale")) if kind == "decimal" else _LEAVES[kind]
        if leaf.kind == "numeral":
            self.survey.add_finding(
                path, f"stays text: it is a number of more than {MAX_PRECISION} digits, or of unknown ones"
            )
        return leaf

    def _members_shape(self, kind: str, schema: Schema, path: Path, within: Within) -> Shape:
        asked = schema.get("choices" if kind == "choice" else "properties")
        asked = asked if isinstance(asked, Mapping) else {}
        if kind == "choice" and "selector" in schema:
            raise Untypable("it is an inline choice, of one type or another")
        if kind == "tuple":
            order = schema.get("tuple")
            order = order if isinstance(order, list) else []
            if len(set(order)) < len(order):
                raise Untypable("one member occurs twice")
            asked = {name: asked.get(name) for name in order}
        elif kind == "object" and not asked:
            others = schema.get("additionalProperties", True)
            return MapShape(JSON if others is False else self.shape_at(others, (*path, "*"), within), TEXT)
        return self.struct_shape(asked, path, within, positional=kind == "tuple")

    def _find_target(self, reference: str, schema: Schema) -> Any:
        """Return the type that a reference names, in this document or in an imported one."""
        try:
            return self.documents.find_target(reference, schema)
        except UnsupportedSchema:
            container, _, name = reference.rpartition("/")
            for holder in self._iter_importers(container, schema):
                for keyword in _IMPORTS:
                    imported = self._find_import(holder, keyword, name)
                    if imported is not None:
                        return imported
            raise

    def _iter_importers(self, container: str, schema: Schema) -> Iterable[Any]:
        if container.startswith("#/"):
            root = self.documents.find_target("#", schema)
            yield from (root,) if container == "#/definitions" else ()  # imports at the root add to the definitions
            step = container.removeprefix("#")
            yield (self.documents.locate(root, step) if container != "#/definitions" else root.get("definitions"))

    def _find_import(self, holder: Any, keyword: str, name: str) -> Any:
        if not isinstance(holder, Mapping) or not isinstance(holder.get(keyword), str):
            return None
        other = self.documents.find_target(holder[keyword], holder)
        if not isinstance(other, Mapping):
            return None
        named = other.get("definitions")
        if isinstance(named, Mapping) and name in named:
            return named[name]
        return other if keyword == "$import" and other.get("name") == name else None
