"""Formats of schemas, what documents show themselves to be, drafts of JSON Schema, and addresses of schemas."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from catalog.load import load
from catalog.schemas.contract import SchemaError, SchemaSource, Validator
from catalog.schemas.families import SchemaFormat, evident_family, parse_format
from catalog.schemas.jsonschema.validating import compile_schema, draft_of
from catalog.schemas.library import format_of
from tests.support.cases import read_cases
from tests.support.schemas import NOTHING
from tests.support.web import Reply, Web

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


# JSON schemas: drafts, references, deep links, and bodies that mean harm.


DRAFT = "http://json-schema.org/draft-{}/schema#"


def compiled(
    document: Any, *, library: Any = NOTHING, version: str = "", name: str = "", pointer: str = ""
) -> Validator:
    source = SchemaSource("JsonSchema", version, document, name, pointer, "/schemagroups/g/schemas/s/versions/1")
    return compile_schema(source, library)


@pytest.mark.parametrize(("said", "version", "draft"), CASES["drafts"])
def test_which_draft(said: str | None, version: str, draft: str) -> None:
    assert draft_of({"$schema": said}, version) == draft


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


# Where data schemas are for those who take events: an absolute address, or none.


GROUP = "/schemagroups/G/schemas"
PLACE = "/messagegroups/g/messages/m"
SCHEMAS = {"schemagroups": {"G": {"schemas": {"S": {"format": "JsonSchema/draft-07", "schema": {"type": "object"}}}}}}


def one(**attributes: str) -> dict[str, str]:
    return {"dataschemaformat": "JsonSchema/draft-07", **attributes}


@pytest.mark.parametrize(("own", "base_uri", "reference", "address"), CASES["addresses"])
def test_the_address_of_a_schema_is_absolute_or_none(
    own: str, base_uri: str, reference: str, address: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "catalog.json"
    tree = {"messagegroups": {"g": {"messages": {"m": one(dataschemauri=reference)}}}, **SCHEMAS}
    path.write_text(json.dumps(tree | ({"self": own} if own else {})))
    assert load([path], base_uri=base_uri).definitions[PLACE].schemauri == address


def test_a_document_of_the_network_has_the_address_it_was_read_from(web: Web, tmp_path: Path) -> None:
    messages = {"m": one(dataschemauri=f"{GROUP}/S"), "n": one(dataschemauri="s.json")}
    web.routes["/c/catalog.json"] = Reply({"messagegroups": {"g": {"messages": messages}}, **SCHEMAS})
    derived = {"d": {"basemessage": f"{web.url}/c/catalog.json#/messagegroups/g/messages/n"}}
    (tmp_path / "own.json").write_text(json.dumps({"messagegroups": {"h": {"messages": derived}}}))
    sources = [f"{web.url}/c/catalog.json", str(tmp_path / "own.json")]
    found = load(sources, network=True, allow=["*"]).definitions
    assert found[PLACE].schemauri == f"{web.url}/c/catalog.json#{GROUP}/S"
    assert found["/messagegroups/g/messages/n"].schemauri == f"{web.url}/c/s.json"
    assert found["/messagegroups/h/messages/d"].schemauri == f"{web.url}/c/s.json"
