"""Read bodies in the JSON mapping of Protobuf (ProtoJSON): validate the values, then parse them with json_format.

json_format alone is stricter than the mapping in places (``"1e2"`` for an integer), laxer in others (``*`` in base64,
``1_0``, ``true`` for an enum, times without leading zeros), stops at the first fault, and ignores unknown enum names
together with unknown fields. So each value is validated here by its type, and unknown fields are dropped.

Invalid values are returned as a tree: by field name an ``UnfitValue``, the tree of a message, or a tree of list items
by ``(index,)`` or of map values by ``(key,)``.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final, TypeAlias, cast

from google.protobuf import duration_pb2, field_mask_pb2, json_format, timestamp_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

from catalog.schemas.contract import UnfitValue

Unfit: TypeAlias = "dict[Any, UnfitValue | Unfit]"
_PACKAGE: Final = "google.protobuf."
_NUMBER: Final = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]{1,4})?", re.ASCII)
_TEXT_FORMS: Final[Mapping[str, tuple[re.Pattern[str], Any]]] = {
    "Timestamp": (
        re.compile(
            r"\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[-+](?:[01]\d|2[0-3]):[0-5]\d)",
            re.ASCII,
        ),
        timestamp_pb2.Timestamp,
    ),
    "Duration": (re.compile(r"-?\d{1,12}(?:\.\d{1,9})?s", re.ASCII), duration_pb2.Duration),
    "FieldMask": (re.compile(r"[^\ud800-\udfff]*"), field_mask_pb2.FieldMask),
}
"""The forms of well-known types that are texts, and the messages that read them."""
_CONTAINERS: Final[Mapping[str, tuple[type, str]]] = {
    "Any": (dict, "an object"),
    "ListValue": (list, "an array"),
    "Struct": (dict, "an object"),
    "Value": (object, ""),
}
_BASE64: Final = re.compile(r"([A-Za-z0-9+/]*|[A-Za-z0-9_-]*)(={0,2})", re.ASCII)
_MAX_DIGITS: Final = 400
"""Longer numbers exceed every type, and Python converts thousands of digits slowly."""
_NOT_FINITE: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_RANGES: Final[Mapping[int, tuple[str, int, int]]] = {
    FieldDescriptor.CPPTYPE_INT32: ("int32", -(2**31), 2**31),
    FieldDescriptor.CPPTYPE_INT64: ("int64", -(2**63), 2**63),
    FieldDescriptor.CPPTYPE_UINT32: ("uint32", 0, 2**32),
    FieldDescriptor.CPPTYPE_UINT64: ("uint64", 0, 2**64),
}
_LIMITS: Final[Mapping[int, tuple[str, float]]] = {
    FieldDescriptor.CPPTYPE_DOUBLE: ("double", math.inf),
    FieldDescriptor.CPPTYPE_FLOAT: ("float", (2 - 2**-23) * 2.0**127),
}
_EMPTY: Final[Mapping[str, Any]] = {
    "Timestamp": "1970-01-01T00:00:00Z",
    "Duration": "0s",
    "FieldMask": "",
    "ListValue": [],
    "Value": False,
}
"""The replacement of an invalid item for json_format, by type; by default an empty object."""


class NotJsonError(ValueError):
    """The text is not valid JSON."""


class _Mismatch(Exception):
    """A value does not match its type."""


class JsonMessageReader:
    """Reads JSON as messages of one type. Not thread-safe."""

    def __init__(self, message: type[Message], pool: DescriptorPool) -> None:
        self._message = message
        self._pool = pool
        self._fields: dict[str, Mapping[str, FieldDescriptor]] = {}

    def read(self, text: str) -> tuple[Message, Unfit | UnfitValue]:
        """Return the message without its invalid values, and the tree of these; an ``UnfitValue`` if all is invalid.

        Raises:
            NotJsonError: the text is not valid JSON.
            json_format.ParseError: it is invalid as a whole, for example two fields of one oneof.
        """
        try:
            value = json.loads(text, object_pairs_hook=_to_dict, parse_int=_parse_int, parse_constant=_reject_constant)
        except ValueError as error:
            raise NotJsonError(f"not JSON: {error}") from None
        unfit: Unfit = {}
        message = self._message()
        try:
            known = self._read_message(cast(Descriptor, message.DESCRIPTOR), value, unfit)
        except _Mismatch as mismatch:
            return message, UnfitValue(str(mismatch))
        json_format.ParseDict(known, message, descriptor_pool=self._pool)
        return message, unfit

    def _read_message(self, kind: Descriptor, value: Any, unfit: Unfit) -> Any:
        """Return the value of a message for json_format; invalid parts are added to the tree.

        Raises:
            _Mismatch: the value itself is invalid.
        """
        known_as = _well_known_name(kind)
        if known_as.endswith("Value") and "value" in kind.fields_by_name:  # a wrapper
            return _convert_scalar(kind.fields_by_name["value"], value)
        if known_as in _TEXT_FORMS or known_as in _CONTAINERS:
            return _check_well_known(known_as, value)
        if not isinstance(value, dict):
            raise _Mismatch("a message is a JSON object")
        if kind.full_name not in self._fields:
            names = {each.name: each for each in kind.fields}
            self._fields[kind.full_name] = names | {each.json_name: each for each in kind.fields}
        fields, known = self._fields[kind.full_name], dict[str, Any]()
        for name, inner in value.items():
            field = fields.get(name)
            if field is not None:
                part = None if inner is None else self._read_part(field, inner, unfit, field.name)
                # Null is unset, except that a Value is null; for repeated ones json_format fails at it.
                if part is not None or (inner is None and not field.is_repeated):
                    known[name] = part
            elif name.startswith("["):  # an extension
                try:
                    known[_check_text(name)] = inner
                except _Mismatch as mismatch:
                    unfit[name] = UnfitValue(str(mismatch))
        return known

    def _read_part(self, field: FieldDescriptor, value: Any, unfit: Unfit, step: str | tuple[Any]) -> Any:
        """Read a member, or an item at ``(index,)`` or ``(key,)``; an invalid one becomes None, or an empty item."""
        below: Unfit = {}
        try:
            known = self._read_field(field, value, below, is_item=isinstance(step, tuple))
        except _Mismatch as mismatch:
            unfit[step] = UnfitValue(str(mismatch))
            return _placeholder_for(field) if isinstance(step, tuple) else None
        if below:
            unfit[step] = below
        return known

    def _read_field(self, field: FieldDescriptor, value: Any, unfit: Unfit, *, is_item: bool) -> Any:
        kind = field.message_type
        if is_item and value is None and (kind is None or _well_known_name(kind) != "Value"):
            raise _Mismatch("null is not allowed as a list item or map value")
        if field.is_repeated and not is_item:
            if kind is not None and kind.GetOptions().map_entry:
                key, inner = kind.fields_by_name["key"], kind.fields_by_name["value"]
                entries = _expect(dict, value, "a map is a JSON object").items()
                return {name: self._read_part(inner, each, unfit, (_convert_key(key, name),)) for name, each in entries}
            items = _expect(list, value, "a repeated field is a JSON array")
            return [self._read_part(field, each, unfit, (at,)) for at, each in enumerate(items)]
        return _convert_scalar(field, value) if kind is None else self._read_message(kind, value, unfit)


def iter_unfit_paths(unfit: Unfit, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield path and reason of each invalid value."""
    for step, each in unfit.items():
        written = f"{path}[{json.dumps(step[0])}]" if isinstance(step, tuple) else f"{path}.{step}".lstrip(".")
        yield from iter_unfit_paths(each, written) if isinstance(each, dict) else [(written, each.why)]


