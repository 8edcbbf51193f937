"""Filters: expressions in dot notation over entities and what is below them (core ``spec.md``, Filter Flag)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from registry.core.requests import ResourcePath
from registry.errors import Refusal
from registry.model.attributes import ANYTHING, moment_of, normalized

# Dot notation: ``labels.stage``, ``info['my.key']``, ``list[2]``; in filters ``.*`` and ``[*]`` too.

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


_FORM: Final = re.compile(r"(?P<path>[^=<>!]+)(?:(?P<sign><=|>=|<>|!=|=|<|>)(?P<value>.*))?", re.DOTALL)
EXCLUDE_ALL: Final = "excludeall"
MAX_EXPRESSIONS: Final = 50


@dataclass(frozen=True, slots=True)
class Expression:
    """One comparison; without a ``sign`` the attribute needs to be there. A ``value`` of None is ``null``."""

    path: tuple[Part, ...]
    sign: str = ""
    value: str | None = None

    def holds(self, entity: Mapping[str, Any]) -> bool:
        """Tell whether it holds for an entity's attributes."""
        values = [each for each in values_at(entity, self.path) if each is not None]
        if (
            self.sign == ""
            or (self.sign in ("!=", "<>") and self.value is None)
            or (self.sign, self.value) == ("=", "*")
        ):
            return bool(values)
        if self.value is None:
            return not values
        if self.sign in ("!=", "<>"):
            return not any(_equal(each, self.value) for each in values)
        if self.sign == "=":
            return any(_equal(each, self.value) for each in values)
        return any(_ordered(each, self.sign, self.value) for each in values)


Clause = tuple[Expression, ...]
"""Expressions that must all hold."""
Clauses = tuple[Clause, ...] | None
"""Clauses of which one must hold; None lets everything through."""
NOTHING: Final[tuple[Clause, ...]] = ()


def read_filters(given: Sequence[str], path: str) -> Clauses:
    """Read the values of the flag, each a clause; none of them lets everything through.

    Raises:
        Refusal: ``bad_filter``.
    """
    if not given:
        return None
    if any(EXCLUDE_ALL in (part.strip() for part in each.split(",")) for each in given):
        if list(given) != [EXCLUDE_ALL]:
            raise _bad(path, EXCLUDE_ALL, "it stands alone")
        return NOTHING
    clauses = tuple(tuple(_expression(part, path) for part in _split(each)) for each in given)
    if sum(map(len, clauses)) > MAX_EXPRESSIONS:
        raise _bad(path, given[0], f"there are more than {MAX_EXPRESSIONS} expressions")
    return clauses


def surviving(
    clauses: Clauses,
    shown: Mapping[str, Any],
    collections: Iterable[str],
    exists: Callable[[str, Clause], bool],
) -> Clauses:
    """Return what is left of clauses below an entity that they let through: None for all of it.

    *shown* are its attributes, *collections* the names of those below it; *exists* tells whether one of them has an
    entity for which a clause, relative to it, holds. An entity that no clause lets through gets :data:`NOTHING`.
    """
    if clauses is None:
        return None
    names = frozenset(collections)
    left: list[Clause] = []
    for clause in clauses:
        own = [each for each in clause if each.path[0] not in names]
        below = tuple(each for each in clause if each.path[0] in names)
        if not all(each.holds(shown) for each in own):
            continue
        wanted = {str(each.path[0]) for each in below}
        if all(exists(name, within((below,), name)[0]) for name in wanted):
            if not below:
                return None
            left.append(below)
    return tuple(left)


def within(clauses: Sequence[Clause], name: str) -> tuple[Clause, ...]:
    """Return the clauses for entities of a collection: what each says of it, relative to them."""
    narrowed = (
        tuple(replace(each, path=each.path[1:]) for each in clause if each.path[0] == name and len(each.path) > 1)
        for clause in clauses
    )
    return tuple(clause for clause in narrowed if clause)


def _split(text: str) -> list[str]:
    """Split at commas that no quotes in brackets hold."""
    parts, quote = [""], ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"" and parts[-1].endswith("["):
            quote = character
        if character == "," and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _expression(text: str, path: str) -> Expression:
    match = _FORM.fullmatch(text)
    if match is None:
        raise _bad(path, text, "it is no attribute, alone or with a comparison")
    try:
        parts = parts_of(match["path"])
    except ValueError as error:
        raise _bad(path, text, str(error)) from None
    sign, value = match["sign"] or "", match["value"]
    if value == "null":
        value = None
        if sign in ("<", "<=", ">", ">="):
            raise _bad(path, text, "null is neither less nor more than anything")
    if value is not None and sign in ("<", "<=", ">", ">=") and len(_pieces(value)) > 1:
        raise _bad(path, text, r"a wildcard is for =, != and <> alone; write \* for the character")
    return Expression(parts, sign, value)


