"""Read the values of an Avro type from bytes, for validation and for columns.

A type is compiled to a function of the bytes, a position and the walk that returns the value and the position after it.
Records and maps are dicts, arrays lists, enums their symbols. A union of null and one type has the plain value, any
other union ``{branch: value}`` with the full name of the branch's type, as in the JSON encoding. For logical types, see
:mod:`catalog.schemas.avro.types`. The time is linear in the number of bytes, whatever lengths and counts they contain.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from catalog.schemas.avro.json import Check, json_compiler
from catalog.schemas.avro.types import (
    MAX_LEVELS,
    NAMED,
    PRIMITIVES,
    AvroSchema,
    TypeCompiler,
    TypeMismatch,
    Walk,
    branch_labels,
    bytes_converter,
    check_decimal,
    decimal_bound,
    decimal_scale,
    logical_type,
    number_converter,
    number_range,
    parse_standalone,
    read_schema,
)
from catalog.schemas.contract import MAX_BODY_BYTES, CostExceeded, SchemaError, SchemaSource, WriterSchema
from catalog.schemas.ids.client import WrittenSchema

Read = Callable[[bytes, int, Walk], tuple[Any, int]]
"""Bytes, position, walk -> value and the position after it; raises :class:`TypeMismatch`."""
_Range = tuple[int, int, str]
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")


def compile_binary(schema: AvroSchema) -> Read:
    """Compile a type to a function that reads one value of it.

    Raises:
        SchemaError: a type cannot have values, for example because of a negative size.
    """
    compiler = TypeCompiler(schema.named, _make_record, _make_union, _make_array, _make_map, _make_leaf, _make_ref)
    return compiler.compile(schema.root)


class ValueMaker:
    """Makes functions that read values of a writer's schema as values of the reader's."""

    def __init__(self, writer: AvroSchema) -> None:
        self.compiler: TypeCompiler[Read] = TypeCompiler(
            writer.named, _make_record, _make_bare_union, _make_array, _make_map, _make_leaf, _make_ref
        )

    def make_record(
        self, written: Mapping[str, Any], fields: Sequence[tuple[str | None, Read]], defaults: Mapping[str, Any]
    ) -> Read:
        types = [{**each, "name": name} for (name, _), each in zip(fields, written["fields"], strict=True)]
        return _make_record({"fields": types}, [read for _, read in fields], defaults)

    def make_enum(self, symbols: Sequence[str | None], written: Sequence[str]) -> Read:
        return _make_enum(list(symbols), written)

    def make_leaf(self, written: Any, kind: str, schema: Any, into: str) -> Read:
        if kind in ("int", "long"):
            own = (*number_range(kind, kind), kind)
            if into not in ("int", "long"):
                return _make_number(own, own, float)
            plain = _narrow(own, (*number_range(into, into), into))
            return _make_number(
                plain, _narrow(own, (*number_range(schema, into), logical_type(schema))), number_converter(schema)
            )
        if kind in ("string", "bytes"):
            return _make_leaf(schema, into) if "string" not in (kind, into) else _make_text(into)
        return _make_leaf(schema if kind == "fixed" else kind, kind)

    def make_branch(self, function: Read, label: str | None) -> Read:
        if label is None:
            return function

        def read(data: bytes, at: int, walk: Walk) -> tuple[Any, int]:
            value, at = function(data, at, walk)
            return {label: value}, at

        return read

    def make_failing(self, why: str) -> Read:
        def read(data: bytes, at: int, walk: Walk) -> tuple[Any, int]:
            raise TypeMismatch(why)

        return read


def _narrow(one: _Range, other: _Range) -> _Range:
    """Return the range that both have in common, with the name of the narrower."""
    return max(one[0], other[0]), min(one[1], other[1]), other[2] if one[:2] != other[:2] else one[2]


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Read a variable-length zigzag number; return it and the position after it.

    Raises:
        TypeMismatch: the bytes end within it, or it has more than 64 bits.
    """
    if at < len(data) and data[at] < 0x80:  # most lengths, indexes and counts
        return (data[at] >> 1) ^ -(data[at] & 1), at + 1
    value = shift = 0
    for byte in data[at : at + 10]:
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80 and not value >> 64:
            return (value >> 1) ^ -(value & 1), at
    raise TypeMismatch("a number has more than 64 bits" if shift == 70 else "the body ends within a number")


