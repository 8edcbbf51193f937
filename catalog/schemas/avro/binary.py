"""Checks bytes against an Avro type without building a value.

A type becomes a function that takes the bytes, a position and the level of nesting, and returns the position after the
value. Time is linear in the length of the bytes whatever lengths and counts they claim, for every step but the null
ones takes a byte, and blocks of items without bytes are passed over at once.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from catalog.schemas.avro.types import (
    MAX_LEVELS,
    NAMED,
    PRIMITIVES,
    AvroSchema,
    TypeCompiler,
    TypeMismatch,
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
from catalog.schemas.contract import MAX_BODY_BYTES, SchemaError, SchemaSource, WriterSchema
from catalog.schemas.ids.client import WrittenSchema

Read = Callable[[bytes, int, int], int]
"""Bytes, position, level -> position after the value; raises :class:`TypeMismatch`."""


def compile_binary(root: Any, named: Mapping[str, Any]) -> Read:
    """Compile a type to a function that passes over one value of it.

    Raises:
        SchemaError: a type has members that no value can be read by, such as a negative size.
    """
    empty = _EmptyTypes(named)

    def record(schema: Mapping[str, Any], readers: Sequence[Read]) -> Read:
        return _compile_record(schema, readers, empty)

    return TypeCompiler(
        named, record, _compile_union, _compile_array, _compile_map, _compile_leaf, _compile_reference
    ).compile(root)


class ResolvedBinary:
    """Makes functions that pass over values of a writer's schema and refuse what its reader cannot have."""

    def __init__(self, writer: AvroSchema) -> None:
        self._empty = _EmptyTypes(writer.named)
        self.compiler: TypeCompiler[Read] = TypeCompiler(
            writer.named,
            self._compile_plain_record,
            _compile_union,
            _compile_array,
            _compile_map,
            _compile_leaf,
            _compile_reference,
        )

    def _compile_plain_record(self, written: Mapping[str, Any], readers: Sequence[Read]) -> Read:
        return _compile_record(written, readers, self._empty)

    def make_record(
        self, written: Mapping[str, Any], fields: Sequence[tuple[str | None, Read]], defaults: Mapping[str, Any]
    ) -> Read:
        names = [name or each["name"] for (name, _), each in zip(fields, written["fields"], strict=True)]
        types = [{"name": name, "type": each["type"]} for name, each in zip(names, written["fields"], strict=True)]
        return _compile_record({"fields": types}, [reader for _, reader in fields], self._empty)

    def make_enum(self, symbols: Sequence[str | None], written: Sequence[str]) -> Read:
        refused = {index: written[index] for index, symbol in enumerate(symbols) if symbol is None}
        return _compile_enum(len(symbols), refused)

    def make_leaf(self, written: Any, kind: str, schema: Any, into: str) -> Read:
        if kind in ("int", "long"):
            low, end = number_range(kind, kind)
            if into not in ("int", "long"):
                return _compile_number(low, end, kind)
            first, last = number_range(schema, into)
            return _compile_number(
                max(low, first), min(end, last), logical_type(schema if (low, end) != (first, last) else kind)
            )
        if kind in ("string", "bytes"):
            if "string" in (kind, into):
                return _skip_string
            return _compile_bytes(decimal_bound(schema))
        return _compile_leaf(schema if kind == "fixed" else kind, kind)

    def make_branch(self, function: Read, label: str | None) -> Read:
        return function

    def make_failing(self, why: str) -> Read:
        def read(data: bytes, at: int, level: int) -> int:
            raise TypeMismatch(why)

        return read


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Read a variable-length zig-zag number; return it and the position after it.

    Raises:
        Misfit: the bytes end before it does, or it has more than 64 bits.
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
        Misfit: the length is negative or reaches past the end.
    """
    length, at = read_long(data, at)
    if not 0 <= length <= len(data) - at:
        raise TypeMismatch(f"a length of {length} where {len(data) - at} bytes are left")
    return at, at + length


class _EmptyTypes:
    """Tells which types have values without bytes; of named ones once each."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._empty: dict[str, bool] = {}

    def has_no_bytes(self, schema: Any) -> bool:
        """Whether values of a type take no bytes; a recursive type that did could never end."""
        if isinstance(schema, str):
            if schema == "null" or schema in PRIMITIVES:
                return schema == "null"
            schema = self._named[schema]
        if isinstance(schema, list):
            return False
        kind = schema["type"]
        if kind not in ("record", "error"):
            return bool(kind == "null" or (kind == "fixed" and schema["size"] == 0))
        name = schema["name"]
        if name not in self._empty:
            self._empty[name] = False
            self._empty[name] = all(self.has_no_bytes(field["type"]) for field in schema["fields"])
        return self._empty[name]


