"""An AMQP 1.0 message, section by section: bytes of a delivery in, parts and body out (part 3, section 3.2).

``proton.Message`` would drop the footer, all but the last data section, and most types. No network and no client here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from bindings.amqp.values import TYPES, AmqpValue, MalformedValue, json_text, name, part, read_value
from bindings.parts import JSON_KIND, InboxRow, Part

# A quick reader of the sections that most messages are made of, short ASCII texts; it makes no value at each step.
#
# Nothing here decides anything: a section that is not as expected gives None, and the readers of
# :mod:`bindings.amqp.sections` read it from its start, with odd values and errors. Both return the same; a property
# test holds them equal.

_STRING: Final = 0xA1
_CODES: Final[Mapping[str | None, int]] = {None: _STRING, "string": _STRING, "symbol": 0xA3}
"""By the usual type of a field, the first byte of a short text of that type, which need not be noted."""
_NONE: Final = -1
_INNER: Final = 1
"""The depth of values in an outermost list or map."""

Taken = tuple[list[Part], dict[str, str], int]
"""The parts of a section, the types that their forms do not show, and the offset behind it."""


def binary(data: bytes, at: int, end: int) -> tuple[bytes, int] | None:
    """Return the binary at *at* and the offset behind it; None when there is none, or it does not end before *end*."""
    code = data[at] if at < end else 0
    if code == 0xA0 and at + 2 <= end:
        start, stop = at + 2, at + 2 + data[at + 1]
    elif code == 0xB0 and at + 5 <= end:
        start, stop = at + 5, at + 5 + int.from_bytes(data[at + 1 : at + 5], "big")
    else:
        return None
    return (data[start:stop], stop) if stop <= end else None


def texts(data: bytes, at: int, end: int, section: str) -> Taken | None:
    """Return the parts of a map whose keys are short, distinct ASCII strings; None for any other map."""
    extent = _extent(data, at, end, 0xC1)
    if extent is None or extent[0] % 2:
        return None
    count, at, stop = extent
    parts: list[Part] = []
    types: dict[str, str] = {}
    seen = set()
    prefix = f"{section}."
    for _ in range(count // 2):
        behind = _short(data, at, stop, _STRING)
        if not behind:
            return None
        path = prefix + data[at + 2 : behind].decode("ascii")
        seen.add(path)
        at = behind
        if behind := _short(data, at, stop, _STRING):
            parts.append(Part(path, data[at + 2 : behind]))
            at = behind
        else:
            value, at = read_value(data, at, stop, _INNER)
            entry = part(path, value, types)
            if entry is not None:
                parts.append(entry)
    return (parts, types, stop) if at == stop and 2 * len(seen) == count else None


def fields(data: bytes, at: int, end: int, section: str, known: Sequence[tuple[str, str | None]]) -> Taken | None:
    """Return the parts of a list of *known* fields, each with its usual type; None when it is not such a list."""
    extent = _extent(data, at, end, 0xC0)
    if extent is None or extent[0] > len(known):
        return None
    count, at, stop = extent
    parts: list[Part] = []
    types: dict[str, str] = {}
    for member, usual in known[:count]:
        if at < stop and data[at] == 0x40:  # null: the field is not there
            at += 1
        elif behind := _short(data, at, stop, _CODES.get(usual, _NONE)):
            parts.append(Part(f"{section}.{member}", data[at + 2 : behind]))
            at = behind
        else:
            value, at = read_value(data, at, stop, _INNER)
            entry = part(f"{section}.{member}", value, types, usual) if value.kind != "null" else None
            if entry is not None:
                parts.append(entry)
    return (parts, types, stop) if at == stop else None


def _short(data: bytes, at: int, end: int, code: int) -> int:
    """Return the offset behind a text of at most 255 ASCII characters that says its own type; 0 when there is none."""
    if at + 2 > end or data[at] != code:
        return 0
    behind = at + 2 + data[at + 1]
    return behind if behind <= end and data[at + 2 : behind].isascii() else 0


def _extent(data: bytes, at: int, end: int, code: int) -> tuple[int, int, int] | None:
    """Return how many values a list (0xC0) or map (0xC1) has, and where their bytes begin and end."""
    if at + 3 <= end and data[at] == code:
        count, start, stop = data[at + 2], at + 3, at + 2 + data[at + 1]
    elif at + 9 <= end and data[at] == code + 0x10:
        stop = at + 5 + int.from_bytes(data[at + 1 : at + 5], "big")
        count, start = int.from_bytes(data[at + 5 : at + 9], "big"), at + 9
    else:
        return None
    return (count, start, stop) if start <= stop <= end else None


PROTOCOL: Final = "AMQP/1.0"
UNDECODABLE: Final = "undecodable"
"""The part by which the gateway marks bytes that are no message: its value says why, the body has all the bytes."""
OVERSIZED: Final = "oversized"
"""The part by which every gateway marks a body past its limit; its value is the number of bytes."""

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
    """Bytes that are no AMQP message; the text says what is wrong and at which byte."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A message as a native record has it: all sections but the body's as parts, in order, and the body's bytes."""

    parts: list[Part]
    body: bytes | None


@dataclass(slots=True)
class _Draft:
    parts: list[Part] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)
    data: list[bytes] = field(default_factory=list)
    sequences: list[AmqpValue] = field(default_factory=list)
    values: list[AmqpValue] = field(default_factory=list)