def skip_bytes(data: bytes, at: int) -> tuple[int, int]:
    """Return where a length-prefixed value begins and ends.

    Raises:
        TypeMismatch: the length is negative or reaches past the end.
    """
    length, at = read_long(data, at)
    if not 0 <= length <= len(data) - at:
        raise TypeMismatch(f"a length of {length} where {len(data) - at} bytes are left")
    return at, at + length


def _make_ref(table: Mapping[str, Read], name: str) -> Read:
    return lambda data, at, walk: table[name](data, at, walk)


def _make_bare_union(schema: Sequence[Any], branches: Sequence[Read]) -> Read:
    """Return the reader of a union whose branch functions add the labels themselves."""
    return _make_union(["null"] * len(schema), branches)


def _make_union(schema: Sequence[Any], branches: Sequence[Read]) -> Read:
    labels = branch_labels(schema)

    def read(data: bytes, at: int, walk: Walk) -> tuple[Any, int]:
        index, at = read_long(data, at)
        if not 0 <= index < len(branches):
            raise TypeMismatch(f"the union has no branch {index}")
        value, at = branches[index](data, at, walk)
        label = labels[index]
        return (value if label is None else {label: value}), at

    return read


def _make_record(
    schema: Mapping[str, Any], readers: Sequence[Read], defaults: Mapping[str, Any] = MappingProxyType({})
) -> Read:
    """Return the reader of a record; *defaults* are values of further fields. Fields without a name are skipped."""
    fields = list(zip((each["name"] for each in schema["fields"]), readers, strict=True))
    nulls = sum(each["type"] in ("null", {"type": "null"}) for each in schema["fields"])

    def read(data: bytes, at: int, walk: Walk) -> tuple[Any, int]:
        if walk.level > MAX_LEVELS:
            raise TypeMismatch(f"records nest more than {MAX_LEVELS} levels")
        walk.spend(1 + nulls)
        walk.level += 1
        value: dict[str, Any] = dict(defaults)
        name = ""
        try:
            for name, inner in fields:
                value[name], at = inner(data, at, walk)
        except TypeMismatch as mismatch:
            mismatch.steps.append(f".{name}")
            raise
        value.pop(None, None)  # type: ignore[call-overload]
        walk.level -= 1
        return value, at

    return read


def read_block(data: bytes, at: int) -> tuple[int, int]:
    """Return the number of items in a block, and their start; a negative number is followed by the block's size.

    Raises:
        TypeMismatch: the bytes end before, or the size reaches past the end.
    """
    count, at = read_long(data, at)
    if count < 0:
        size, at = read_long(data, at)
        if not 0 <= size <= len(data) - at:
            raise TypeMismatch(f"a block of {size} bytes where {len(data) - at} are left")
    return abs(count), at


def _make_array(item: Read) -> Read:
    def read(data: bytes, at: int, walk: Walk) -> tuple[Any, int]:
        values: list[Any] = []
        index = 0
        try:
            count, at = read_block(data, at)
            while count:
                walk.spend()
                begin = at
                value, at = item(data, at, walk)
                index += 1
                if not walk.strict:
                    values.append(value)
                # Items without bytes may be as many as are claimed.
                count = 0 if walk.strict and at == begin else count - 1
                if not count:
                    count, at = read_block(data, at)
        except TypeMismatch as mismatch:
            mismatch.steps.append(f"[{index}]")
            raise
        return values, at

    return read


def _make_map(inner: Read) -> Read:
    def read(data: bytes, at: int, walk: Walk) -> tuple[Any, int]:
        values: dict[str, Any] = {}
        count, at = read_block(data, at)
        while count:
            for _ in range(count):
                begin, at = skip_bytes(data, at)
                key = read_text(data, begin, at)
                try:
                    value, at = inner(data, at, walk)
                except TypeMismatch as mismatch:
                    mismatch.steps.append(f".{key}")
                    raise
                if not walk.strict:
                    values[key] = value
            count, at = read_block(data, at)
        return values, at

    return read


