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
from types import MappingProxyType
from typing import Any, Final, Protocol

import msgspec

from catalog.schemas.avro.types import (
    MAX_LEVELS,
    PRIMITIVES,
    AvroSchema,
    Misfit,
    TypeCompiler,
    check_decimal,
    decimal_bound,
    logical_type,
    number_range,
    parse_alone,
)
from catalog.schemas.contract import MAX_BODY_BYTES, SchemaError

Read = Callable[[bytes, int, int], int]
"""Bytes, position, level -> position after the value; raises :class:`Misfit`."""


def compile_binary(root: Any, named: Mapping[str, Any]) -> Read:
    """Compile a type to a function that passes over one value of it.

    Raises:
        SchemaError: a type has members that no value can be read by, such as a negative size.
    """
    empty = _Empty(named)

    def record(schema: Mapping[str, Any], readers: Sequence[Read]) -> Read:
        return _record(schema, readers, empty)

    return TypeCompiler(named, record, _union, _array, _map, _leaf, _deferred).compiled(root)


class ResolvedBinary:
    """Makes functions that pass over values of a writer's schema and refuse what its reader cannot have."""

    def __init__(self, writer: AvroSchema) -> None:
        self._empty = _Empty(writer.named)
        self.plain: TypeCompiler[Read] = TypeCompiler(
            writer.named, self._plain_record, _union, _array, _map, _leaf, _deferred
        )

    def _plain_record(self, written: Mapping[str, Any], readers: Sequence[Read]) -> Read:
        return _record(written, readers, self._empty)

    def record(
        self, written: Mapping[str, Any], fields: Sequence[tuple[str | None, Read]], given: Mapping[str, Any]
    ) -> Read:
        names = [name or each["name"] for (name, _), each in zip(fields, written["fields"], strict=True)]
        types = [{"name": name, "type": each["type"]} for name, each in zip(names, written["fields"], strict=True)]
        return _record({"fields": types}, [reader for _, reader in fields], self._empty)

    def enum(self, symbols: Sequence[str | None], written: Sequence[str]) -> Read:
        refused = {index: written[index] for index, symbol in enumerate(symbols) if symbol is None}
        return _enum(len(symbols), refused)

    def leaf(self, written: Any, kind: str, schema: Any, into: str) -> Read:
        if kind in ("int", "long"):
            low, end = number_range(kind, kind)
            if into not in ("int", "long"):
                return _number(low, end, kind)
            first, last = number_range(schema, into)
            return _number(
                max(low, first), min(end, last), logical_type(schema if (low, end) != (first, last) else kind)
            )
        if kind in ("string", "bytes"):
            if "string" in (kind, into):
                return _string
            return _bytes(decimal_bound(schema))
        return _leaf(schema if kind == "fixed" else kind, kind)

    def branch(self, function: Read, label: str | None) -> Read:
        return function

    def failing(self, why: str) -> Read:
        def read(data: bytes, at: int, level: int) -> int:
            raise Misfit(why)

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
    raise Misfit("a number has more than 64 bits" if shift == 70 else "the body ends within a number")


def skip_bytes(data: bytes, at: int) -> tuple[int, int]:
    """Return where a length-prefixed value begins and ends.

    Raises:
        Misfit: the length is negative or reaches past the end.
    """
    length, at = read_long(data, at)
    if not 0 <= length <= len(data) - at:
        raise Misfit(f"a length of {length} where {len(data) - at} bytes are left")
    return at, at + length


