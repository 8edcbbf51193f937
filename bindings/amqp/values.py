"""AMQP 1.0 messages and values: from encoded bytes to parts, and from parts to values of AMQP types."""

from __future__ import annotations

import base64
import math
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from bindings.parts import BINARY_KIND, JSON_KIND, InboxRow, Part, Parts, decode_json
from catalog.values import parse_timestamp

# The AMQP 1.0 type system: encoded bytes to typed values (OASIS AMQP 1.0 part 1, section 1.6).
#
# Not ``proton.Data``, which takes as long: it fails on texts that are not UTF-8 and on more than 65,535 values, and its
# objects merge repeated keys of a map and fail on keys that are lists. A reader that made parts of texts without typed
# values took two thirds of the time, a tenth of what the gateway needs for a message.

MAX_DEPTH: Final = 128
"""Maximum nesting of lists, maps, arrays and descriptors; a deeper message is malformed."""
MAX_EMPTY_ELEMENTS: Final = 16
"""Maximum elements of an array whose elements have no bytes: only their count decides how much memory they use, and a
message may have an array in every four bytes.
"""


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


def read_value(data: bytes, at: int, end: int, depth: int = 0) -> tuple[AmqpValue, int]:
    """Read the value at offset *at*, which must end before *end*; return the value and the offset after it.

    Raises:
        MalformedValue: no complete value there, an unknown type, or too deeply nested.
    """
    if at >= end:
        raise MalformedValue(f"a value is missing at byte {at}")
    code = data[at]
    if (code == _STRING or code == _SYMBOL) and at + 1 < end:  # most values of most messages
        stop = at + 2 + data[at + 1]
        if stop <= end:
            return AmqpValue("string" if code == _STRING else "symbol", decode_text(data[at + 2 : stop])), stop
    return _read_coded(code, data, at + 1, end, depth)


def _read_coded(code: int, data: bytes, at: int, end: int, depth: int) -> tuple[AmqpValue, int]:
    """Read the value of a type code. The upper half of a code says where the value ends."""
    if code in _COMPOUNDS:
        if depth >= MAX_DEPTH:
            raise MalformedValue(f"values are nested more than {MAX_DEPTH} deep at byte {at}")
        return _COMPOUNDS[code](code, data, at, end, depth + 1)
    if code not in _SCALARS:
        raise MalformedValue(f"0x{code:02x} at byte {at - 1} is not a type code")
    kind, size, convert = _SCALARS[code]
    start, stop = at, at + size
    if code >= 0xA0:  # *size* bytes have the length
        start, stop = stop, stop + int.from_bytes(data[at:stop], "big")
    if stop > end:
        raise MalformedValue(f"the {kind} at byte {at} is truncated")
    return AmqpValue(kind, convert(data[start:stop])), stop


def _read_list_or_map(code: int, data: bytes, at: int, end: int, depth: int) -> tuple[AmqpValue, int]:
    count, place, stop = _read_extent(code, data, at, end)
    items = []
    for _ in range(count):
        item, place = read_value(data, place, stop, depth)
        items.append(item)
    _check_end(at, place, stop)
    if code & 1 == 0:
        return AmqpValue("list", items), stop
    if len(items) % 2:
        raise MalformedValue(f"the map at byte {at} has a key without a value")
    return AmqpValue("map", list(zip(items[::2], items[1::2], strict=True))), stop


def _read_array(code: int, data: bytes, at: int, end: int, depth: int) -> tuple[AmqpValue, int]:
    count, place, stop = _read_extent(code, data, at, end)
    descriptor = None
    if place < stop and data[place] == 0:
        descriptor, place = read_value(data, place + 1, stop, depth)
    if place >= stop:
        raise MalformedValue(f"the array at byte {at} has no constructor")
    if count > max(MAX_EMPTY_ELEMENTS, stop - place):
        raise MalformedValue(f"the array at byte {at} claims {count} elements in {stop - place - 1} bytes")
    element, place = data[place], place + 1
    items = []
    for _ in range(count):
        item, place = _read_coded(element, data, place, stop, depth)
        items.append(item if descriptor is None else AmqpValue("described", (descriptor, item)))
    _check_end(at, place, stop)
    return AmqpValue("array", items), stop


def _read_described(_code: int, data: bytes, at: int, end: int, depth: int) -> tuple[AmqpValue, int]:
    descriptor, at = read_value(data, at, end, depth)
    value, at = read_value(data, at, end, depth)
    return AmqpValue("described", (descriptor, value)), at