def read_text(data: bytes, begin: int, end: int) -> str:
    """Return the text in the bytes from *begin* to *end*.

    Raises:
        TypeMismatch: it is not UTF-8.
    """
    try:
        return data[begin:end].decode("utf-8")
    except UnicodeDecodeError as error:
        raise TypeMismatch(f"the text is not UTF-8 at byte {error.start}") from None


def _make_leaf(schema: Any, kind: str) -> Read:
    if kind in ("int", "long"):
        strict = (*number_range(schema, kind), logical_type(schema))
        return _make_number((*number_range(kind, kind), kind), strict, number_converter(schema))
    if kind == "fixed" and (type(schema["size"]) is not int or schema["size"] < 0):
        raise SchemaError(f"the size of the fixed type {schema['name']} is not a number", hint="write it in bytes")
    if kind in ("bytes", "fixed"):
        size = schema["size"] if kind == "fixed" else None
        return _make_bytes(size, decimal_bound(schema), bytes_converter(schema))
    if kind == "string":
        return _make_text(kind)
    if kind == "enum":
        return _make_enum(schema["symbols"])
    if kind == "null":
        return lambda data, at, walk: (None, at)
    return _read_boolean if kind == "boolean" else _make_float(_FLOAT if kind == "float" else _DOUBLE)


def _make_number(plain: _Range, strict: _Range, form: Callable[[int], Any] | None) -> Read:
    """Return the reader of a number in the range *plain*, or *strict* in strict walks."""

    def read(data: bytes, at: int, walk: Walk) -> tuple[Any, int]:
        value, at = read_long(data, at)
        low, end, name = strict if walk.strict else plain
        if not low <= value < end:
            raise TypeMismatch(f"{value} is out of the range of {name}")
        return (value if form is None or walk.strict else form(value)), at

    return read


def _make_text(kind: str) -> Read:
    def read(data: bytes, at: int, walk: Walk) -> tuple[Any, int]:
        begin, end = skip_bytes(data, at)
        text = read_text(data, begin, end)
        return (text if kind == "string" else data[begin:end]), end

    return read


def _make_bytes(size: int | None, bound: int, form: Callable[[bytes], Any] | None) -> Read:
    def read(data: bytes, at: int, walk: Walk) -> tuple[Any, int]:
        begin, end = skip_bytes(data, at) if size is None else (at, at + size)
        if end > len(data):
            raise TypeMismatch(f"{size} bytes wanted, and {len(data) - at} are left")
        value = data[begin:end]
        if walk.strict and bound:
            check_decimal(value, bound)
        return (value if form is None or walk.strict else form(value)), end

    return read


def _make_enum(symbols: Sequence[str | None], written: Sequence[str] = ()) -> Read:
    """Return the reader of an enum; symbols of the writer that the reader does not have are None."""

    def read(data: bytes, at: int, walk: Walk) -> tuple[Any, int]:
        index, at = read_long(data, at)
        if not 0 <= index < len(symbols):
            raise TypeMismatch(f"the enum has no symbol {index}")
        symbol = symbols[index]
        if symbol is None:
            raise TypeMismatch(f"the definition's enum has no symbol {written[index]}, and no default")
        return symbol, at

    return read


def _read_boolean(data: bytes, at: int, walk: Walk) -> tuple[Any, int]:
    if data[at : at + 1] not in (b"\x00", b"\x01"):
        raise TypeMismatch("no boolean" if at < len(data) else "the body ends before a boolean")
    return data[at] == 1, at + 1


def _make_float(form: struct.Struct) -> Read:
    def read(data: bytes, at: int, walk: Walk) -> tuple[Any, int]:
        if form.size > len(data) - at:
            raise TypeMismatch(f"{form.size} bytes wanted, and {len(data) - at} are left")
        return form.unpack_from(data, at)[0], at + form.size

    return read


# Bodies that are Avro object container files: a header with the writer's schema, then blocks of values.

MAGIC: Final = b"Obj\x01"
MAX_UNPACKED_BYTES: Final = 4 * MAX_BODY_BYTES
"""Maximum size of all blocks together after decompression; a few compressed bytes may expand to any number."""
_SYNC: Final = 16
ReadValue = Callable[[bytes, int], tuple[Any, int]]
"""Bytes, position -> value and the position after it."""


