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
from catalog.schemas.avro.json import Check, Walk, compile_json
from catalog.schemas.avro.types import (
    MAX_LEVELS,
    PRIMITIVES,
    AvroSchema,
    Misfit,
    TypeCompiler,
    branch_labels,
    bytes_form,
    decimal_scale,
    is_fixed_uuid,
    logical_type,
    number_form,
    number_range,
    read_schema,
)
from catalog.schemas.avro.validating import AvroBodies, WrittenBodies
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
    Leaf,
    MapShape,
    Member,
    Path,
    Shape,
    Struct,
    Survey,
    Take,
    Undecoded,
    UnreadableBody,
    decimal,
    integer,
    present,
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
class _Room:
    """One body under way: the level of records, and how many more records and items it may have."""

    left: int
    level: int = 0

    def spend(self, values: int = 1) -> None:
        self.left -= values
        if self.left < 0:
            raise Misfit("more values than bytes")


Decode = Callable[[bytes, int, _Room], tuple[Any, int]]
"""Bytes, position, room -> value and the position after it; raises :class:`Misfit`."""


class AvroDecoder:
    """Builds the values of bodies of one schema, which was compiled before and so is sound.

    Bodies that were *written* with another are read as values of this one.
    """

    def __init__(self, schema: AvroSchema, written: WriterSchema | None = None) -> None:
        self._bodies: WrittenBodies | AvroBodies
        if written is not None:
            self._bodies = WrittenBodies.of(schema, written, _Resolved, _room_for)
            return
        compiler = TypeCompiler(schema.named, _record, _union, _array, _map, _leaf, _deferred)
        decode = compiler.compiled(schema.root)
        check = compile_json(schema.root, schema.named)
        self._bodies = AvroBodies(
            schema,
            _room_for(decode),
            lambda value: _lenient(check, value),
            single=True,
        )

    def value(self, body: bytes | None, content_type: str | None) -> Any:
        """Return the value of a body; no body is the empty datum. A container file must hold exactly one.

        Raises:
            Misfit: the body does not conform.
        """
        return self._bodies.value(body, content_type)


def _lenient(check: Check, value: Any) -> Any:
    try:
        return check(value, Walk(lenient=True))
    except Misfit as misfit:
        return UnfitValue(misfit.message)


def _room_for(decode: Decode) -> ReadValue:
    return lambda data, at: decode(data, at, _Room(len(data) + MAX_EMPTY))


