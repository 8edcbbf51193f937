"""The AMQP 1.0 type system: encoded bytes to typed values (OASIS AMQP 1.0 part 1, section 1.6).

Not ``proton.Data``, because that merges repeated keys of a map, fails on maps whose keys are lists, rejects values of
very many nodes, and costs several foreign calls per step.
"""

from __future__ import annotations

import base64
import math
import struct
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from bindings.parts import BINARY_KIND, JSON_KIND, InboxRow, Part, Parts, decode_json
from catalog.values import parse_timestamp

MAX_DEPTH: Final = 128
"""Maximum nesting of lists, maps, arrays and descriptors; a deeper message is malformed."""
MAX_EMPTY_ELEMENTS: Final = 2**16
"""Maximum elements of an array whose elements have no bytes: only their count would decide how much memory they use."""


class MalformedValue(Exception):
    """Bytes that are not an AMQP value; the message names the offset."""


class AmqpValue(NamedTuple):
    """A value with the name of its AMQP type.

    In Python: ``null`` None; ``boolean`` bool; integers int; ``timestamp`` int, milliseconds since 1970;
    ``float`` and ``double`` float; ``string`` and ``symbol`` str, or bytes if not UTF-8; ``char`` int;
    ``uuid`` str; ``binary`` and the decimals bytes; ``list`` and ``array`` a list of values; ``map`` a list of pairs of
    values, in order; ``described`` the pair of descriptor and value.
    """

    kind: str
    value: Any


NULL_VALUE: Final = AmqpValue("null", None)
ValueReader = Callable[[bytes, int, int, int], tuple[AmqpValue, int]]


def read_value(data: bytes, at: int, end: int, depth: int = 0) -> tuple[AmqpValue, int]:
    """Read the value at offset *at*, which must end before *end*; return the value and the offset after it.

    Raises:
        MalformedValue: no complete value there, an unknown type, or too deeply nested.
    """
    if at >= end:
        raise MalformedValue(f"a value is missing at byte {at}")
    code = data[at]
    if code in _SHORT_TEXTS and at + 1 < end:  # most values of most messages: saves two calls
        stop = at + 2 + data[at + 1]
        if stop <= end:
            return AmqpValue(_SHORT_TEXTS[code], decode_text(data[at + 2 : stop])), stop
    return _reader_of_code(code, at)(data, at + 1, end, depth)


def _reader_of_code(code: int, at: int) -> ValueReader:
    reader = _READERS.get(code)
    if reader is None:
        raise MalformedValue(f"0x{code:02x} at byte {at} is not a type code")
    return reader


def _check_depth(depth: int, at: int) -> int:
    if depth >= MAX_DEPTH:
        raise MalformedValue(f"values are nested more than {MAX_DEPTH} deep at byte {at}")
    return depth + 1


def _constant_reader(value: AmqpValue) -> ValueReader:
    return lambda data, at, end, depth: (value, at)


def _sized_reader(kind: str, width: int, convert: Callable[[bytes], Any]) -> ValueReader:
    """Return a reader of a value that begins with its length in *width* bytes."""

    def read_at(data: bytes, at: int, end: int, depth: int) -> tuple[AmqpValue, int]:
        start = at + width
        stop = start + int.from_bytes(data[at:start], "big")
        if stop > end or start > end:
            raise MalformedValue(f"the {kind} at byte {at} is truncated")
        return AmqpValue(kind, convert(data[start:stop])), stop

    return read_at


def _fixed_reader(kind: str, layout: str) -> ValueReader:
    unpack, size = struct.Struct(layout).unpack_from, struct.calcsize(layout)

    def read_at(data: bytes, at: int, end: int, depth: int) -> tuple[AmqpValue, int]:
        stop = at + size
        if stop > end:
            raise MalformedValue(f"the {kind} at byte {at} is truncated")
        return AmqpValue(kind, unpack(data, at)[0]), stop

    return read_at


