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
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from typing import Any, Final, TypeAlias

from google.protobuf import field_mask_pb2, json_format, timestamp_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

from catalog.schemas.contract import UnfitValue

Unfit: TypeAlias = "dict[Any, UnfitValue | Unfit]"
Form = Callable[[Any], Any]
"""JSON value -> the value for json_format; raises :class:`_Mismatch` if it is invalid."""
Item = Callable[[Any, Unfit, tuple[Any]], Any]
"""Like :data:`Read`, for a list item or map value at ``(index,)`` or ``(key,)``."""
PACKAGE: Final = "google.protobuf."
_NUMBER: Final = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]{1,4})?", re.ASCII)
_TIMESTAMP: Final = re.compile(
    r"\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[-+](?:[01]\d|2[0-3]):[0-5]\d)", re.ASCII
)
_DURATION: Final = re.compile(r"-?\d{1,12}(?:\.\d{1,9})?s", re.ASCII)
_MAX_SECONDS: Final = 315_576_000_000
"""The limit of a Duration: about ten thousand years."""
_BASE64: Final = re.compile(r"([A-Za-z0-9+/]*|[A-Za-z0-9_-]*)(={0,2})", re.ASCII)
_MAX_DIGITS: Final = 400
"""Longer numbers exceed every type, and Python converts thousands of digits slowly."""
_FLOATS: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_MAX_FLOAT: Final = (2 - 2**-23) * 2.0**127
_RANGES: Final[Mapping[int, tuple[str, int, int]]] = {
    FieldDescriptor.CPPTYPE_INT32: ("int32", -(2**31), 2**31),
    FieldDescriptor.CPPTYPE_INT64: ("int64", -(2**63), 2**63),
    FieldDescriptor.CPPTYPE_UINT32: ("uint32", 0, 2**32),
    FieldDescriptor.CPPTYPE_UINT64: ("uint64", 0, 2**64),
}
_WRAPPERS: Final = frozenset(
    f"{kind}Value" for kind in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)
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


Read = Callable[[Any, Unfit], Any]
"""JSON value, tree -> the value for json_format; invalid parts are added to the tree.

Raises :class:`_Mismatch` for the value itself.
"""


class JsonMessageReader:
    """Reads JSON as messages of one type. Not thread-safe."""

    def __init__(self, descriptor: Descriptor, message: type[Message], pool: DescriptorPool) -> None:
        self._readers: dict[str, Read] = {}
        self._read = self._message_reader(descriptor)
        self._message = message
        self._pool = pool

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
            known = self._read(value, unfit)
        except _Mismatch as mismatch:
            return message, UnfitValue(str(mismatch))
        json_format.ParseDict(known, message, descriptor_pool=self._pool)
        return message, unfit

    def _message_reader(self, kind: Descriptor) -> Read:
        """Return the reader of a message type; readers of its fields are made on first use."""
        name = kind.full_name
        if name not in self._readers:
            form = _well_known_form(kind)
            self._readers[name] = (
                (lambda value, unfit: form(value)) if form else _object_reader(lambda: self._fields_of(kind))
            )
        return self._readers[name]

    def _fields_of(self, kind: Descriptor) -> dict[str, tuple[str, Read]]:
        fields: dict[str, tuple[str, Read]] = {}
        for field in kind.fields:
            fields |= dict.fromkeys((field.name, field.json_name), (field.name, self._field_reader(field)))
        return fields

    def _field_reader(self, field: FieldDescriptor) -> Read:
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            inner = kind.fields_by_name["value"]
            return _map_reader(_key_form(kind.fields_by_name["key"]), _item_reader(inner, self._value_reader(inner)))
        read = self._value_reader(field)
        return _list_reader(_item_reader(field, read)) if field.is_repeated else read

    def _value_reader(self, field: FieldDescriptor) -> Read:
        if field.message_type is not None:
            return self._message_reader(field.message_type)
        scalar = _scalar_form(field)
        return lambda value, unfit: scalar(value)


