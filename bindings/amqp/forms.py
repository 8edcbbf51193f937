"""How AMQP values look in a native record: as parts, and as JSON where they are made of others.

What JSON loses is written beside them, as ``native.types``: a path (``application-properties.count``, and below it with
slashes: ``application-properties.list/0``) and the name of the AMQP type. Left out is what the JSON form says by itself
(string, boolean, binary, a whole number that is a long, another that is a double) and the type that the specification
fixes for a field.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from bindings.amqp.values import Typed
from bindings.parts import BINARY_KIND, JSON_KIND, Part, Parts, json_of
from catalog.values import instant

TYPES: Final = "types"
"""The part that has the types."""
OBVIOUS: Final = frozenset(("string", "boolean", "binary", "long", "double"))
"""Types that the JSON form of a value shows by itself."""
_NUMBERS: Final = frozenset(("byte", "ubyte", "short", "ushort", "int", "uint", "long", "ulong", "timestamp"))
_RAW: Final = frozenset(("decimal32", "decimal64", "decimal128", "string", "symbol"))
"""Types whose values may come as bytes: decimals, and texts that are no UTF-8."""
_NOT_FINITE: Final = frozenset(("NaN", "Infinity", "-Infinity"))
_NANOSECONDS: Final = 1_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST: Final = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_LAST: Final = (datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


def part(key: str, typed: Typed, types: dict[str, str], usual: str | None = None) -> Part | None:
    """Return a value as a part, and add to *types* what its form does not show; ``null`` is no part.

    ``usual`` is the type that the specification gives to the field.
    """
    if typed.kind == (usual or "string") and isinstance(typed.value, str):  # most values of most messages
        return Part(key, typed.value.encode("utf-8"))
    form = json_form(typed, key, types, usual)
    if form is None:
        return None
    if isinstance(form, bytes):
        return Part(key, form, BINARY_KIND)
    if isinstance(form, str):
        return Part(key, form.encode("utf-8"))
    return Part(key, msgspec.json.encode(_encodable(form)), JSON_KIND)


def types_of(parts: Parts) -> dict[str, str]:
    """Return the AMQP types in the part ``types`` of a record, by path; empty without it, or if it is malformed."""
    encoded = next((part.value for part in parts if part.key == TYPES), None)
    try:
        return msgspec.json.decode(encoded, type=dict[str, str]) if encoded else {}
    except msgspec.DecodeError:
        return {}


def together(parts: Iterable[Part], more: Iterable[Part]) -> tuple[Part, ...]:
    """Return both, with the AMQP types of both in one part; where both have one, that of *parts* counts."""
    both = (tuple(parts), tuple(more))
    types = {**types_of(both[1]), **types_of(both[0])}
    plain = tuple(part for some in both for part in some if part.key != TYPES)
    return (*plain, Part(TYPES, msgspec.json.encode(types), JSON_KIND)) if types else plain


def typed_of(part: Part, types: Mapping[str, str]) -> Typed:
    """Return the value of a part, with its type in *types*: the inverse of :func:`part`.

    Lists, maps and arrays come as strings of their JSON text: no sender here makes one.
    """
    amqp_type = types.get(part.key)
    if part.kind == BINARY_KIND or part.text is None:
        return Typed(amqp_type if amqp_type in _RAW else "binary", part.value)
    if part.kind != JSON_KIND:
        return _typed_text(part.text, amqp_type)
    value = json_of(part.value or b"null")
    if isinstance(value, bool):
        return Typed("boolean", value)
    if isinstance(value, int):
        return Typed(amqp_type if amqp_type in _NUMBERS else "long", value)
    if isinstance(value, float):
        return Typed("float" if amqp_type == "float" else "double", value)
    return Typed("string", part.text)


def milliseconds(text: str) -> int | None:
    """Return the time that a text names, in milliseconds since 1970; None for a text that is no time."""
    at = instant(text)
    return None if at is None else at // _NANOSECONDS


def _typed_text(text: str, amqp_type: str | None) -> Typed:
    if amqp_type == "timestamp":
        at = milliseconds(text)
        return Typed("string", text) if at is None else Typed(amqp_type, at)
    if amqp_type == "char" and len(text) == 1:
        return Typed(amqp_type, ord(text))
    if amqp_type in ("float", "double") and text in _NOT_FINITE:
        return Typed(amqp_type, float(text))
    return Typed(amqp_type if amqp_type in ("symbol", "uuid") else "string", text)


def json_text(typed: Typed, path: str, types: dict[str, str]) -> bytes:
    """Return the JSON text of any value; bytes within it are ``{"base64": …}``."""
    return msgspec.json.encode(_encodable(json_form(typed, path, types)))


def name(typed: Typed) -> str:
    """Return the key of a map as the name of a member."""
    kind, value = typed
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return msgspec.json.encode(_encodable(json_form(typed, kind, {}))).decode("utf-8")


def json_form(typed: Typed, path: str, types: dict[str, str], usual: str | None = None) -> Any:
    """Return text, bytes, a number, a boolean, None, or lists and maps of those."""
    kind, value = typed
    if kind not in OBVIOUS if usual is None else kind != usual:
        types[path] = kind
    if kind == "string" or kind == "symbol":
        if isinstance(value, bytes):
            types[path] = kind
        return value
    if kind in _COMPOUND:
        return _COMPOUND[kind](value, path, types)
    if kind == "timestamp":
        return moment(value)
    if kind in ("float", "double") and not math.isfinite(value):
        types[path] = kind  # JSON has no such number
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    if kind == "char" and value <= 0x10FFFF and not 0xD800 <= value <= 0xDFFF:
        return chr(value)
    return value


def moment(milliseconds: int) -> str | int:
    """Return RFC 3339 text; a number outside its range is kept as it is."""
    if not _FIRST <= milliseconds <= _LAST:
        return milliseconds
    at = _EPOCH + timedelta(milliseconds=milliseconds)
    text = at.replace(tzinfo=None).isoformat(timespec="milliseconds" if milliseconds % 1000 else "seconds")
    return f"{text}Z"


def _list(items: list[Typed], path: str, types: dict[str, str]) -> list[Any]:
    return [json_form(item, f"{path}/{index}", types) for index, item in enumerate(items)]


def _array(items: list[Typed], path: str, types: dict[str, str]) -> list[Any]:
    inner: dict[str, str] = {}
    forms = _list(items, path, inner)
    kind = items[0].kind if items else ""
    types[path] = f"array of {kind}" if kind else "array"
    types.update((place, each) for place, each in inner.items() if each != kind)
    return forms


def _map(pairs: list[tuple[Typed, Typed]], path: str, types: dict[str, str]) -> dict[str, Any]:
    form: dict[str, Any] = {}
    for key, value in pairs:
        member = name(key)
        if member not in form:  # a repeated key is a fault of the sender; the first counts, as everywhere
            form[member] = json_form(value, f"{path}/{member}", types)
    return form


def _described(pair: tuple[Typed, Typed], path: str, types: dict[str, str]) -> dict[str, Any]:
    return {
        "descriptor": json_form(pair[0], f"{path}/descriptor", types),
        "value": json_form(pair[1], f"{path}/value", types),
    }


def _encodable(form: Any) -> Any:
    """Write bytes as the native form does; :func:`msgspec.json.encode` would make bare base64 of them."""
    if isinstance(form, bytes):
        return {"base64": base64.b64encode(form).decode("ascii")}
    if isinstance(form, list):
        return [_encodable(each) for each in form]
    if isinstance(form, dict):
        return {member: _encodable(each) for member, each in form.items()}
    return form


_COMPOUND: Final[Mapping[str, Callable[[Any, str, dict[str, str]], Any]]] = {
    "list": _list,
    "array": _array,
    "map": _map,
    "described": _described,
}
