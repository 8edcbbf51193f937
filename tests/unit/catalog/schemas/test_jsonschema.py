"""JSON schemas: drafts, references, deep links, and bodies that mean harm."""

from __future__ import annotations

import time
from typing import Any

import pytest

from catalog.schemas.contract import MissingTypeError, SchemaError, SchemaSource, Validator
from catalog.schemas.jsonschema.validating import compile_schema, draft_of, references_of
from tests.support.schemas import NOTHING, Documents

DRAFT = "http://json-schema.org/draft-{}/schema#"
READING: dict[str, Any] = {"type": "object", "properties": {"t": {"type": "number"}}, "required": ["t"]}


def compiled(
    document: Any, *, library: Any = NOTHING, version: str = "", name: str = "", pointer: str = ""
) -> Validator:
    source = SchemaSource("JsonSchema", version, document, name, pointer, "/schemagroups/g/schemas/s/versions/1")
    return compile_schema(source, library)


def test_faults_name_the_place() -> None:
    validator = compiled(READING)
    assert validator.fault(b'{"t": 1}', "application/json") is None
    assert str(validator.fault(b'{"t": "x"}', None)).startswith("/t: ")
    assert str(validator.fault(b"{}", None)) == '"t" is a required property'


@pytest.mark.parametrize(
    "body",
    [None, b"", b"x", b"\xff", b"{} x", b'{"t": NaN}', b'{"t": 1e}', b"[" * 100_000, b'{"t": "\\ud800"}', b'"'],
)
def test_what_is_no_json_is_a_fault(body: bytes | None) -> None:
    fault = compiled({}).fault(body, "application/octet-stream")
    assert fault is not None
    assert fault.path == ""


def test_what_else_json_may_be() -> None:
    validator = compiled({"properties": {"t": {"type": "integer"}}})
    for body in (b'\xef\xbb\xbf{"t": 1}', b'{"t": "x", "t": 1}', b'{"t": 123456789012345678901234567890}', b"null"):
        assert validator.fault(body, "text/plain") is None


@pytest.mark.parametrize(
    ("said", "version", "draft"),
    [
        (DRAFT.format("04"), "draft-07", "04"),
        (DRAFT.format("06"), "", "06"),
        ("https://json-schema.org/draft/2019-09/schema", "", "2019-09"),
        (None, "draft-07", "07"),
        (None, "draft-07version", "07"),
        (None, "draft/2019-09", "2019-09"),
        (None, "4", "04"),
        (None, "unknown", "2020-12"),
        ("https://example.com/own", "draft-06", "06"),
    ],
)
def test_which_draft(said: str | None, version: str, draft: str) -> None:
    assert draft_of({"$schema": said}, version) == draft


def test_drafts_differ() -> None:
    old = compiled({"minimum": 1, "exclusiveMinimum": True}, version="draft-04")
    assert old.fault(b"1", None) is not None
    assert compiled({"$schema": "https://example.com/own", "type": "object"}).fault(b"{}", None) is None
    tuples = {"prefixItems": [{"type": "string"}]}
    assert compiled(tuples, version="2020-12").fault(b"[1]", None) is not None
    assert compiled(tuples, version="draft-07").fault(b"[1]", None) is None


@pytest.mark.parametrize("version", ["draft-04", "draft-07", "2020-12"])
def test_format_is_an_annotation(version: str) -> None:
    assert compiled({"format": "date-time"}, version=version).fault(b'"2026-01-02 03:04"', None) is None


@pytest.mark.parametrize(
    ("link", "pointer"),
    [("Reading", ""), ("inner/Reading", ""), ("Titled", ""), ("", "/definitions/Reading")],
)
def test_deep_links(link: str, pointer: str) -> None:
    definitions = {"Reading": READING, "other": {**READING, "title": "Titled"}}
    document = {"definitions": definitions, "inner": {"Reading": READING}, "type": "string"}
    validator = compiled(document, name=link, pointer=pointer)
    assert validator.fault(b'{"t": 1}', None) is None
    assert validator.fault(b'"text"', None) is not None


