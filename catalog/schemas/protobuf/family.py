"""Protobuf among the families."""

from __future__ import annotations

import re
from typing import Any, Final

from catalog.schemas.family import SchemaFamily

_TEXT: Final = re.compile(r"""^[ \t]*(?:syntax\s*=\s*["']proto|(?:message|enum)\s+\w+\s*\{)""", re.MULTILINE)
_MAX_INDEXES: Final = 64
"""Levels of messages within messages that a frame's indexes may lead down."""


def _is_evident(document: Any) -> bool:
    return isinstance(document, str) and _TEXT.search(document) is not None


def _behind_indexes(body: bytes, at: int) -> int | None:
    """Return the position after the indexes of a message type, which follow the schema's id."""
    count, at = _varint(body, at)
    count >>= 1  # zigzag, and never negative
    if count > _MAX_INDEXES:
        return None
    for _ in range(count):
        _, at = _varint(body, at)
    return None if at > len(body) else at


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned number and the position after it, which is past the end where the body ends within."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(body):
            return 0, len(body) + 1
        value |= (body[at] & 0x7F) << shift
        at += 1
        if body[at - 1] < 0x80:
            return value, at
    return 0, len(body) + 1


PROTOBUF: Final = SchemaFamily(
    name="Protobuf",
    room="catalog.schemas.protobuf",
    spelling=re.compile(r"(?:google[-_ ])?proto(?:col)?(?:[-_ ]?buf(?:fer)?s?)?"),
    media_types=frozenset(
        {
            "application/protobuf",
            "application/x-protobuf",
            "application/vnd.google.protobuf",
            "text/x-protobuf",
        }
    ),
    content_type="application/protobuf",
    evident=_is_evident,
    is_tree=False,
    behind_id=_behind_indexes,
)
