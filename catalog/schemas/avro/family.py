"""Avro among the families."""

from __future__ import annotations

import re
from typing import Any, Final

from catalog.schemas.family import SchemaFamily

_MEMBERS: Final = {"record": "fields", "enum": "symbols", "fixed": "size"}


def _is_evident(document: Any) -> bool:
    """Tell a named type of Avro, or a union with one."""
    branches = document if isinstance(document, list) else [document]
    return any(isinstance(branch, dict) and _is_named_type(branch) for branch in branches)


def _is_named_type(tree: dict[str, Any]) -> bool:
    kind = tree.get("type")
    member = _MEMBERS.get(kind) if isinstance(kind, str) else None
    return member is not None and member in tree and "name" in tree


AVRO: Final = SchemaFamily(
    name="Avro",
    room="catalog.schemas.avro",
    spelling=re.compile(r"(?:apache[-_ ])?avro(?:[-_ ]?schema)?"),
    media_types=frozenset(
        {"application/avro", "application/vnd.apache.avro", "application/vnd.apache.avro+json", "avro/binary"}
    ),
    content_type="application/vnd.apache.avro",
    evident=_is_evident,
    compares=True,
    ignores=True,
    named=True,
    refers_by_name=True,
    resolves=True,
)