def decode_text(raw: bytes) -> str | bytes:
    """Decode bytes as text; bytes that are not UTF-8 stay unchanged."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw


def _raw_reader(kind: str, size: int, convert: Callable[[bytes], Any]) -> ValueReader:
    """Return a reader of exactly *size* bytes for a type that no ``struct`` format converts."""

    def read_at(data: bytes, at: int, end: int, depth: int) -> tuple[AmqpValue, int]:
        if at + size > end:
            raise MalformedValue(f"the {kind} at byte {at} is truncated")
        return AmqpValue(kind, convert(data[at : at + size])), at + size

    return read_at


def _decode_float(raw: bytes) -> float:
    """Return the shortest decimal equal to this 32-bit number, as its sender wrote it: 0.1, not 0.10000000149."""
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


def _compound_reader(width: int, build: Callable[[list[AmqpValue], int], AmqpValue]) -> ValueReader:
    def read_at(data: bytes, at: int, end: int, depth: int) -> tuple[AmqpValue, int]:
        count, start, stop = _read_extent(data, at, end, width)
        inner, items = _check_depth(depth, at), []
        for _ in range(count):
            item, start = read_value(data, start, stop, inner)
            items.append(item)
        if start != stop:
            raise MalformedValue(f"the list or map at byte {at} has {stop - start} extra bytes")
        return build(items, at), stop

    return read_at


def _read_extent(data: bytes, at: int, end: int, width: int) -> tuple[int, int, int]:
    """Return the number of elements, and where their bytes begin and end."""
    start = at + 2 * width
    stop = at + width + int.from_bytes(data[at : at + width], "big")
    if start > stop or stop > end:
        raise MalformedValue(f"the list, map or array at byte {at} is truncated")
    return int.from_bytes(data[at + width : start], "big"), start, stop


def _build_map(items: list[AmqpValue], at: int) -> AmqpValue:
    if len(items) % 2:
        raise MalformedValue(f"the map at byte {at} has a key without a value")
    return AmqpValue("map", list(zip(items[::2], items[1::2], strict=True)))


def _array_reader(width: int) -> ValueReader:
    def read_at(data: bytes, at: int, end: int, depth: int) -> tuple[AmqpValue, int]:
        count, start, stop = _read_extent(data, at, end, width)
        if start >= stop:
            raise MalformedValue(f"the array at byte {at} has no constructor")
        inner, descriptor = _check_depth(depth, at), None
        if data[start] == 0:
            descriptor, start = read_value(data, start + 1, stop, inner)
        if start >= stop:
            raise MalformedValue(f"the array at byte {at} has no constructor")
        reader, start = _reader_of_code(data[start], start), start + 1
        if count > max(MAX_EMPTY_ELEMENTS, stop - start):
            raise MalformedValue(f"the array at byte {at} claims {count} elements")
        items = []
        for _ in range(count):
            item, start = reader(data, start, stop, inner)
            items.append(item if descriptor is None else AmqpValue("described", (descriptor, item)))
        if start != stop:
            raise MalformedValue(f"the array at byte {at} has {stop - start} extra bytes")
        return AmqpValue("array", items), stop

    return read_at


def _read_described(data: bytes, at: int, end: int, depth: int) -> tuple[AmqpValue, int]:
    inner = _check_depth(depth, at)
    descriptor, at = read_value(data, at, end, inner)
    value, at = read_value(data, at, end, inner)
    return AmqpValue("described", (descriptor, value)), at


_SHORT_TEXTS: Final = {0xA1: "string", 0xA3: "symbol"}
_READERS: Final[dict[int, ValueReader]] = {
    0x00: _read_described,
    0x40: _constant_reader(NULL_VALUE),
    0x41: _constant_reader(AmqpValue("boolean", True)),
    0x42: _constant_reader(AmqpValue("boolean", False)),
    0x43: _constant_reader(AmqpValue("uint", 0)),
    0x44: _constant_reader(AmqpValue("ulong", 0)),
    0x45: _constant_reader(AmqpValue("list", [])),
    0x50: _fixed_reader("ubyte", "B"),
    0x51: _fixed_reader("byte", "b"),
    0x52: _fixed_reader("uint", "B"),
    0x53: _fixed_reader("ulong", "B"),
    0x54: _fixed_reader("int", "b"),
    0x55: _fixed_reader("long", "b"),
    0x56: _fixed_reader("boolean", "?"),
    0x60: _fixed_reader("ushort", ">H"),
    0x61: _fixed_reader("short", ">h"),
    0x70: _fixed_reader("uint", ">I"),
    0x71: _fixed_reader("int", ">i"),
    0x72: _raw_reader("float", 4, _decode_float),
    0x73: _fixed_reader("char", ">I"),
    0x74: _raw_reader("decimal32", 4, bytes),
    0x80: _fixed_reader("ulong", ">Q"),
    0x81: _fixed_reader("long", ">q"),
    0x82: _fixed_reader("double", ">d"),
    0x83: _fixed_reader("timestamp", ">q"),
    0x84: _raw_reader("decimal64", 8, bytes),
    0x94: _raw_reader("decimal128", 16, bytes),
    0x98: _raw_reader("uuid", 16, lambda raw: str(uuid.UUID(bytes=raw))),
    0xA0: _sized_reader("binary", 1, bytes),
    0xA1: _sized_reader("string", 1, decode_text),
    0xA3: _sized_reader("symbol", 1, decode_text),
    0xB0: _sized_reader("binary", 4, bytes),
    0xB1: _sized_reader("string", 4, decode_text),
    0xB3: _sized_reader("symbol", 4, decode_text),
    0xC0: _compound_reader(1, lambda items, at: AmqpValue("list", items)),
    0xC1: _compound_reader(1, _build_map),
    0xD0: _compound_reader(4, lambda items, at: AmqpValue("list", items)),
    0xD1: _compound_reader(4, _build_map),
    0xE0: _array_reader(1),
    0xF0: _array_reader(4),
}


# AMQP values in a native record: as parts, and as JSON for compound values.
#
# What JSON cannot express is recorded in ``native.types``: the path (``application-properties.count``, below it with
# slashes: ``application-properties.list/0``) and the name of the AMQP type. Types that the JSON form shows (string,
# boolean, binary, an integer that is a long, another number that is a double) and types that the specification fixes
# for a field are left out.

TYPES_KEY: Final = "types"
"""The part with the AMQP types."""
JSON_SHOWN_TYPES: Final = frozenset(("string", "boolean", "binary", "long", "double"))
"""AMQP types that are visible in the JSON form of a value."""
_NUMBERS: Final = frozenset(("byte", "ubyte", "short", "ushort", "int", "uint", "long", "ulong", "timestamp"))
_BYTES_TYPES: Final = frozenset(("decimal32", "decimal64", "decimal128", "string", "symbol"))
"""Types whose values may be bytes: decimals, and texts that are not UTF-8."""
_NOT_FINITE: Final = frozenset(("NaN", "Infinity", "-Infinity"))
_NANOSECONDS: Final = 1_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MIN_MILLIS: Final = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_MAX_MILLIS: Final = (datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


def to_part(key: str, typed: AmqpValue, types: dict[str, str], usual: str | None = None) -> Part | None:
    """Convert a value to a part, and add its AMQP type to *types* if JSON does not show it; None for ``null``.

    ``usual`` is the type that the specification fixes for the field.
    """
    if typed.kind == (usual or "string") and isinstance(typed.value, str):  # most values of most messages
        return Part(key, typed.value.encode("utf-8"))
    form = to_json_form(typed, key, types, usual)
    if form is None:
        return None
    if isinstance(form, bytes):
        return Part(key, form, BINARY_KIND)
    if isinstance(form, str):
        return Part(key, form.encode("utf-8"))
    return Part(key, msgspec.json.encode(_to_encodable(form)), JSON_KIND)


def types_of(parts: Parts) -> dict[str, str]:
    """Return the AMQP types in a record's part ``types``, by path; empty if it is missing or malformed."""
    encoded = next((part.value for part in parts if part.key == TYPES_KEY), None)
    try:
        return msgspec.json.decode(encoded, type=dict[str, str]) if encoded else {}
    except msgspec.DecodeError:
        return {}


