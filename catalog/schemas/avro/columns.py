"""Avro as shapes, and its bodies as their values.

Logical types are columns of their type; times of day are text, since Delta has none, and instants are kept to the
microsecond. A union with null is its other branch, null or not; any other is a struct with a field per branch, named
by its type, of which one is there. A type within itself stays JSON text, in which bytes are base64.
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

# Values of Avro bodies, built by a walk of our own for the reasons in :mod:`catalog.schemas.avro.types`.
#
# Records are dicts by field name, arrays lists, maps dicts, enums their symbols; a value of a union is bare when null
# is the only other branch, else it is ``{branch: value}``, the branch by its type's full name, as in the JSON encoding.
# Logical types are as :mod:`catalog.schemas.avro.types` says. Bodies in JSON come out the same; fields that they
# leave out are not in the dict, and a member that is not of its type is an
# :class:`~catalog.schemas.contract.UnfitValue`.

MAX_EMPTY: Final = 100_000
"""Records and items of a body beyond one for each of its bytes: those without bytes may be claimed in any number."""
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")


@dataclass(slots=True)
class _Budget:
    """One body under way: the level of records, and how many more records and items it may have."""

    left: int
    level: int = 0

    def spend(self, values: int = 1) -> None:
        self.left -= values
        if self.left < 0:
            raise TypeMismatch("more values than bytes")


Decode = Callable[[bytes, int, _Budget], tuple[Any, int]]
"""Bytes, position, room -> value and the position after it; raises :class:`TypeMismatch`."""


class AvroDecoder:
    """Builds the values of bodies of one schema, which was compiled before and so is sound.

    Bodies that were *written* with another are read as values of this one.
    """

    def __init__(self, schema: AvroSchema, written: WriterSchema | None = None) -> None:
        self._bodies: ResolvedBodies | AvroBodies
        if written is not None:
            self._bodies = ResolvedBodies.resolve(schema, written, _DecoderMaker, _make_reader)
            return
        compiler = TypeCompiler(
            schema.named,
            _compile_record,
            _compile_union,
            _compile_array,
            _compile_map,
            _compile_leaf,
            _compile_reference,
        )
        decode = compiler.compile(schema.root)
        check = compile_json(schema.root, schema.named)
        self._bodies = AvroBodies(
            schema,
            _make_reader(decode),
            lambda value: _check_leniently(check, value),
            single=True,
        )

    def decode(self, body: bytes | None, content_type: str | None) -> Any:
        """Return the value of a body; no body is the empty datum. A container file must hold exactly one.

        Raises:
            Misfit: the body does not conform.
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
    """Makes functions that build values of a reader's schema from bytes of a writer's."""

    def __init__(self, writer: AvroSchema) -> None:
        self.compiler: TypeCompiler[Decode] = TypeCompiler(
            writer.named,
            _compile_record,
            _compile_bare_union,
            _compile_array,
            _compile_map,
            _compile_leaf,
            _compile_reference,
        )

    def make_record(
        self, written: Mapping[str, Any], fields: Sequence[tuple[str | None, Decode]], defaults: Mapping[str, Any]
    ) -> Decode:
        types = [{**each, "name": name} for (name, _), each in zip(fields, written["fields"], strict=True)]
        return _compile_record({"fields": types}, [decode for _, decode in fields], defaults)

    def make_enum(self, symbols: Sequence[str | None], written: Sequence[str]) -> Decode:
        return _compile_enum(list(symbols), written)

    def make_leaf(self, written: Any, kind: str, schema: Any, into: str) -> Decode:
        if kind in ("int", "long"):
            low, end = number_range(kind, kind)
            if into not in ("int", "long"):
                return _compile_number(low, end, kind, float)
            first, last = number_range(into, into)
            return _compile_number(max(low, first), min(end, last), into, number_converter(schema))
        if kind in ("string", "bytes"):
            return _compile_leaf(schema, into)
        return _compile_leaf(schema if kind == "fixed" else kind, kind)

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


def _compile_bare_union(schema: Sequence[Any], branches: Sequence[Decode]) -> Decode:
    """Return what reads a union whose branches bring their labels with them."""
    return _compile_union(["null"] * len(schema), branches)


def _compile_reference(table: Mapping[str, Decode], name: str) -> Decode:
    return lambda data, at, budget: table[name](data, at, budget)


def _compile_union(schema: Sequence[Any], branches: Sequence[Decode]) -> Decode:
    labels = branch_labels(schema)

    def decode(data: bytes, at: int, budget: _Budget) -> tuple[Any, int]:
        index, at = read_long(data, at)
        if not 0 <= index < len(branches):
            raise TypeMismatch(f"the union has no branch {index}")
        value, at = branches[index](data, at, budget)
        label = labels[index]
        return (value if label is None else {label: value}), at

    return decode


def _compile_record(
    schema: Mapping[str, Any], decodes: Sequence[Decode], defaults: Mapping[str, Any] = MappingProxyType({})
) -> Decode:
    """Return what reads a record: *defaults* are the values of more fields; one without a name is passed over."""
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


def _compile_array(item: Decode) -> Decode:
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


def _compile_map(inner: Decode) -> Decode:
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


def _compile_leaf(schema: Any, kind: str) -> Decode:
    if kind in ("int", "long"):
        return _compile_number(*number_range(kind, kind), kind, number_converter(schema))
    if kind in ("bytes", "fixed"):
        return _compile_bytes(schema["size"] if kind == "fixed" else None, bytes_converter(schema))
    if kind == "string":
        return _decode_string
    if kind == "enum":
        return _compile_enum(schema["symbols"])
    if kind == "null":
        return lambda data, at, budget: (None, at)
    return _decode_boolean if kind == "boolean" else _compile_float(_FLOAT if kind == "float" else _DOUBLE)


def _compile_number(low: int, end: int, name: str, form: Callable[[int], Any] | None) -> Decode:
    def decode(data: bytes, at: int, budget: _Budget) -> tuple[Any, int]:
        value, at = read_long(data, at)
        if not low <= value < end:
            raise TypeMismatch(f"{value} is out of the range of {name}")
        return (value if form is None else form(value)), at

    return decode


def _decode_string(data: bytes, at: int, budget: _Budget) -> tuple[Any, int]:
    begin, end = skip_bytes(data, at)
    return read_text(data, begin, end), end


def _compile_bytes(size: int | None, form: Callable[[bytes], Any] | None) -> Decode:
    def decode(data: bytes, at: int, budget: _Budget) -> tuple[Any, int]:
        begin, end = skip_bytes(data, at) if size is None else (at, at + size)
        if end > len(data):
            raise TypeMismatch(f"{size} bytes wanted, and {len(data) - at} are left")
        value = data[begin:end]
        return (value if form is None else form(value)), end

    return decode


def _compile_enum(symbols: Sequence[str | None], written: Sequence[str] = ()) -> Decode:
    """Return what reads an enum; symbols that were *written* and that its reader has not are None."""

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


def _compile_float(form: struct.Struct) -> Decode:
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
        pairs = zip(fields.items(), columns, strict=False)  # those without a column are the last
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
    """Reads bodies in any of Avro's encodings, by content type as validation does."""

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
    """Return what stands within a JSON text for a value that has no other form: the number that it was."""
    return unfit.raw
