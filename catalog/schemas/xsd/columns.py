"""XML is not typed: payloads by an XML Schema have no columns of their own."""

from __future__ import annotations

from catalog.schemas.columns.survey import Survey
from catalog.schemas.contract import Library, SchemaSource


def open_columns(source: SchemaSource, library: Library, survey: Survey) -> None:
    """Note that there are none."""
    survey.note((), "has no columns: XML is not typed")
