"""Folders that hold one registry as many files: the tree of ``index.json`` that a static file server would serve.

``messagegroups/G/messages/M/index.json`` is the entity of that path, a collection's ``index.json`` a map of entities.
A resource's ``index.json`` is its document when its metadata stands beside it, in a folder that ends in ``$details``
(``$meta`` in older registries); else it is metadata too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from catalog.declared import Place
from catalog.documents.assembly import Assembly
from catalog.documents.fetching import Fetcher

INDEX: Final = "index.json"
RESOURCES: Final[Mapping[str, str]] = {"messagegroups": "messages", "endpoints": "messages", "schemagroups": "schemas"}
"""The collections of a registry, and what each of their members holds."""
_DETAILS: Final = ("$details", "$meta")
_METADATA: Final = frozenset(
    {"versions", "versionsurl", "schemaid", "xid", "schema", "schemabase64", "schemaurl", "schemauri", "metaurl"}
)
_DEEPEST: Final = 6


def is_root(path: Path, fetcher: Fetcher) -> bool:
    """Tell the ``index.json`` of a whole tree from any other file of that name."""
    return any(os.path.isdir(path.parent / name) for name in RESOURCES) and bool(parts_of(path.parent, fetcher))


def parts_of(top: Path, fetcher: Fetcher) -> list[Path]:
    """Return the files that are parts of the registry in the folder *top*, in the order in which they are laid."""
    files = [path for name in RESOURCES if os.path.isdir(top / name) for path in fetcher.files(top / name)]
    return _ordered(top, (path for path in files if _is_part(path.relative_to(top).parts)))


def trees_in(folder: Path, files: Sequence[Path]) -> dict[Path, list[Path]]:
    """Return the trees among the *files* of a folder: their top folders, each with its parts.

    A top has an ``index.json`` or is *folder* itself; what is a part of one tree is no top of another.
    """
    known = set(files)
    trees: dict[Path, list[Path]] = {}
    for path in files:
        steps = path.relative_to(folder).parts
        for depth, step in enumerate(steps):
            top = folder.joinpath(*steps[:depth])
            if step in RESOURCES and _is_part(steps[depth:]) and (depth == 0 or top / INDEX in known):
                trees.setdefault(top, []).append(path)
                break
    return {top: _ordered(top, parts) for top, parts in trees.items()}


def lay(assembly: Assembly, steps: Sequence[str], part: dict[str, Any], place: Place) -> None:
    """Lay the file of the folder *steps* (below the top) where it belongs; one that is a whole catalog, at the top."""
    path, details = _plain(steps)
    if any(isinstance(part.get(name), dict) for name in RESOURCES):
        assembly.lay([], part, place)
        return
    document = not details and path[0] == "schemagroups" and len(path) in (4, 6) and not (_METADATA & part.keys())
    if document and isinstance(assembly.at(path), dict):
        assembly.lay([*path, "schema"], part, place)
        return
    nested = part.get("versions")
    own = nested.get(path[-1]) if len(path) == _DEEPEST and isinstance(nested, dict) else None
    if isinstance(own, dict):  # some generators repeat the whole resource at each version
        part, place = own, place / "versions" / path[-1]
    assembly.lay(path, part, place)


def _is_part(steps: Sequence[str]) -> bool:
    """Tell the path of a part, relative to its top: collection, group, resources, resource, versions, version."""
    names, _ = _plain(steps[:-1])
    if steps[-1] != INDEX or not 1 <= len(names) <= _DEEPEST or names[0] not in RESOURCES:
        return False
    if len(names) > 2 and names[2] != RESOURCES[names[0]]:
        return False
    return len(names) < 5 or names[4] == "versions" or (names[4] == "meta" and len(names) == 5)


def _plain(steps: Sequence[str]) -> tuple[list[str], bool]:
    """Return a path without the suffix of metadata, and whether it had one."""
    if not steps:
        return [], False
    suffix = next((each for each in _DETAILS if steps[-1].endswith(each) and steps[-1] != each), "")
    return [*steps[:-1], steps[-1].removesuffix(suffix)], bool(suffix)


def _ordered(top: Path, parts: Iterable[Path]) -> list[Path]:
    """Put containers before what they contain, and metadata before documents."""

    def rank(path: Path) -> tuple[int, tuple[str, ...], bool]:
        names, details = _plain(path.relative_to(top).parent.parts)
        return len(names), tuple(names), not details

    return sorted(parts, key=rank)
