"""What a definition declares, as an AMQP value of the type that it names (JUDGING.md#sending).

A field that the specification gives a type has that one. Elsewhere an AMQP type that the definition names counts, then
the CloudEvents AMQP binding's for the property's type: ``integer`` is an int (a long, or ulong, past 32 bits),
``number`` a double, what is no other a string.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from bindings.amqp.forms import milliseconds
from bindings.amqp.sections import HEADER_FIELDS, PROPERTY_FIELDS
from bindings.amqp.values import Typed
from catalog.model import Property
from catalog.values import INT32_MAX, INT32_MIN, INT64_MAX, binary_value, is_valid

FIELD_TYPES: Final[Mapping[str, str]] = {
    f"{section}.{name}": usual
    for section, fields in (("header", HEADER_FIELDS), ("properties", PROPERTY_FIELDS))
    for name, usual in fields
    if usual is not None
}
"""The types that the specification gives to fields."""
_IDENTIFIERS: Final = frozenset({"properties.message-id", "properties.correlation-id"})
_IDENTIFIER_TYPES: Final = frozenset({"ulong", "uuid", "binary", "string"})
_BY_TYPE: Final[Mapping[str, str]] = {
    "binary": "binary",
    "boolean": "boolean",
    "number": "double",
    "symbol": "symbol",
    "timestamp": "timestamp",
}
_DIGITS: Final = 40


def typed_value(prop: Property, text: str) -> Typed:
    """Return the value that *text* stands for; a string when it does not fit the type; the receiver will notice."""
    kind = _kind(prop, text)
    if prop.type == "binary" and kind in ("string", "symbol"):
        return _bytes_as_text(kind, binary_value(text))
    value = _READ.get(kind, str)(text)
    return Typed("string", text) if value is None else Typed(kind, value)


def _kind(prop: Property, text: str) -> str:
    usual = FIELD_TYPES.get(prop.name)
    if usual is not None:
        return usual
    kind = prop.wire or _by_type(prop, text)
    if prop.name in _IDENTIFIERS and kind not in _IDENTIFIER_TYPES:
        return "ulong" if prop.type == "integer" else "string"
    return kind


def _bytes_as_text(kind: str, data: bytes) -> Typed:
    try:
        return Typed(kind, data.decode("utf-8"))
    except UnicodeDecodeError:
        return Typed(kind, data)


def _by_type(prop: Property, text: str) -> str:
    if prop.type == "any" and isinstance(prop.value, (bool, int, float)):
        return {bool: "boolean", int: "long"}.get(type(prop.value), "double")
    if prop.type != "integer":
        return _BY_TYPE.get(prop.type, "string")
    number = _whole(text) or 0
    return "int" if INT32_MIN <= number <= INT32_MAX else "long" if number <= INT64_MAX else "ulong"


def _whole(text: str) -> int | None:
    return int(text) if len(text) <= _DIGITS and is_valid("integer", text) else None


def _fraction(text: str) -> float | None:
    return float(text) if is_valid("number", text) else None


def _truth(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text)


def _uuid(text: str) -> str | None:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return None


def _character(text: str) -> int | None:
    return ord(text) if len(text) == 1 else None


_READ: Final[Mapping[str, Callable[[str], Any]]] = {
    **dict.fromkeys(("byte", "short", "int", "long", "ubyte", "ushort", "uint", "ulong"), _whole),
    "float": _fraction,
    "double": _fraction,
    "boolean": _truth,
    "timestamp": milliseconds,
    "uuid": _uuid,
    "binary": binary_value,
    "char": _character,
}
