"""JSON schemas taken apart: references followed, conjunctions laid out, types and bounds.

A value that a schema allows is allowed by each of its *conjuncts*: plain schemas without ``$ref`` and ``allOf``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final
from urllib.parse import unquote

from catalog.parsing.pointers import at_pointer
from catalog.schemas.jsonschema.validating import draft_of
from registry.compatibility.schemas import Budget, Undecided

Schema = Mapping[str, Any]
NEVER: Final[Schema] = {"not": {}}
"""The schema that allows nothing, which ``false`` is."""
MAX_STEPS: Final = 20_000
"""Looks into subschemas, past which nothing is decided."""
ALL_TYPES: Final = frozenset(("null", "boolean", "integer", "fraction", "string", "array", "object"))
NUMBERS: Final = frozenset(("integer", "fraction"))
_HIDES_SIBLINGS: Final = ("04", "06", "07")
_DRAFTS: Final = ("04", "06", "07", "2019-09", "2020-12")
_SINCE: Final = {
    **dict.fromkeys(("const", "contains", "propertyNames"), "06"),
    **dict.fromkeys(("if", "then", "else"), "07"),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "minContains", "maxContains"), "2019-09"),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), "2019-09"),
    "prefixItems": "2020-12",
}
"""Keywords that mean nothing in drafts before these."""
_UNFOLLOWED: Final = ("$dynamicRef", "$recursiveRef")


@dataclass(slots=True)
class Root:
    """One whole schema, in which references lead; ``version`` is what its format says, such as ``draft-07``."""

    document: Any
    version: str
    _draft: str = field(init=False)
    _steps: int = 0

    def __post_init__(self) -> None:
        self._draft = draft_of(self.document, self.version)

    def conjuncts(self, schema: Any) -> list[Schema]:
        """Return what all holds for the values of a schema.

        Raises:
            Undecided: a reference leads elsewhere, or to itself, or there is too much of it.
        """
        schemas: list[Schema] = []
        waiting = [schema]
        while waiting:
            self._steps += 1
            if self._steps > MAX_STEPS or len(waiting) > MAX_STEPS:
                raise Undecided("the schema refers to itself, or to too much")
            each = waiting.pop()
            if each is False:
                return [NEVER]
            if not isinstance(each, Mapping):
                continue
            if any(name in each for name in _UNFOLLOWED):
                raise Undecided("references that are dynamic are not followed")
            if each is not self.document and any(isinstance(each.get(name), str) for name in ("$id", "id")):
                raise Undecided("schemas with addresses of their own within another are not followed")
            if isinstance(each.get("$ref"), str):
                waiting.append(self._target(each["$ref"]))
                if self._draft in _HIDES_SIBLINGS:
                    continue
            if isinstance(each.get("allOf"), list):
                waiting.extend(each["allOf"])
            schemas.append({name: value for name, value in each.items() if self._counts(name)})
        return schemas

    def _counts(self, name: str) -> bool:
        since = _SINCE.get(name, _DRAFTS[0])
        return name not in ("$ref", "allOf") and _DRAFTS.index(since) <= _DRAFTS.index(self._draft)

    def _target(self, reference: str) -> Any:
        if not reference.startswith("#") or (reference[1:] and reference[1] != "/"):
            raise Undecided(f"the reference {reference} is not followed")
        try:
            return at_pointer(self.document, unquote(reference[1:]))
        except (LookupError, ValueError):
            raise Undecided(f"the reference {reference} leads nowhere") from None


def expanded(kind: Any) -> frozenset[str]:
    """Return what ``type`` allows."""
    names = kind if isinstance(kind, list) else [kind]
    return frozenset(part for name in names for part in (NUMBERS if name == "number" else (str(name),)))


def bound(conjuncts: Sequence[Schema], name: str, *, lowest: bool = False) -> float | None:
    """Return the strictest of a bound that is a number, None without one."""
    given = [each[name] for each in conjuncts if isinstance(each.get(name), int | float)]
    given = [each for each in given if not isinstance(each, bool)]
    return None if not given else min(given) if lowest else max(given)


def items_of(schema: Schema) -> tuple[Sequence[Any], Any]:
    """Return the schemas of the first items, and that of all others."""
    if isinstance(schema.get("prefixItems"), list):
        return schema["prefixItems"], schema.get("items", True)
    items = schema.get("items", True)
    return (items, schema.get("additionalItems", True)) if isinstance(items, list) else ((), items)


def mapping(schema: Schema, name: str) -> Mapping[str, Any]:
    """Return a map of subschemas, empty without one."""
    members = schema.get(name)
    return members if isinstance(members, Mapping) else {}


# The values that schemas list, compared as JSON compares: ``true`` is no number, and 1.0 is 1.
#
# Authors of schemas decide how many values there are to compare. So every comparison is counted, and the work ends in
# time.

_MOST_LEVELS: Final = 64
_REFERENCES: Final = frozenset(("$ref", "$dynamicRef", "$recursiveRef"))

Listed = Mapping[Hashable, Any]
"""Values by their keys: equal values have equal keys."""


class Values:
    """Compares values for one proof. All methods raise Undecided when there is too much to compare."""

    def __init__(self, budget: Budget) -> None:
        self.spend: Final = budget.spend
        self._enums: dict[int, tuple[list[Any], Listed]] = {}

    def key(self, value: Any, level: int = 0) -> Hashable:
        """Return what equal values have in common."""
        self.spend(1)
        if level > _MOST_LEVELS:
            raise Undecided("the values nest too deeply")
        if isinstance(value, list):
            return "array", tuple(self.key(each, level + 1) for each in value)
        if isinstance(value, Mapping):
            return "object", frozenset((name, self.key(each, level + 1)) for name, each in value.items())
        if isinstance(value, int | float) and not isinstance(value, bool):
            return "number", _digits(value)
        hashable: Hashable = value
        return hashable

    def same(self, one: Any, other: Any) -> bool:
        """Tell whether two values are equal."""
        return self.key(one) == self.key(other)

    def of_enum(self, enum: list[Any]) -> Listed:
        """Return the values of a list, the first of equal ones; their keys are made once for each list."""
        if id(enum) not in self._enums:
            listed: dict[Hashable, Any] = {}
            for each in enum:
                listed.setdefault(self.key(each), each)
            self._enums[id(enum)] = enum, listed  # with the list itself, so that its id stays its own
        return self._enums[id(enum)][1]

    def possible(self, conjuncts: Sequence[Schema]) -> Listed | None:
        """Return all values that are possible where they are listed, None where they are not."""
        lists: list[Listed] = []
        for each in conjuncts:
            if "const" in each:
                lists.append({self.key(each["const"]): each["const"]})
            elif isinstance(each.get("enum"), list):
                lists.append(self.of_enum(each["enum"]))
        self.spend(len(conjuncts))
        if not lists:
            return None
        first, *others = lists
        self.spend(len(first) * len(lists))
        return {key: value for key, value in first.items() if all(key in other for other in others)}

    def types(self, conjuncts: Sequence[Schema]) -> frozenset[str]:
        """Return the types that values may have; numbers are ``integer`` or ``fraction``."""
        types = ALL_TYPES
        for each in conjuncts:
            if each is NEVER:
                return frozenset()
            if "type" in each:
                self.spend(len(each["type"]) if isinstance(each["type"], list) else 1)
                types &= expanded(each["type"])
        listed = self.possible(conjuncts)
        return types if listed is None else types & frozenset(kind for each in listed.values() for kind in _kinds(each))

    def refers(self, schema: Any) -> bool:
        """Tell whether there may be a reference anywhere in a schema."""
        waiting = [schema]
        while waiting:
            self.spend(1)
            each = waiting.pop()
            if isinstance(each, list):
                waiting.extend(each)
            elif isinstance(each, Mapping):
                if not _REFERENCES.isdisjoint(each):
                    return True
                waiting.extend(each.values())
        return False


def _digits(number: float) -> str:
    """Return a text for a number: authors of schemas can choose the hash of a number, but not of a text."""
    if isinstance(number, float) and not number.is_integer():
        return number.hex()
    return f"{int(number):x}"


def _kinds(value: Any) -> Iterator[str]:
    if value is None or isinstance(value, bool):
        yield "null" if value is None else "boolean"
    elif isinstance(value, int | float):
        yield "integer" if isinstance(value, int) or (math.isfinite(value) and value.is_integer()) else "fraction"
        if isinstance(value, float):
            yield "fraction"  # which 1.0 is for draft-04
    else:
        yield "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


# Bounds of sizes and of numbers: whether those of the smaller schemas are within those of the larger one.

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