def merge_parts(parts: Iterable[Part], more: Iterable[Part]) -> tuple[Part, ...]:
    """Merge two lists of parts, and their AMQP types in one part; types of *parts* take precedence."""
    both = (tuple(parts), tuple(more))
    types = {**types_of(both[1]), **types_of(both[0])}
    plain = tuple(part for some in both for part in some if part.key != TYPES_KEY)
    return (*plain, Part(TYPES_KEY, msgspec.json.encode(types), JSON_KIND)) if types else plain


def value_of_part(part: Part, types: Mapping[str, str]) -> AmqpValue:
    """Return a part's value with its type in *types*; the inverse of :func:`to_part`.

    Lists, maps and arrays become strings of their JSON text: no sender here creates one.
    """
    amqp_type = types.get(part.key)
    if part.kind == BINARY_KIND or part.text is None:
        return AmqpValue(amqp_type if amqp_type in _BYTES_TYPES else "binary", part.value)
    if part.kind != JSON_KIND:
        return _parse_typed_text(part.text, amqp_type)
    value = decode_json(part.value or b"null")
    if isinstance(value, bool):
        return AmqpValue("boolean", value)
    if isinstance(value, int):
        return AmqpValue(amqp_type if amqp_type in _NUMBERS else "long", value)
    if isinstance(value, float):
        return AmqpValue("float" if amqp_type == "float" else "double", value)
    return AmqpValue("string", part.text)


