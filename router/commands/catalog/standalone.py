"""A document that was read from a registry, made to stand by itself: nothing in it has to be fetched there again."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from catalog.documents.assembly import NESTED
from catalog.documents.connecting import origin_of
from catalog.documents.documents import Document
from catalog.documents.fetching import Fetcher, is_url
from catalog.errors import DocumentError
from catalog.parsing.texts import parse_text

_ENDS: Final = ("url", "count")
_SCHEMA_GROUPS: Final = "schemagroups"
_HELD: Final = ("schema", "schemabase64")
_ELSEWHERE: Final = ("schemaurl", "schemauri")


def standalone(document: Document, fetcher: Fetcher) -> dict[str, Any]:
    """Return the tree of a *document* whose collections are all shown, with the schemas of its registry in it.

    Addresses and counts of collections that it shows are left out, since they are the registry's to say.

    Raises:
        DocumentError: a schema of the registry cannot be read.
    """
    origin = origin_of(document.file)
    tree = _plain(document.tree)
    for name, groups in tree.items():
        if name.lower() == _SCHEMA_GROUPS and isinstance(groups, dict):
            for group in groups.values():
                for schema in _members(group, "schemas"):
                    for holder in (schema, *_members(schema, "versions")):
                        _embed(holder, origin, fetcher)
    return tree


def _plain(entity: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """Copy an entity; its collections are at even depths, and a registry has no more than three levels of them."""
    shown = {key.lower() for key, value in entity.items() if key.lower() in NESTED and isinstance(value, dict)}
    plain: dict[str, Any] = {}
    for key, value in entity.items():
        lower = key.lower()
        if any(lower.endswith(end) and lower.removesuffix(end) in shown for end in _ENDS):
            continue
        if lower in shown and depth < 3:
            value = {name: _plain(each, depth + 1) if isinstance(each, dict) else each for name, each in value.items()}
        plain[key] = value
    return plain


def _members(holder: Any, name: str) -> list[dict[str, Any]]:
    collection = holder.get(name) if isinstance(holder, dict) else None
    return [each for each in collection.values() if isinstance(each, dict)] if isinstance(collection, dict) else []


def _embed(holder: dict[str, Any], origin: str, fetcher: Fetcher) -> None:
    """Put the document of a schema in the place of its address, when that is the registry's own."""
    named = next((name for name in _ELSEWHERE if isinstance(holder.get(name), str)), None)
    if named is None or any(holder.get(name) is not None for name in _HELD):
        return
    address = holder[named]
    if not is_url(address) or "#" in address or origin_of(address) != origin:
        return
    data = fetcher.fetch(address)
    del holder[named]
    try:
        holder["schema"] = parse_text("", data).tree if data.lstrip()[:1] in (b"{", b"[") else data.decode("utf-8")
    except (DocumentError, UnicodeDecodeError):
        holder["schemabase64"] = base64.b64encode(data).decode("ascii")
