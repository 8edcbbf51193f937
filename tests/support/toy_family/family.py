"""The entry of the toy family."""

from __future__ import annotations

import re
from typing import Final

from catalog.schemas.contract import SchemaFamily

LINES: Final = SchemaFamily(
    name="Lines",
    room="tests.support.toy_family",
    spelling=re.compile(r"lines"),
    media_types=frozenset({"text/x-lines"}),
    content_type="text/plain",
    evident=lambda document: isinstance(document, str) and document.endswith(" lines"),
    is_tree=False,
)
