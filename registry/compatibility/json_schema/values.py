"""The values that schemas list, compared as JSON compares: ``true`` is no number, and 1.0 is 1.

Authors of schemas decide how many values there are to compare. So every comparison is counted, and the work ends in
time.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Final

from registry.compatibility.json_schema.reading import ALL_TYPES, NEVER, Schema, expanded
from registry.compatibility.undecided import Budget, Undecided

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
