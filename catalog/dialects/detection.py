"""Dialects are told apart by content, never by file name (semantics.md section 2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final


class Dialect(Enum):
    """The dialects of semantics.md section 2: which names are a document's own, and not to be remarked upon."""

    XREGISTRY = "xRegistry 1.0"
    OLDER_XREGISTRY = "xRegistry 0.5"
    DEFINITION_GROUPS = "CloudEvents Registry 0.4/0.5"
    MESSAGE_CATALOG = "CNCF Message Catalog 0.1"
    UNKNOWN = "unknown"


_COLLECTIONS: Final = frozenset({"messagegroups", "endpoints", "schemagroups"})
_CORE: Final = frozenset(
    {"specversion", "registryid", "messagegroupsurl", "endpointsurl", "schemagroupsurl", "modelsource"}
)
_OLD_GROUPS: Final = frozenset({"definitiongroups", "definitiongroupsurl"})


def detect(document: Mapping[str, Any]) -> Dialect:
    """Return the dialect of a document's tree; UNKNOWN when it is no catalog at all.

    A registry that merely has no messages is XREGISTRY. What a document says of its version counts before the names it
    uses, since the names of every dialect are read in all of them.
    """
    folded = {name.lower() for name in document if isinstance(name, str)}
    version = str(document.get("specversion", ""))
    if folded & (_COLLECTIONS | _OLD_GROUPS):
        if version.startswith("1."):
            return Dialect.XREGISTRY
        if version == "0.1":
            return Dialect.MESSAGE_CATALOG
        if version.startswith("0.4"):
            return Dialect.DEFINITION_GROUPS
        if folded & _OLD_GROUPS or "schemaGroups" in document or any(map(_is_old, _members(document.get("endpoints")))):
            return Dialect.DEFINITION_GROUPS
        return Dialect.OLDER_XREGISTRY if version.startswith("0.5") else Dialect.XREGISTRY
    if any(is_group(document) for is_group in (_is_group, is_definition)):
        return Dialect.MESSAGE_CATALOG
    if any(_is_listed_group(group) for group in _members(document.get("groups"))):
        return Dialect.XREGISTRY if version.startswith("1.") else Dialect.MESSAGE_CATALOG
    if not folded & _CORE:
        return Dialect.UNKNOWN
    return Dialect.OLDER_XREGISTRY if version.startswith("0.5") else Dialect.XREGISTRY


def is_definition(document: Mapping[str, Any]) -> bool:
    """Tell a definition of Message Catalog 0.1 that is a document of its own, with its versions or as one of them."""
    said = str(document.get("specversion")) == "0.1" or "authority" in document
    if not (said or isinstance(document.get("format"), str)) or "id" not in document:
        return False
    versions = _members(document.get("versions"))
    return any(isinstance(each, dict) and isinstance(each.get("definition"), dict) for each in (document, *versions))


def _members(collection: Any) -> Iterator[Any]:
    if isinstance(collection, dict):
        yield from collection.values()
    elif isinstance(collection, list):
        yield from collection


def _is_old(endpoint: Any) -> bool:
    """Tell an endpoint that names its messages as definitions; in the same document all else is so too."""
    return isinstance(endpoint, dict) and any(
        isinstance(name, str) and name.lower() in ("definitions", "definitiongroups") for name in endpoint
    )


def _is_group(document: Mapping[str, Any]) -> bool:
    """Tell a group of message definitions from other documents with ``definitions``, such as a JSON schema."""
    if "messagedefinitions" in document:
        return True
    definitions = document.get("definitions", document.get("messages"))
    said = str(document.get("specversion")) == "0.1" or "authority" in document
    listed = isinstance(definitions, list) and isinstance(document.get("format"), str)
    return definitions is not None and (said or listed)


def _is_listed_group(group: Any) -> bool:
    return isinstance(group, dict) and any(name in group for name in ("messagedefinitions", "definitions", "messages"))
