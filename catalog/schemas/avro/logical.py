"""Values of Avro's logical types: from the numbers, bytes and texts that stand for them to those of Python.

Dates are ``date``, instants ``datetime`` in UTC, local timestamps ``datetime`` without zone, both to the microsecond;
times of day are ISO 8601 text, decimals ``Decimal``, UUIDs text. Any other logical type is the value underneath.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any, Final

from catalog.schemas.avro.values import MAX_PRECISION, decimal_bound, logical_type

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
        return lambda number: date.fromordinal(number + _DAY)
    if logical in ("int-time-millis", "long-time-micros"):
        return _time_of_day(_MICROSECONDS[logical.rpartition("-")[2]])
    base, _, unit = logical.rpartition("-")
    if unit in _MICROSECONDS and base in ("long-timestamp", "long-local-timestamp"):
        epoch, microseconds = _EPOCH if base == "long-timestamp" else _LOCAL_EPOCH, _MICROSECONDS[unit]
        return lambda number: epoch + timedelta(microseconds=microseconds(number))
    return None


def bytes_form(schema: Any) -> Callable[[bytes], Any] | None:
    """Return what bytes or fixed of a type stand for; None when it is the bytes."""
    scale = decimal_scale(schema)
    if scale is not None:
        return lambda data: Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-scale, _EXACT)
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
    """Return the scale of a decimal, None when the type is no (usable) one."""
    if not decimal_bound(schema):
        return None
    scale = schema.get("scale", 0)
    return scale if type(scale) is int and 0 <= scale <= schema["precision"] else None


def is_fixed_uuid(schema: Any) -> bool:
    """Tell whether a type is the UUID of sixteen bytes that Avro 1.12 has."""
    return logical_type(schema) == "fixed-uuid" and schema["size"] == 16


def _time_of_day(microseconds: Callable[[int], int]) -> Callable[[int], str]:
    def form(number: int) -> str:
        seconds, rest = divmod(microseconds(number), 1_000_000)
        return time(seconds // 3600, seconds // 60 % 60, seconds % 60, rest).isoformat()

    return form