def _read_extent(code: int, data: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Return the number of elements, and where their bytes begin and end."""
    width = 1 if code in (0xC0, 0xC1, 0xE0) else 4
    start = at + 2 * width
    stop = at + width + int.from_bytes(data[at : at + width], "big")
    if start > stop or stop > end:
        raise MalformedValue(f"the list, map or array at byte {at} is truncated")
    return int.from_bytes(data[at + width : start], "big"), start, stop


def _check_end(at: int, place: int, stop: int) -> None:
    if place != stop:
        raise MalformedValue(f"the list, map or array at byte {at} has {stop - place} extra bytes")


def decode_text(raw: bytes) -> str | bytes:
    """Decode bytes as text; bytes that are not UTF-8 stay unchanged."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw


def _decode_float(raw: bytes) -> float:
    """Return the shortest decimal equal to this 32-bit number, as its sender wrote it: 0.1, not 0.10000000149."""
    import numpy as np  # not with the command line, which imports this module

    return float(str(np.frombuffer(raw, ">f4")[0]))


def _unsigned(raw: bytes) -> int:
    return int.from_bytes(raw, "big")


def _signed(raw: bytes) -> int:
    return int.from_bytes(raw, "big", signed=True)


_STRING, _SYMBOL = 0xA1, 0xA3
_SCALARS: Final[Mapping[int, tuple[str, int, Callable[[bytes], Any]]]] = {
    0x40: ("null", 0, lambda _: None),
    0x41: ("boolean", 0, lambda _: True),
    0x42: ("boolean", 0, lambda _: False),
    0x43: ("uint", 0, _unsigned),
    0x44: ("ulong", 0, _unsigned),
    0x45: ("list", 0, lambda _: []),
    0x50: ("ubyte", 1, _unsigned),
    0x51: ("byte", 1, _signed),
    0x52: ("uint", 1, _unsigned),
    0x53: ("ulong", 1, _unsigned),
    0x54: ("int", 1, _signed),
    0x55: ("long", 1, _signed),
    0x56: ("boolean", 1, lambda raw: raw != b"\0"),
    0x60: ("ushort", 2, _unsigned),
    0x61: ("short", 2, _signed),
    0x70: ("uint", 4, _unsigned),
    0x71: ("int", 4, _signed),
    0x72: ("float", 4, _decode_float),
    0x73: ("char", 4, _unsigned),
    0x74: ("decimal32", 4, bytes),
    0x80: ("ulong", 8, _unsigned),
    0x81: ("long", 8, _signed),
    0x82: ("double", 8, lambda raw: struct.unpack(">d", raw)[0]),
    0x83: ("timestamp", 8, _signed),
    0x84: ("decimal64", 8, bytes),
    0x94: ("decimal128", 16, bytes),
    0x98: ("uuid", 16, lambda raw: str(uuid.UUID(bytes=raw))),
    0xA0: ("binary", 1, bytes),
    0xA1: ("string", 1, decode_text),
    0xA3: ("symbol", 1, decode_text),
    0xB0: ("binary", 4, bytes),
    0xB1: ("string", 4, decode_text),
    0xB3: ("symbol", 4, decode_text),
}
_COMPOUNDS: Final = {
    0x00: _read_described,
    **dict.fromkeys((0xC0, 0xC1, 0xD0, 0xD1), _read_list_or_map),
    **dict.fromkeys((0xE0, 0xF0), _read_array),
}


# AMQP values in a native record: as parts, and as JSON for compound values.
#
# What JSON cannot express is recorded in ``native.types``: the path (``application-properties.count``, below it with
# slashes: ``application-properties.list/0``) and the name of the AMQP type. Types that the JSON form shows (string,
# boolean, binary, an integer that is a long, another number that is a double) and types that the specification fixes
# for a field are left out, and so are those of values inside one whose path is long: each path is a text of its own,
# and a message may have a value in every byte.

TYPES_KEY: Final = "types"
"""The part with the AMQP types."""
JSON_SHOWN_TYPES: Final = frozenset(("string", "boolean", "binary", "long", "double"))
"""AMQP types that are visible in the JSON form of a value."""
_MAX_OUTER_PATH: Final = 200
_NUMBERS: Final = frozenset(("byte", "ubyte", "short", "ushort", "int", "uint", "long", "ulong", "timestamp"))
_BYTES_TYPES: Final = frozenset(("decimal32", "decimal64", "decimal128", "string", "symbol"))
"""Types whose values may be bytes: decimals, and texts that are not UTF-8."""
_NOT_FINITE: Final = frozenset(("NaN", "Infinity", "-Infinity"))
_NANOSECONDS: Final = 1_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def to_part(key: str, typed: AmqpValue, types: dict[str, str], usual: str | None = None) -> Part | None:
    """Convert a value to a part, and add its AMQP type to *types* if JSON does not show it; None for ``null``.

    ``usual`` is the type that the specification fixes for the field.
    """
    kind, value = typed
    if type(value) is str and kind == (usual or "string"):  # most values of most messages
        return Part(key, value.encode("utf-8"))
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
    try:
        at = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return milliseconds
    text = at.replace(tzinfo=None).isoformat(timespec="milliseconds" if milliseconds % 1000 else "seconds")
    return f"{text}Z"


def _list_form(items: list[AmqpValue], path: str, types: dict[str, str]) -> list[Any]:
    return [to_json_form(item, _inner_path(path, index), types) for index, item in enumerate(items)]


def _inner_path(path: str, member: str | int) -> str:
    """Return the path of a value inside the one at *path*; empty if that is long, which makes no entry in the types."""
    return f"{path}/{member}" if 0 < len(path) <= _MAX_OUTER_PATH else ""


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
            form[member] = to_json_form(value, _inner_path(path, member), types)
    return form


def _described_form(pair: tuple[AmqpValue, AmqpValue], path: str, types: dict[str, str]) -> dict[str, Any]:
    return {
        "descriptor": to_json_form(pair[0], _inner_path(path, "descriptor"), types),
        "value": to_json_form(pair[1], _inner_path(path, "value"), types),
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
SECTION_FIELDS: Final[Mapping[str, Fields]] = {"header": HEADER_FIELDS, "properties": PROPERTY_FIELDS}
_SECTIONS: Final = {
    "header": "list",
    "delivery-annotations": "map",
    "message-annotations": "map",
    "properties": "list",
    "application-properties": "map",
    "data": "binary",
    "amqp-sequence": "list",
    "amqp-value": "*",
    "footer": "map",
}
"""The sections of a message, in the order of their codes, and the type of each."""
DESCRIPTORS: Final = {section: 0x70 + index for index, section in enumerate(_SECTIONS)}
_BY_CODE: Final = {code: section for section, code in DESCRIPTORS.items()}
_BY_NAME: Final = {f"amqp:{section}:{kind}": section for section, kind in _SECTIONS.items()}


class MalformedMessage(Exception):
    """Bytes that are not an AMQP message; the text says what is wrong and at which byte."""


@dataclass(slots=True)
class DecodedMessage:
    """A decoded message: all sections except the body as parts, in order, and the bytes of the body."""

    parts: list[Part] = field(default_factory=list)
    body: bytes | None = None


def decode_message(data: bytes) -> DecodedMessage:
    """Decode a message.

    Data sections are joined. An ``amqp-value`` of binary or string is the body itself; any other value, and the
    ``amqp-sequence`` sections joined to one list, become a JSON body, with ``body`` in the types; null is no body.
    Values of unexpected types and sizes are kept unchanged.

    Raises:
        MalformedMessage: the bytes are not a message.
    """
    message, types = DecodedMessage(), dict[str, str]()
    bodies: dict[str, list[Any]] = {}
    at, end = 0, len(data)
    try:
        while at < end:
            section, at = _read_descriptor(data, at, end)
            value, at = read_value(data, at, end)
            kind = _SECTIONS[section]
            if section == "amqp-value":
                bodies.setdefault(section, []).append(value)
            elif value.kind == "null" and kind != "binary":
                continue  # some clients write an empty section so
            elif value.kind != kind:
                raise MalformedValue(f"the section {section} is a {value.kind}, not a {kind}")
            elif section in ("data", "amqp-sequence"):
                bodies.setdefault(section, []).append(value.value)
            else:
                message.parts += _iter_parts(section, value.value, types)
        message.body = _build_body(bodies, types)
    except MalformedValue as error:
        raise MalformedMessage(str(error)) from error
    types.pop("", None)
    if types:
        message.parts.append(Part(TYPES_KEY, msgspec.json.encode(types), JSON_KIND))
    return message


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


def _iter_parts(section: str, content: list[Any], types: dict[str, str]) -> Iterator[Part]:
    """Yield the parts of a section that is a list of fields, or a map."""
    fields = SECTION_FIELDS.get(section)
    named: dict[str, AmqpValue] = {}
    if fields is None:
        for key, value in content:
            named.setdefault(to_member_name(key), value)  # a repeated key is the sender's error; the first one counts
    elif len(content) > len(fields):
        count = f"{len(content)} fields, but at most {len(fields)} are defined"
        raise MalformedValue(f"the section {section} has {count}")
    else:
        given = zip(fields, content, strict=False)
        named = {name: value for (name, _), value in given if value.kind != "null"}
    usual = dict(fields or ())
    for name, value in named.items():
        part = to_part(f"{section}.{name}", value, types, usual.get(name))
        if part is not None:
            yield part


def _build_body(bodies: Mapping[str, list[Any]], types: dict[str, str]) -> bytes | None:
    values = bodies.get("amqp-value", ())
    if len(bodies) > 1 or len(values) > 1:
        raise MalformedValue("the message has bodies of several kinds, or several values")
    if "data" in bodies:
        return b"".join(bodies["data"])
    if "amqp-sequence" in bodies:
        items = [item for each in bodies["amqp-sequence"] for item in each]
        text = encode_json(AmqpValue("list", items), "body", types)
        types["body"] = "amqp-sequence"
        return text
    if not values:
        return None
    kind, content = values[0]
    if kind in ("binary", "string"):
        types["body"] = kind
        return content if isinstance(content, bytes) else str(content).encode("utf-8")
    text = encode_json(values[0], "body", types)
    types.setdefault("body", kind)
    return None if kind == "null" else text
