"""Lines have no columns."""

from __future__ import annotations

from catalog.schemas.columns import Survey
from catalog.schemas.contract import Library, SchemaSource


def open_columns(source: SchemaSource, library: Library, survey: Survey) -> None:
    survey.add_finding((), "has no columns: lines are not typed")
