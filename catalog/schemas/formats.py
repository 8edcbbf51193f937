"""Names of schema formats, in all the ways real catalogs spell them, and what a document says of itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from catalog.schemas.families import FAMILIES, family_of

_REST: Final = re.compile(r"[/\-_:, .#]+|(?=v?\d)|$")


@dataclass(frozen=True, slots=True)
class SchemaFormat:
    """A format that is known: its family, and what follows it in lower case (``draft-07``, ``1.11``), maybe nothing."""

    family: str
    version: str = ""


@lru_cache(maxsize=1024)
def parse_format(text: str | None) -> SchemaFormat | None:
    """Read a format: ``JsonSchema/draft-07``, ``AVRO``, ``proto3``, ``XSD/1.0``, a media type or the URI of a dialect.

    None when there is none, or it is unknown.
    """
    name = (text or "").partition(";")[0].strip().lower()
    for family in FAMILIES:
        if name in family.media_types:
            return SchemaFormat(family.name)
        spelled = family.spelling.match(name)
        rest = _REST.match(name, spelled.end()) if spelled else None
        if rest is not None:
            return SchemaFormat(family.name, name[rest.end() :].removeprefix("v"))
    return None


def inferred_content_type(schema_format: str | None) -> str | None:
    """Return the content type that a schema format implies; None when it implies none."""
    known = parse_format(schema_format)
    return family_of(known.family).content_type if known is not None else None


def evident_family(document: Any) -> str | None:
    """Tell what a schema is from itself, where there is no doubt: by ``$schema``, Avro's shapes, or its syntax."""
    said = document.get("$schema") if isinstance(document, dict) else None
    if isinstance(said, str):
        named = parse_format(said.strip())
        return named.family if named and family_of(named.family).names_itself else None
    # The last counts: a comment in an XML Schema may look like Protobuf, not the other way round.
    return next((family.name for family in reversed(FAMILIES) if family.evident(document)), None)
