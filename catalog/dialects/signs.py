"""Signs that several dialects are known by; content tells, never a file name (JUDGING.md#catalogs)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

DEFINITION_GROUPS: Final = frozenset({"definitiongroups", "definitiongroupsurl"})
_COLLECTIONS: Final = frozenset({"messagegroups", "endpoints", "schemagroups", *DEFINITION_GROUPS})
_CORE: Final = frozenset(
    {"specversion", "registryid", "messagegroupsurl", "endpointsurl", "schemagroupsurl", "modelsource"}
)


def version_of(document: Mapping[str, Any]) -> str:
    """Return what a document says of its version, which counts before the names it uses."""
    return str(document.get("specversion", ""))


def folded_names(document: Mapping[str, Any]) -> set[str]:
    """Return the names of a document's members in lower case."""
    return {name.lower() for name in document if isinstance(name, str)}


def has_collections(document: Mapping[str, Any]) -> bool:
    """Tell a document with collections of a registry, under their names since 0.4."""
    return not _COLLECTIONS.isdisjoint(folded_names(document))


def is_registry(document: Mapping[str, Any]) -> bool:
    """Tell a registry, which may have no collections at all."""
    return not (_COLLECTIONS | _CORE).isdisjoint(folded_names(document))


def has_listed_groups(document: Mapping[str, Any]) -> bool:
    """Tell a document with ``groups`` of messages."""
    names = ("messagedefinitions", "definitions", "messages")
    groups = members_of(document.get("groups"))
    return any(isinstance(group, dict) and any(name in group for name in names) for group in groups)


def members_of(collection: Any) -> Iterator[Any]:
    """Give the members of a map or a list; of anything else nothing."""
    if isinstance(collection, dict):
        yield from collection.values()
    elif isinstance(collection, list):
        yield from collection
