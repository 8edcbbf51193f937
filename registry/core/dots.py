"""Dot notation: ``labels.stage``, ``info['my.key']``, ``list[2]``; in filters ``.*`` and ``[*]`` too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_PART: Final = re.compile(
    r"\.?(?:(?P<name>[A-Za-z0-9_:\-]+|\*)|\[(?P<index>\d{1,9}|\*)\]|\['(?P<single>[^']*)'\]|\[\"(?P<double>[^\"]*)\"\])"
)
MAX_PARTS: Final = 32
Part = str | int
ANY: Final = "\0any"
"""Stands for ``*``: every member or item."""
MISSING: Final = object()


def parts_of(text: str) -> tuple[Part, ...]:
    """Read a path: names as text, places in arrays as numbers.

    Raises:
        ValueError: it is none.
    """
    parts: list[Part] = []
    at = 0
    while at < len(text):
        hit = _PART.match(text, at)
        if hit is None or (at == 0 and text[0] == ".") or len(parts) == MAX_PARTS or _glued(hit, at):
            raise ValueError(f"{text!r} is no path in dot notation")
        name, index, single, double = hit.group("name", "index", "single", "double")
        if "*" in (name, index):
            parts.append(ANY)
        elif index is not None:
            parts.append(int(index))
        else:
            parts.append(next(each for each in (name, single, double) if each is not None))
        at = hit.end()
    if not parts:
        raise ValueError("the path is empty")
    return tuple(parts)


def values_at(tree: Any, parts: tuple[Part, ...]) -> Iterator[Any]:
    """Yield what is at a path; several values where a part stands for any, none where there is nothing."""
    if not parts:
        yield tree
        return
    first, rest = parts[0], parts[1:]
    if first == ANY:
        members = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, list) else ()
        for each in members:
            yield from values_at(each, rest)
    elif isinstance(first, int):
        if isinstance(tree, list) and first < len(tree):
            yield from values_at(tree[first], rest)
    elif isinstance(tree, Mapping) and tree.get(first) is not None:
        yield from values_at(tree[first], rest)


def _glued(hit: re.Match[str], at: int) -> bool:
    """Tell whether a name follows something else without a dot between them."""
    return at > 0 and hit["name"] is not None and hit.group()[0] != "."