class _Empty:
    """Tells which types have values without bytes; of named ones once each."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._empty: dict[str, bool] = {}

    def has_no_bytes(self, schema: Any) -> bool:
        """Tell whether values of a type take no bytes; a recursive type that did could never end."""
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


def _record(schema: Mapping[str, Any], readers: Sequence[Read], empty: _Empty) -> Read:
    # Fields without bytes fit whatever stands there. Were they looked at, a record of a thousand of them would take a
    # thousand steps for each byte of a body.
    fields = [
        (f".{field['name']}", reader)
        for field, reader in zip(schema["fields"], readers, strict=True)
        if not empty.has_no_bytes(field["type"])
    ]

    def read(data: bytes, at: int, level: int) -> int:
        if level > MAX_LEVELS:
            raise Misfit(f"records nest more than {MAX_LEVELS} levels")
        step = ""
        try:
            for step, reader in fields:  # noqa: B007 - the step tells where a misfit was met
                at = reader(data, at, level + 1)
        except Misfit as misfit:
            misfit.steps.append(step)
            raise
        return at

    return read


def _deferred(table: Mapping[str, Read], name: str) -> Read:
    return lambda data, at, level: table[name](data, at, level)


def _union(schema: Sequence[Any], branches: Sequence[Read]) -> Read:
    def read(data: bytes, at: int, level: int) -> int:
        index, at = read_long(data, at)
        if not 0 <= index < len(branches):
            raise Misfit(f"the union has no branch {index}")
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
            raise Misfit(f"a block of {size} bytes where {len(data) - at} are left")
    return abs(count), at


def _array(item: Read) -> Read:
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
        except Misfit as misfit:
            misfit.steps.append(f"[{index}]")
            raise
        return at

    return read


def _map(value: Read) -> Read:
    def read(data: bytes, at: int, level: int) -> int:
        key = ""
        count, at = read_block(data, at)
        while count:
            for _ in range(count):
                begin, at = skip_bytes(data, at)
                key = read_text(data, begin, at)
                try:
                    at = value(data, at, level)
                except Misfit as misfit:
                    misfit.steps.append(f".{key}")
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
        raise Misfit(f"the text is not UTF-8 at byte {error.start}") from None


def _leaf(schema: Any, kind: str) -> Read:
    if kind in ("int", "long"):
        return _number(*number_range(schema, kind), logical_type(schema))
    if kind == "string":
        return _string
    if kind == "bytes":
        return _bytes(decimal_bound(schema))
    if kind == "enum":
        return _enum(len(schema["symbols"]))
    if kind == "boolean":
        return _boolean
    if kind == "fixed" and (type(schema["size"]) is not int or schema["size"] < 0):
        raise SchemaError(f"the size of the fixed type {schema['name']} is no number", hint="give it in bytes")
    sizes = {"null": 0, "float": 4, "double": 8}
    return _fixed(sizes[kind] if kind in sizes else schema["size"], decimal_bound(schema))


def _number(low: int, end: int, name: str) -> Read:
    def read(data: bytes, at: int, level: int) -> int:
        value, at = read_long(data, at)
        if not low <= value < end:
            raise Misfit(f"{value} is out of the range of {name}")
        return at

    return read


def _string(data: bytes, at: int, level: int) -> int:
    begin, end = skip_bytes(data, at)
    read_text(data, begin, end)
    return end


def _bytes(bound: int) -> Read:
    def read(data: bytes, at: int, level: int) -> int:
        begin, end = skip_bytes(data, at)
        if bound:
            check_decimal(data[begin:end], bound)
        return end

    return read


def _enum(symbols: int, refused: Mapping[int, str] = MappingProxyType({})) -> Read:
    """Return what reads an enum; *refused* are symbols that were written, and that its reader has not."""

    def read(data: bytes, at: int, level: int) -> int:
        index, at = read_long(data, at)
        if not 0 <= index < symbols:
            raise Misfit(f"the enum has no symbol {index}")
        if index in refused:
            raise Misfit(f"the definition's enum has no symbol {refused[index]}, and no default")
        return at

    return read


def _boolean(data: bytes, at: int, level: int) -> int:
    if data[at : at + 1] not in (b"\x00", b"\x01"):
        raise Misfit("no boolean" if at < len(data) else "the body ends before a boolean")
    return at + 1


def _fixed(size: int, bound: int) -> Read:
    def read(data: bytes, at: int, level: int) -> int:
        if size > len(data) - at:
            raise Misfit(f"{size} bytes wanted, and {len(data) - at} are left")
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
"""Bytes, position -> value, which may be None for all, and the position after it; raises :class:`Misfit`."""


class _Unpacker(Protocol):
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def read_container(body: bytes, schema: AvroSchema, read: ReadValue) -> tuple[Any, int | None]:
    """Read a container file whose values must be of *schema*, which its writer must have had in canonical form.

    Return the first value and how many there are. Blocks packed with snappy or zstandard, which nothing here unpacks,
    are taken at the word of the header; then the number is None.

    Raises:
        Misfit: another schema wrote it, or it is damaged.
    """
    meta, at = _header(body)
    if _canonical(meta.get("avro.schema", b"")) != schema.canonical:
        raise Misfit("the container file was written with another schema")
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
        block = _unpacked(codec, body[begin:at], left)
        left -= len(block)
        value = _read_block(block, count, read)
        first, total = first if total else value, total + count
        if body[at : at + _SYNC] != sync:
            raise Misfit("a block of the container file does not end with its marker")
        at += _SYNC
    return first, total


def _header(body: bytes) -> tuple[dict[str, bytes], int]:
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


def _canonical(document: bytes) -> str:
    try:
        return parse_alone(msgspec.json.decode(document)).canonical
    except (SchemaError, msgspec.DecodeError, UnicodeError, RecursionError):
        raise Misfit("the container file's header has no valid schema") from None


def _unpacked(codec: str, block: bytes, limit: int) -> bytes:
    unpacker: _Unpacker
    if codec == "null":
        return block
    if codec == "deflate":
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    elif codec == "bzip2":
        unpacker = bz2.BZ2Decompressor()
    elif codec == "xz":
        unpacker = lzma.LZMADecompressor(memlimit=MAX_UNPACKED_BYTES)
    else:
        raise Misfit(f"the container file has the unknown codec {codec[:60]}")
    try:
        unpacked = unpacker.decompress(block, limit + 1)
    except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
        raise Misfit(f"a block of the container file cannot be unpacked: {error}") from None
    if len(unpacked) > limit:
        raise Misfit(f"the container file holds more than {MAX_UNPACKED_BYTES} bytes")
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
    except Misfit as misfit:
        misfit.steps.append(f"[{index}]")
        raise
    if at != len(block) or count < 0:
        raise Misfit("a block of the container file has more bytes than its values")
    return first
