"""The order of a collection by an attribute (core ``spec.md``, Sort Flag)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from registry.core.dots import ANY, Part, parts_of, values_at
from registry.core.places import Place
from registry.errors import Refusal
from registry.model.attributes import ANYTHING
from registry.model.moments import moment_of

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


def read_sorting(text: str, place: Place, path: str) -> Sorting:
    """Read the flag for a request to *place*.

    Raises:
        Refusal: the place is no collection, or the value no attribute that its entities may have.
    """
    if not place.is_collection:
        raise Refusal("sort_noncollection", path)
    name, mark, order = text.partition("=")
    if mark and order.lower() not in ("asc", "desc"):
        raise _bad(path, text, "the order is asc or desc")
    try:
        parts = parts_of(name)
    except ValueError as error:
        raise _bad(path, text, str(error)) from None
    _check(parts, text, place, path)
    return Sorting(parts, order.lower() == "desc")


def _check(parts: tuple[Part, ...], text: str, place: Place, path: str) -> None:
    first = parts[0]
    kind = place.resource_type
    known = dict(place.group.attributes) if kind is None else dict(kind.attributes)
    if place.kind == "resources" and kind is not None:
        known |= kind.resource
    collections = set(place.group.resources) if kind is None else {"versions"}
    if ANY in parts:
        raise _bad(path, text, "an attribute is one, so * cannot be in it")
    if first in collections:
        raise _bad(path, text, "nested collections are not looked into")
    attribute = known.get(str(first))
    if attribute is None and ANYTHING not in known:
        raise _bad(path, text, f"there is no attribute {first}")
    if attribute is not None and len(parts) == 1 and not attribute.scalar and attribute.type != "any":
        raise _bad(path, text, f"{first} is no scalar")


def _rank(value: Any) -> tuple[int, Any]:
    if value is None or isinstance(value, dict | list):
        return 0, 0
    if isinstance(value, bool):
        return 1, int(value)
    if isinstance(value, int | float):
        return 2, value
    moment = moment_of(str(value))
    return (3, moment.isoformat()) if moment is not None else (3, str(value).lower())


def _bad(path: str, value: str, why: str) -> Refusal:
    return Refusal("bad_sort", path, value=value, error_detail=why)