def test_a_part_of_what_is_no_schema() -> None:
    document = {"swagger": "2.0", "type": 7, "definitions": {"A": {"$ref": "#/definitions/B"}, "B": {"type": "null"}}}
    validator = compiled(document, pointer="/definitions/A", version="draft-07")
    assert validator.fault(b"null", None) is None
    assert validator.fault(b"1", None) is not None


def test_references_by_uri_and_id() -> None:
    other = {"$schema": DRAFT.format("07"), "definitions": {"Z": {"type": "string"}}}
    inner = {"properties": {"q": {"$ref": "#/definitions/Y"}, "z": {"$ref": "b.json#/definitions/Z"}}}
    document = {"definitions": {"X": inner, "Y": {"type": "integer"}}, "allOf": [{"$ref": "#/definitions/X"}]}
    named = {**document, "$id": "https://example.com/a.json"}
    for each, key in ((document, "b.json"), (named, "https://example.com/b.json")):
        assert list(references_of(SchemaSource("JsonSchema", "", each))) == [key]
        for name in ("", "X"):
            validator = compiled(each, library=Documents({key: other}), name=name)
            assert validator.fault(b'{"q": 1, "z": "s"}', None) is None
            assert str(validator.fault(b'{"z": 1}', None)).startswith("/z: ")


def test_references_that_are_none() -> None:
    document = {
        "$schema": DRAFT.format("07"),
        "$id": "https://example.com/a.json",
        "properties": {"$ref": {"$ref": "#/definitions/m"}, "default": {"$ref": "c.json#x"}, "b": {"$ref": "b.json"}},
        "definitions": {"m": {"$ref": DRAFT.format("07")}, "b": {"$id": "b.json", "type": "string"}},
        "default": {"$ref": "d.json"},
    }
    assert list(references_of(SchemaSource("JsonSchema", "", document))) == ["https://example.com/c.json"]


def test_nothing_is_fetched() -> None:
    with pytest.raises(SchemaError, match="localhost"):
        compiled({"$ref": "http://localhost:1/x.json"})


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        ({"properties": {"a": {"type": "strin"}}}, "/properties/a/type"),
        ({"pattern": "("}, "/pattern"),
        ({"pattern": "((a{100}){100}){100}"}, "/pattern"),
        ({"$ref": "#/definitions/gone"}, ""),
        ("text", ""),
        ([], ""),
        ('{"type": ', ""),
    ],
)
def test_invalid_schemas(document: Any, pointer: str) -> None:
    with pytest.raises(SchemaError) as caught:
        compiled(document, version="draft-07")
    assert caught.value.pointer == pointer
    assert len(str(caught.value)) <= 300


def test_a_type_that_is_not_there() -> None:
    with pytest.raises(MissingTypeError) as caught:
        compiled({"$defs": {"Reading": READING}}, name="Readin")
    assert "Reading" in caught.value.hint
    with pytest.raises(MissingTypeError):
        compiled({}, pointer="/definitions/X")


def test_text_is_read_as_json() -> None:
    assert compiled('{"type": "object"}').fault(b"1", None) is not None
    assert compiled(False).fault(b"1", None) is not None


def test_hostile_content_ends() -> None:
    started = time.process_time()
    looking = compiled({"pattern": "^(?=(a+)+$)(a|aa)+b\\1"})
    assert looking.fault(b'"' + b"a" * 5000 + b'!"', None) is not None
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"not": deep}
    with pytest.raises(SchemaError):
        compiled(deep)
    node = {"$defs": {"n": {"allOf": [{"items": {"$ref": "#/$defs/n"}}] * 2}}, "$ref": "#/$defs/n"}
    assert compiled(node).fault(b"[" * 500 + b"]" * 500, None, at_any_cost=True) is None
    assert compiled({"$ref": "#"}).fault(b"1", None, at_any_cost=True) is None
    assert time.process_time() - started < 20
