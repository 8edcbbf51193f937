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
from typing import Any, Final

import msgspec

from catalog.schemas.avro.types import (
    MAX_LEVELS,
    AvroSchema,
    TypeMismatch,
    Walk,
    bytes_converter,
    check_decimal,
    decimal_bound,
    logical_type,
    number_converter,
    number_range,
    parse_standalone,
)
from catalog.schemas.contract import MAX_BODY_BYTES, SchemaError

Read = Callable[[bytes, int, Walk], tuple[Any, int]]
"""Bytes, position, walk -> value and the position after it; raises :class:`TypeMismatch`."""
_Range = tuple[int, int, str]
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")


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


class ValueMaker:
    """Makes functions that read values of a writer's schema as values of the reader's."""

    def record(
        self, written: Mapping[str, Any], fields: Sequence[tuple[str | None, Read]], defaults: Mapping[str, Any]
    ) -> Read:
        nulls = sum(each["type"] in ("null", {"type": "null"}) for each in written["fields"])

        def read(data: bytes, at: int, walk: Walk) -> tuple[Any, int]:
            if walk.level > MAX_LEVELS:
                raise TypeMismatch(f"records nest more than {MAX_LEVELS} levels")
            walk.spend(1 + nulls)
            walk.level += 1
            value: dict[Any, Any] = dict(defaults)
            name: str | None = ""
            try:
                for name, inner in fields:
                    value[name], at = inner(data, at, walk)
            except TypeMismatch as mismatch:
                mismatch.steps.append(f".{name}")
                raise
            value.pop(None, None)  # of fields that the reader does not have
            walk.level -= 1
            return value, at

        return read

    def union(self, written: Sequence[Any], branches: Sequence[Read]) -> Read:
        def read(data: bytes, at: int, walk: Walk) -> tuple[Any, int]:
            index, at = read_long(data, at)
            if not 0 <= index < len(branches):
                raise TypeMismatch(f"the union has no branch {index}")
            return branches[index](data, at, walk)

        return read

    def branch(self, function: Read, label: str | None) -> Read:
        if label is None:
            return function

        def read(data: bytes, at: int, walk: Walk) -> tuple[Any, int]:
            value, at = function(data, at, walk)
            return {label: value}, at

        return read

    def array(self, item: Read) -> Read:
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

    def map(self, value: Read) -> Read:
        def read(data: bytes, at: int, walk: Walk) -> tuple[Any, int]:
            values: dict[str, Any] = {}
            count, at = read_block(data, at)
            while count:
                for _ in range(count):
                    begin, at = skip_bytes(data, at)
                    key = read_text(data, begin, at)
                    try:
                        inner, at = value(data, at, walk)
                    except TypeMismatch as mismatch:
                        mismatch.steps.append(f".{key}")
                        raise
                    if not walk.strict:
                        values[key] = inner
                count, at = read_block(data, at)
            return values, at

        return read

    def enum(self, symbols: Sequence[str | None], written: Sequence[str]) -> Read:
        def read(data: bytes, at: int, walk: Walk) -> tuple[Any, int]:
            index, at = read_long(data, at)
            if not 0 <= index < len(symbols):
                raise TypeMismatch(f"the enum has no symbol {index}")
            if symbols[index] is None:
                raise TypeMismatch(f"the definition's enum has no symbol {written[index]}, and no default")
            return symbols[index], at

        return read

    def leaf(self, written: Any, kind: str, schema: Any, into: str) -> Read:
        if kind in ("int", "long"):
            own = (*number_range(kind, kind), kind)
            if into not in ("int", "long"):
                return _make_number(own, own, float)
            plain = _narrow(own, (*number_range(into, into), into))
            strict = _narrow(own, (*number_range(schema, into), logical_type(schema)))
            return _make_number(plain, strict, number_converter(schema))
        if kind == "fixed" and (type(schema["size"]) is not int or schema["size"] < 0):
            raise SchemaError(f"the size of the fixed type {schema['name']} is not a number", hint="write it in bytes")
        if "string" in (kind, into):
            return _make_text(into)
        if kind in ("bytes", "fixed"):
            size = schema["size"] if kind == "fixed" else None
            return _make_bytes(size, decimal_bound(schema), bytes_converter(schema))
        if kind == "null":
            return lambda data, at, walk: (None, at)
        return _read_boolean if kind == "boolean" else _make_float(_FLOAT if kind == "float" else _DOUBLE)

    def failing(self, why: str) -> Read:
        def read(data: bytes, at: int, walk: Walk) -> tuple[Any, int]:
            raise TypeMismatch(why)

        return read

    def reference(self, table: Mapping[str, Read], name: str) -> Read:
        return lambda data, at, walk: table[name](data, at, walk)


def _narrow(one: _Range, other: _Range) -> _Range:
    """Return the range that both have in common, with the name of the second."""
    return max(one[0], other[0]), min(one[1], other[1]), other[2]


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


def read_text(data: bytes, begin: int, end: int) -> str:
    """Return the text in the bytes from *begin* to *end*.

    Raises:
        TypeMismatch: it is not UTF-8.
    """
    try:
        return data[begin:end].decode("utf-8")
    except UnicodeDecodeError as error:
        raise TypeMismatch(f"the text is not UTF-8 at byte {error.start}") from None


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


_read_header: Final = ValueMaker().map(_make_bytes(None, 0, None))
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
    meta, at = _read_header(body, len(MAGIC), Walk(strict=False))
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