def _compile_record(schema: Mapping[str, Any], readers: Sequence[Read], empty: _EmptyTypes) -> Read:
    # Fields without bytes fit whatever stands there. Were they looked at, a record of a thousand of them would take a
    # thousand steps for each byte of a body.
    fields = [
        (f".{field['name']}", reader)
        for field, reader in zip(schema["fields"], readers, strict=True)
        if not empty.has_no_bytes(field["type"])
    ]

    def read(data: bytes, at: int, level: int) -> int:
        if level > MAX_LEVELS:
            raise TypeMismatch(f"records nest more than {MAX_LEVELS} levels")
        step = ""
        try:
            for step, reader in fields:  # noqa: B007 - the step tells where a misfit was met
                at = reader(data, at, level + 1)
        except TypeMismatch as mismatch:
            mismatch.steps.append(step)
            raise
        return at

    return read


def _compile_reference(table: Mapping[str, Read], name: str) -> Read:
    return lambda data, at, level: table[name](data, at, level)


def _compile_union(schema: Sequence[Any], branches: Sequence[Read]) -> Read:
    def read(data: bytes, at: int, level: int) -> int:
        index, at = read_long(data, at)
        if not 0 <= index < len(branches):
            raise TypeMismatch(f"the union has no branch {index}")
        return branches[index](data, at, level)

    return read


def read_block(data: bytes, at: int) -> tuple[int, int]:
    """Return the count of items of a block and where they begin; the block's size follows a negative count.

    Raises:
        Misfit: the bytes end before, or the size reaches past the end.
    """
    count, at = read_long(data, at)
    if count < 0:
        size, at = read_long(data, at)
        if not 0 <= size <= len(data) - at:
            raise TypeMismatch(f"a block of {size} bytes where {len(data) - at} are left")
    return abs(count), at


def _compile_array(item: Read) -> Read:
    def read(data: bytes, at: int, level: int) -> int:
        index = 0
        try:
            count, at = read_block(data, at)
            while count:
                begin = at
                at = item(data, at, level)
                index += 1
                count = count - 1 if at > begin else 0  # items without bytes may be as many as are claimed
                if not count:
                    count, at = read_block(data, at)
        except TypeMismatch as mismatch:
            mismatch.steps.append(f"[{index}]")
            raise
        return at

    return read


def _compile_map(value: Read) -> Read:
    def read(data: bytes, at: int, level: int) -> int:
        key = ""
        count, at = read_block(data, at)
        while count:
            for _ in range(count):
                begin, at = skip_bytes(data, at)
                key = read_text(data, begin, at)
                try:
                    at = value(data, at, level)
                except TypeMismatch as mismatch:
                    mismatch.steps.append(f".{key}")
                    raise
            count, at = read_block(data, at)
        return at

    return read


def read_text(data: bytes, begin: int, end: int) -> str:
    """Return the text of some bytes.

    Raises:
        Misfit: it is no UTF-8.
    """
    try:
        return data[begin:end].decode("utf-8")
    except UnicodeDecodeError as error:
        raise TypeMismatch(f"the text is not UTF-8 at byte {error.start}") from None


def _compile_leaf(schema: Any, kind: str) -> Read:
    if kind in ("int", "long"):
        return _compile_number(*number_range(schema, kind), logical_type(schema))
    if kind == "string":
        return _skip_string
    if kind == "bytes":
        return _compile_bytes(decimal_bound(schema))
    if kind == "enum":
        return _compile_enum(len(schema["symbols"]))
    if kind == "boolean":
        return _skip_boolean
    if kind == "fixed" and (type(schema["size"]) is not int or schema["size"] < 0):
        raise SchemaError(f"the size of the fixed type {schema['name']} is not a number", hint="write it in bytes")
    sizes = {"null": 0, "float": 4, "double": 8}
    return _compile_fixed(sizes[kind] if kind in sizes else schema["size"], decimal_bound(schema))


