"""The byte-exact codec for CloudEvents in JSON, structured and batched (CloudEvents JSON format 1.0.2).

``data`` is extracted as written: numbers, escapes and white space survive. ``match`` and ``run`` use the same codec;
nothing else in the project parses an event envelope.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from catalog.record import MAX_DEPTH
from catalog.schemas.contract import is_json, is_json_data

DEFAULT_CONTENT_TYPE: Final = "application/json"
_OBJECT_DECODER: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY_DECODER: Final = msgspec.json.Decoder(list[msgspec.Raw])
_SPACE: Final = " \t\r\n"
_VALUE_DECODER: Final = json.JSONDecoder(parse_int=str, parse_float=str)
STRING_ATTRIBUTES: Final = frozenset(("id", "source", "type", "subject", "time", "dataschema", "datacontenttype"))
"""Attributes that are strings, never numbers or booleans that read like one (MATCHING.md#cloudevents)."""
FORBIDDEN_CHARS: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\ufdd0-\ufdef"
    + "".join(chr(plane + last) for plane in range(0, 0x110000, 0x10000) for last in (0xFFFE, 0xFFFF))
    + "]"
)
"""Characters that a CloudEvents String must not contain: control characters and noncharacters."""
_MAX_DIGITS: Final = len("-2147483648")
_INTEGER: Final = re.compile(r"-?+[0-9]++", re.ASCII)
_BRACKETS: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)


class NotAnEvent(Exception):
    """The bytes are not a JSON event; the message says why, without quoting the body."""


class CloudEvent(NamedTuple):
    """An event: ``attributes`` as text, ``data`` as the bytes of the body (None for no body), ``faults`` of types.

    The attributes include ``datacontenttype`` if the event has it, or if its ``data`` is JSON by default.
    """

    attributes: dict[str, str]
    data: bytes | None
    faults: tuple[str, ...] = ()


class TypedText(str):
    """The text of an attribute that is an integer or boolean; it becomes one again when the event is written as JSON.

    It is compared, mapped, and sent in binary mode as text (except in AMQP, which has these types).
    """

    __slots__ = ()

    @property
    def value(self) -> int | bool:
        """The integer or boolean value."""
        return self == "true" if self in ("true", "false") else int(self)


class _Number(str):
    """A JSON number as written, never rounded."""

    __slots__ = ()


def decode_event(body: bytes | None) -> CloudEvent:
    """Decode a structured-mode event.

    Raises:
        NotAnEvent: not a JSON object, duplicate keys, NaN, more than 512 levels, not UTF-8, or trailing bytes.
    """
    members = _parse_body(body, dict)
    try:
        raw = _OBJECT_DECODER.decode(_require_body(body))
    except msgspec.DecodeError:
        raw = dict(zip(members, _slice_values(_require_body(body).decode("utf-8")), strict=True))
    return _build_event(members, raw)


def decode_batch(body: bytes | None) -> list[bytes]:
    """Return the raw text of each event of a batch; the events are checked when they are decoded.

    Raises:
        NotAnEvent: the body is not a JSON array, or not valid in the way that :func:`decode_event` requires.
    """
    if not _parse_body(body, list):
        return []
    try:
        return [bytes(raw) for raw in _ARRAY_DECODER.decode(_require_body(body))]
    except msgspec.DecodeError:
        return [bytes(raw) for raw in _slice_values(_require_body(body).decode("utf-8"))]


def looks_like_event(body: bytes | None) -> bool:
    """Whether a body is a JSON object with a ``specversion`` string (MATCHING.md#cloudevents)."""
    if not body or (b"specversion" not in body and b"\\u" not in body):
        return False
    if body.lstrip(b" \t\r\n")[:1] != b"{":
        return False
    try:
        version = _parse_body(body, dict).get("specversion")
    except NotAnEvent:
        return False
    return isinstance(version, str) and not isinstance(version, _Number)


def encode_event(attributes: Mapping[str, str], data: bytes | None) -> bytes:
    """Encode an event in structured mode; JSON data is written unchanged, other data as text or base64."""
    members = to_json_members(attributes)
    if data is not None:
        members.update(build_data_member(attributes.get("datacontenttype"), data))
    return msgspec.json.encode(members)


def build_data_member(content_type: str | None, data: bytes) -> dict[str, Any]:
    """Return the member ``data`` or ``data_base64`` from which decoding restores the same bytes and content type.

    Data without a content type becomes ``data_base64``: in ``data`` it would be JSON.
    """
    if is_json(content_type):
        try:
            text = data.decode("utf-8")
            _load_json(text, MAX_DEPTH - 1)
            if text == text.strip(" \t\r\n") and text not in ("", "null"):
                return {"data": msgspec.Raw(data)}
        except (UnicodeDecodeError, NotAnEvent):
            pass
    elif content_type is not None:
        try:
            return {"data": data.decode("utf-8")}
        except UnicodeDecodeError:
            pass
    return {"data_base64": base64.b64encode(data).decode("ascii")}


def to_json_members(attributes: Mapping[str, str]) -> dict[str, Any]:
    """Return attributes as JSON members."""
    return {name: text.value if isinstance(text, TypedText) else text for name, text in attributes.items()}


