"""Dialects are told apart by content, never by file name (semantics.md section 2)."""

from __future__ import annotations

from collections.abc import Mapping
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


def detect(document: Mapping[str, Any]) -> Dialect:
    """Return the dialect of a document's tree; UNKNOWN when it is no catalog at all.

    A registry that merely has no messages is XREGISTRY.
    """
    if "messagegroups" in document:
        return Dialect.XREGISTRY
    if any(name in document for name in ("definitionGroups", "definitiongroups", "schemaGroups")):
        return Dialect.DEFINITION_GROUPS
    if any(name in document for name in _COLLECTIONS):
        return Dialect.XREGISTRY
    groups = document.get("groups")
    if "messagedefinitions" in document or ("definitions" in document and "authority" in document):
        return Dialect.MESSAGE_CATALOG
    members = groups.values() if isinstance(groups, dict) else groups if isinstance(groups, list) else ()
    if any(isinstance(group, dict) and ("messagedefinitions" in group or "definitions" in group) for group in members):
        return Dialect.MESSAGE_CATALOG
    return Dialect.XREGISTRY if any(name in document for name in _CORE) else Dialect.UNKNOWN
