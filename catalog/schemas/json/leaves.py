"""JSON values of leaves: one decoder for each, native where msgspec has the type, else with a check of our own."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw

from catalog.schemas.columns.shapes import Leaf

_NUMBER: Final = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,4})?", re.ASCII)
_DIGITS: Final = re.compile(r"[-+]?0*\d{1,40}", re.ASCII)
_FLOAT_DIGITS: Final = 15
"""Digits that a double keeps of any decimal number."""
_EXACT: Final = 2**53
"""Up to here every whole double is one integer."""
Convert = Callable[[Any], Any]


class _AnyInstance(type):
    """Makes msgspec take what the hook returns: values of a checked type are plain integers, decimals and texts."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


class LeafTypes:
    """The msgspec types of leaves, and the hook that those need which msgspec does not know."""

    def __init__(self) -> None:
        self._types: dict[Leaf, Any] = {}
        self._converts: dict[type, Convert] = {}

    def type_of(self, leaf: Leaf) -> Any:
        """Return the type that decodes values of a leaf; null is none of it, but for :class:`msgspec.Raw`."""
        if leaf not in self._types:
            self._types[leaf] = self._build(leaf)
        return self._types[leaf]

    def hook(self, kind: type, value: Any) -> Any:
        """Convert a value of a type that :meth:`type_of` made up; raises ValueError for what is none."""
        return self._converts[kind](value)

    def decoder(self, leaf: Leaf) -> msgspec.json.Decoder[Any]:
        """Return a decoder of JSON texts that are one value of a leaf."""
        return msgspec.json.Decoder(self.type_of(leaf), dec_hook=self.hook)

    def _build(self, leaf: Leaf) -> Any:
        if leaf.kind == "integer":
            return Annotated[int, Meta(ge=leaf.low, le=leaf.high)]
        if leaf.kind in _NATIVE:
            return _NATIVE[leaf.kind]
        marker = _AnyInstance(leaf.kind, (), {})
        self._converts[marker] = _converter(leaf)
        return marker


_NATIVE: Final[dict[str, Any]] = {
    "text": str,
    "json": Raw,
    "boolean": bool,
    "number": float,
    "binary": bytes,
    "timestamp": Annotated[datetime, Meta(tz=True)],
    "date": date,
}


def whole(value: Any, leaf: Leaf) -> int:
    """Return the integer that a float of JSON (``1.0``, ``2e3``) is; raises ValueError when it is none of the leaf."""
    if type(value) is not float or not value.is_integer() or abs(value) > _EXACT:
        raise ValueError("it is no integer")
    return _within(int(value), leaf)


def _converter(leaf: Leaf) -> Convert:
    if leaf.kind == "written integer":
        return lambda value: _integer(value, leaf)
    if leaf.kind == "decimal":
        unit = Decimal((0, (1,), -leaf.type.scale))
        context = Context(prec=leaf.type.precision, traps=[Inexact, InvalidOperation])
        return lambda value: _fitted(_decimal(value), unit, context)
    if leaf.low is not None:
        return lambda value: str(_integer(value, leaf))
    return lambda value: value if isinstance(value, str) and _NUMBER.fullmatch(value) else str(_decimal(value))


def _integer(value: Any, leaf: Leaf) -> int:
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        return _within(int(value), leaf)
    if type(value) is int:
        return _within(value, leaf)
    raise ValueError("it is no integer, which is written as text")


def _within(value: int, leaf: Leaf) -> int:
    low, high = leaf.low, leaf.high
    if (low is not None and value < low) or (high is not None and value > high):
        raise ValueError(f"it is out of the range from {low} to {high}")
    return value


def _decimal(value: Any) -> Decimal:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return Decimal(value)
    if type(value) is int:
        return Decimal(value)
    if type(value) is float:
        number = Decimal(repr(value))
        if len(number.as_tuple().digits) <= _FLOAT_DIGITS:
            return number
        raise ValueError("a number of so many digits is exact as text only")
    raise ValueError("it is no decimal number, which is written as text")


def _fitted(value: Decimal, unit: Decimal, context: Context) -> Decimal:
    try:
        return value.quantize(unit, context=context)
    except DecimalException:
        places = -int(unit.as_tuple().exponent)
        raise ValueError(f"it has more than {context.prec} digits, or more than {places} after the point") from None
