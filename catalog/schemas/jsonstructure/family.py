"""JSON Structure among the families."""

from __future__ import annotations

import re
from typing import Final

from catalog.schemas.family import SchemaFamily

JSON_STRUCTURE: Final = SchemaFamily(
    name="JsonStructure",
    room="catalog.schemas.jsonstructure",
    spelling=re.compile(r"(?:https?://)?json[-_ ]?structure(?:\.org)?"),
    media_types=frozenset(),
    content_type="application/json",
    names_itself=True,
)
