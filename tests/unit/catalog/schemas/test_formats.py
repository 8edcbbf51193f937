"""Formats as people spell them, and what documents show themselves to be, by ``tests/cases/schemas/formats.yaml``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from catalog.schemas.families import SchemaFormat, evident_family, parse_format
from catalog.schemas.library import format_of
from tests.support.cases import read_cases

CASES: dict[str, Any] = read_cases(Path(__file__).parents[3] / "cases" / "schemas" / "formats.yaml")


@pytest.mark.parametrize(("text", "family", "version"), CASES["spellings"])
def test_spellings(text: str, family: str, version: str) -> None:
    assert parse_format(text) == SchemaFormat(family, version)


@pytest.mark.parametrize("text", CASES["unknown"])
def test_unknown(text: str | None) -> None:
    assert parse_format(text) is None


@pytest.mark.parametrize(("document", "family"), CASES["shown"])
def test_what_a_document_shows(document: Any, family: str | None) -> None:
    assert evident_family(document) == family


@pytest.mark.parametrize(("declared", "registered", "document", "expected"), CASES["counts"])
def test_which_format_counts(declared: str | None, registered: str | None, document: Any, expected: Any) -> None:
    found = format_of(declared, {"format": registered, "document": document})
    assert found == (expected and SchemaFormat(*expected))