def _compile_number(low: int, end: int, name: str) -> Read:
    def read(data: bytes, at: int, level: int) -> int:
        value, at = read_long(data, at)
        if not low <= value < end:
            raise TypeMismatch(f"{value} is out of the range of {name}")
        return at

    return read


def _skip_string(data: bytes, at: int, level: int) -> int:
    begin, end = skip_bytes(data, at)
    read_text(data, begin, end)
    return end


def _compile_bytes(bound: int) -> Read:
    def read(data: bytes, at: int, level: int) -> int:
        begin, end = skip_bytes(data, at)
        if bound:
            check_decimal(data[begin:end], bound)
        return end

    return read


def _compile_enum(symbols: int, refused: Mapping[int, str] = MappingProxyType({})) -> Read:
    """Return what reads an enum; *refused* are symbols that were written, and that its reader has not."""

    def read(data: bytes, at: int, level: int) -> int:
        index, at = read_long(data, at)
        if not 0 <= index < symbols:
            raise TypeMismatch(f"the enum has no symbol {index}")
        if index in refused:
            raise TypeMismatch(f"the definition's enum has no symbol {refused[index]}, and no default")
        return at

    return read


def _skip_boolean(data: bytes, at: int, level: int) -> int:
    if data[at : at + 1] not in (b"\x00", b"\x01"):
        raise TypeMismatch("no boolean" if at < len(data) else "the body ends before a boolean")
    return at + 1


def _compile_fixed(size: int, bound: int) -> Read:
    def read(data: bytes, at: int, level: int) -> int:
        if size > len(data) - at:
            raise TypeMismatch(f"{size} bytes wanted, and {len(data) - at} are left")
        if bound:
            check_decimal(data[at : at + size], bound)
        return at + size

    return read


# Avro object container files as bodies: a header with the writer's schema, then blocks of values.

MAGIC: Final = b"Obj\x01"
MAX_HEADER_BYTES: Final = 1024 * 1024
MAX_UNPACKED_BYTES: Final = 4 * MAX_BODY_BYTES
"""Bytes of all blocks together, unpacked; a few packed bytes may claim any number."""
_SYNC: Final = 16
ReadValue = Callable[[bytes, int], tuple[Any, int]]
"""Bytes, position -> value, which may be None for all, and the position after it; raises :class:`TypeMismatch`."""


