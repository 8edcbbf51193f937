"""Schemas of a catalog that was loaded: which one a definition has, and the documents that it refers to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from catalog.errors import DocumentError
from catalog.model import Definition
from catalog.parsing.texts import parse_text
from catalog.schemas.contract import SchemaSource
from catalog.schemas.families import family_of
from catalog.schemas.family import SchemaFamily
from catalog.schemas.formats import SchemaFormat, evident_family, parse_format


class CatalogLibrary:
    """Gives documents from :attr:`Catalog.schemas`; whatever is not there was not loaded, and is not fetched.

    An entry's ``references`` say which entry each reference written in it means: that was settled when the catalog was
    loaded, with files and network at hand.
    """

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas

    def document(self, reference: str, base: str) -> tuple[str, Any] | None:
        """Return key and document of a reference written in the document at *base*, None if unknown."""
        references = self._schemas.get(base, {}).get("references", {})
        key = references.get(reference, reference)
        entry = self._schemas.get(key)
        return None if entry is None else (key, entry["document"])


def schema_source(definition: Definition, schemas: Mapping[str, Any]) -> SchemaSource | None:
    """Return the schema of a definition; None when it has none, or one of an unknown format."""
    entry = schemas.get(definition.schemakey or "")
    if entry is None:
        return None
    schema_format = format_of(definition.dataschemaformat, entry)
    if schema_format is None:
        return None
    family = family_of(schema_format.family)
    document = as_document(entry["document"], family)
    name, pointer = family.deep_link(definition.schemaname, definition.schemapointer)
    return SchemaSource(
        schema_format.family, schema_format.version, document, name, pointer, definition.schemakey or ""
    )


def format_of(declared: str | None, entry: Mapping[str, Any]) -> SchemaFormat | None:
    """Return the format that counts: what the document shows itself to be, else the registry's, else the definition's.

    The version is the one that is given with that family, the definition's before the registry's. None when nothing
    tells, or when the definition names a format that is unknown: it may mean something by it.
    """
    own = parse_format(declared)
    if declared and own is None:
        return None
    given = [each for each in (own, parse_format(entry.get("format"))) if each is not None]
    evident = evident_family(entry["document"])
    if evident is None:
        return next(reversed(given), None) if len({each.family for each in given}) > 1 else next(iter(given), None)
    return next((each for each in given if each.family == evident), SchemaFormat(evident))


def as_document(document: Any, family: SchemaFamily) -> Any:
    """Return a document in the form that the family compiles: the tree of JSON that was written as text."""
    return as_tree(document) if family.is_tree else document


def as_tree(document: Any) -> Any:
    """Return the tree of a JSON schema that was written as text; the text itself when it is no JSON object or list."""
    if not isinstance(document, str) or document.lstrip("\ufeff \t\r\n")[:1] not in ("{", "["):
        return document
    try:
        return parse_text("", document.encode("utf-8", "surrogatepass")).tree
    except DocumentError:
        return document  # whoever compiles it says what is wrong with it
