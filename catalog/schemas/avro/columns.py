"""Columns of Avro payloads: the shape of a schema, and the values of bodies.

Logical types have columns of their own types, except times of day, which are text because Delta has no such type.
Instants have microseconds. A union of null and one type is a nullable column of that type. Any other union is a struct
with a field per branch, named after its type, of which one is set. A recursive type is JSON text, with bytes in base64.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from types import MappingProxyType
from typing import Any, Final

import msgspec

from catalog.schemas.avro.binary import ReadValue, read_block, read_long, read_text, skip_bytes
from catalog.schemas.avro.json import Check, WalkState, compile_json
from catalog.schemas.avro.types import (
    MAX_LEVELS,
    PRIMITIVES,
    AvroSchema,
    TypeCompiler,
    TypeMismatch,
    branch_labels,
    bytes_converter,
    decimal_scale,
    is_fixed_uuid,
    logical_type,
    number_converter,
    number_range,
    read_schema,
)
from catalog.schemas.avro.validating import AvroBodies, ResolvedBodies
from catalog.schemas.columns import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    LOCAL_TIMESTAMP,
    TEXT,
    TIMESTAMP,
    BodyReader,
    Getters,
    Leaf,
    MapShape,
    Member,
    Path,
    Shape,
    Struct,
    Survey,
    Undecoded,
    UnreadableBody,
    decimal_leaf,
    integer_leaf,
    iter_rows,
)
from catalog.schemas.columns import ListShape as List
from catalog.schemas.contract import Library, SchemaSource, UnfitValue, WriterSchema
from catalog.schemas.families import compile_schema

# Values of Avro bodies, decoded here and not by fastavro for the reasons in :mod:`catalog.schemas.avro.types`.
#
# Records and maps are dicts, arrays lists, enums their symbols. A union of null and one type has the plain value, any
# other union ``{branch: value}`` with the full name of the branch's type, as in the JSON encoding. For logical types,
# see :mod:`catalog.schemas.avro.types`. Bodies in JSON give the same values; omitted fields are not in the dict, and a
# value of a wrong type is an :class:`~catalog.schemas.contract.UnfitValue`.

MAX_EMPTY: Final = 100_000
"""Records and items of a body beyond one per byte; values without bytes could otherwise be of any number."""
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")


@dataclass(slots=True)
class _Budget:
    """Limits while one body is decoded: the nesting level, and how many more records and items it may have."""

    left: int
    level: int = 0

    def spend(self, values: int = 1) -> None:
        self.left -= values
        if self.left < 0:
            raise TypeMismatch("more values than bytes")


Decode = Callable[[bytes, int, _Budget], tuple[Any, int]]
"""Bytes, position, budget -> value and the position after it; raises :class:`TypeMismatch`."""


class AvroDecoder:
    """Decodes bodies of one valid schema to values.

    Bodies *written* with another schema are resolved to this one.
    """

    def __init__(self, schema: AvroSchema, written: WriterSchema | None = None) -> None:
        self._bodies: ResolvedBodies | AvroBodies
        if written is not None:
            self._bodies = ResolvedBodies.resolve(schema, written, _DecoderMaker, _make_reader)
            return
        compiler = TypeCompiler(schema.named, _make_record, _make_union, _make_array, _make_map, _make_leaf, _make_ref)
        decode = compiler.compile(schema.root)
        check = compile_json(schema.root, schema.named)
        self._bodies = AvroBodies(
            schema, _make_reader(decode), lambda value: _check_leniently(check, value), single=True
        )

    def decode(self, body: bytes | None, content_type: str | None) -> Any:
        """Return the value of a body; a missing body counts as empty. A container file must contain exactly one value.

        Raises:
            TypeMismatch: the body is invalid.
        """
        return self._bodies.read(body, content_type)


def _check_leniently(check: Check, value: Any) -> Any:
    try:
        return check(value, WalkState(lenient=True))
    except TypeMismatch as mismatch:
        return UnfitValue(mismatch.message)


def _make_reader(decode: Decode) -> ReadValue:
    return lambda data, at: decode(data, at, _Budget(len(data) + MAX_EMPTY))


class _DecoderMaker:
    """Makes functions that decode bytes of a writer's schema to values of the reader's."""

    def __init__(self, writer: AvroSchema) -> None:
        self.compiler: TypeCompiler[Decode] = TypeCompiler(
            writer.named, _make_record, _make_bare_union, _make_array, _make_map, _make_leaf, _make_ref
        )

    def make_record(
        self, written: Mapping[str, Any], fields: Sequence[tuple[str | None, Decode]], defaults: Mapping[str, Any]
    ) -> Decode:
        types = [{**each, "name": name} for (name, _), each in zip(fields, written["fields"], strict=True)]
        return _make_record({"fields": types}, [decode for _, decode in fields], defaults)

    def make_enum(self, symbols: Sequence[str | None], written: Sequence[str]) -> Decode:
        return _make_enum(list(symbols), written)

    def make_leaf(self, written: Any, kind: str, schema: Any, into: str) -> Decode:
        if kind in ("int", "long"):
            low, end = number_range(kind, kind)
            if into not in ("int", "long"):
                return _make_number(low, end, kind, float)
            first, last = number_range(into, into)
            return _make_number(max(low, first), min(end, last), into, number_converter(schema))
        if kind in ("string", "bytes"):
            return _make_leaf(schema, into)
        return _make_leaf(schema if kind == "fixed" else kind, kind)

    def make_branch(self, function: Decode, label: str | None) -> Decode:
        if label is None:
            return function

        def decode(data: bytes, at: int, budget: _Budget) -> tuple[Any, int]:
            value, at = function(data, at, budget)
            return {label: value}, at

        return decode

    def make_failing(self, why: str) -> Decode:
        def decode(data: bytes, at: int, budget: _Budget) -> tuple[Any, int]:
            raise TypeMismatch(why)

        return decode


def _make_bare_union(schema: Sequence[Any], branches: Sequence[Decode]) -> Decode:
    """Return the decoder of a union whose branch functions add the labels themselves."""
    return _make_union(["null"] * len(schema), branches)


def _make_ref(table: Mapping[str, Decode], name: str) -> Decode:
    return lambda data, at, budget: table[name](data, at, budget)


def _make_union(schema: Sequence[Any], branches: Sequence[Decode]) -> Decode:
    labels = branch_labels(schema)

    def decode(data: bytes, at: int, budget: _Budget) -> tuple[Any, int]:
        index, at = read_long(data, at)
        if not 0 <= index < len(branches):
            raise TypeMismatch(f"the union has no branch {index}")
        value, at = branches[index](data, at, budget)
        label = labels[index]
        return (value if label is None else {label: value}), at

    return decode


def _make_record(
    schema: Mapping[str, Any], decodes: Sequence[Decode], defaults: Mapping[str, Any] = MappingProxyType({})
) -> Decode:
    """Return the decoder of a record; *defaults* are values of further fields. Fields without a name are skipped."""
    names = [each["name"] for each in schema["fields"]]
    fields = list(zip(names, decodes, strict=True))
    nulls = sum(each["type"] in ("null", {"type": "null"}) for each in schema["fields"])

    def decode(data: bytes, at: int, budget: _Budget) -> tuple[Any, int]:
        if budget.level > MAX_LEVELS:
            raise TypeMismatch(f"records nest more than {MAX_LEVELS} levels")
        budget.spend(1 + nulls)
        budget.level += 1
        value: dict[str, Any] = dict(defaults)
        name = ""
        try:
            for name, inner in fields:
                value[name], at = inner(data, at, budget)
        except TypeMismatch as mismatch:
            mismatch.steps.append(f".{name}")
            raise
        value.pop(None, None)  # type: ignore[call-overload]
        budget.level -= 1
        return value, at

    return decode


def _make_array(item: Decode) -> Decode:
    def decode(data: bytes, at: int, budget: _Budget) -> tuple[Any, int]:
        values: list[Any] = []
        try:
            count, at = read_block(data, at)
            while count:
                budget.spend()
                value, at = item(data, at, budget)
                values.append(value)
                count -= 1
                if not count:
                    count, at = read_block(data, at)
        except TypeMismatch as mismatch:
            mismatch.steps.append(f"[{len(values)}]")
            raise
        return values, at

    return decode


def _make_map(inner: Decode) -> Decode:
    def decode(data: bytes, at: int, budget: _Budget) -> tuple[Any, int]:
        values: dict[str, Any] = {}
        key = ""
        count, at = read_block(data, at)
        while count:
            for _ in range(count):
                begin, at = skip_bytes(data, at)
                key = read_text(data, begin, at)
                try:
                    values[key], at = inner(data, at, budget)
                except TypeMismatch as mismatch:
                    mismatch.steps.append(f".{key}")
                    raise
            count, at = read_block(data, at)
        return values, at

    return decode


def _make_leaf(schema: Any, kind: str) -> Decode:
    if kind in ("int", "long"):
        return _make_number(*number_range(kind, kind), kind, number_converter(schema))
    if kind in ("bytes", "fixed"):
        return _make_bytes(schema["size"] if kind == "fixed" else None, bytes_converter(schema))
    if kind == "string":
        return _decode_string
    if kind == "enum":
        return _make_enum(schema["symbols"])
    if kind == "null":
        return lambda data, at, budget: (None, at)
    return _decode_boolean if kind == "boolean" else _make_float(_FLOAT if kind == "float" else _DOUBLE)


def _make_number(low: int, end: int, name: str, form: Callable[[int], Any] | None) -> Decode:
    def decode(data: bytes, at: int, budget: _Budget) -> tuple[Any, int]:
        value, at = read_long(data, at)
        if not low <= value < end:
            raise TypeMismatch(f"{value} is out of the range of {name}")
        return (value if form is None else form(value)), at

    return decode


def _decode_string(data: bytes, at: int, budget: _Budget) -> tuple[Any, int]:
    begin, end = skip_bytes(data, at)
    return read_text(data, begin, end), end


def _make_bytes(size: int | None, form: Callable[[bytes], Any] | None) -> Decode:
    def decode(data: bytes, at: int, budget: _Budget) -> tuple[Any, int]:
        begin, end = skip_bytes(data, at) if size is None else (at, at + size)
        if end > len(data):
            raise TypeMismatch(f"{size} bytes wanted, and {len(data) - at} are left")
        value = data[begin:end]
        return (value if form is None else form(value)), end

    return decode


def _make_enum(symbols: Sequence[str | None], written: Sequence[str] = ()) -> Decode:
    """Return the decoder of an enum; symbols of the writer that the reader does not have are None."""

    def decode(data: bytes, at: int, budget: _Budget) -> tuple[Any, int]:
        index, at = read_long(data, at)
        if not 0 <= index < len(symbols):
            raise TypeMismatch(f"the enum has no symbol {index}")
        symbol = symbols[index]
        if symbol is None:
            raise TypeMismatch(f"the definition's enum has no symbol {written[index]}, and no default")
        return symbol, at

    return decode


def _decode_boolean(data: bytes, at: int, budget: _Budget) -> tuple[Any, int]:
    if data[at : at + 1] not in (b"\x00", b"\x01"):
        raise TypeMismatch("no boolean" if at < len(data) else "the body ends before a boolean")
    return data[at] == 1, at + 1


def _make_float(form: struct.Struct) -> Decode:
    def decode(data: bytes, at: int, budget: _Budget) -> tuple[Any, int]:
        if form.size > len(data) - at:
            raise TypeMismatch(f"{form.size} bytes wanted, and {len(data) - at} are left")
        return form.unpack_from(data, at)[0], at + form.size

    return decode


_PLAIN: Final[Mapping[str, Leaf]] = {
    "boolean": BOOLEAN,
    "int": integer_leaf(32),
    "long": integer_leaf(64),
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


def open_columns(source: SchemaSource, library: Library, survey: Survey) -> tuple[Shape, BodyReader] | None:
    """Return the shape of payloads and their reader; None when nothing of them can be typed."""
    compile_schema(source, library)
    schema = read_schema(source, library)
    shape = shape_of(schema, survey)
    return None if shape is None else (shape, AvroReader(schema, source.written))


def shape_of(schema: AvroSchema, survey: Survey) -> Shape | None:
    """Return the shape of payloads of a schema; None when nothing of them can be typed."""
    shape = _ShapeFinder(schema.named, survey).shape(schema.root, (), ())
    return None if isinstance(shape, Leaf) and shape.kind == "json" else shape


class _ShapeFinder:
    def __init__(self, named: Mapping[str, Any], survey: Survey) -> None:
        self._named = named
        self._survey = survey

    def shape(self, schema: Any, path: Path, within: tuple[str, ...]) -> Shape:
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
            return List(self.shape(schema["items"], (*path, "*"), within))
        if kind == "map":
            return MapShape(self.shape(schema["values"], (*path, "*"), within), TEXT)
        return self._leaf_shape(schema, kind, path)

    def _record_shape(self, schema: Mapping[str, Any], path: Path, within: tuple[str, ...]) -> Shape:
        name = schema["name"]
        if name in within:
            return self._survey.add_json_text(path, "the type contains itself")
        fields = {each["name"]: each["type"] for each in schema["fields"]}
        return self._struct_shape(fields, list(fields), path, (*within, name))

    def _struct_shape(self, fields: Mapping[str, Any], shown: list[str], path: Path, within: tuple[str, ...]) -> Shape:
        if not fields:
            return self._survey.add_json_text(path, "it has no fields")
        columns = self._survey.assign_columns(path, shown)
        if not columns:
            return self._survey.add_json_text(path, "the payload has too many fields")
        pairs = zip(fields.items(), columns, strict=False)  # fields without a column are the last
        return Struct(
            tuple(Member(name, column, self.shape(kind, (*path, own), within)) for (name, kind), (own, column) in pairs)
        )

    def _union_shape(self, schema: list[Any], path: Path, within: tuple[str, ...]) -> Shape:
        labels = branch_labels(schema)
        several = {label: branch for label, branch in zip(labels, schema, strict=True) if label is not None}
        if several:
            return self._struct_shape(several, [label.rpartition(".")[2] for label in several], path, within)
        others = [branch for branch in schema if branch not in ("null", {"type": "null"})]
        if not others:
            return self._survey.add_json_text(path, "no value but null is allowed")
        return self.shape(others[0], path, within)

    def _leaf_shape(self, schema: Any, kind: str, path: Path) -> Leaf:
        if kind == "null":
            return self._survey.add_json_text(path, "no value but null is allowed")
        scale = decimal_scale(schema)
        if scale is not None:
            leaf = decimal_leaf(schema["precision"], scale)
            if leaf.kind == "numeral":
                self._survey.add_finding(path, "stays text: it is a decimal of more than 38 digits")
            return leaf
        if kind == "fixed" and is_fixed_uuid(schema):
            return TEXT
        return _LOGICAL.get(logical_type(schema), _PLAIN[kind])


class AvroReader:
    """Reads bodies in any of Avro's encodings, chosen by content type as in validation."""

    def __init__(self, schema: AvroSchema, written: WriterSchema | None = None) -> None:
        self._decoder = AvroDecoder(schema, written)

    def read(
        self, bodies: Sequence[bytes | None], content_types: Sequence[str | None]
    ) -> tuple[list[Any], list[Undecoded]]:
        values: list[Any] = []
        undecoded: list[Undecoded] = []
        for row, body, content_type in iter_rows(bodies, content_types, undecoded):
            try:
                values.append(None if body is None else self._decoder.decode(body, content_type))
            except TypeMismatch as mismatch:
                values.append(None)
                undecoded.append(Undecoded(row, UnreadableBody(mismatch.message, mismatch.field_path()).why))
        return values, undecoded

    def getters_of(self, struct: Struct) -> Getters:
        return [methodcaller("get", member.name) for member in struct.members]

    def to_json(self, value: Any) -> str | None:
        if isinstance(value, UnfitValue):
            raise TypeError(value.why)
        return msgspec.json.encode(value, enc_hook=_raw_number).decode("utf-8")


def _raw_number(unfit: UnfitValue) -> int | None:
    """Return the raw number to write into JSON text for a value that has no other form."""
    return unfit.raw
