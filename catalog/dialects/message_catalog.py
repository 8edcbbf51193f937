"""CNCF Message Catalog 0.1: lists of groups of definitions, one group, or one definition with its versions.

What a definition holds in sections is read by :mod:`catalog.dialects.messagesections`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from catalog.dialects.dialect import Dialect
from catalog.dialects.signs import has_collections, has_listed_groups, members_of, version_of


def is_definition(document: Mapping[str, Any]) -> bool:
    """Tell a definition that is a document of its own, with its versions or as one of them."""
    if not (_says_so(document) or isinstance(document.get("format"), str)) or "id" not in document:
        return False
    versions = members_of(document.get("versions"))
    return any(isinstance(each, dict) and isinstance(each.get("definition"), dict) for each in (document, *versions))


def _detects(document: Mapping[str, Any]) -> bool:
    version = version_of(document)
    if has_collections(document):
        return version == "0.1"
    if _is_group(document) or is_definition(document):
        return True
    return has_listed_groups(document) and not version.startswith("1.")


def _is_group(document: Mapping[str, Any]) -> bool:
    """Tell a group of message definitions from other documents with ``definitions``, such as a JSON schema."""
    if "messagedefinitions" in document:
        return True
    definitions = document.get("definitions", document.get("messages"))
    listed = isinstance(definitions, list) and isinstance(document.get("format"), str)
    return definitions is not None and (_says_so(document) or listed)


def _says_so(document: Mapping[str, Any]) -> bool:
    return version_of(document) == "0.1" or "authority" in document


MESSAGE_CATALOG: Final = Dialect(
    title="CNCF Message Catalog 0.1",
    detects=_detects,
    names={
        "groups": {"groups": "messagegroups"},
        "messages": {"definitions": "messages", "messagedefinitions": "messages"},
        "selectors": {"format": "envelope"},
        "attributes": {"datacontenttype": "datacontenttype"},
        "definition": {"definition": "envelopemetadata and protocoloptions"},
    },
    checks_attributes=False,
    is_listed=True,
    numbers_versions=True,
    groups_give_formats=True,
)