def parse_milliseconds(text: str) -> int | None:
    """Parse a time; return milliseconds since 1970, or None if it is not a time."""
    at = parse_timestamp(text)
    return None if at is None else at // _NANOSECONDS


def _parse_typed_text(text: str, amqp_type: str | None) -> AmqpValue:
    if amqp_type == "timestamp":
        at = parse_milliseconds(text)
        return AmqpValue("string", text) if at is None else AmqpValue(amqp_type, at)
    if amqp_type == "char" and len(text) == 1:
        return AmqpValue(amqp_type, ord(text))
    if amqp_type in ("float", "double") and text in _NOT_FINITE:
        return AmqpValue(amqp_type, float(text))
    return AmqpValue(amqp_type if amqp_type in ("symbol", "uuid") else "string", text)


def encode_json(typed: AmqpValue, path: str, types: dict[str, str]) -> bytes:
    """Encode any value as JSON; bytes in it become ``{"base64": …}``."""
    return msgspec.json.encode(_to_encodable(to_json_form(typed, path, types)))


def to_member_name(typed: AmqpValue) -> str:
    """Return a map's key as a member name."""
    kind, value = typed
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return msgspec.json.encode(_to_encodable(to_json_form(typed, kind, {}))).decode("utf-8")


def to_json_form(typed: AmqpValue, path: str, types: dict[str, str], usual: str | None = None) -> Any:
    """Convert a value to text, bytes, number, boolean, None, or lists and maps of these."""
    kind, value = typed
    if kind not in JSON_SHOWN_TYPES if usual is None else kind != usual:
        types[path] = kind
    if kind == "string" or kind == "symbol":
        if isinstance(value, bytes):
            types[path] = kind
        return value
    if kind in _COMPOUND_FORMS:
        return _COMPOUND_FORMS[kind](value, path, types)
    if kind == "timestamp":
        return format_timestamp(value)
    if kind in ("float", "double") and not math.isfinite(value):
        types[path] = kind  # JSON has no such number
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    if kind == "char" and value <= 0x10FFFF and not 0xD800 <= value <= 0xDFFF:
        return chr(value)
    return value


