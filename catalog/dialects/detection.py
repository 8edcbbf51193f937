"""Dialects are told apart by content, never by file name (semantics.md section 2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final


class Dialect(Enum):
    """The dialects of semantics.md section 2; ``xregistry`` covers 1.0 and 0.5-wip."""

    XREGISTRY = "xregistry"
    DEFINITION_GROUPS = "definitionGroups"
    MESSAGE_CATALOG = "message catalog 0.1"
    UNKNOWN = "unknown"


_COLLECTIONS: Final = ("messagegroups", "endpoints", "schemagroups")
_CORE: Final = ("specversion", "registryid", "messagegroupsurl", "endpointsurl", "schemagroupsurl", "modelsource")
_OLD_GROUPS: Final = frozenset({"definitiongroups", "definitiongroupsurl"})


def detect(document: Mapping[str, Any]) -> Dialect:
    """Return the dialect of a document's tree; UNKNOWN when it is no catalog at all.

    A registry that merely has no messages is XREGISTRY.
    """
    folded = {name.lower() for name in document if isinstance(name, str)}
    if folded & _OLD_GROUPS or "schemaGroups" in document:
        return Dialect.DEFINITION_GROUPS
    if any(name in document for name in _COLLECTIONS):
        old = any(_is_old_endpoint(endpoint) for endpoint in _members(document.get("endpoints")))
        return Dialect.DEFINITION_GROUPS if old else Dialect.XREGISTRY
    if _is_group(document) or any(_is_listed_group(group) for group in _members(document.get("groups"))):
        return Dialect.MESSAGE_CATALOG
    return Dialect.XREGISTRY if any(name in document for name in _CORE) else Dialect.UNKNOWN


def _members(collection: Any) -> Iterator[Any]:
    if isinstance(collection, dict):
        yield from collection.values()
    elif isinstance(collection, list):
        yield from collection


def _is_old_endpoint(endpoint: Any) -> bool:
    """Tell an endpoint that names its messages as definitions; in the same document all else is so too."""
    return isinstance(endpoint, dict) and any(
        isinstance(name, str) and name.lower() in ("definitions", "definitiongroups") for name in endpoint
    )


def _is_group(document: Mapping[str, Any]) -> bool:
    """Tell a group of message definitions from other documents with ``definitions``, such as a JSON schema."""
    if "messagedefinitions" in document:
        return True
    definitions = document.get("definitions")
    said = str(document.get("specversion")) == "0.1" or "authority" in document
    listed = isinstance(definitions, list) and isinstance(document.get("format"), str)
    return definitions is not None and (said or listed)


def _is_listed_group(group: Any) -> bool:
    return isinstance(group, dict) and ("messagedefinitions" in group or "definitions" in group)
