"""The AMQP 1.0 type system: encoded bytes in, typed values out (OASIS AMQP 1.0 part 1, section 1.6).

A decoder of our own and not ``proton.Data``: that one merges repeated keys of a map, fails on maps whose keys are
lists, refuses values of very many nodes, and costs several foreign calls for every step through a value.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any, Final, NamedTuple

MAX_DEPTH: Final = 128
"""Levels of lists, maps, arrays and descriptions within each other; a message with more is malformed to us."""
MAX_EMPTY_ELEMENTS: Final = 2**16
"""Elements of an array whose elements take no bytes: their number alone would decide how much memory is taken."""


class MalformedValue(Exception):
    """Bytes that are no AMQP value; the message names the offset."""


class Typed(NamedTuple):
    """One value with the name of its AMQP type.

    In Python: ``null`` None; ``boolean`` bool; whole numbers int; ``timestamp`` int, milliseconds since 1970;
    ``float`` and ``double`` float; ``string`` and ``symbol`` str, or bytes when they are no UTF-8; ``char`` int;
    ``uuid`` str; ``binary`` and the decimals bytes; ``list`` and ``array`` a list of values; ``map`` a list of pairs of
    values, in order; ``described`` the pair of descriptor and value.
    """

    kind: str
    value: Any


NULL: Final = Typed("null", None)
ValueReader = Callable[[bytes, int, int, int], tuple[Typed, int]]


def read_value(data: bytes, at: int, end: int, depth: int = 0) -> tuple[Typed, int]:
    """Read the value at offset *at*, which has to end before *end*; return it and the offset behind it.

    Raises:
        MalformedValue: there is no whole value there, its type is unknown, or it is nested too deep.
    """
    if at >= end:
        raise MalformedValue(f"a value is missing at byte {at}")
    code = data[at]
    if code in _SHORT_TEXTS and at + 1 < end:  # most values of most messages: not worth two calls
        stop = at + 2 + data[at + 1]
        if stop <= end:
            return Typed(_SHORT_TEXTS[code], _text(data[at + 2 : stop])), stop
    return _reader(code, at)(data, at + 1, end, depth)


def _reader(code: int, at: int) -> ValueReader:
    reader = _READERS.get(code)
    if reader is None:
        raise MalformedValue(f"there is no type 0x{code:02x} (byte {at})")
    return reader


def _deeper(depth: int, at: int) -> int:
    if depth >= MAX_DEPTH:
        raise MalformedValue(f"values are nested more than {MAX_DEPTH} deep at byte {at}")
    return depth + 1


def _constant(value: Typed) -> ValueReader:
    return lambda data, at, end, depth: (value, at)


def _sized(kind: str, width: int, convert: Callable[[bytes], Any]) -> ValueReader:
    """Return a reader of what begins with its length in *width* bytes."""

    def read(data: bytes, at: int, end: int, depth: int) -> tuple[Typed, int]:
        start = at + width
        stop = start + int.from_bytes(data[at:start], "big")
        if stop > end or start > end:
            raise MalformedValue(f"the {kind} at byte {at} is cut off")
        return Typed(kind, convert(data[start:stop])), stop

    return read


def _fixed(kind: str, layout: str) -> ValueReader:
    unpack, size = struct.Struct(layout).unpack_from, struct.calcsize(layout)

    def read(data: bytes, at: int, end: int, depth: int) -> tuple[Typed, int]:
        stop = at + size
        if stop > end:
            raise MalformedValue(f"the {kind} at byte {at} is cut off")
        return Typed(kind, unpack(data, at)[0]), stop

    return read


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw


def _few(kind: str, size: int, convert: Callable[[bytes], Any]) -> ValueReader:
    """Return a reader of exactly *size* bytes that no ``struct`` format converts."""

    def read(data: bytes, at: int, end: int, depth: int) -> tuple[Typed, int]:
        if at + size > end:
            raise MalformedValue(f"the {kind} at byte {at} is cut off")
        return Typed(kind, convert(data[at : at + size])), at + size

    return read


def _float(raw: bytes) -> float:
    """Return the shortest decimal that is this 32-bit number, as its sender wrote it: 0.1, not 0.10000000149."""
    exact: float = struct.unpack(">f", raw)[0]
    if exact != exact or exact in (float("inf"), float("-inf")):
        return exact
    for digits in (6, 7, 8):
        short = float(f"{exact:.{digits}g}")
        try:
            if struct.pack(">f", short) == raw:
                return short
        except OverflowError:  # rounded up past the largest
            continue
    return exact


def _compound(width: int, build: Callable[[list[Typed], int], Typed]) -> ValueReader:
    def read(data: bytes, at: int, end: int, depth: int) -> tuple[Typed, int]:
        count, start, stop = _extent(data, at, end, width)
        inner, items = _deeper(depth, at), []
        for _ in range(count):
            item, start = read_value(data, start, stop, inner)
            items.append(item)
        if start != stop:
            raise MalformedValue(f"{stop - start} bytes are left over in the list or map at byte {at}")
        return build(items, at), stop

    return read


def _extent(data: bytes, at: int, end: int, width: int) -> tuple[int, int, int]:
    """Return the count of elements, and where their bytes begin and end."""
    start = at + 2 * width
    stop = at + width + int.from_bytes(data[at : at + width], "big")
    if start > stop or stop > end:
        raise MalformedValue(f"the list, map or array at byte {at} is cut off")
    return int.from_bytes(data[at + width : start], "big"), start, stop


def _map(items: list[Typed], at: int) -> Typed:
    if len(items) % 2:
        raise MalformedValue(f"the map at byte {at} has a key without a value")
    return Typed("map", list(zip(items[::2], items[1::2], strict=True)))


def _array(width: int) -> ValueReader:
    def read(data: bytes, at: int, end: int, depth: int) -> tuple[Typed, int]:
        count, start, stop = _extent(data, at, end, width)
        if start >= stop:
            raise MalformedValue(f"the array at byte {at} has no constructor")
        inner, descriptor = _deeper(depth, at), None
        if data[start] == 0:
            descriptor, start = read_value(data, start + 1, stop, inner)
        if start >= stop:
            raise MalformedValue(f"the array at byte {at} has no constructor")
        reader, start = _reader(data[start], start), start + 1
        if count > max(MAX_EMPTY_ELEMENTS, stop - start):
            raise MalformedValue(f"the array at byte {at} says it has {count} elements")
        items = []
        for _ in range(count):
            item, start = reader(data, start, stop, inner)
            items.append(item if descriptor is None else Typed("described", (descriptor, item)))
        if start != stop:
            raise MalformedValue(f"{stop - start} bytes are left over in the array at byte {at}")
        return Typed("array", items), stop

    return read


def _described(data: bytes, at: int, end: int, depth: int) -> tuple[Typed, int]:
    inner = _deeper(depth, at)
    descriptor, at = read_value(data, at, end, inner)
    value, at = read_value(data, at, end, inner)
    return Typed("described", (descriptor, value)), at


_SHORT_TEXTS: Final = {0xA1: "string", 0xA3: "symbol"}
_READERS: Final[dict[int, ValueReader]] = {
    0x00: _described,
    0x40: _constant(NULL),
    0x41: _constant(Typed("boolean", True)),
    0x42: _constant(Typed("boolean", False)),
    0x43: _constant(Typed("uint", 0)),
    0x44: _constant(Typed("ulong", 0)),
    0x45: _constant(Typed("list", [])),
    0x50: _fixed("ubyte", "B"),
    0x51: _fixed("byte", "b"),
    0x52: _fixed("uint", "B"),
    0x53: _fixed("ulong", "B"),
    0x54: _fixed("int", "b"),
    0x55: _fixed("long", "b"),
    0x56: _fixed("boolean", "?"),
    0x60: _fixed("ushort", ">H"),
    0x61: _fixed("short", ">h"),
    0x70: _fixed("uint", ">I"),
    0x71: _fixed("int", ">i"),
    0x72: _few("float", 4, _float),
    0x73: _fixed("char", ">I"),
    0x74: _few("decimal32", 4, bytes),
    0x80: _fixed("ulong", ">Q"),
    0x81: _fixed("long", ">q"),
    0x82: _fixed("double", ">d"),
    0x83: _fixed("timestamp", ">q"),
    0x84: _few("decimal64", 8, bytes),
    0x94: _few("decimal128", 16, bytes),
    0x98: _few("uuid", 16, lambda raw: str(uuid.UUID(bytes=raw))),
    0xA0: _sized("binary", 1, bytes),
    0xA1: _sized("string", 1, _text),
    0xA3: _sized("symbol", 1, _text),
    0xB0: _sized("binary", 4, bytes),
    0xB1: _sized("string", 4, _text),
    0xB3: _sized("symbol", 4, _text),
    0xC0: _compound(1, lambda items, at: Typed("list", items)),
    0xC1: _compound(1, _map),
    0xD0: _compound(4, lambda items, at: Typed("list", items)),
    0xD1: _compound(4, _map),
    0xE0: _array(1),
    0xF0: _array(4),
}