class _Decompressor(Protocol):
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def read_container(body: bytes, schema: AvroSchema, read: ReadValue) -> tuple[Any, int | None]:
    """Read a container file whose values must be of *schema*, which its writer must have had in canonical form.

    Return the first value and how many there are. Blocks packed with snappy or zstandard, which nothing here unpacks,
    are taken at the word of the header; then the number is None.

    Raises:
        Misfit: another schema wrote it, or it is damaged.
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
    head = body[:MAX_HEADER_BYTES]
    meta: dict[str, bytes] = {}
    count, at = read_long(head, len(MAGIC))
    while count:
        if count < 0:
            _, at = read_long(head, at)
        for _ in range(abs(count)):
            begin, at = skip_bytes(head, at)
            key = head[begin:at].decode("utf-8", "replace")
            begin, at = skip_bytes(head, at)
            meta[key] = head[begin:at]
        count, at = read_long(head, at)
    return meta, at


def _read_canonical_form(document: bytes) -> str:
    try:
        return parse_standalone(msgspec.json.decode(document)).canonical
    except (SchemaError, msgspec.DecodeError, UnicodeError, RecursionError):
        raise TypeMismatch("the container file's header has no valid schema") from None


def _unpack_block(codec: str, block: bytes, limit: int) -> bytes:
    unpacker: _Decompressor
    if codec == "null":
        return block
    if codec == "deflate":
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    elif codec == "bzip2":
        unpacker = bz2.BZ2Decompressor()
    elif codec == "xz":
        unpacker = lzma.LZMADecompressor(memlimit=MAX_UNPACKED_BYTES)
    else:
        raise TypeMismatch(f"the container file has the unknown codec {codec[:60]}")
    try:
        unpacked = unpacker.decompress(block, limit + 1)
    except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
        raise TypeMismatch(f"a block of the container file cannot be unpacked: {error}") from None
    if len(unpacked) > limit:
        raise TypeMismatch(f"the container file has more than {MAX_UNPACKED_BYTES} bytes")
    return unpacked


def _read_block(block: bytes, count: int, read: ReadValue) -> Any:
    """Return the first value of a block; None when it has none."""
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


# Bodies of one Avro schema read as values of another, as "Schema Resolution" in the Avro specification prescribes.
#
# Both schemas are walked together, once for each pair, and become a function as one schema alone does
# (:mod:`catalog.schemas.avro.types`). What can never be read so is known then; what depends on a body, such as the
# branch of a union, is a misfit of that body. Records at the roots are not told apart by their names: that the id of
# one belongs to the other was decided before (MATCHING.md#schema-ids).

F = TypeVar("F")
_PROMOTIONS: Final[Mapping[str, frozenset[str]]] = {
    "int": frozenset({"int", "long", "float", "double"}),
    "long": frozenset({"long", "float", "double"}),
    "float": frozenset({"float", "double"}),
    "string": frozenset({"string", "bytes"}),
    "bytes": frozenset({"bytes", "string"}),
}
_RECORDS: Final = frozenset({"record", "error"})


class Unresolvable(Exception):
    """A schema whose values can never be read as those of another; ``steps`` lead to the place, the innermost first."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.steps: list[str] = []

    def add_step(self, step: str) -> Unresolvable:
        """Add a step outwards; return this."""
        self.steps.append(step)
        return self

    def __str__(self) -> str:
        path = "".join(reversed(self.steps)).removeprefix(".")
        return f"field {path}: {self.message}" if path else self.message


class FunctionMaker(Protocol[F]):
    """What makes functions of types that were resolved."""

    compiler: TypeCompiler[F]
    """For types of the writer that the reader has not: they are passed over."""

    def make_record(
        self, written: Mapping[str, Any], fields: Sequence[tuple[str | None, F]], defaults: Mapping[str, Any]
    ) -> F:
        """Return the function of a record: in the order of the writer, with the reader's names; None for a field that
        the reader has not. *defaults* are the values of fields that were not written.
        """
        ...

    def make_enum(self, symbols: Sequence[str | None], written: Sequence[str]) -> F:
        """Return the function of an enum; None for symbols that the reader has not."""
        ...

    def make_leaf(self, written: Any, kind: str, schema: Any, into: str) -> F:
        """Return the function of a value without parts, written as one kind and read as another."""
        ...

    def make_branch(self, function: F, label: str | None) -> F:
        """Return the function of a value that is of a branch of the reader's union, under the label that it has."""
        ...

    def make_failing(self, why: str) -> F:
        """Return the function of a branch that was written and cannot be read."""
        ...


