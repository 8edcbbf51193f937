"""XML is not typed: payloads by an XML Schema have no columns of their own."""

# Small: a family is loaded file by file, and XML has no columns.

from __future__ import annotations

from catalog.schemas.columns import Survey
from catalog.schemas.contract import Library, SchemaSource


def open_columns(source: SchemaSource, library: Library, survey: Survey) -> None:
    """Note that there are none."""
    survey.note((), "has no columns: XML is not typed")
