"""Numbers within the bounds that both JSON families spell in the same way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from catalog.schemas.filling.filling import Filling, Unfillable


def number_between(
    schema: Mapping[str, Any], filling: Filling, *, whole: bool, low: int | None = None, high: int | None = None
) -> int | float:
    """Return a number for ``minimum``, ``exclusiveMinimum``, ``multipleOf`` and their like.

    ``exclusiveMinimum`` may be a number or the flag of draft-04. *low* and *high* are the bounds of the type itself.

    Raises:
        Unfillable: no number is between the bounds.
    """
    least, above = _bound(schema, "minimum", "exclusiveMinimum")
    most, below = _bound(schema, "maximum", "exclusiveMaximum")
    least = max((each for each in (least, _decimal(low)) if each is not None), default=None)
    most = min((each for each in (most, _decimal(high)) if each is not None), default=None)
    step = _decimal(schema.get("multipleOf"))
    if step is not None and step > 0:
        return _multiple(step, _span(least, most, step), filling, whole=whole, edges=(above, below))
    if whole:
        first = None if least is None else math.ceil(least) + (1 if above and least == math.ceil(least) else 0)
        last = None if most is None else math.floor(most) - (1 if below and most == math.floor(most) else 0)
        if first is not None and last is not None and first > last:
            raise Unfillable("no integer is between the bounds")
        return filling.integer(*_near(first, last, low, high))
    if least is not None and most is not None and (least > most or (least == most and (above or below))):
        raise Unfillable("no number is between the bounds")
    if least is not None and least == most:
        return float(least)
    return float(filling.decimal(least, most))


def _near(first: int | None, last: int | None, low: int | None, high: int | None) -> tuple[int | None, int | None]:
    """Forget the bounds that are only the type's: a count of something is seldom near the end of its range."""
    bounds = (None if first == low else first, None if last == high else last)
    if bounds == (None, None):
        return (0 if low is None or low <= 0 else low), (min(high, 1000) if high is not None else None)
    if bounds[0] is None and bounds[1] is not None and low is not None and bounds[1] - 100 < low:
        return low, bounds[1]
    if bounds[1] is None and bounds[0] is not None and high is not None and bounds[0] + 100 > high:
        return bounds[0], high
    return bounds


def _bound(schema: Mapping[str, Any], plain: str, exclusive: str) -> tuple[Decimal | None, bool]:
    """Return a bound, and whether it is itself left out."""
    bound, edge = _decimal(schema.get(plain)), schema.get(exclusive)
    if isinstance(edge, bool):
        return bound, edge and bound is not None
    other = _decimal(edge)
    if other is None or bound is None:
        return (other, True) if other is not None else (bound, False)
    tighter = other >= bound if plain == "minimum" else other <= bound
    return (other, True) if tighter else (bound, False)


def _span(least: Decimal | None, most: Decimal | None, step: Decimal) -> tuple[Decimal, Decimal]:
    if least is None and most is None:
        return Decimal(0), 100 * step
    if least is None and most is not None:
        return (Decimal(0) if most >= 0 else most - 100 * step), most
    assert least is not None
    return least, most if most is not None else least + 100 * step


def _multiple(
    step: Decimal, span: tuple[Decimal, Decimal], filling: Filling, *, whole: bool, edges: tuple[bool, bool]
) -> int | float:
    first, last = math.ceil(span[0] / step), math.floor(span[1] / step)
    first += 1 if edges[0] and first * step == span[0] else 0
    last -= 1 if edges[1] and last * step == span[1] else 0
    if first > last:
        raise Unfillable("no multiple is between the bounds")
    for _ in range(100):
        multiple = step * filling.random.randint(first, last)
        if not whole or multiple == multiple.to_integral_value():
            return int(multiple) if multiple == multiple.to_integral_value() else float(multiple)
    raise Unfillable("no integer multiple was found between the bounds")


def _decimal(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return None
    exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    return exact if exact.is_finite() else None
