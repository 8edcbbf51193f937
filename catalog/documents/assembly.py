"""Putting one registry together from several documents, while every member keeps the place where it is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from catalog.declared import Place

COLLECTIONS: Final = frozenset({"messagegroups", "endpoints", "schemagroups", "definitiongroups"})
"""The collections of a registry, in lower case."""
NESTED: Final = COLLECTIONS | {"messages", "schemas", "definitions", "versions"}
"""All collections, in lower case."""


class Assembly:
    """A registry that grows by parts laid over it.

    Collections unite and their entities are laid one over the other; any other attribute is replaced by what comes
    later. ``mounts`` are as :attr:`catalog.declared.Place.mounts` has them.
    """

    def __init__(self, file: str, tree: dict[str, Any]) -> None:
        self.tree: dict[str, Any] = dict(tree)
        self.mounts: dict[tuple[str, str], Place] = {}
        self._root = Place(file, "", self.mounts)

    def at(self, path: Sequence[str]) -> Any:
        """Return what is in the registry at *path*; None when there is nothing."""
        node: Any = self.tree
        for step in path:
            node = node.get(step) if isinstance(node, dict) else None
        return node

    def lay(self, path: Sequence[str], part: Any, place: Place) -> None:
        """Lay *part*, which is written at *place*, over what is at *path*; nothing of *part* is changed.

        Collections have paths of odd length, entities of even length: collection, id, collection, id and so on.
        """
        if not path:
            self._entity(self.tree, part, self._root, place)
            return
        node, at = self.tree, self._root
        for step in path[:-1]:
            node = _entered(node, step)
            at = at / step
        collection = path[-1].lower() in NESTED if len(path) % 2 else None
        self._put(node, path[-1], part, at, place, collection)

    def _entity(self, node: dict[str, Any], part: dict[str, Any], at: Place, place: Place) -> None:
        for key, value in part.items():
            self._put(node, key, value, at, place / key, key.lower() in NESTED)

    def _put(
        self, node: dict[str, Any], key: str, value: Any, at: Place, place: Place, collection: bool | None
    ) -> None:
        """Put an attribute, a collection (*collection* True) or an entity (None) into *node*."""
        if collection is not False and isinstance(value, dict) and isinstance(node.get(key), dict):
            held, below = _entered(node, key), at / key
            if collection is None:
                self._entity(held, value, below, place)
                return
            for name, entity in value.items():
                self._put(held, name, entity, below, place / name, None)
            return
        node[key] = value
        self.mounts[at.file, (Place(at.file, at.pointer) / key).pointer] = Place(place.file, place.pointer)


def _entered(node: dict[str, Any], step: str) -> dict[str, Any]:
    """Return a copy of the object at *step*, put in its place, so that no part is changed."""
    existing = node.get(step)
    entered: dict[str, Any] = dict(existing) if isinstance(existing, dict) else {}
    node[step] = entered
    return entered