_DECOMPRESSORS: Final[Mapping[str, Callable[[], Any]]] = {
    "deflate": lambda: zlib.decompressobj(-zlib.MAX_WBITS),
    "bzip2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(memlimit=MAX_UNPACKED_BYTES),
}


def read_container(body: bytes, schema: AvroSchema, read: ReadValue, *, single: bool) -> tuple[Any, int | None]:
    """Read a container file that was written with *schema*, compared by canonical form.

    With *single*, more than one value is a mismatch, found before they are read. Return the first value and the number
    of values. Blocks compressed with snappy or zstandard are not read, because there is no decompressor for them here;
    then both are None.

    Raises:
        TypeMismatch: another schema wrote it, or it is damaged.
    """
    meta, at = _read_header(body)
    if _read_canonical_form(meta.get("avro.schema", b"")) != schema.canonical:
        raise TypeMismatch("the container file was written with another schema")
    codec = meta.get("avro.codec", b"null").decode("ascii", "replace")
    if codec in ("snappy", "zstandard"):
        return None, None
    sync = body[at : at + _SYNC]
    at += _SYNC
    left = MAX_UNPACKED_BYTES
    first: Any = None
    total = 0
    while at < len(body):
        count, at = read_long(body, at)
        if single and total + count > 1:
            raise TypeMismatch(f"the container file has {total + count} values, not one")
        begin, at = skip_bytes(body, at)
        block = _unpack_block(codec, body[begin:at], left)
        left -= len(block)
        value = _read_block(block, count, read)
        first, total = first if total else value, total + count
        if body[at : at + _SYNC] != sync:
            raise TypeMismatch("a block of the container file does not end with its marker")
        at += _SYNC
    return first, total


def _read_header(body: bytes) -> tuple[dict[str, bytes], int]:
    meta: dict[str, bytes] = {}
    count, at = read_long(body, len(MAGIC))
    while count:
        if count < 0:
            _, at = read_long(body, at)
        for _ in range(abs(count)):
            begin, at = skip_bytes(body, at)
            key = body[begin:at].decode("utf-8", "replace")
            begin, at = skip_bytes(body, at)
            meta[key] = body[begin:at]
        count, at = read_long(body, at)
    return meta, at


def _read_canonical_form(document: bytes) -> str:
    try:
        return parse_standalone(msgspec.json.decode(document)).canonical
    except (SchemaError, msgspec.DecodeError, UnicodeError, RecursionError):
        raise TypeMismatch("the container file's header has no valid schema") from None


def _unpack_block(codec: str, block: bytes, limit: int) -> bytes:
    if codec == "null":
        return block
    if codec not in _DECOMPRESSORS:
        raise TypeMismatch(f"the container file has the unknown codec {codec[:60]}")
    try:
        unpacked: bytes = _DECOMPRESSORS[codec]().decompress(block, limit + 1)
    except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
        raise TypeMismatch(f"a block of the container file cannot be unpacked: {error}") from None
    if len(unpacked) > limit:
        raise TypeMismatch(f"the container file has more than {MAX_UNPACKED_BYTES} bytes")
    return unpacked


def _read_block(block: bytes, count: int, read: ReadValue) -> Any:
    """Return the first value of a block; None if it is empty."""
    first: Any = None
    at = index = 0
    try:
        for index in range(count):
            begin = at
            value, at = read(block, at)
            first = first if index else value
            if at == begin:
                break  # values without bytes may be as many as are claimed
    except TypeMismatch as mismatch:
        mismatch.steps.append(f"[{index}]")
        raise
    if at != len(block) or count < 0:
        raise TypeMismatch("a block of the container file has more bytes than its values")
    return first


# Bodies of one Avro schema read as values of another: "Schema Resolution" in the Avro specification.
#
# Both schemas are compiled together to one function (:mod:`catalog.schemas.avro.types`), once per pair of types. Types
# that can never be resolved are found then; what depends on the body, such as the branch of a union, makes that body
# invalid. The names of the root records are not compared: the schema id decided before that they belong together
# (MATCHING.md#schema-ids).