def format_timestamp(milliseconds: int) -> str | int:
    """Return a timestamp as RFC 3339 text; one outside its range unchanged."""
    if not _MIN_MILLIS <= milliseconds <= _MAX_MILLIS:
        return milliseconds
    at = _EPOCH + timedelta(milliseconds=milliseconds)
    text = at.replace(tzinfo=None).isoformat(timespec="milliseconds" if milliseconds % 1000 else "seconds")
    return f"{text}Z"


def _list_form(items: list[AmqpValue], path: str, types: dict[str, str]) -> list[Any]:
    return [to_json_form(item, f"{path}/{index}", types) for index, item in enumerate(items)]


def _array_form(items: list[AmqpValue], path: str, types: dict[str, str]) -> list[Any]:
    inner: dict[str, str] = {}
    forms = _list_form(items, path, inner)
    kind = items[0].kind if items else ""
    types[path] = f"array of {kind}" if kind else "array"
    types.update((place, each) for place, each in inner.items() if each != kind)
    return forms


def _map_form(pairs: list[tuple[AmqpValue, AmqpValue]], path: str, types: dict[str, str]) -> dict[str, Any]:
    form: dict[str, Any] = {}
    for key, value in pairs:
        member = to_member_name(key)
        if member not in form:  # a repeated key is the sender's error; the first one counts, as everywhere
            form[member] = to_json_form(value, f"{path}/{member}", types)
    return form


def _described_form(pair: tuple[AmqpValue, AmqpValue], path: str, types: dict[str, str]) -> dict[str, Any]:
    return {
        "descriptor": to_json_form(pair[0], f"{path}/descriptor", types),
        "value": to_json_form(pair[1], f"{path}/value", types),
    }


def _to_encodable(form: Any) -> Any:
    """Replace bytes by their native form; :func:`msgspec.json.encode` would write plain base64."""
    if isinstance(form, bytes):
        return {"base64": base64.b64encode(form).decode("ascii")}
    if isinstance(form, list):
        return [_to_encodable(each) for each in form]
    if isinstance(form, dict):
        return {member: _to_encodable(each) for member, each in form.items()}
    return form


_COMPOUND_FORMS: Final[Mapping[str, Callable[[Any, str, dict[str, str]], Any]]] = {
    "list": _list_form,
    "array": _array_form,
    "map": _map_form,
    "described": _described_form,
}


# An AMQP 1.0 message, section by section: bytes to parts and body (part 3, section 3.2).
#
# ``proton.Message`` would drop the footer, all but the last data section, and most types.

# A fast reader for sections of short ASCII texts, which most messages consist of; it creates no intermediate values.
#
# For an unexpected section it returns None, and the full readers of this module read that section from its start. A
# property test checks that both return the same.

_STRING: Final = 0xA1
_TEXT_CODES: Final[Mapping[str | None, int]] = {None: _STRING, "string": _STRING, "symbol": 0xA3}
"""The first byte of a short text by the usual type of its field; such a text needs no entry in the types."""
_NO_CODE: Final = -1
_INNER_DEPTH: Final = 1
"""The depth of values in an outermost list or map."""

ParsedSection = tuple[list[Part], dict[str, str], int]
"""The parts of a section, the AMQP types that JSON does not show, and the offset after it."""


def read_binary(data: bytes, at: int, end: int) -> tuple[bytes, int] | None:
    """Return the binary at *at* and the offset after it; None if there is none that ends before *end*."""
    code = data[at] if at < end else 0
    if code == 0xA0 and at + 2 <= end:
        start, stop = at + 2, at + 2 + data[at + 1]
    elif code == 0xB0 and at + 5 <= end:
        start, stop = at + 5, at + 5 + int.from_bytes(data[at + 1 : at + 5], "big")
    else:
        return None
    return (data[start:stop], stop) if stop <= end else None


