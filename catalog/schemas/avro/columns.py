"""Avro as shapes, and its bodies as their values.

Logical types are columns of their type; times of day are text, since Delta has none, and instants are kept to the
microsecond. A union with null is its other branch, null or not; any other is a struct with a field per branch, named
by its type, of which one is there. A type within itself stays JSON text, in which bytes are base64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import methodcaller
from typing import Any, Final

import msgspec

from catalog.schemas.avro.decoding import AvroDecoder
from catalog.schemas.avro.logical import decimal_scale, is_fixed_uuid
from catalog.schemas.avro.types import PRIMITIVES, AvroSchema, read_schema
from catalog.schemas.avro.values import Misfit, branch_labels, logical_type
from catalog.schemas.bodies import UnfitValue
from catalog.schemas.columns.columns import Take
from catalog.schemas.columns.reading import Reader, Undecoded, Unfit, present
from catalog.schemas.columns.shapes import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    LOCAL_TIMESTAMP,
    TEXT,
    TIMESTAMP,
    Leaf,
    Member,
    Shape,
    Struct,
    Table,
    decimal,
    integer,
)
from catalog.schemas.columns.shapes import Sequence as List
from catalog.schemas.columns.survey import Path, Survey
from catalog.schemas.compiling import compile_schema
from catalog.schemas.contract import Library, SchemaSource, Written

_PLAIN: Final[Mapping[str, Leaf]] = {
    "boolean": BOOLEAN,
    "int": integer(32),
    "long": integer(64),
    "float": FLOAT,
    "double": DOUBLE,
    "bytes": BINARY,
    "string": TEXT,
    "fixed": BINARY,
    "enum": TEXT,
}
_LOGICAL: Final[Mapping[str, Leaf]] = {
    "int-date": DATE,
    "int-time-millis": TEXT,
    "long-time-micros": TEXT,
    **{f"long-timestamp-{unit}": TIMESTAMP for unit in ("millis", "micros", "nanos")},
    **{f"long-local-timestamp-{unit}": LOCAL_TIMESTAMP for unit in ("millis", "micros", "nanos")},
}


def open_columns(source: SchemaSource, library: Library, survey: Survey) -> tuple[Shape, Reader] | None:
    """Return the shape of payloads and their reader; None when nothing of them can be typed."""
    compile_schema(source, library)
    schema = read_schema(source, library)
    shape = shape_of(schema, survey)
    return None if shape is None else (shape, AvroReader(schema, source.written))


def shape_of(schema: AvroSchema, survey: Survey) -> Shape | None:
    """Return the shape of payloads of a schema; None when nothing of them can be typed."""
    shape = _Shapes(schema.named, survey).shape(schema.root, (), ())
    return None if isinstance(shape, Leaf) and shape.kind == "json" else shape


class _Shapes:
    def __init__(self, named: Mapping[str, Any], survey: Survey) -> None:
        self._named = named
        self._survey = survey

    def shape(self, schema: Any, path: Path, within: tuple[str, ...]) -> Shape:
        passed = self._survey.limit(path)
        if passed:
            return self._survey.text(path, passed)
        if isinstance(schema, list):
            return self._union(schema, path, within)
        if isinstance(schema, str) and schema not in PRIMITIVES:
            schema = self._named[schema]
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind in ("record", "error"):
            return self._record(schema, path, within)
        if kind == "array":
            return List(self.shape(schema["items"], (*path, "*"), within))
        if kind == "map":
            return Table(self.shape(schema["values"], (*path, "*"), within), TEXT)
        return self._leaf(schema, kind, path)

    def _record(self, schema: Mapping[str, Any], path: Path, within: tuple[str, ...]) -> Shape:
        name = schema["name"]
        if name in within:
            return self._survey.text(path, "the type contains itself")
        fields = {each["name"]: each["type"] for each in schema["fields"]}
        return self._struct(fields, list(fields), path, (*within, name))

    def _struct(self, fields: Mapping[str, Any], shown: list[str], path: Path, within: tuple[str, ...]) -> Shape:
        if not fields:
            return self._survey.text(path, "it has no fields")
        columns = self._survey.columns(path, shown)
        if not columns:
            return self._survey.text(path, "the payload has too many fields")
        pairs = zip(fields.items(), columns, strict=False)  # those without a column are the last
        return Struct(
            tuple(Member(name, column, self.shape(kind, (*path, own), within)) for (name, kind), (own, column) in pairs)
        )

    def _union(self, schema: list[Any], path: Path, within: tuple[str, ...]) -> Shape:
        labels = branch_labels(schema)
        several = {label: branch for label, branch in zip(labels, schema, strict=True) if label is not None}
        if several:
            return self._struct(several, [label.rpartition(".")[2] for label in several], path, within)
        others = [branch for branch in schema if branch not in ("null", {"type": "null"})]
        if not others:
            return self._survey.text(path, "no value but null is allowed")
        return self.shape(others[0], path, within)

    def _leaf(self, schema: Any, kind: str, path: Path) -> Leaf:
        if kind == "null":
            return self._survey.text(path, "no value but null is allowed")
        scale = decimal_scale(schema)
        if scale is not None:
            leaf = decimal(schema["precision"], scale)
            if leaf.kind == "numeral":
                self._survey.note(path, "stays text: it is a decimal of more than 38 digits")
            return leaf
        if kind == "fixed" and is_fixed_uuid(schema):
            return TEXT
        return _LOGICAL.get(logical_type(schema), _PLAIN[kind])


class AvroReader:
    """Reads bodies in any of Avro's encodings, by content type as validation does."""

    def __init__(self, schema: AvroSchema, written: Written | None = None) -> None:
        self._decoder = AvroDecoder(schema, written)

    def read(
        self, bodies: Sequence[bytes | None], content_types: Sequence[str | None]
    ) -> tuple[list[Any], list[Undecoded]]:
        values: list[Any] = []
        undecoded: list[Undecoded] = []
        for row, body, content_type in present(bodies, content_types, undecoded):
            try:
                values.append(None if body is None else self._decoder.value(body, content_type))
            except Misfit as misfit:
                values.append(None)
                undecoded.append(Undecoded(row, Unfit(misfit.message, misfit.path()).why))
        return values, undecoded

    def take(self, struct: Struct) -> Take:
        return [methodcaller("get", member.name) for member in struct.members]

    def text(self, value: Any) -> str | None:
        if isinstance(value, UnfitValue):
            raise TypeError(value.why)
        return msgspec.json.encode(value, enc_hook=_raw).decode("utf-8")


def _raw(unfit: UnfitValue) -> int | None:
    """Return what stands within a JSON text for a value that has no other form: the number that it was."""
    return unfit.raw