def typed_names(attributes: Mapping[str, str]) -> str | None:
    """Return the names of the attributes that are not strings, separated by spaces; None if all are strings."""
    return " ".join([name for name, text in attributes.items() if isinstance(text, TypedText)]) or None


def restore_types(attributes: Mapping[str, str], names: str | None) -> dict[str, str]:
    """Return attributes with the types from :func:`typed_names`; *names* of absent attributes are ignored."""
    typed = set(names.split(" ")) if names else ()
    return {name: TypedText(text) if name in typed else text for name, text in attributes.items()}


def number_fault(text: str) -> str:
    """Return why a number is not a CloudEvents Integer; empty if it is one."""
    if not _INTEGER.fullmatch(text):
        return "a number that is not an integer is not a CloudEvents value"
    if len(text) > _MAX_DIGITS or not -(2**31) <= int(text) < 2**31:
        return "an integer beyond 32 bits is not a CloudEvents value"
    return ""


def _build_event(members: dict[str, Any], raw: dict[str, msgspec.Raw]) -> CloudEvent:
    attributes: dict[str, str] = {}
    faults: list[str] = []
    for name, value in members.items():
        if name in ("data", "data_base64") or value is None:
            continue
        if isinstance(value, bool):
            attributes[name] = TypedText("true" if value else "false")
            if name in STRING_ATTRIBUTES:
                faults.append(f"{name}: a JSON boolean; it must be a JSON string")
        elif isinstance(value, _Number):
            attributes[name] = TypedText(value)
            if name in STRING_ATTRIBUTES:
                faults.append(f"{name}: a JSON number; it must be a JSON string")
            elif fault := number_fault(value):
                faults.append(f"{name}: {fault}")
        elif isinstance(value, str):
            attributes[name] = value
            if not _is_encodable(value):
                faults.append(f"{name}: a lone surrogate is not valid Unicode")
        else:
            faults.append(f"{name}: an array or object is not a CloudEvents value")
    data = _read_data(members, raw, attributes.get("datacontenttype"), faults)
    if members.get("data") is not None and members.get("data_base64") is None:
        attributes.setdefault("datacontenttype", DEFAULT_CONTENT_TYPE)
    return CloudEvent(attributes, data, tuple(faults))


def _read_data(
    members: dict[str, Any], raw: dict[str, msgspec.Raw], content_type: str | None, faults: list[str]
) -> bytes | None:
    encoded = members.get("data_base64")
    if encoded is not None:
        if members.get("data") is not None:
            faults.append("data and data_base64 must not both be present")
        try:
            if not isinstance(encoded, str):
                raise ValueError("not a string")
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            faults.append(f"data_base64 is not base64: {error}")
            return None
    data = members.get("data")
    if data is None:
        return None
    if isinstance(data, str) and not isinstance(data, _Number) and not is_json_data(content_type):
        if not _is_encodable(data):
            faults.append("data: a lone surrogate is not valid Unicode")
        return data.encode("utf-8", "replace")
    return bytes(raw["data"])


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _require_body(body: bytes | None) -> bytes:
    if not body:
        raise NotAnEvent("the body is empty")
    return body


def _parse_body(body: bytes | None, kind: type) -> Any:
    try:
        text = _require_body(body).decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotAnEvent(f"the body is not UTF-8 at byte {error.start}") from error
    value = _load_json(text)
    if not isinstance(value, kind):
        raise NotAnEvent(f"the body is not a JSON {'object' if kind is dict else 'array'}")
    return value


def _load_json(text: str, levels: int = MAX_DEPTH) -> Any:
    if text.count("{") + text.count("[") > levels:
        check_depth(text, levels)
    try:
        return json.loads(
            text,
            object_pairs_hook=_reject_repeated_keys,
            parse_constant=_reject_constant,
            parse_int=_Number,
            parse_float=_Number,
        )
    except RecursionError as error:
        raise NotAnEvent(f"more than {MAX_DEPTH} levels of nesting") from error
    except ValueError as error:
        place = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise NotAnEvent(f"not valid JSON{place}: {reason}") from error


def _slice_values(text: str) -> list[msgspec.Raw]:
    """Extract the values of a valid object or array, in order, where msgspec fails.

    It treats the escape of a lone surrogate, which RFC 8259 allows, as invalid JSON.
    """
    slices: list[msgspec.Raw] = []
    named = text.lstrip(_SPACE)[0] == "{"
    at = _skip_space(text, _skip_space(text, 0) + 1)
    while text[at] not in "]}":
        if named:
            at = _skip_space(text, _skip_space(text, _VALUE_DECODER.raw_decode(text, at)[1]) + 1)
        end = _VALUE_DECODER.raw_decode(text, at)[1]
        slices.append(msgspec.Raw(text[at:end].encode("utf-8")))
        at = _skip_space(text, end)
        if text[at] == ",":
            at = _skip_space(text, at + 1)
    return slices


def _skip_space(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at


def check_depth(text: str, levels: int) -> None:
    """Raise if JSON is nested deeper than that.

    Raises:
        NotAnEvent: it is.
    """
    depth = 0
    for token in _BRACKETS.finditer(text):
        mark = token.group()
        if mark in "[{":
            depth += 1
            if depth > levels:
                raise NotAnEvent(f"more than {MAX_DEPTH} levels of nesting")
        elif mark in "]}":
            depth -= 1


def _reject_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return members


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")
