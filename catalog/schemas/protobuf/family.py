"""Protobuf among the families."""

from __future__ import annotations

import re
from typing import Any, Final

from catalog.schemas.family import SchemaFamily

_TEXT: Final = re.compile(r"""^[ \t]*(?:syntax\s*=\s*["']proto|(?:message|enum)\s+\w+\s*\{)""", re.MULTILINE)


def _is_evident(document: Any) -> bool:
    return isinstance(document, str) and _TEXT.search(document) is not None


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
    named=True,
    resolves=True,
    frames="message",
)