@dataclass(slots=True)
class AvroResolver(Generic[F]):
    """Resolves the types of a writer's schema to those of a reader's."""

    writer: AvroSchema
    reader: AvroSchema
    maker: FunctionMaker[F]
    _done: dict[str, F | Unresolvable] = field(default_factory=dict)
    _table: dict[str, F] = field(default_factory=dict)

    def resolve(self) -> F:
        """Return the function of both schemas.

        Raises:
            Unresolvable: no value of the one can be read as one of the other.
        """
        return self._resolve_types(self.writer.root, self.reader.root, anywhere=False)

    def _resolve_types(self, written: Any, expected: Any, *, anywhere: bool = True) -> F:
        written, expected = _look_up_type(written, self.writer), _look_up_type(expected, self.reader)
        if isinstance(written, list):
            return self._resolve_from_union(written, expected)
        if isinstance(expected, list):
            return self._resolve_to_union(written, expected)
        kind, into = _kind_of(written), _kind_of(expected)
        if kind not in NAMED:
            return self._resolve_unnamed(written, kind, expected, into)
        if (kind in _RECORDS) != (into in _RECORDS) or (kind not in _RECORDS and kind != into):
            raise _mismatch_error(written, expected)
        if (anywhere or kind not in _RECORDS) and not _have_same_name(written, expected):
            raise _mismatch_error(written, expected)
        return self._resolve_named(written, kind, expected)

    def _resolve_named(self, written: Any, kind: str, expected: Any) -> F:
        """Resolve two named types, each pair once; a pair within itself is looked up when it is needed."""
        key = f"{written['name']} {expected['name']}"
        if key in self._done:
            known = self._done[key]
            if isinstance(known, Unresolvable):
                raise Unresolvable(known.message) from None
            return known
        self._done[key] = self.maker.compiler.reference(self._table, key)
        try:
            made = {"enum": self._resolve_enum, "fixed": self._resolve_fixed}.get(kind, self._resolve_record)(
                written, expected
            )
        except Unresolvable as error:
            self._done[key], self._table[key] = error, self.maker.make_failing(str(error))
            raise
        self._done[key] = self._table[key] = made
        return made

    def _resolve_from_union(self, written: Sequence[Any], expected: Any) -> F:
        """Resolve each branch that may have been written; one that cannot be read is a misfit of its bodies."""
        functions: list[F] = []
        failed: list[Unresolvable] = []
        for branch in written:
            try:
                functions.append(self._resolve_types(branch, expected))
            except Unresolvable as error:
                failed.append(error)
                functions.append(self.maker.make_failing(str(error)))
        if len(failed) == len(written):
            raise failed[0] if len(failed) == 1 else _mismatch_error(written, expected)
        return self.maker.compiler.union(written, functions)

    def _resolve_to_union(self, written: Any, expected: Sequence[Any]) -> F:
        """Take the branch of the very type that was written, else the first that it can be read as."""
        labels = branch_labels(expected)
        order = sorted(
            range(len(expected)), key=lambda at: not _is_same_type(written, _look_up_type(expected[at], self.reader))
        )
        deeper: Unresolvable | None = None
        for at in order:
            try:
                return self.maker.make_branch(self._resolve_types(written, expected[at]), labels[at])
            except Unresolvable as error:
                deeper = deeper or (error if error.steps else None)
        raise deeper or _mismatch_error(written, expected)

    def _resolve_unnamed(self, written: Any, kind: str, expected: Any, into: str) -> F:
        if kind in ("array", "map") and kind == into:
            member = "items" if kind == "array" else "values"
            try:
                inner = self._resolve_types(written[member], expected[member])
            except Unresolvable as error:
                raise error.add_step("[]" if kind == "array" else ".*") from None
            return self.maker.compiler.array(inner) if kind == "array" else self.maker.compiler.map(inner)
        if into not in _PROMOTIONS.get(kind, frozenset({kind} - {"array", "map"})):
            raise _mismatch_error(written, expected)
        _require_decimal(written, expected)
        return self.maker.make_leaf(written, kind, expected, into)

    def _resolve_enum(self, written: Any, expected: Any) -> F:
        known, default = frozenset(expected["symbols"]), expected.get("default")
        return self.maker.make_enum(
            [each if each in known else default for each in written["symbols"]], written["symbols"]
        )

    def _resolve_fixed(self, written: Any, expected: Any) -> F:
        if written["size"] != expected["size"]:
            raise Unresolvable(f"{written['size']} bytes were written, the definition has {expected['size']}")
        _require_decimal(written, expected)
        return self.maker.make_leaf(written, "fixed", expected, "fixed")

    def _resolve_record(self, written: Any, expected: Any) -> F:
        own = {each["name"]: each for each in written["fields"]}
        origins: dict[str, Any] = {}
        defaults: dict[str, Any] = {}
        for each in expected["fields"]:
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
        try:
            return _parse_default(member["default"], member["type"], self.reader)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError, ArithmeticError):
            raise Unresolvable("its default is not of its type").add_step(f".{member['name']}") from None


