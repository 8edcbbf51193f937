"""JSON Schema among the families."""

from __future__ import annotations

import re
from typing import Final

from catalog.schemas.family import SchemaFamily

JSON_SCHEMA: Final = SchemaFamily(
    name="JsonSchema",
    room="catalog.schemas.jsonschema",
    spelling=re.compile(r"(?:https?://)?json[-_ ]?schema(?:\.org)?"),
    media_types=frozenset({"application/json", "application/schema+json", "application/schema-instance+json"}),
    content_type="application/json",
    names_itself=True,
    compares=True,
    named=True,
)
