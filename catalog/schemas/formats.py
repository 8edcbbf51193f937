"""Names of schema formats, in all the ways real catalogs spell them, and what a document says of itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from catalog.schemas.contract import Family

_NAMES: Final[tuple[tuple[Family, re.Pattern[str]], ...]] = (
    ("JsonStructure", re.compile(r"(?:https?://)?json[-_ ]?structure(?:\.org)?")),
    ("JsonSchema", re.compile(r"(?:https?://)?json[-_ ]?schema(?:\.org)?")),
    ("Avro", re.compile(r"(?:apache[-_ ])?avro(?:[-_ ]?schema)?")),
    ("Protobuf", re.compile(r"(?:google[-_ ])?proto(?:col)?(?:[-_ ]?buf(?:fer)?s?)?")),
    ("XSD", re.compile(r"xsd|xml[-_ ]?schema(?:[-_ ]definition)?|https?://www\.w3\.org/2001/xmlschema")),
)
_REST: Final = re.compile(r"[/\-_:, .#]+|(?=v?\d)|$")
_MEDIA_TYPES: Final[dict[str, Family]] = {
    "application/json": "JsonSchema",
    "application/schema+json": "JsonSchema",
    "application/schema-instance+json": "JsonSchema",
    "application/avro": "Avro",
    "application/vnd.apache.avro": "Avro",
    "application/vnd.apache.avro+json": "Avro",
    "avro/binary": "Avro",
    "application/protobuf": "Protobuf",
    "application/x-protobuf": "Protobuf",
    "application/vnd.google.protobuf": "Protobuf",
    "text/x-protobuf": "Protobuf",
    "application/xml": "XSD",
    "application/xsd": "XSD",
    "application/xsd+xml": "XSD",
    "text/xml": "XSD",
}
_TEXT_PROTOBUF: Final = re.compile(r"""^[ \t]*(?:syntax\s*=\s*["']proto|(?:message|enum)\s+\w+\s*\{)""", re.MULTILINE)
_AVRO_MEMBERS: Final = {"record": "fields", "enum": "symbols", "fixed": "size"}


@dataclass(frozen=True, slots=True)
class SchemaFormat:
    """A format that is known: its family, and what follows it in lower case (``draft-07``, ``1.11``), maybe nothing."""

    family: Family
    version: str = ""


@lru_cache(maxsize=1024)
def parse_format(text: str | None) -> SchemaFormat | None:
    """Read a format: ``JsonSchema/draft-07``, ``AVRO``, ``proto3``, ``XSD/1.0``, a media type or the URI of a dialect.

    None when there is none, or it is unknown.
    """
    name = (text or "").partition(";")[0].strip().lower()
    if name in _MEDIA_TYPES:
        return SchemaFormat(_MEDIA_TYPES[name])
    for family, pattern in _NAMES:
        found = pattern.match(name)
        rest = _REST.match(name, found.end()) if found else None
        if rest is not None:
            return SchemaFormat(family, name[rest.end() :].removeprefix("v") if found else "")
    return None


def evident_family(document: Any) -> Family | None:
    """Tell what a schema is from itself, where there is no doubt: by ``$schema``, Avro's shapes, or its syntax."""
    if isinstance(document, dict):
        dialect = document.get("$schema")
        if isinstance(dialect, str):
            found = parse_format(dialect.strip())
            return found.family if found and found.family in ("JsonSchema", "JsonStructure") else None
        return "Avro" if _is_avro(document) else None
    if isinstance(document, list):
        return "Avro" if any(isinstance(branch, dict) and _is_avro(branch) for branch in document) else None
    if isinstance(document, str):
        if document.lstrip("\ufeff \t\r\n").startswith("<") and "XMLSchema" in document:
            return "XSD"
        return "Protobuf" if _TEXT_PROTOBUF.search(document) else None
    return None


def _is_avro(tree: dict[str, Any]) -> bool:
    kind = tree.get("type")
    member = _AVRO_MEMBERS.get(kind) if isinstance(kind, str) else None
    return member is not None and member in tree and "name" in tree