def read_text_map(data: bytes, at: int, end: int, section: str) -> ParsedSection | None:
    """Return the parts of a map whose keys are short, distinct ASCII strings; None for any other map."""
    extent = _find_extent(data, at, end, 0xC1)
    if extent is None or extent[0] % 2:
        return None
    count, at, stop = extent
    parts: list[Part] = []
    types: dict[str, str] = {}
    seen = set()
    prefix = f"{section}."
    for _ in range(count // 2):
        behind = _end_of_short_text(data, at, stop, _STRING)
        if not behind:
            return None
        path = prefix + data[at + 2 : behind].decode("ascii")
        seen.add(path)
        at = behind
        if behind := _end_of_short_text(data, at, stop, _STRING):
            parts.append(Part(path, data[at + 2 : behind]))
            at = behind
        else:
            value, at = read_value(data, at, stop, _INNER_DEPTH)
            entry = to_part(path, value, types)
            if entry is not None:
                parts.append(entry)
    return (parts, types, stop) if at == stop and 2 * len(seen) == count else None


def read_fields(
    data: bytes, at: int, end: int, section: str, known: Sequence[tuple[str, str | None]]
) -> ParsedSection | None:
    """Return the parts of a list of *known* fields, each with its usual type; None for any other list."""
    extent = _find_extent(data, at, end, 0xC0)
    if extent is None or extent[0] > len(known):
        return None
    count, at, stop = extent
    parts: list[Part] = []
    types: dict[str, str] = {}
    for member, usual in known[:count]:
        if at < stop and data[at] == 0x40:  # null: the field is absent
            at += 1
        elif behind := _end_of_short_text(data, at, stop, _TEXT_CODES.get(usual, _NO_CODE)):
            parts.append(Part(f"{section}.{member}", data[at + 2 : behind]))
            at = behind
        else:
            value, at = read_value(data, at, stop, _INNER_DEPTH)
            entry = to_part(f"{section}.{member}", value, types, usual) if value.kind != "null" else None
            if entry is not None:
                parts.append(entry)
    return (parts, types, stop) if at == stop else None


def _end_of_short_text(data: bytes, at: int, end: int, code: int) -> int:
    """Return the offset after a text of at most 255 ASCII characters with its own type code; 0 if there is none."""
    if at + 2 > end or data[at] != code:
        return 0
    behind = at + 2 + data[at + 1]
    return behind if behind <= end and data[at + 2 : behind].isascii() else 0


def _find_extent(data: bytes, at: int, end: int, code: int) -> tuple[int, int, int] | None:
    """Return the number of values of a list (0xC0) or map (0xC1), and where their bytes begin and end."""
    if at + 3 <= end and data[at] == code:
        count, start, stop = data[at + 2], at + 3, at + 2 + data[at + 1]
    elif at + 9 <= end and data[at] == code + 0x10:
        stop = at + 5 + int.from_bytes(data[at + 1 : at + 5], "big")
        count, start = int.from_bytes(data[at + 5 : at + 9], "big"), at + 9
    else:
        return None
    return (count, start, stop) if start <= stop <= end else None


PROTOCOL: Final = "AMQP/1.0"
UNDECODABLE_KEY: Final = "undecodable"
"""The part by which the gateway marks bytes that are not a message: its value says why; the body has all the bytes."""
OVERSIZED_KEY: Final = "oversized"
"""The part by which every gateway marks a body over its limit; its value is the number of bytes."""

Fields = tuple[tuple[str, str | None], ...]

HEADER_FIELDS: Final[Fields] = (
    ("durable", "boolean"),
    ("priority", "ubyte"),
    ("ttl", "uint"),
    ("first-acquirer", "boolean"),
    ("delivery-count", "uint"),
)
PROPERTY_FIELDS: Final[Fields] = (
    ("message-id", None),
    ("user-id", "binary"),
    ("to", "string"),
    ("subject", "string"),
    ("reply-to", "string"),
    ("correlation-id", None),
    ("content-type", "symbol"),
    ("content-encoding", "symbol"),
    ("absolute-expiry-time", "timestamp"),
    ("creation-time", "timestamp"),
    ("group-id", "string"),
    ("group-sequence", "uint"),
    ("reply-to-group-id", "string"),
)
DESCRIPTORS: Final = {
    "header": 0x70,
    "delivery-annotations": 0x71,
    "message-annotations": 0x72,
    "properties": 0x73,
    "application-properties": 0x74,
    "data": 0x75,
    "amqp-sequence": 0x76,
    "amqp-value": 0x77,
    "footer": 0x78,
}
_FIELDS: Final[dict[str, Fields]] = {"header": HEADER_FIELDS, "properties": PROPERTY_FIELDS}
_FORMS: Final = {"header": "list", "properties": "list", "data": "binary", "amqp-sequence": "list"}
_BY_CODE: Final = {code: section for section, code in DESCRIPTORS.items()}
_BY_NAME: Final = {
    f"amqp:{section}:{'*' if section == 'amqp-value' else _FORMS.get(section, 'map')}": section
    for section in DESCRIPTORS
}


class MalformedMessage(Exception):
    """Bytes that are not an AMQP message; the text says what is wrong and at which byte."""


@dataclass(frozen=True, slots=True)
class DecodedMessage:
    """A decoded message: all sections except the body as parts, in order, and the bytes of the body."""

    parts: list[Part]
    body: bytes | None


@dataclass(slots=True)
class _MessageDraft:
    parts: list[Part] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)
    data: list[bytes] = field(default_factory=list)
    sequences: list[AmqpValue] = field(default_factory=list)
    values: list[AmqpValue] = field(default_factory=list)


