"""What Avro types bind values to, in whichever encoding they come: ranges, logical types, and where in a body.

Bytes are not read with fastavro's reader: it takes what the specification forbids (a union branch -1, a boolean 7, an
int of 48 bits), builds each value in memory, ends the process on deep recursion, loops 2^60 times over an array of
nulls, and does not say where a fault is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final

MAX_LEVELS: Final = 100
"""Records within records up to which a body is read; Protobuf has the same limit."""
MAX_PRECISION: Final = 10_000
"""Digits of a decimal up to which its declared precision is held to."""
_RANGES: Final[dict[str, tuple[int, int]]] = {
    "int": (-(2**31), 2**31),
    "long": (-(2**63), 2**63),
    "int-time-millis": (0, 86_400_000),
    "long-time-micros": (0, 86_400_000_000),
}
_UNDERNEATH: Final[Mapping[str, tuple[str, ...]]] = {
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    **{
        f"{kind}-{unit}": ("long",)
        for kind in ("timestamp", "local-timestamp")
        for unit in ("millis", "micros", "nanos")
    },
    "uuid": ("string", "fixed"),
    "decimal": ("bytes", "fixed"),
    "big-decimal": ("bytes",),
    "duration": ("fixed",),
}
"""The logical types of Avro 1.12, and the types that each may annotate."""
_SIZES: Final[Mapping[str, int]] = {"uuid": 16, "duration": 12}
"""Bytes of the fixed types that may have these logical types."""


class Misfit(Exception):
    """A value that is not of its type. ``steps`` lead to it, the innermost first.

    ``others`` are further values of the same body that are not of theirs, as far as they were looked at.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.steps: list[str] = []
        self.others: list[Misfit] = []

    def within(self, step: str) -> Misfit:
        """Add a step outwards, to this and to the others; return this."""
        for each in (self, *self.others):
            each.steps.append(step)
        return self

    def with_another(self, other: Misfit) -> Misfit:
        """Add another of the same body, with all of its own; return this."""
        self.others += (other, *other.others)
        other.others = []
        return self

    def path(self) -> str:
        """Return the dotted field path: ``readings[3].value``."""
        return "".join(reversed(self.steps)).removeprefix(".")

    def copy(self) -> Misfit:
        """Return one that goes its own way from here."""
        twin = Misfit(self.message)
        twin.steps = list(self.steps)
        return twin


def logical_type(schema: Any) -> str:
    """Return the logical type with the type that it annotates, ``int-date``; the type alone when there is none."""
    if not isinstance(schema, dict):
        return str(schema)
    logical = schema.get("logicalType")
    return f"{schema['type']}-{logical}" if isinstance(logical, str) else str(schema["type"])


def branch_labels(branches: Sequence[Any]) -> list[str | None]:
    """Return what each branch of a union is called in its values; None for those whose values stand bare."""
    labels = [branch if isinstance(branch, str) else str(branch.get("name", branch["type"])) for branch in branches]
    others = [label for label in labels if label != "null"]
    return [label if len(others) > 1 and label != "null" else None for label in labels]


def invalid_logical_type(schema: Mapping[str, Any]) -> str:
    """Return why the logical type of a type is invalid by the specification; empty when it is valid, unknown or absent.

    An invalid one is ignored: the type underneath counts.
    """
    logical, kind = schema.get("logicalType"), schema["type"]
    if logical is None or (isinstance(logical, str) and logical not in _UNDERNEATH):
        return ""
    if not isinstance(logical, str):
        return "logicalType is no text"
    if kind not in _UNDERNEATH[logical]:
        return f"{logical} annotates {' or '.join(_UNDERNEATH[logical])}, and not {kind}"
    size = schema.get("size")
    if logical == "decimal":
        return _invalid_decimal(schema.get("precision"), schema.get("scale", 0), size if kind == "fixed" else None)
    if kind == "fixed" and size != _SIZES[logical]:
        return f"{logical} has {_SIZES[logical]} bytes"
    return ""


def _invalid_decimal(precision: Any, scale: Any, size: Any) -> str:
    if type(precision) is not int or precision < 1:
        return "the precision of a decimal is a number from 1 on"
    if type(scale) is not int or not 0 <= scale <= precision:
        return "the scale of a decimal is a number from 0 up to its precision"
    if type(size) is int and precision > math.floor(math.log10(2) * max(0, 8 * size - 1)):
        return f"{size} bytes do not hold a decimal of that precision"
    return ""


def number_range(schema: Any, kind: str) -> tuple[int, int]:
    """Return first and past-last value of an int or long.

    Every int is a date and every long a timestamp, whatever calendars have; a time of day ends with the day.
    """
    return _RANGES.get(logical_type(schema), _RANGES[kind])


def decimal_bound(schema: Any) -> int:
    """Return what the absolute unscaled value of a decimal stays under; 0 for no decimal, or too many digits."""
    is_decimal = logical_type(schema) in ("bytes-decimal", "fixed-decimal")
    return 10 ** schema["precision"] if is_decimal and schema["precision"] <= MAX_PRECISION else 0


def check_decimal(data: bytes, bound: int) -> None:
    """Refuse a decimal with more digits than its precision.

    Raises:
        Misfit: it has more.
    """
    if not -bound < int.from_bytes(data, "big", signed=True) < bound:
        raise Misfit(too_many_digits(bound))


def too_many_digits(bound: int) -> str:
    """Return what is said of a decimal past a power of ten, whose text may have more digits than Python writes out."""
    return f"the decimal has more than {round((bound.bit_length() - 1) * math.log10(2))} digits"


def is_instant(text: str, logical: str) -> bool:
    """Tell whether a text is a date or an instant by ISO 8601, as plain JSON writes an int or long of such a type."""
    try:
        if logical == "int-date":
            date.fromisoformat(text)
        else:
            datetime.fromisoformat(text)
    except ValueError:
        return False
    return logical == "int-date" or "timestamp" in logical