F = TypeVar("F")
_PROMOTIONS: Final[Mapping[str, frozenset[str]]] = {
    "int": frozenset({"int", "long", "float", "double"}),
    "long": frozenset({"long", "float", "double"}),
    "float": frozenset({"float", "double"}),
    "string": frozenset({"string", "bytes"}),
    "bytes": frozenset({"bytes", "string"}),
}
_RECORDS: Final = frozenset({"record", "error"})


class Unresolvable(TypeMismatch):
    """The values of one schema can never be read as values of another; the path is that of the field."""

    def __str__(self) -> str:
        path = self.field_path()
        return f"field {path}: {self.message}" if path else self.message


class FunctionMaker(Protocol[F]):
    """Makes the functions for resolved types."""

    compiler: TypeCompiler[F]
    """Compiles types of the writer that the reader does not have, whose values are skipped."""

    def make_record(
        self, written: Mapping[str, Any], fields: Sequence[tuple[str | None, F]], defaults: Mapping[str, Any]
    ) -> F:
        """Return the function of a record, with its fields in the writer's order under the reader's names.

        The name is None for a field that the reader does not have. *defaults* are the values of fields not written.
        """
        ...

    def make_enum(self, symbols: Sequence[str | None], written: Sequence[str]) -> F:
        """Return the function of an enum; a symbol is None if the reader does not have it."""
        ...

    def make_leaf(self, written: Any, kind: str, schema: Any, into: str) -> F:
        """Return the function of a primitive, fixed or bytes value that was written as *kind* and is read as *into*."""
        ...

    def make_branch(self, function: F, label: str | None) -> F:
        """Return the function of a value of one branch of the reader's union; *label* names the branch."""
        ...

    def make_failing(self, why: str) -> F:
        """Return the function of a writer's branch that the reader cannot read; it raises with the reason."""
        ...


