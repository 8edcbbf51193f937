"""Expected outcomes against what came of records: only what is written is compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from catalog.parsing.pointers import as_pointer
from catalog.values import text_of


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that is not as expected. ``pointer`` leads to the expected one; None is what is not there."""

    pointer: str
    expected: Any
    actual: Any


def differences(expected: Any, actual: Any, pointer: str) -> Iterator[Difference]:
    """Yield where *actual* is not as *expected*, whose place in its file is *pointer*.

    Of maps the members that are expected count, and null there asks that a member is absent; lists are compared one by
    one, and in their length. Numbers and booleans equal the texts in which the router writes them.
    """
    if isinstance(expected, Mapping):
        members = actual if isinstance(actual, Mapping) else {}
        for name, value in expected.items():
            yield from differences(value, members.get(name), pointer + as_pointer([name]))
    elif isinstance(expected, list):
        listed = actual if isinstance(actual, list) else []
        if len(expected) != len(listed):
            yield Difference(pointer, expected, actual)
            return
        for number, (one, other) in enumerate(zip(expected, listed, strict=True)):
            yield from differences(one, other, f"{pointer}/{number}")
    elif expected is None or actual is None:
        if expected is not actual:
            yield Difference(pointer, expected, actual)
    elif isinstance(actual, (Mapping, list)) or text_of(expected) != text_of(actual):
        yield Difference(pointer, expected, actual)