def _object_reader(made: Callable[[], Mapping[str, tuple[str, Read]]]) -> Read:
    fields: Mapping[str, tuple[str, Read]] | None = None

    def read(value: Any, unfit: Unfit) -> Any:
        nonlocal fields
        if not isinstance(value, dict):
            raise _Mismatch("a message is a JSON object")
        if fields is None:
            fields = made()
        known: dict[str, Any] = {}
        for name, inner in value.items():
            field = fields.get(name)
            if field is None:
                if name.startswith("["):  # an extension
                    known[name] = inner
            elif inner is None:  # unset, except that a Value is null
                known[name] = None
            else:
                _read_member(known, name, field[0], inner, field[1], unfit)
        return known

    return read


def _read_member(known: dict[str, Any], name: str, field: str, value: Any, read: Read, unfit: Unfit) -> None:
    below: Unfit = {}
    try:
        known[name] = read(value, below)
        if below:
            unfit[field] = below
    except _Mismatch as mismatch:
        unfit[field] = UnfitValue(str(mismatch))


def _map_reader(key: Form, item: Item) -> Read:
    def read(value: Any, unfit: Unfit) -> Any:
        if not isinstance(value, dict):
            raise _Mismatch("a map is a JSON object")
        return {name: item(each, unfit, (key(name),)) for name, each in value.items()}

    return read


def _list_reader(item: Item) -> Read:
    def read(value: Any, unfit: Unfit) -> Any:
        if not isinstance(value, list):
            raise _Mismatch("a repeated field is a JSON array")
        return [item(each, unfit, (at,)) for at, each in enumerate(value)]

    return read


def _item_reader(field: FieldDescriptor, read: Read) -> Item:
    placeholder = _placeholder_for(field)
    takes_null = field.message_type is not None and field.message_type.full_name == f"{PACKAGE}Value"

    def item(value: Any, unfit: Unfit, place: tuple[Any]) -> Any:
        below: Unfit = {}
        try:
            if value is None and not takes_null:
                raise _Mismatch("null is not allowed as a list item or map value")
            known = read(value, below)
        except _Mismatch as mismatch:
            unfit[place] = UnfitValue(str(mismatch))
            return placeholder
        if below:
            unfit[place] = below
        return known

    return item


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


def _well_known_form(kind: Descriptor) -> Form | None:
    """Return the check of a well-known type with a special JSON form; None for other messages."""
    if not kind.full_name.startswith(PACKAGE):
        return None
    name = kind.full_name.removeprefix(PACKAGE)
    return _scalar_form(kind.fields_by_name["value"]) if name in _WRAPPERS else _FORMS.get(name)


def _placeholder_for(field: FieldDescriptor) -> Any:
    kind = field.message_type
    if kind is not None and kind.full_name.startswith(PACKAGE):
        name = kind.full_name.removeprefix(PACKAGE)
        return _placeholder_for(kind.fields_by_name["value"]) if name in _WRAPPERS else _EMPTY.get(name, {})
    if kind is not None:
        return {}
    if field.enum_type is not None:
        return field.enum_type.values[0].number
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return ""
    return False if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL else 0


def _key_form(field: FieldDescriptor) -> Form:
    """Return the converter of member names to map keys."""
    if field.cpp_type != FieldDescriptor.CPPTYPE_BOOL:
        return _scalar_form(field)

    def convert(name: str) -> bool:
        if name not in ("true", "false"):
            raise _Mismatch(f"{_describe_value(name)} is not a boolean")
        return name == "true"

    return convert


def _scalar_form(field: FieldDescriptor) -> Form:
    if field.enum_type is not None:
        return _enum_form(field.enum_type)
    if field.cpp_type in _RANGES:
        return _integer_form(*_RANGES[field.cpp_type])
    if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
        return _float_form("double", math.inf)
    if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
        return _float_form("float", _MAX_FLOAT)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return _instance_form(bool, "boolean")
    return _normalize_base64 if field.type == FieldDescriptor.TYPE_BYTES else _check_text


