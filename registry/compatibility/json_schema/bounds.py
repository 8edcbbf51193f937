"""Bounds of sizes and of numbers: whether those of the smaller schemas are within those of the larger one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final

from registry.compatibility.json_schema.reading import Schema, bound
from registry.compatibility.json_schema.values import Listed

LEAST: Final = {"minLength": "string", "minItems": "array", "minProperties": "object"}
MOST: Final = {"maxLength": "string", "maxItems": "array", "maxProperties": "object"}
"""Keywords by the type that they are for."""


def sizes(name: str, argument: Any, smaller: list[Schema]) -> str:
    """Return why values may have other sizes than *name* allows, '' when none has."""
    ours = bound(smaller, name, lowest=name in MOST)
    if name == "minProperties" and ours is None:
        ours = float(
            max((len(each["required"]) for each in smaller if isinstance(each.get("required"), list)), default=0)
        )
    if name in LEAST:
        return "" if argument <= (ours or 0) else "there may be less"
    return "" if ours is not None and ours <= argument else "there may be more"


def least(argument: Any, smaller: list[Schema], *, strict: bool, sign: int) -> str:
    """Compare lower bounds, or upper ones with the *sign* turned."""
    plain, exclusive = ("minimum", "exclusiveMinimum") if sign > 0 else ("maximum", "exclusiveMaximum")
    for each in smaller:
        flag = each.get(exclusive) is True
        given = [
            (each.get(plain), flag),
            (None if isinstance(each.get(exclusive), bool) else each.get(exclusive), True),
        ]
        for value, excluded in given:
            if isinstance(value, int | float) and not isinstance(value, bool):
                above = sign * (value - argument)
                if above > 0 or (above == 0 and (excluded or not strict)):
                    return ""
    return "numbers beyond are possible"


def _bounded(name: str) -> Callable[[Any, list[Schema], frozenset[str], Listed | None], str]:
    sign = 1 if name.lower().endswith("minimum") else -1
    strict = name.startswith("exclusive")

    def check(argument: Any, smaller: list[Schema], types: frozenset[str], values: Listed | None) -> str:
        numbers = [
            each for each in (values or {}).values() if isinstance(each, int | float) and not isinstance(each, bool)
        ]
        if values is not None:
            beyond = [each for each in numbers if sign * (each - argument) < 0 or (strict and each == argument)]
            if not beyond:
                return ""
            return f"{beyond[0]} is possible" if least(argument, smaller, strict=strict, sign=sign) else ""
        return least(argument, smaller, strict=strict, sign=sign)

    return check


def _multiple(argument: Any, smaller: list[Schema], types: frozenset[str], values: Listed | None) -> str:
    steps = [each["multipleOf"] for each in smaller if isinstance(each.get("multipleOf"), int | float)]
    steps += [1] if "fraction" not in types else []
    wanted = Fraction(str(argument))
    fits = wanted > 0 and any((Fraction(str(each)) / wanted).denominator == 1 for each in steps)
    return "" if fits else "numbers between are possible"


NUMERIC: Final[Mapping[str, Callable[[Any, list[Schema], frozenset[str], Listed | None], str]]] = {
    **{name: _bounded(name) for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")},
    "multipleOf": _multiple,
}
"""What holds bounds of numbers against one another, by keyword."""