def decode_message(data: bytes, *, plain: bool = True) -> DecodedMessage:
    """Decode a message.

    Data sections are joined. An ``amqp-value`` of binary or string is the body itself; any other value, and the
    ``amqp-sequence`` sections joined to one list, become a JSON body, with ``body`` in the types; null is no body.
    Values of unexpected types and sizes are kept unchanged. The result does not depend on *plain*: False reads every
    section without the fast reader, for tests.

    Raises:
        MalformedMessage: the bytes are not a message.
    """
    draft = _MessageDraft()
    at, end = 0, len(data)
    try:
        while at < end:
            section, at = _read_descriptor(data, at, end)
            behind = _read_section_fast(draft, section, data, at, end) if plain else 0
            if behind:
                at = behind
                continue
            value, at = read_value(data, at, end)
            _read_section(draft, section, value)
        body = _build_body(draft)
    except MalformedValue as error:
        raise MalformedMessage(str(error)) from error
    if draft.types:
        draft.parts.append(Part(TYPES_KEY, msgspec.json.encode(draft.types), JSON_KIND))
    return DecodedMessage(draft.parts, body)


def to_row(data: bytes | bytearray, endpoint: str, received: int, max_body_bytes: int) -> InboxRow:
    """Convert an encoded message to an inbox row.

    Bytes that are not a message become a row with the part ``undecodable``, which says why, and with all bytes as body.
    A body of more than *max_body_bytes* is stored whole, with the part ``oversized``.
    """
    data = bytes(data)  # proton gives a bytearray, which some readers of values (uuid) reject
    try:
        message = decode_message(data)
    except MalformedMessage as error:
        return InboxRow(endpoint, PROTOCOL, received, [Part(UNDECODABLE_KEY, str(error).encode("utf-8"))], data)
    parts, body = message.parts, message.body
    if body is not None and len(body) > max_body_bytes:
        parts.append(Part(OVERSIZED_KEY, str(len(body)).encode("ascii")))
    return InboxRow(endpoint, PROTOCOL, received, parts, body)