def _integer_form(name: str, low: int, end: int) -> Form:
    def convert(value: Any) -> int:
        number: int | float | Decimal | None = value if type(value) in (int, float) else None
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            number = Decimal(value)
        if number is None:
            raise _Mismatch(f"{_describe_value(value)} is not a valid {name}")
        if not low <= number < end:  # checked before converting thousands of digits
            raise _Mismatch(f"{_describe_value(value)} is out of the range of {name}")
        if int(number) != number:
            raise _Mismatch(f"{_describe_value(value)} is not a valid {name}")
        return int(number)

    return convert


def _float_form(name: str, limit: float) -> Form:
    def convert(value: Any) -> float | str:
        if isinstance(value, str) and value in _FLOATS:
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

    return convert


def _check_text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Mismatch(f"{_describe_value(value)} is not a string")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise _Mismatch("the string has half of a surrogate pair") from None
    return value


def _normalize_base64(value: Any) -> str:
    """Return base64 in the standard alphabet with padding; accepts both alphabets, with or without padding."""
    parts = _BASE64.fullmatch(value) if isinstance(value, str) else None
    if parts is None or len(parts[1]) % 4 == 1 or (parts[2] and len(value) % 4):
        raise _Mismatch(f"{_describe_value(value)} is not base64")
    padded: str = parts[1] + "=" * (-len(parts[1]) % 4)
    return base64.b64encode(base64.b64decode(padded, altchars=b"-_" if set(padded) & {"-", "_"} else None)).decode()


def _enum_form(kind: Any) -> Form:
    names = {value.name: value.number for value in kind.values}
    numbers = frozenset(names.values()) if kind.is_closed else None
    integer = _integer_form("", -(2**31), 2**31)

    def convert(value: Any) -> int:
        if isinstance(value, str) and value in names:
            return int(names[value])
        try:
            number: int = integer(value)
        except _Mismatch:
            raise _Mismatch(f"{_describe_value(value)} is not a value of {kind.name}") from None
        if numbers is not None and number not in numbers:
            raise _Mismatch(f"{number} is not a value of {kind.name}")
        return number

    return convert


def _check_timestamp(value: Any) -> str:
    if not isinstance(value, str) or not _TIMESTAMP.fullmatch(value):
        raise _Mismatch(f"{_describe_value(value)} is not a Timestamp")
    try:
        day = date.fromisoformat(value[:10])
        if day.year in (1, 9999):  # an offset may leave the range of years
            timestamp_pb2.Timestamp().FromJsonString(value)
    except (ValueError, OverflowError):
        raise _Mismatch(f"{_describe_value(value)} is not a Timestamp") from None
    return value


def _check_duration(value: Any) -> str:
    if not isinstance(value, str) or not _DURATION.fullmatch(value) or abs(Decimal(value[:-1])) > _MAX_SECONDS:
        raise _Mismatch(f"{_describe_value(value)} is not a Duration")
    return value


def _check_field_mask(value: Any) -> str:
    try:
        field_mask_pb2.FieldMask().FromJsonString(_check_text(value))
    except (ValueError, _Mismatch):
        raise _Mismatch(f"{_describe_value(value)} is not a FieldMask") from None
    return str(value)


def _instance_form(kind: type[Any], name: str) -> Form:
    def convert(value: Any) -> Any:
        if not isinstance(value, kind):
            raise _Mismatch(f"{_describe_value(value)} is not a valid {name}")
        return value

    return convert


_FORMS: Final[Mapping[str, Form]] = {
    "Any": _instance_form(dict, "Any: it must be an object"),
    "Duration": _check_duration,
    "FieldMask": _check_field_mask,
    "ListValue": _instance_form(list, "ListValue: it must be an array"),
    "Struct": _instance_form(dict, "Struct: it must be an object"),
    "Timestamp": _check_timestamp,
    "Value": lambda value: value,
}


def _describe_value(value: Any) -> str:
    text = json.dumps(value) if not isinstance(value, int) or value.bit_length() < 200 else "a number of many digits"
    return text if len(text) <= 60 else f"{text[:59]}…"