@dataclass(slots=True)
class AvroResolver(Generic[F]):
    """Resolves the types of a writer's schema to those of a reader's."""

    writer: AvroSchema
    reader: AvroSchema
    maker: FunctionMaker[F]
    spend: Callable[[int], None] = lambda steps: None
    """Counts the pairs of types that are compared."""
    _done: dict[str, F | Unresolvable] = field(default_factory=dict)
    _table: dict[str, F] = field(default_factory=dict)
    _checks: TypeCompiler[Check] | None = None

    def resolve(self, *, named: bool = False) -> F:
        """Return the function that reads the writer's values as the reader's; with *named*, root names are compared.

        Raises:
            Unresolvable: no value of the writer's schema can be read as one of the reader's.
        """
        return self._resolve_types(self.writer.root, self.reader.root, anywhere=named)

    def _resolve_types(self, written: Any, target: Any, *, anywhere: bool = True) -> F:
        self.spend(1)
        written, target = _find_type(written, self.writer), _find_type(target, self.reader)
        if isinstance(written, list):
            return self._resolve_from_union(written, target)
        if isinstance(target, list):
            return self._resolve_to_union(written, target)
        kind, into = _kind_of(written), _kind_of(target)
        if kind not in NAMED:
            return self._resolve_unnamed(written, kind, target, into)
        if (kind in _RECORDS) != (into in _RECORDS) or (kind not in _RECORDS and kind != into):
            raise _mismatch_error(written, target)
        if (anywhere or kind not in _RECORDS) and not _have_same_name(written, target):
            raise _mismatch_error(written, target)
        return self._resolve_named(written, kind, target)

    def _resolve_named(self, written: Any, kind: str, target: Any) -> F:
        """Resolve two named types, each pair once; recursive pairs are looked up when called."""
        key = f"{written['name']} {target['name']}"
        if key in self._done:
            known = self._done[key]
            if isinstance(known, Unresolvable):
                raise Unresolvable(known.message) from None
            return known
        self._done[key] = self.maker.compiler.reference(self._table, key)
        try:
            made = {"enum": self._resolve_enum, "fixed": self._resolve_fixed}.get(kind, self._resolve_record)(
                written, target
            )
        except Unresolvable as error:
            self._done[key], self._table[key] = error, self.maker.make_failing(str(error))
            raise
        self._done[key] = self._table[key] = made
        return made

    def _resolve_from_union(self, written: Sequence[Any], target: Any) -> F:
        """Resolve each branch of the writer's union; bodies with a branch that cannot be read are invalid."""
        functions: list[F] = []
        failed: list[Unresolvable] = []
        for branch in written:
            try:
                functions.append(self._resolve_types(branch, target))
            except Unresolvable as error:
                failed.append(error)
                functions.append(self.maker.make_failing(str(error)))
        if len(failed) == len(written):
            raise failed[0] if len(failed) == 1 else _mismatch_error(written, target)
        return self.maker.compiler.union(written, functions)

    def _resolve_to_union(self, written: Any, target: Sequence[Any]) -> F:
        """Resolve to the branch of the same type, else to the first that can read the written type."""
        labels = branch_labels(target)
        order = sorted(
            range(len(target)), key=lambda at: not _is_same_type(written, _find_type(target[at], self.reader))
        )
        deeper: Unresolvable | None = None
        for at in order:
            try:
                return self.maker.make_branch(self._resolve_types(written, target[at]), labels[at])
            except Unresolvable as error:
                deeper = deeper or (error if error.steps else None)
        raise deeper or _mismatch_error(written, target)

    def _resolve_unnamed(self, written: Any, kind: str, target: Any, into: str) -> F:
        if kind in ("array", "map") and kind == into:
            member = "items" if kind == "array" else "values"
            try:
                inner = self._resolve_types(written[member], target[member])
            except Unresolvable as error:
                raise error.add_step("[]" if kind == "array" else ".*") from None
            return self.maker.compiler.array(inner) if kind == "array" else self.maker.compiler.map(inner)
        if into not in _PROMOTIONS.get(kind, frozenset({kind} - {"array", "map"})):
            raise _mismatch_error(written, target)
        _require_decimal(written, target)
        return self.maker.make_leaf(written, kind, target, into)

    def _resolve_enum(self, written: Any, target: Any) -> F:
        symbols, known, default = written["symbols"], frozenset(target["symbols"]), target.get("default")
        return self.maker.make_enum([each if each in known else default for each in symbols], symbols)

    def _resolve_fixed(self, written: Any, target: Any) -> F:
        if written["size"] != target["size"]:
            raise Unresolvable(f"{written['size']} bytes were written, the definition has {target['size']}")
        _require_decimal(written, target)
        return self.maker.make_leaf(written, "fixed", target, "fixed")

    def _resolve_record(self, written: Any, target: Any) -> F:
        own = {each["name"]: each for each in written["fields"]}
        origins: dict[str, Any] = {}
        defaults: dict[str, Any] = {}
        for each in target["fields"]:
            names = (each["name"], *(name for name in each.get("aliases", ()) if isinstance(name, str)))
            origin = next((name for name in names if name in own and name not in origins), None)
            if origin is not None:
                origins[origin] = each
            elif "default" in each:
                defaults[each["name"]] = self._default_value(each)
            else:
                raise Unresolvable("it was not written, and the definition has no default").add_step(f".{each['name']}")
        fields: list[tuple[str | None, F]] = []
        for name, each in own.items():
            reader = origins.get(name)
            if reader is None:
                fields.append((None, self.maker.compiler.compile(each["type"])))
                continue
            try:
                fields.append((reader["name"], self._resolve_types(each["type"], reader["type"])))
            except Unresolvable as error:
                raise error.add_step(f".{reader['name']}") from None
        return self.maker.make_record(written, fields, defaults)

    def _default_value(self, member: Mapping[str, Any]) -> Any:
        if self._checks is None:
            self._checks = json_compiler(self.reader.named)
        try:
            return self._checks.compile(member["type"])(member["default"], Walk(strict=True, fills=True))
        except (TypeMismatch, CostExceeded, RecursionError):
            raise Unresolvable("its default is not of its type").add_step(f".{member['name']}") from None