def _equal(actual: Any, wanted: str) -> bool:
    if isinstance(actual, bool):
        return wanted == ("true" if actual else "false")
    if isinstance(actual, int | float):
        number = _number(wanted)
        return number is not None and number == actual
    if isinstance(actual, str):
        return _like(actual.lower(), wanted.lower()) or _same_moment(actual, wanted)
    return False


def _like(text: str, pattern: str) -> bool:
    """Compare with a pattern of ``*``, in time linear in both but for their product at worst."""
    pieces = _pieces(pattern)
    if len(pieces) == 1:
        return text == pieces[0]
    first, *middle, last = pieces
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in middle:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


def _pieces(pattern: str) -> list[str]:
    pieces, escaped = [""], False
    for character in pattern:
        if escaped:
            pieces[-1] += character if character == "*" else f"\\{character}"
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == "*":
            pieces.append("")
        else:
            pieces[-1] += character
    if escaped:
        pieces[-1] += "\\"
    return pieces


def _ordered(actual: Any, sign: str, wanted: str) -> bool:
    if isinstance(actual, bool):
        if wanted not in ("true", "false"):
            return False
        return _compare(int(actual), int(wanted == "true"), sign)
    if isinstance(actual, int | float):
        number = _number(wanted)
        return number is not None and _compare(actual, number, sign)
    if not isinstance(actual, str):
        return False
    one, other = moment_of(actual), moment_of(wanted)
    if one is not None and other is not None:
        return _compare(one, other, sign)
    return _compare(actual.lower(), wanted.lower(), sign)


def _compare(one: Any, other: Any, sign: str) -> bool:
    result: bool = {"<": one < other, "<=": one <= other, ">": one > other, ">=": one >= other}[sign]
    return result


def _same_moment(actual: str, wanted: str) -> bool:
    return moment_of(wanted) is not None and moment_of(actual) is not None and normalized(actual) == normalized(wanted)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _bad(path: str, value: str, why: str) -> Refusal:
    return Refusal("bad_filter", path, value=value, error_detail=why)


# The order of a collection by an attribute (core ``spec.md``, Sort Flag).

SortKey = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Sorting:
    """By which attribute, and whether the highest comes first."""

    path: tuple[Part, ...]
    descending: bool

    def key(self, entity: Mapping[str, Any], identifier: str) -> SortKey:
        """Return what an entity is ordered by: the attribute, then its id; one without the attribute is lowest."""
        value = next(values_at(entity, self.path), None)
        return (*_rank(value), identifier.lower())


def read_sorting(text: str, place: ResourcePath, path: str) -> Sorting:
    """Read the flag for a request to *place*.

    Raises:
        Refusal: the place is no collection, or the value no attribute that its entities may have.
    """
    if not place.is_collection:
        raise Refusal("sort_noncollection", path)
    name, mark, order = text.partition("=")
    if mark and order.lower() not in ("asc", "desc"):
        raise _bad_sort(path, text, "the order is asc or desc")
    try:
        parts = parts_of(name)
    except ValueError as error:
        raise _bad_sort(path, text, str(error)) from None
    _check(parts, text, place, path)
    return Sorting(parts, order.lower() == "desc")


def _check(parts: tuple[Part, ...], text: str, place: ResourcePath, path: str) -> None:
    first = parts[0]
    kind = place.resource_type
    known = dict(place.group.attributes) if kind is None else dict(kind.attributes)
    if place.kind == "resources" and kind is not None:
        known |= kind.resource
    collections = set(place.group.resources) if kind is None else {"versions"}
    if ANY in parts:
        raise _bad_sort(path, text, "an attribute is one, so * cannot be in it")
    if first in collections:
        raise _bad_sort(path, text, "nested collections are not looked into")
    attribute = known.get(str(first))
    if attribute is None and ANYTHING not in known:
        raise _bad_sort(path, text, f"there is no attribute {first}")
    if attribute is not None and len(parts) == 1 and not attribute.scalar and attribute.type != "any":
        raise _bad_sort(path, text, f"{first} is no scalar")


def _rank(value: Any) -> tuple[int, Any]:
    if value is None or isinstance(value, dict | list):
        return 0, 0
    if isinstance(value, bool):
        return 1, int(value)
    if isinstance(value, int | float):
        return 2, value
    moment = moment_of(str(value))
    return (3, moment.isoformat()) if moment is not None else (3, str(value).lower())


def _bad_sort(path: str, value: str, why: str) -> Refusal:
    return Refusal("bad_sort", path, value=value, error_detail=why)
