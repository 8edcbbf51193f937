"""CloudEvents Registry 0.4 and 0.5, whose groups are of definitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from catalog.dialects.dialect import Dialect
from catalog.dialects.signs import DEFINITION_GROUPS as _GROUPS
from catalog.dialects.signs import folded_names, has_collections, members_of, version_of


def _detects(document: Mapping[str, Any]) -> bool:
    version = version_of(document)
    if not has_collections(document) or version.startswith("1."):
        return False
    old = not _GROUPS.isdisjoint(folded_names(document)) or "schemaGroups" in document
    return version.startswith("0.4") or old or any(map(_names_definitions, members_of(document.get("endpoints"))))


def _names_definitions(endpoint: Any) -> bool:
    """Tell an endpoint that names its messages as definitions; in the same document all else is so too."""
    return isinstance(endpoint, dict) and not folded_names(endpoint).isdisjoint(("definitions", "definitiongroups"))


DEFINITION_GROUPS: Final = Dialect(
    title="CloudEvents Registry 0.4/0.5",
    detects=_detects,
    names={
        "groups": {"definitiongroups": "messagegroups"},
        "messages": {"definitions": "messages"},
        "selectors": {"format": "envelope", "protocol": "protocol"},
        "attributes": {
            "schemaformat": "dataschemaformat",
            "schema": "dataschema",
            "schemauri": "dataschemauri",
            "schemaurl": "dataschemauri",
            "datacontenttype": "datacontenttype",
        },
        "holders": {"protocoloptions": "protocoloptions", "config": "protocoloptions"},
        "metadata": {"metadata": "envelopemetadata"},
    },
    suffixes=(".cereg",),
)
