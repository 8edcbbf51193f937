"""Formats as people spell them, and what documents show themselves to be."""

from __future__ import annotations

from typing import Any

import pytest

from catalog.schemas.families import SchemaFormat, evident_family, parse_format
from catalog.schemas.library import format_of

SPELLINGS = [
    ("JsonSchema/draft-07", "JsonSchema", "draft-07"),
    ("JSONSchema/Draft/2019-09", "JsonSchema", "draft/2019-09"),
    ("JSONSchema/draft-07version", "JsonSchema", "draft-07version"),
    ("jsonschema", "JsonSchema", ""),
    ("JSON Schema 7", "JsonSchema", "7"),
    ("http://json-schema.org/draft-07/schema#", "JsonSchema", "draft-07/schema#"),
    ("application/schema+json; version=7", "JsonSchema", ""),
    ("JsonStructure/draft-02", "JsonStructure", "draft-02"),
    ("JSONStructure/draft-02", "JsonStructure", "draft-02"),
    ("https://json-structure.org/meta/core/v0/#", "JsonStructure", "meta/core/v0/#"),
    ("Avro/1.11.1", "Avro", "1.11.1"),
    ("AVRO", "Avro", ""),
    ("application/vnd.apache.avro", "Avro", ""),
    ("Proto/3", "Protobuf", "3"),
    ("Protobuf/2.0", "Protobuf", "2.0"),
    ("proto3", "Protobuf", "3"),
    ("protocol-buffers/v3", "Protobuf", "3"),
    ("XMLSchema/1.1", "XSD", "1.1"),
    ("XSD/1.0", "XSD", "1.0"),
    (" xsd ", "XSD", ""),
]
RECORD = {"type": "record", "name": "R", "fields": []}


@pytest.mark.parametrize(("text", "family", "version"), SPELLINGS)
def test_spellings(text: str, family: Any, version: str) -> None:
    assert parse_format(text) == SchemaFormat(family, version)


@pytest.mark.parametrize("text", [None, "", "JTD/1.0", "avrox", "prototype", "OpenAPI/3.0", "xml"])
def test_unknown(text: str | None) -> None:
    assert parse_format(text) is None


@pytest.mark.parametrize(
    ("document", "family"),
    [
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "JsonSchema"),
        ({"$schema": "https://json-structure.org/meta/core/v0/#"}, "JsonStructure"),
        ({"$schema": "https://example.com/own"}, None),
        (RECORD, "Avro"),
        (["null", RECORD], "Avro"),
        ({"type": "object"}, None),
        ({"type": "array", "name": "A"}, None),
        ('syntax = "proto3"; message M {}', "Protobuf"),
        ("\n// words\npackage p;\nmessage M {\n}", "Protobuf"),
        ('<?xml version="1.0"?><xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"/>', "XSD"),
        ("string", None),
        (True, None),
    ],
)
def test_what_a_document_shows(document: Any, family: str | None) -> None:
    assert evident_family(document) == family


@pytest.mark.parametrize(
    ("declared", "registered", "document", "expected"),
    [
        ("JsonSchema/draft-04", "JsonSchema/draft-07", {}, SchemaFormat("JsonSchema", "draft-04")),
        (None, "Avro/1.9", {}, SchemaFormat("Avro", "1.9")),
        ("JsonSchema/draft-07", "Avro/1.9", {}, SchemaFormat("Avro", "1.9")),
        ("JsonSchema/draft-07", "Avro/1.9", RECORD, SchemaFormat("Avro", "1.9")),
        ("Avro/1.9", None, {"$schema": "http://json-schema.org/draft-07/schema"}, SchemaFormat("JsonSchema")),
        ("JTD/1", "JsonSchema/draft-07", {}, None),
        (None, None, {}, None),
    ],
)
def test_which_format_counts(
    declared: str | None, registered: str | None, document: Any, expected: SchemaFormat | None
) -> None:
    assert format_of(declared, {"format": registered, "document": document}) == expected
