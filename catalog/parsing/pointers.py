"""JSON pointers (RFC 6901): their steps, and what they mean in a tree."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def unescaped(step: str) -> str:
    """Return the name that a step of a pointer stands for."""
    return step.replace("~1", "/").replace("~0", "~")


def steps_of(pointer: str) -> list[str]:
    """Return the names that lead to what a pointer means; none for the whole document."""
    return [unescaped(step) for step in pointer.split("/")[1:]]


def at_pointer(document: Any, pointer: str) -> Any:
    """Return what a JSON pointer means in a tree.

    Raises:
        KeyError: there is nothing.
    """
    for step in steps_of(pointer):
        if isinstance(document, list) and step.isdecimal() and len(step) < 10 and int(step) < len(document):
            document = document[int(step)]
        elif isinstance(document, dict) and step in document:
            document = document[step]
        else:
            raise KeyError(pointer)
    return document


def as_pointer(path: Iterable[str | int]) -> str:
    """Return the JSON pointer of a path."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)