class _Resolved:
    """Makes functions that build values of a reader's schema from bytes of a writer's."""

    def __init__(self, writer: AvroSchema) -> None:
        self.plain: TypeCompiler[Decode] = TypeCompiler(
            writer.named, _record, _plain_union, _array, _map, _leaf, _deferred
        )

    def record(
        self, written: Mapping[str, Any], fields: Sequence[tuple[str | None, Decode]], given: Mapping[str, Any]
    ) -> Decode:
        types = [{**each, "name": name} for (name, _), each in zip(fields, written["fields"], strict=True)]
        return _record({"fields": types}, [decode for _, decode in fields], given)

    def enum(self, symbols: Sequence[str | None], written: Sequence[str]) -> Decode:
        return _enum(list(symbols), written)

    def leaf(self, written: Any, kind: str, schema: Any, into: str) -> Decode:
        if kind in ("int", "long"):
            low, end = number_range(kind, kind)
            if into not in ("int", "long"):
                return _number(low, end, kind, float)
            first, last = number_range(into, into)
            return _number(max(low, first), min(end, last), into, number_form(schema))
        if kind in ("string", "bytes"):
            return _leaf(schema, into)
        return _leaf(schema if kind == "fixed" else kind, kind)

    def branch(self, function: Decode, label: str | None) -> Decode:
        if label is None:
            return function

        def decode(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
            value, at = function(data, at, room)
            return {label: value}, at

        return decode

    def failing(self, why: str) -> Decode:
        def decode(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
            raise Misfit(why)

        return decode


def _plain_union(schema: Sequence[Any], branches: Sequence[Decode]) -> Decode:
    """Return what reads a union whose branches bring their labels with them."""
    return _union(["null"] * len(schema), branches)


def _deferred(table: Mapping[str, Decode], name: str) -> Decode:
    return lambda data, at, room: table[name](data, at, room)


def _union(schema: Sequence[Any], branches: Sequence[Decode]) -> Decode:
    labels = branch_labels(schema)

    def decode(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
        index, at = read_long(data, at)
        if not 0 <= index < len(branches):
            raise Misfit(f"the union has no branch {index}")
        value, at = branches[index](data, at, room)
        label = labels[index]
        return (value if label is None else {label: value}), at

    return decode


def _record(
    schema: Mapping[str, Any], decodes: Sequence[Decode], given: Mapping[str, Any] = MappingProxyType({})
) -> Decode:
    """Return what reads a record: *given* are the values of more fields; one without a name is passed over."""
    names = [each["name"] for each in schema["fields"]]
    fields = list(zip(names, decodes, strict=True))
    nulls = sum(each["type"] in ("null", {"type": "null"}) for each in schema["fields"])

    def decode(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
        if room.level > MAX_LEVELS:
            raise Misfit(f"records nest more than {MAX_LEVELS} levels")
        room.spend(1 + nulls)
        room.level += 1
        value: dict[str, Any] = dict(given)
        name = ""
        try:
            for name, inner in fields:
                value[name], at = inner(data, at, room)
        except Misfit as misfit:
            misfit.steps.append(f".{name}")
            raise
        value.pop(None, None)  # type: ignore[call-overload]
        room.level -= 1
        return value, at

    return decode


def _array(item: Decode) -> Decode:
    def decode(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
        values: list[Any] = []
        try:
            count, at = read_block(data, at)
            while count:
                room.spend()
                value, at = item(data, at, room)
                values.append(value)
                count -= 1
                if not count:
                    count, at = read_block(data, at)
        except Misfit as misfit:
            misfit.steps.append(f"[{len(values)}]")
            raise
        return values, at

    return decode


def _map(inner: Decode) -> Decode:
    def decode(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
        values: dict[str, Any] = {}
        key = ""
        count, at = read_block(data, at)
        while count:
            for _ in range(count):
                begin, at = skip_bytes(data, at)
                key = read_text(data, begin, at)
                try:
                    values[key], at = inner(data, at, room)
                except Misfit as misfit:
                    misfit.steps.append(f".{key}")
                    raise
            count, at = read_block(data, at)
        return values, at

    return decode


def _leaf(schema: Any, kind: str) -> Decode:
    if kind in ("int", "long"):
        return _number(*number_range(kind, kind), kind, number_form(schema))
    if kind in ("bytes", "fixed"):
        return _bytes(schema["size"] if kind == "fixed" else None, bytes_form(schema))
    if kind == "string":
        return _string
    if kind == "enum":
        return _enum(schema["symbols"])
    if kind == "null":
        return lambda data, at, room: (None, at)
    return _boolean if kind == "boolean" else _floating(_FLOAT if kind == "float" else _DOUBLE)


def _number(low: int, end: int, name: str, form: Callable[[int], Any] | None) -> Decode:
    def decode(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
        value, at = read_long(data, at)
        if not low <= value < end:
            raise Misfit(f"{value} is out of the range of {name}")
        return (value if form is None else form(value)), at

    return decode


def _string(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
    begin, end = skip_bytes(data, at)
    return read_text(data, begin, end), end


def _bytes(size: int | None, form: Callable[[bytes], Any] | None) -> Decode:
    def decode(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
        begin, end = skip_bytes(data, at) if size is None else (at, at + size)
        if end > len(data):
            raise Misfit(f"{size} bytes wanted, and {len(data) - at} are left")
        value = data[begin:end]
        return (value if form is None else form(value)), end

    return decode


def _enum(symbols: Sequence[str | None], written: Sequence[str] = ()) -> Decode:
    """Return what reads an enum; symbols that were *written* and that its reader has not are None."""

    def decode(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
        index, at = read_long(data, at)
        if not 0 <= index < len(symbols):
            raise Misfit(f"the enum has no symbol {index}")
        symbol = symbols[index]
        if symbol is None:
            raise Misfit(f"the definition's enum has no symbol {written[index]}, and no default")
        return symbol, at

    return decode


def _boolean(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
    if data[at : at + 1] not in (b"\x00", b"\x01"):
        raise Misfit("no boolean" if at < len(data) else "the body ends before a boolean")
    return data[at] == 1, at + 1


def _floating(form: struct.Struct) -> Decode:
    def decode(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
        if form.size > len(data) - at:
            raise Misfit(f"{form.size} bytes wanted, and {len(data) - at} are left")
        return form.unpack_from(data, at)[0], at + form.size

    return decode


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


def open_columns(source: SchemaSource, library: Library, survey: Survey) -> tuple[Shape, BodyReader] | None:
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
            return MapShape(self.shape(schema["values"], (*path, "*"), within), TEXT)
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

    def __init__(self, schema: AvroSchema, written: WriterSchema | None = None) -> None:
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
                undecoded.append(Undecoded(row, UnreadableBody(misfit.message, misfit.path()).why))
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