def decode(data: bytes, *, plain: bool = True) -> Decoded:
    """Take a message apart.

    Data sections are joined. An ``amqp-value`` of binary or string is the body itself; any other value, and the
    ``amqp-sequence`` sections joined to one list, are the body as JSON, with ``body`` in the types; null is no body.
    Values of a type or size that nobody expects are kept as they came. The result does not depend on *plain*: False
    takes the long way through every section, for tests.

    Raises:
        MalformedMessage: these bytes are no message.
    """
    draft = _Draft()
    at, end = 0, len(data)
    try:
        while at < end:
            section, at = _descriptor(data, at, end)
            behind = _plain(draft, section, data, at, end) if plain else 0
            if behind:
                at = behind
                continue
            value, at = read_value(data, at, end)
            _take(draft, section, value)
        body = _body(draft)
    except MalformedValue as error:
        raise MalformedMessage(str(error)) from error
    if draft.types:
        draft.parts.append(Part(TYPES, msgspec.json.encode(draft.types), JSON_KIND))
    return Decoded(draft.parts, body)


def row_of(data: bytes | bytearray, endpoint: str, received: int, max_body_bytes: int) -> InboxRow:
    """Return the inbox row of a message.

    Bytes that are no message become a row with the part ``undecodable``, which says why, and all of them as its body. A
    body of more than *max_body_bytes* is stored whole, with the part ``oversized``.
    """
    data = bytes(data)  # proton gives a bytearray, which is no bytes to some readers of values (uuid)
    try:
        message = decode(data)
    except MalformedMessage as error:
        return InboxRow(endpoint, PROTOCOL, received, [Part(UNDECODABLE, str(error).encode("utf-8"))], data)
    parts, body = message.parts, message.body
    if body is not None and len(body) > max_body_bytes:
        parts.append(Part(OVERSIZED, str(len(body)).encode("ascii")))
    return InboxRow(endpoint, PROTOCOL, received, parts, body)


def _descriptor(data: bytes, at: int, end: int) -> tuple[str, int]:
    if data[at] != 0:
        raise MalformedValue(f"no section begins at byte {at}")
    if at + 2 < end and data[at + 1] == 0x53 and (section := _BY_CODE.get(data[at + 2])):
        return section, at + 3
    descriptor, behind = read_value(data, at + 1, end)
    known: dict[Any, str] = _BY_CODE if descriptor.kind == "ulong" else _BY_NAME
    section = known.get(descriptor.value) if descriptor.kind in ("ulong", "symbol") else None
    if section is None:
        raise MalformedValue(f"the section at byte {at} is none of a message: {str(descriptor.value)[:40]!r}")
    return section, behind


def _plain(draft: _Draft, section: str, data: bytes, at: int, end: int) -> int:
    """Read a section by the quick reader and return the offset behind it; 0 when it has to be read in full."""
    if section == "data":
        body = binary(data, at, end)
        if body is None:
            return 0
        draft.data.append(body[0])
        return body[1]
    try:
        if section == "application-properties":
            taken = texts(data, at, end, section)
        elif section in _FIELDS:
            taken = fields(data, at, end, section, _FIELDS[section])
        else:
            return 0
    except MalformedValue:
        return 0  # the long way says what is wrong, and where
    if taken is None:
        return 0
    draft.parts += taken[0]
    draft.types.update(taken[1])
    return taken[2]


def _take(draft: _Draft, section: str, value: AmqpValue) -> None:
    wanted = None if section == "amqp-value" else _FORMS.get(section, "map")
    if wanted is not None and value.kind != wanted:
        if value.kind == "null" and wanted != "binary":
            return  # an empty section, as some clients write it
        raise MalformedValue(f"the section {section} is a {value.kind}, not a {wanted}")
    if section == "data":
        draft.data.append(value.value)
    elif section == "amqp-sequence":
        draft.sequences.append(value)
    elif section == "amqp-value":
        draft.values.append(value)
    elif section == "header":
        _listed(draft, section, value.value, HEADER_FIELDS)
    elif section == "properties":
        _listed(draft, section, value.value, PROPERTY_FIELDS)
    else:
        _mapped(draft, section, value.value)


def _listed(draft: _Draft, section: str, values: list[AmqpValue], fields: Fields) -> None:
    """Take a section that is a list of fields; null is a field that is not there."""
    if len(values) > len(fields):
        raise MalformedValue(f"the section {section} has {len(values)} fields, and there are {len(fields)}")
    for (member, usual), value in zip(fields, values, strict=False):
        if value.kind != "null":
            entry = part(f"{section}.{member}", value, draft.types, usual)
            if entry is not None:
                draft.parts.append(entry)


def _mapped(draft: _Draft, section: str, pairs: list[tuple[AmqpValue, AmqpValue]]) -> None:
    seen = set()
    for key, value in pairs:
        path = f"{section}.{key.value if type(key.value) is str else name(key)}"
        if path in seen:  # a repeated key is a fault of the sender; the first counts
            continue
        seen.add(path)
        entry = part(path, value, draft.types)
        if entry is not None:
            draft.parts.append(entry)


def _body(draft: _Draft) -> bytes | None:
    if len(draft.values) + bool(draft.data) + bool(draft.sequences) > 1:
        raise MalformedValue("the message has bodies of several kinds, or several values")
    if draft.data:
        return b"".join(draft.data)
    if draft.sequences:
        value = AmqpValue("list", [item for each in draft.sequences for item in each.value])
        text = json_text(value, "body", draft.types)
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
    text = json_text(draft.values[0], "body", draft.types)
    draft.types.setdefault("body", kind)
    return None if kind == "null" else text
