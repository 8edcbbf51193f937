"""What Avro types bind values to, in whichever encoding they come: ranges, logical types, and where in a body.

Bytes are not read with fastavro's reader: it takes what the specification forbids (a union branch -1, a boolean 7, an
int of 48 bits), builds each value in memory, ends the process on deep recursion, loops 2^60 times over an array of
nulls, and does not say where a fault is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final

MAX_LEVELS: Final = 100
"""Records within records up to which a body is read; Protobuf has the same limit."""
MAX_PRECISION: Final = 10_000
"""Digits of a decimal up to which its declared precision is held to."""
_DAYS: Final = tuple(each.toordinal() - date(1970, 1, 1).toordinal() for each in (date.min, date.max))
_SECONDS: Final = (_DAYS[0] * 86_400, (_DAYS[1] + 1) * 86_400)
_RANGES: Final[dict[str, tuple[int, int]]] = {
    "int": (-(2**31), 2**31),
    "long": (-(2**63), 2**63),
    "int-date": (_DAYS[0], _DAYS[1] + 1),
    "int-time-millis": (0, 86_400_000),
    "long-time-micros": (0, 86_400_000_000),
    "long-timestamp-millis": (_SECONDS[0] * 1000, _SECONDS[1] * 1000),
    "long-timestamp-micros": (_SECONDS[0] * 1_000_000, _SECONDS[1] * 1_000_000),
    "long-local-timestamp-millis": (_SECONDS[0] * 1000, _SECONDS[1] * 1000),
    "long-local-timestamp-micros": (_SECONDS[0] * 1_000_000, _SECONDS[1] * 1_000_000),
}
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


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


def number_range(schema: Any, kind: str) -> tuple[int, int]:
    """Return first and past-last value of an int or long; a logical type that does not fit the type is ignored.

    Instants are held to the years 1 to 9999: what lies beyond is a unit that was mistaken, and no calendar has it.
    """
    return _RANGES.get(logical_type(schema), _RANGES[kind])


def decimal_bound(schema: Any) -> int:
    """Return what the absolute unscaled value of a decimal stays under; 0 when the type is no (usable) decimal."""
    precision = schema.get("precision") if isinstance(schema, Mapping) else None
    is_decimal = logical_type(schema) in ("bytes-decimal", "fixed-decimal")
    usable = is_decimal and type(precision) is int and 0 < precision <= MAX_PRECISION
    return 10**precision if usable and precision else 0


def check_decimal(data: bytes, bound: int) -> None:
    """Refuse a decimal with more digits than its precision.

    Raises:
        Misfit: it has more.
    """
    if not -bound < int.from_bytes(data, "big", signed=True) < bound:
        raise Misfit(f"the decimal has more than {_digits(bound)} digits")


def _digits(bound: int) -> int:
    """Return the exponent of a power of ten; its text may have more digits than Python writes out."""
    return round((bound.bit_length() - 1) * math.log10(2))


def check_uuid(text: str) -> None:
    """Refuse what is no UUID of RFC 4122.

    Raises:
        Misfit: it is none.
    """
    if not _UUID.fullmatch(text):
        raise Misfit(f"{text[:60]!r} is no UUID")


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
