"""Which collections and attributes an answer shows in place (core ``spec.md``, Inline Flag)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from registry.core.places import Place
from registry.errors import Refusal
from registry.model.attributes import Attribute
from registry.model.types import Model

Inline = Mapping[str, "Inline"]
"""Names that are shown, each with what is shown below it; ``*`` stands for all names, at all levels."""
ALL: Final[Inline] = {"*": {}}
NONE: Final[Inline] = {}
CONFIGURATION: Final = ("capabilities", "model", "modelsource")
"""Attributes of the registry that ``*`` does not mean."""


def read_inline(given: Sequence[str], model: Model, place: Place, path: str) -> Inline:
    """Read the values of the flag for a request to *place*.

    Raises:
        Refusal: a name is unknown there, or cannot be inlined.
    """
    tree: dict[str, Inline] = {}
    for text in given:
        for each in text.split(",") if text else ["*"]:
            names = each.strip().split(".")
            _check(names, each, model, place, path)
            at = tree
            for name in names:
                below = at.setdefault(name, {})
                assert isinstance(below, dict)
                at = below
    return tree


def below(inline: Inline, name: str) -> Inline | None:
    """Return what is shown below a name, None when the name is not shown itself."""
    if "*" in inline and name not in CONFIGURATION:
        return ALL
    return inline.get(name)


def _check(names: Sequence[str], text: str, model: Model, place: Place, path: str) -> None:
    at: Place | None = place
    for index, name in enumerate(names):
        last = index == len(names) - 1
        if name == "*" and last and at is not None:
            return
        if at is None:
            raise Refusal("bad_inline", path, value=text, error_detail=f"there is nothing below {names[index - 1]}")
        inlineable, attributes, following = _here(at, model)
        if name not in inlineable:
            if name in attributes and last:
                raise Refusal("inline_noninlineable", path, name=name)
            raise Refusal("bad_inline", path, value=text, error_detail=f"{name} is not known there")
        at = following.get(name)


def _here(place: Place, model: Model) -> tuple[set[str], Mapping[str, Attribute], dict[str, Place]]:
    """Return what can be inlined at a place, all attributes there, and the places below."""
    if place.kind == "registry":
        deeper = {name: Place("groups", kind) for name, kind in model.groups.items()}
        return {*deeper, *CONFIGURATION}, model.attributes, deeper
    if place.kind in ("groups", "group"):
        owner = Place("group", place.group, place.gid)
        deeper = {name: owner.collection(name) for name in place.group.resources}
        return set(deeper), place.group.attributes, deeper
    if place.kind == "meta":
        return set(), place.resource.meta, {}
    kind = place.resource
    document = {kind.singular} if kind.hasdocument else set()
    if place.kind in ("versions", "version"):
        return document, kind.attributes, {}
    versions = Place("versions", place.group, place.gid, kind, place.rid)
    return {*document, "versions", "meta"}, {**kind.attributes, **kind.resource}, {"versions": versions}