def _to_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the member {twice[:60]!r} is there twice")
    return members


def _parse_int(text: str) -> int | float:
    return int(text) if len(text) <= _MAX_DIGITS else math.copysign(math.inf, -1 if text.startswith("-") else 1)


def _reject_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON; write it as text")


def _well_known_name(kind: Descriptor) -> str:
    """Return the name of a well-known type within its package; empty for other messages."""
    return kind.full_name.removeprefix(_PACKAGE) if kind.full_name.startswith(_PACKAGE) else ""


def _placeholder_for(field: FieldDescriptor) -> Any:
    kind = field.message_type
    if kind is not None:
        inner = kind.fields_by_name.get("value") if _well_known_name(kind).endswith("Value") else None
        return _EMPTY.get(_well_known_name(kind), {}) if inner is None else _placeholder_for(inner)
    if field.enum_type is not None:
        return field.enum_type.values[0].number
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return ""
    return False if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL else 0


def _expect(kind: type, value: Any, otherwise: str) -> Any:
    if not isinstance(value, kind):
        raise _Mismatch(otherwise)
    return value


def _check_well_known(name: str, value: Any) -> Any:
    """Return the value of a well-known type with a special JSON form."""
    if name in _CONTAINERS:
        form, noun = _CONTAINERS[name]
        return _expect(form, value, f"{_describe_value(value)} is not a valid {name}: it must be {noun}")
    pattern, message = _TEXT_FORMS[name]
    try:
        if isinstance(value, str) and pattern.fullmatch(value):
            message().FromJsonString(value)
            return value
    except (ValueError, OverflowError):
        pass
    raise _Mismatch(f"{_describe_value(value)} is not a {name}")


