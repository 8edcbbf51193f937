"""Payloads of the JSON families: what is made up must be valid by the libraries that know these schemas best."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jsonschema_rs
import msgspec
import pytest
from json_structure import InstanceValidator

from catalog.schemas.contract import SchemaError, SchemaSource
from catalog.schemas.families import compile_schema, family_of
from catalog.schemas.filling import Chooser, UnsupportedSchema, make_matching_text
from tests.support.cases import read_cases
from tests.support.schemas import ANY_SCHEMA, NOTHING, NOW, Documents, fillings, payloads_of

CASES: dict[str, dict[str, Any]] = read_cases(Path(__file__).parents[3] / "cases" / "schemas" / "samples.yaml")


@pytest.mark.parametrize("name", CASES["JsonSchema"])
def test_json_schema(name: str) -> None:
    validator = jsonschema_rs.validator_for(CASES["JsonSchema"][name])
    for payload in payloads_of("JsonSchema", CASES["JsonSchema"][name]):
        validator.validate(msgspec.json.decode(payload))


def test_a_json_schema_may_lie_in_several_documents_and_be_one_definition() -> None:
    library = Documents({"https://example.com/other.json": {"definitions": {"n": {"type": "integer", "minimum": 5}}}})
    document = {
        "definitions": {
            "E": {"required": ["n"], "properties": {"n": {"$ref": "https://example.com/other.json#/definitions/n"}}}
        }
    }
    for payload in payloads_of("JsonSchema", document, name="E", library=library):
        assert msgspec.json.decode(payload)["n"] >= 5


def test_optional_members_come_and_go() -> None:
    document = {"type": "object", "properties": {name: {"type": "integer"} for name in "abcdef"}}
    sizes = {len(msgspec.json.decode(payload)) for payload in payloads_of("JsonSchema", document)}
    assert {0, 6} < sizes


@pytest.mark.parametrize("document", CASES["no value"])
def test_what_no_value_can_be_made_for_is_said(document: Any) -> None:
    with pytest.raises(UnsupportedSchema):
        next(payloads_of("JsonSchema", document))


@pytest.mark.slow
@hypothesis.given(schema=ANY_SCHEMA, seed=st.integers(0, 99))
@hypothesis.example(schema=("JsonSchema", {"allOf": [{"allOf": [{"$ref": "#"}] * 3}] * 3}), seed=1)
@hypothesis.example(schema=("JsonSchema", {"type": "array", "minItems": 10**12}), seed=1)
@hypothesis.example(schema=("JsonSchema", {"type": "string", "minLength": 10**12}), seed=1)
def test_any_schema_gives_a_payload_or_a_reason(schema: tuple[str, Any], seed: int) -> None:
    source = SchemaSource(schema[0], "", schema[1])
    try:
        compile_schema(source, NOTHING)
        filler = family_of(source.family).open_sampler(source, NOTHING)
        filler.payload(Chooser(random.Random(seed), NOW), "application/json")
    except (SchemaError, UnsupportedSchema):
        pass


def test_references_that_multiply_are_given_up() -> None:
    document: dict[str, Any] = {"$ref": "#/$defs/n0", "$defs": {"n30": {"type": "integer"}}}
    for number in range(30):
        document["$defs"][f"n{number}"] = {"allOf": [{"$ref": f"#/$defs/n{number + 1}"}] * 2}
    with pytest.raises(UnsupportedSchema):
        next(payloads_of("JsonSchema", document))


@pytest.mark.parametrize("name", CASES["JsonStructure"])
def test_json_structure(name: str) -> None:
    validator = InstanceValidator(CASES["JsonStructure"][name])
    for payload in payloads_of("JsonStructure", CASES["JsonStructure"][name]):
        assert validator.validate(json.loads(payload)) == []


@pytest.mark.parametrize("place", ["", "definitions"])
def test_json_structure_may_import_types(place: str) -> None:
    other = {"name": "Whole", "type": "object", "properties": {"n": {"type": "int8"}}, "required": ["n"]}
    other["definitions"] = {"Part": {"type": "string"}}
    document: dict[str, Any] = {
        "type": "object",
        "required": ["whole", "part"],
        "properties": {
            "whole": {"type": {"$ref": "#/definitions/Whole"}},
            "part": {"type": {"$ref": "#/definitions/Part"}},
        },
        "definitions": {},
    }
    (document[place] if place else document)["$import"] = "https://example.com/other"
    for payload in payloads_of("JsonStructure", document, library=Documents({"https://example.com/other": other})):
        made = json.loads(payload)
        assert isinstance(made["whole"]["n"], int)
        assert isinstance(made["part"], str)


@pytest.mark.parametrize("pattern", CASES["patterns"])
def test_plain_patterns_are_met(pattern: str) -> None:
    for filling in fillings():
        text = make_matching_text(pattern, filling)
        assert text is not None
        assert re.search(pattern, text), text


@pytest.mark.parametrize(
    "pattern", [r"\p{L}+", "(?=a)b", "(", "[a", "a**", r"(a)\1", "((a{999}){999}){9}", "(?:){3000000}"]
)
def test_other_patterns_give_no_text(pattern: str) -> None:
    assert make_matching_text(pattern, Chooser(random.Random(1), NOW)) is None