class _GapMaker:
    """Makes the reason why some values of a type cannot be read, '' if all can."""

    def __init__(self, writer: AvroSchema) -> None:
        self.compiler: TypeCompiler[str] = TypeCompiler(
            writer.named,
            lambda schema, parts: "",
            lambda schema, parts: next(filter(None, parts), ""),
            lambda item: item,
            lambda value: value,
            lambda schema, kind: "",
            lambda table, name: "",
        )

    def make_record(
        self, written: Mapping[str, Any], fields: Sequence[tuple[str | None, str]], defaults: Mapping[str, Any]
    ) -> str:
        return next((f"field {name}: {gap}" for name, gap in fields if name and gap), "")

    def make_enum(self, symbols: Sequence[str | None], written: Sequence[str]) -> str:
        gone = next((name for symbol, name in zip(symbols, written, strict=True) if symbol is None), None)
        return "" if gone is None else f"the definition's enum has no symbol {gone}, and no default"

    def make_leaf(self, written: Any, kind: str, schema: Any, into: str) -> str:
        return ""

    def make_branch(self, function: str, label: str | None) -> str:
        return function

    def make_failing(self, why: str) -> str:
        return why


def find_gap(reader: AvroSchema, writer: AvroSchema, spend: Callable[[int], None] = lambda steps: None) -> str:
    """Return why some values written with *writer* cannot be read with *reader*, '' if all can."""
    try:
        return AvroResolver(writer, reader, _GapMaker(writer), spend).resolve(named=True)
    except Unresolvable as error:
        return str(error)


def read_writer_schema(written: WriterSchema) -> AvroSchema:
    """Return the writer's schema of bodies.

    Raises:
        Unresolvable: the registry's schema is not a valid Avro schema.
    """
    try:
        source = SchemaSource("Avro", "", written.schema.document)
        return read_schema(source, WriterTypes(written.schema))
    except (SchemaError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise Unresolvable(f"the registry's schema is not valid: {error}") from None


class WriterTypes:
    """Finds the schemas that a registry's schema refers to: by reference name, else by a type that they contain."""

    def __init__(self, schema: WrittenSchema) -> None:
        self._references = schema.references

    def document(self, reference: str, base: str) -> tuple[str, Any] | None:
        """Return the name and document for a type that the schema uses but does not define; None if unknown."""
        if reference in self._references:
            return reference, self._references[reference]
        simple = reference.rpartition(".")[2]
        for name, document in self._references.items():
            if name.rpartition(".")[2] == simple or f'"{simple}"' in document or f'"{reference}"' in document:
                return name, document
        return None


def _find_type(schema: Any, owner: AvroSchema) -> Any:
    return owner.named[schema] if isinstance(schema, str) and schema not in PRIMITIVES else schema


def _kind_of(schema: Any) -> str:
    return schema if isinstance(schema, str) else str(schema["type"])


def _simple_name(name: str) -> str:
    return name.rpartition(".")[2]


def _have_same_name(written: Any, target: Any) -> bool:
    names = (target["name"], *target.get("aliases", ()))
    return _simple_name(written["name"]) in map(_simple_name, names)


def _is_same_type(written: Any, target: Any) -> bool:
    if isinstance(target, list) or _kind_of(written) != _kind_of(target):
        return False
    return _kind_of(written) not in NAMED or bool(written["name"] == target["name"])


def _mismatch_error(written: Any, target: Any) -> Unresolvable:
    return Unresolvable(f"{_describe_type(written)} was written, the definition has {_describe_type(target)}")


def _describe_type(schema: Any) -> str:
    if isinstance(schema, list):
        return "one of " + ", ".join(map(_describe_type, schema))
    if isinstance(schema, str):
        return schema
    kind = _kind_of(schema)
    return f"{kind} {schema['name']}" if kind in NAMED else kind


def _require_decimal(written: Any, target: Any) -> None:
    """Require that two decimals have the same precision and scale; otherwise the digits mean another number."""
    forms = [
        (each["precision"], scale)
        for each in (written, target)
        if isinstance(each, dict) and (scale := decimal_scale(each)) is not None
    ]
    if len(set(forms)) > 1:
        one, other = (f"decimal({precision}, {scale})" for precision, scale in forms)
        raise Unresolvable(f"{one} was written, the definition has {other}")
