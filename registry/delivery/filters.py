"""Filters of subscriptions: the six dialects that every subscription manager has (CloudEvents Subscriptions, 3.2.4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

Filter = Callable[[Mapping[str, str]], bool]
"""Decides by the attributes of an event whether it is wanted."""
MAX_DEPTH: Final = 8
MAX_EXPRESSIONS: Final = 64
MAX_TEXT: Final = 1024
_COMPARISONS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "exact": str.__eq__,
    "prefix": str.startswith,
    "suffix": str.endswith,
}


class FilterError(ValueError):
    """A filter that is invalid; the message says why."""


def filter_of(given: Any) -> Filter:
    """Read an array of filters, all of which have to hold; one filter may stand for an array of one.

    Raises:
        FilterError: an unknown dialect, a value of another type, or more of anything than the limits allow.
    """
    reading = _Reading()
    return _every(reading.several("filters", given if isinstance(given, list) else [given], 0, least=0))


class _Reading:
    """Reads one array of filters, and counts what is in it."""

    def __init__(self) -> None:
        self._count = 0

    def several(self, name: str, given: Any, depth: int, *, least: int = 1) -> list[Filter]:
        if not isinstance(given, list) or len(given) < least:
            raise FilterError(f"{name} needs to be an array with a filter in it")
        return [self.one(each, depth + 1) for each in given]

    def one(self, given: Any, depth: int) -> Filter:
        self._count += 1
        if depth > MAX_DEPTH or self._count > MAX_EXPRESSIONS:
            raise FilterError(f"there are more than {MAX_EXPRESSIONS} filters, or they are nested too deep")
        if not isinstance(given, dict) or not given:
            raise FilterError("a filter needs to be an object with the name of a dialect")
        return _every([self._dialect(name, value, depth) for name, value in given.items()])

    def _dialect(self, name: str, value: Any, depth: int) -> Filter:
        if name in _COMPARISONS:
            return self._compared(name, value)
        if name == "all":
            return _every(self.several(name, value, depth))
        if name == "any":
            inner = self.several(name, value, depth)
            return lambda attributes: any(each(attributes) for each in inner)
        if name == "not":
            negated = self.one(value, depth + 1)
            return lambda attributes: not negated(attributes)
        known = ", ".join((*_COMPARISONS, "all", "any", "not"))
        raise FilterError(f"{name[:40]!r} is no dialect of filters here; those are {known}")

    def _compared(self, name: str, value: Any) -> Filter:
        if not isinstance(value, dict) or not value:
            raise FilterError(f"{name} needs to be an object of attributes and values")
        self._count += len(value)
        for attribute, text in value.items():
            if not attribute or not isinstance(text, str) or not 0 < len(text) <= MAX_TEXT:
                raise FilterError(f"{name} needs a text of 1 to {MAX_TEXT} characters for each attribute")
        compare, wanted = _COMPARISONS[name], dict(value)
        return lambda attributes: all(
            attribute in attributes and compare(attributes[attribute], text) for attribute, text in wanted.items()
        )


def _every(filters: list[Filter]) -> Filter:
    if len(filters) == 1:
        return filters[0]
    return lambda attributes: all(each(attributes) for each in filters)