def _read_descriptor(data: bytes, at: int, end: int) -> tuple[str, int]:
    if data[at] != 0:
        raise MalformedValue(f"no section begins at byte {at}")
    if at + 2 < end and data[at + 1] == 0x53 and (section := _BY_CODE.get(data[at + 2])):
        return section, at + 3
    descriptor, behind = read_value(data, at + 1, end)
    known: dict[Any, str] = _BY_CODE if descriptor.kind == "ulong" else _BY_NAME
    section = known.get(descriptor.value) if descriptor.kind in ("ulong", "symbol") else None
    if section is None:
        raise MalformedValue(f"the section at byte {at} is not one of a message: {str(descriptor.value)[:40]!r}")
    return section, behind


def _read_section_fast(draft: _MessageDraft, section: str, data: bytes, at: int, end: int) -> int:
    """Read a section with the fast reader and return the offset after it; 0 if it needs the full reader."""
    if section == "data":
        body = read_binary(data, at, end)
        if body is None:
            return 0
        draft.data.append(body[0])
        return body[1]
    try:
        if section == "application-properties":
            parsed = read_text_map(data, at, end, section)
        elif section in _FIELDS:
            parsed = read_fields(data, at, end, section, _FIELDS[section])
        else:
            return 0
    except MalformedValue:
        return 0  # the full reader says what is wrong, and where
    if parsed is None:
        return 0
    draft.parts += parsed[0]
    draft.types.update(parsed[1])
    return parsed[2]


def _read_section(draft: _MessageDraft, section: str, value: AmqpValue) -> None:
    expected = None if section == "amqp-value" else _FORMS.get(section, "map")
    if expected is not None and value.kind != expected:
        if value.kind == "null" and expected != "binary":
            return  # some clients write an empty section so
        raise MalformedValue(f"the section {section} is a {value.kind}, not a {expected}")
    if section == "data":
        draft.data.append(value.value)
    elif section == "amqp-sequence":
        draft.sequences.append(value)
    elif section == "amqp-value":
        draft.values.append(value)
    elif section == "header":
        _add_fields(draft, section, value.value, HEADER_FIELDS)
    elif section == "properties":
        _add_fields(draft, section, value.value, PROPERTY_FIELDS)
    else:
        _add_map(draft, section, value.value)


def _add_fields(draft: _MessageDraft, section: str, values: list[AmqpValue], fields: Fields) -> None:
    """Read a section that is a list of fields; null is an absent field."""
    if len(values) > len(fields):
        raise MalformedValue(f"the section {section} has {len(values)} fields, but at most {len(fields)} are defined")
    for (member, usual), value in zip(fields, values, strict=False):
        if value.kind != "null":
            entry = to_part(f"{section}.{member}", value, draft.types, usual)
            if entry is not None:
                draft.parts.append(entry)


def _add_map(draft: _MessageDraft, section: str, pairs: list[tuple[AmqpValue, AmqpValue]]) -> None:
    seen = set()
    for key, value in pairs:
        path = f"{section}.{key.value if type(key.value) is str else to_member_name(key)}"
        if path in seen:  # a repeated key is the sender's error; the first one counts
            continue
        seen.add(path)
        entry = to_part(path, value, draft.types)
        if entry is not None:
            draft.parts.append(entry)


def _build_body(draft: _MessageDraft) -> bytes | None:
    if len(draft.values) + bool(draft.data) + bool(draft.sequences) > 1:
        raise MalformedValue("the message has bodies of several kinds, or several values")
    if draft.data:
        return b"".join(draft.data)
    if draft.sequences:
        value = AmqpValue("list", [item for each in draft.sequences for item in each.value])
        text = encode_json(value, "body", draft.types)
        draft.types["body"] = "amqp-sequence"
        return text
    if not draft.values:
        return None
    kind, content = draft.values[0]
    if kind == "binary" or (kind == "string" and isinstance(content, bytes)):
        draft.types["body"] = kind
        return bytes(content)
    if kind == "string":
        draft.types["body"] = kind
        return str(content).encode("utf-8")
    text = encode_json(draft.values[0], "body", draft.types)
    draft.types.setdefault("body", kind)
    return None if kind == "null" else text
