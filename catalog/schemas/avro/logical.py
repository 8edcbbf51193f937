"""Values of Avro's logical types: from the numbers, bytes and texts that stand for them to those of Python.

Dates are ``date``, instants ``datetime`` in UTC, local timestamps ``datetime`` without zone, both to the microsecond;
times of day are ISO 8601 text, decimals ``Decimal``, UUIDs text. Any other logical type is the value underneath.
What no calendar, day or precision has is an :class:`~catalog.schemas.bodies.UnfitValue`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any, Final

from catalog.schemas.avro.values import MAX_PRECISION, decimal_bound, logical_type, too_many_digits
from catalog.schemas.bodies import UnfitValue

_DAY: Final = date(1970, 1, 1).toordinal()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH: Final = datetime(1970, 1, 1)  # no zone: that is what a local timestamp is
_EXACT: Final = Context(prec=2 * MAX_PRECISION)
_MICROSECONDS: Final[Mapping[str, Callable[[int], int]]] = {
    "millis": lambda number: number * 1000,
    "micros": lambda number: number,
    "nanos": lambda number: number // 1000,
}


def number_form(schema: Any) -> Callable[[int], Any] | None:
    """Return what an int or long in the range of a type stands for; None when it is the number itself."""
    logical = logical_type(schema)
    if logical == "int-date":
        return _day
    if logical in ("int-time-millis", "long-time-micros"):
        return _time_of_day(_MICROSECONDS[logical.rpartition("-")[2]])
    base, _, unit = logical.rpartition("-")
    if unit in _MICROSECONDS and base in ("long-timestamp", "long-local-timestamp"):
        return _instant(_EPOCH if base == "long-timestamp" else _LOCAL_EPOCH, _MICROSECONDS[unit])
    return None


def bytes_form(schema: Any) -> Callable[[bytes], Any] | None:
    """Return what bytes or fixed of a type stand for; None when it is the bytes."""
    scale = decimal_scale(schema)
    if scale is not None:
        return _decimal(scale, decimal_bound(schema))
    if is_fixed_uuid(schema):
        return lambda data: str(uuid.UUID(bytes=data))
    return None


def text_form(logical: str, text: str) -> date | datetime:
    """Return the date or instant that an ISO 8601 text writes; an instant without offset is one of UTC, as Avro's are.

    Raises:
        ValueError: it writes none.
    """
    if logical == "int-date":
        return date.fromisoformat(text)
    instant = datetime.fromisoformat(text)
    if "local" in logical:
        return instant.replace(tzinfo=None)
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def decimal_scale(schema: Any) -> int | None:
    """Return the scale of a decimal, None when the type is none, or one of too many digits."""
    return schema.get("scale", 0) if decimal_bound(schema) else None


def is_fixed_uuid(schema: Any) -> bool:
    """Tell whether a type is the UUID of sixteen bytes that Avro 1.12 has."""
    return logical_type(schema) == "fixed-uuid"


def _day(number: int) -> date | UnfitValue:
    try:
        return date.fromordinal(number + _DAY)
    except (ValueError, OverflowError):
        return UnfitValue(f"the day {number} lies outside of the years 1 to 9999", number)


def _instant(epoch: datetime, microseconds: Callable[[int], int]) -> Callable[[int], datetime | UnfitValue]:
    def form(number: int) -> datetime | UnfitValue:
        try:
            return epoch + timedelta(microseconds=microseconds(number))
        except OverflowError:
            return UnfitValue(f"the instant {number} lies outside of the years 1 to 9999", number)

    return form


def _decimal(scale: int, bound: int) -> Callable[[bytes], Decimal | UnfitValue]:
    def form(data: bytes) -> Decimal | UnfitValue:
        number = int.from_bytes(data, "big", signed=True)
        if not -bound < number < bound:
            return UnfitValue(too_many_digits(bound))
        return Decimal(number).scaleb(-scale, _EXACT)

    return form


def _time_of_day(microseconds: Callable[[int], int]) -> Callable[[int], str | UnfitValue]:
    def form(number: int) -> str | UnfitValue:
        seconds, rest = divmod(microseconds(number), 1_000_000)
        if not 0 <= seconds < 86_400:
            return UnfitValue(f"{number} is no time of a day", number)
        return time(seconds // 3600, seconds // 60 % 60, seconds % 60, rest).isoformat()

    return form