def read_writer_schema(written: WriterSchema) -> AvroSchema:
    """Return the schema that bodies were written with.

    Raises:
        Unresolvable: what the registry has is no Avro schema.
    """
    try:
        source = SchemaSource("Avro", "", written.schema.document)
        return read_schema(source, WriterTypes(written.schema))
    except (SchemaError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise Unresolvable(f"the registry's schema is not valid: {error}") from None


class WriterTypes:
    """Gives the schemas that one of a registry refers to: by the name of the reference, else by a type in it."""

    def __init__(self, schema: WrittenSchema) -> None:
        self._references = schema.references

    def document(self, reference: str, base: str) -> tuple[str, Any] | None:
        """Return name and document of a type that a schema uses and does not define, None if unknown."""
        if reference in self._references:
            return reference, self._references[reference]
        simple = reference.rpartition(".")[2]
        for name, document in self._references.items():
            if name.rpartition(".")[2] == simple or f'"{simple}"' in document or f'"{reference}"' in document:
                return name, document
        return None


def _look_up_type(schema: Any, owner: AvroSchema) -> Any:
    return owner.named[schema] if isinstance(schema, str) and schema not in PRIMITIVES else schema


def _kind_of(schema: Any) -> str:
    return schema if isinstance(schema, str) else str(schema["type"])


def _simple_name(name: str) -> str:
    return name.rpartition(".")[2]


def _have_same_name(written: Any, expected: Any) -> bool:
    names = (expected["name"], *expected.get("aliases", ()))
    return _simple_name(written["name"]) in map(_simple_name, names)


def _is_same_type(written: Any, expected: Any) -> bool:
    if isinstance(expected, list) or _kind_of(written) != _kind_of(expected):
        return False
    return _kind_of(written) not in NAMED or bool(written["name"] == expected["name"])


def _mismatch_error(written: Any, expected: Any) -> Unresolvable:
    return Unresolvable(f"{_describe_type(written)} was written, the definition has {_describe_type(expected)}")


def _describe_type(schema: Any) -> str:
    if isinstance(schema, list):
        return "one of " + ", ".join(map(_describe_type, schema))
    if isinstance(schema, str):
        return schema
    kind = _kind_of(schema)
    return f"{kind} {schema['name']}" if kind in NAMED else kind


def _require_decimal(written: Any, expected: Any) -> None:
    """Require that two decimals are of the same precision and scale: their digits would mean something else."""
    forms = [
        (each["precision"], scale)
        for each in (written, expected)
        if isinstance(each, dict) and (scale := decimal_scale(each)) is not None
    ]
    if len(set(forms)) > 1:
        one, other = (f"decimal({precision}, {scale})" for precision, scale in forms)
        raise Unresolvable(f"{one} was written, the definition has {other}")


def _parse_default(default: Any, schema: Any, owner: AvroSchema) -> Any:
    """Return the value that a field's default stands for, as :mod:`catalog.schemas.avro.columns` has values.

    Raises:
        KeyError, TypeError, ValueError, AttributeError, ArithmeticError: it is of another type.
    """
    schema = _look_up_type(schema, owner)
    if isinstance(schema, list):
        for branch, label in zip(schema, branch_labels(schema), strict=True):
            try:
                value = _parse_default(default, branch, owner)
            except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
                continue
            return value if label is None else {label: value}
        raise ValueError
    kind = _kind_of(schema)
    if kind in _RECORDS:
        members = {each["name"]: default.get(each["name"], each.get("default", ...)) for each in schema["fields"]}
        return {each["name"]: _parse_default(members[each["name"]], each["type"], owner) for each in schema["fields"]}
    if kind == "array" and isinstance(default, list):
        return [_parse_default(each, schema["items"], owner) for each in default]
    if kind == "map":
        return {name: _parse_default(each, schema["values"], owner) for name, each in default.items()}
    if kind in ("bytes", "fixed"):
        data = default.encode("iso-8859-1")
        if kind == "fixed" and len(data) != schema["size"]:
            raise ValueError
        form = bytes_converter(schema)
        return data if form is None else form(data)
    if kind in ("int", "long") and type(default) is int:
        low, end = number_range(schema, kind)
        if low <= default < end:
            shown = number_converter(schema)
            return default if shown is None else shown(default)
        raise ValueError
    if kind in ("float", "double") and type(default) in (int, float):
        return float(default)
    fits = {"null": default is None, "boolean": isinstance(default, bool), "string": isinstance(default, str)}
    if fits.get(kind, kind == "enum" and default in schema.get("symbols", ())):
        return default
    raise ValueError
