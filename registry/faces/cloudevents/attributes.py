"""What describes an entity, under older and under newer names; what has no place in 1.0 is kept apart, and not lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from registry.errors import invalid
from registry.model.values import KEY, NAME

KEPT: Final = "cloudeventsregistry"
"""The attribute of 1.0 that holds the tags and extension attributes whose names 1.0 does not allow."""
_NEWER: Final = {"docs": "documentation"}
_OWN: Final = frozenset(("labels", KEPT, "id", "tags", "version", "versions", "specversion", *_NEWER))
"""Names that mean other things here than as extension attributes of 1.0, and those that are written by another."""
_OLDER: Final = {newer: older for older, newer in _NEWER.items()}


def newer_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an older body says beside its content, under the names of 1.0.

    Raises:
        Refusal: its tags are no map.
    """
    renamed: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    for name, value in given.items():
        if name == "tags":
            if not isinstance(value, Mapping):
                raise invalid("/", name, "needs to be a map")
            labels = {key: each for key, each in value.items() if KEY.fullmatch(key)}
            rest = {key: each for key, each in value.items() if key not in labels}
            renamed.update({"labels": labels} if labels else {})
            kept.update({name: rest} if rest else {})
        elif name == "deprecated" and isinstance(value, Mapping):
            renamed[name] = {_NEWER.get(key, key): each for key, each in value.items()}
        elif name in _NEWER or (NAME.fullmatch(name) and name not in ("labels", KEPT)):
            renamed[_NEWER.get(name, name)] = value
        else:
            kept[name] = value
    return {**renamed, **({KEPT: kept} if kept else {})}


def older_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an entity of 1.0 says beside its content, under older names: the inverse of :func:`newer_names`."""
    renamed: dict[str, Any] = {}
    for name, value in given.items():
        if name == "deprecated" and isinstance(value, Mapping):
            renamed[name] = {_OLDER.get(key, key): each for key, each in value.items()}
        elif name not in _OWN:
            renamed[_OLDER.get(name, name)] = value
    labels, kept = given.get("labels"), given.get(KEPT)
    rest = dict(kept) if isinstance(kept, Mapping) else {}
    tags = rest.pop("tags", None)
    united = {**(labels if isinstance(labels, Mapping) else {}), **(tags if isinstance(tags, Mapping) else {})}
    return {
        **renamed,
        **{name: each for name, each in rest.items() if name not in renamed},
        **({"tags": united} if united else {}),
    }


def present(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is not None."""
    return {name: value for name, value in given.items() if value is not None}