def _convert_key(field: FieldDescriptor, name: str) -> Any:
    """Return the map key of a member name."""
    if field.cpp_type != FieldDescriptor.CPPTYPE_BOOL:
        return _convert_scalar(field, name)
    return _expect(bool, {"true": True, "false": False}.get(name), f"{_describe_value(name)} is not a boolean")


def _convert_scalar(field: FieldDescriptor, value: Any) -> Any:
    if field.enum_type is not None:
        return _convert_enum(field.enum_type, value)
    if field.cpp_type in _RANGES:
        return _convert_integer(value, *_RANGES[field.cpp_type])
    if field.cpp_type in _LIMITS:
        return _convert_float(value, *_LIMITS[field.cpp_type])
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return _expect(bool, value, f"{_describe_value(value)} is not a valid boolean")
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _normalize_base64(value)
    return _check_text(_expect(str, value, f"{_describe_value(value)} is not a string"))


def _check_text(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise _Mismatch("the string has half of a surrogate pair") from None
    return text


def _convert_integer(value: Any, name: str, low: int, end: int) -> int:
    number: int | float | Decimal | None = value if type(value) in (int, float) else None
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        number = Decimal(value)
    if number is not None and not low <= number < end:  # checked before converting thousands of digits
        raise _Mismatch(f"{_describe_value(value)} is out of the range of {name}")
    if number is None or int(number) != number:
        raise _Mismatch(f"{_describe_value(value)} is not a valid {name}")
    return int(number)


def _convert_float(value: Any, name: str, limit: float) -> float | str:
    if isinstance(value, str) and value in _NOT_FINITE:
        return value
    if type(value) not in (int, float) and not (isinstance(value, str) and _NUMBER.fullmatch(value)):
        raise _Mismatch(f"{_describe_value(value)} is not a valid {name}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or abs(number) > limit:
        raise _Mismatch(f"{_describe_value(value)} is out of the range of {name}")
    return number


def _normalize_base64(value: Any) -> str:
    """Return base64 in the standard alphabet with padding; accepts both alphabets, with or without padding."""
    parts = _BASE64.fullmatch(value) if isinstance(value, str) else None
    if parts is None or len(parts[1]) % 4 == 1 or (parts[2] and len(value) % 4):
        raise _Mismatch(f"{_describe_value(value)} is not base64")
    padded: str = parts[1] + "=" * (-len(parts[1]) % 4)
    return base64.b64encode(base64.b64decode(padded, altchars=b"-_" if set(padded) & {"-", "_"} else None)).decode()


def _convert_enum(kind: Any, value: Any) -> int:
    named = kind.values_by_name.get(_check_text(value)) if isinstance(value, str) else None
    try:
        number: int = named.number if named is not None else _convert_integer(value, "", -(2**31), 2**31)
    except _Mismatch:
        raise _Mismatch(f"{_describe_value(value)} is not a value of {kind.name}") from None
    if kind.is_closed and number not in kind.values_by_number:
        raise _Mismatch(f"{number} is not a value of {kind.name}")
    return number


def _describe_value(value: Any) -> str:
    text = json.dumps(value) if not isinstance(value, int) or value.bit_length() < 200 else "a number of many digits"
    return text if len(text) <= 60 else f"{text[:59]}…"
