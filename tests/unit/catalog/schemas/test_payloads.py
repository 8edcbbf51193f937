"""Payloads of the JSON families: what is made up must be valid by the libraries that know these schemas best."""

from __future__ import annotations

import json
import random
import re
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
from tests.support.schemas import ANY_SCHEMA, NOTHING, NOW, Documents, fillings, payloads_of

TREE: dict[str, Any] = {
    "type": "object",
    "required": ["name", "children"],
    "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#"}}},
}
JSON_SCHEMAS: dict[str, dict[str, Any]] = {
    "members": {
        "type": "object",
        "required": ["a", "unlisted"],
        "properties": {"a": {"type": "integer"}, "b": {"type": ["string", "null"]}, "never": False},
        "additionalProperties": {"type": "boolean"},
    },
    "closed": {"properties": {"a": {"const": 1}, "b": {"enum": ["x", 2]}}, "additionalProperties": False},
    "bounds": {
        "type": "array",
        "prefixItems": [
            {"type": "integer", "minimum": 5, "exclusiveMaximum": 7},
            {"type": "number", "exclusiveMinimum": 0, "maximum": 0.001},
            {"type": "number", "multipleOf": 0.1, "minimum": 3},
            {"type": "integer", "multipleOf": 7, "maximum": -7},
            {"type": "number", "minimum": 4, "maximum": 4},
        ],
        "items": False,
        "minItems": 5,
    },
    "texts": {
        "type": "object",
        "required": ["code", "long", "short", "when", "id", "odd"],
        "properties": {
            "code": {"type": "string", "pattern": "^[A-Z]{3}-\\d{2,4}$", "maxLength": 7},
            "long": {"type": "string", "minLength": 40},
            "short": {"type": "string", "maxLength": 2},
            "when": {"type": "string", "format": "date-time"},
            "id": {"type": "string", "format": "uuid"},
            "odd": {"type": "string", "pattern": "^(?=x)x+$", "examples": ["xx", "xxx"]},
        },
    },
    "all-of": {
        "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"a": {"minimum": 10}}, "required": ["b"]}],
        "properties": {"b": {"type": "string"}},
        "$defs": {"base": {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}},
    },
    "one-of": {
        "type": "object",
        "required": ["kind"],
        "oneOf": [
            {"properties": {"kind": {"const": "circle"}, "r": {"type": "number"}}, "required": ["r"]},
            {"properties": {"kind": {"const": "square"}, "side": {"type": "number"}}, "required": ["side"]},
        ],
    },
    "any-of": {"anyOf": [{"type": "integer", "minimum": 3}, {"type": "string", "minLength": 30}]},
    "tree": TREE,
    "endless-branch": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "oneOf": [
                    {"type": "object", "required": ["next"], "properties": {"next": {"$ref": "#/$defs/node"}}},
                    {"type": "null"},
                ]
            }
        },
    },
    "dependents": {
        "type": "object",
        "properties": {"card": {"type": "string"}, "address": {"type": "string"}, "zip": {"type": "string"}},
        "required": ["card"],
        "dependentRequired": {"card": ["address"]},
        "dependentSchemas": {"address": {"required": ["zip"]}},
    },
    "map": {
        "type": "object",
        "minProperties": 2,
        "maxProperties": 3,
        "propertyNames": {"pattern": "^[a-z]{4}$"},
        "additionalProperties": {"type": "integer"},
    },
    "patterned-names": {"patternProperties": {"^x-[a-z]+$": {"type": "integer"}}, "additionalProperties": False},
    "unique": {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True, "minItems": 3},
    "contains": {"type": "array", "contains": {"const": 7}, "items": {"type": "integer"}, "minContains": 2},
    "anchor": {"$ref": "#thing", "$defs": {"t": {"$anchor": "thing", "type": "integer"}}},
    "embedded-id": {
        "$id": "https://example.com/root",
        "properties": {"a": {"$ref": "part"}},
        "required": ["a"],
        "$defs": {"p": {"$id": "part", "$ref": "#/$defs/x", "$defs": {"x": {"type": "boolean"}}}},
    },
    "draft-04": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "integer",
        "minimum": 3,
        "exclusiveMinimum": True,
        "maximum": 4,
    },
    "draft-07-tuple": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [{"type": "string"}, {"type": "integer"}],
        "additionalItems": False,
        "minItems": 2,
    },
    "draft-07-ref-alone": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"n": {"type": "integer"}},
        "$ref": "#/definitions/n",
        "type": "string",
    },
    "wants-nothing": {},
}


@pytest.mark.parametrize("name", JSON_SCHEMAS)
def test_json_schema(name: str) -> None:
    validator = jsonschema_rs.validator_for(JSON_SCHEMAS[name])
    for payload in payloads_of("JsonSchema", JSON_SCHEMAS[name]):
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


@pytest.mark.parametrize(
    "document",
    [
        False,
        {"$ref": "#/$defs/missing"},
        {"$ref": "#"},
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"required": ["a"], "properties": {"a": {"$ref": "#"}}},
        {"$ref": "https://example.com/unknown.json"},
    ],
)
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


SCALARS = (
    "string number boolean null int8 uint8 int16 uint16 int32 uint32 integer int64 uint64 int128 uint128 float8 float "
    "double decimal date datetime time duration uuid uri binary jsonpointer any"
).split()
JSON_STRUCTURES: dict[str, dict[str, Any]] = {
    "scalars": {
        "type": "object",
        "properties": {name: {"type": name} for name in SCALARS},
        "required": SCALARS,
    },
    "compounds": {
        "type": "object",
        "required": ["set", "map", "tuple", "tagged", "inline"],
        "properties": {
            "set": {"type": "set", "items": {"type": "int8"}},
            "map": {"type": "map", "values": {"type": ["string", "null"]}},
            "tuple": {
                "type": "tuple",
                "properties": {"x": {"type": "int32"}, "y": {"type": "string"}},
                "tuple": ["y", "x"],
            },
            "tagged": {"type": "choice", "choices": {"n": {"type": "int32"}, "s": {"type": "string"}}},
            "inline": {
                "type": "choice",
                "$extends": "#/definitions/Shape",
                "selector": "kind",
                "choices": {"circle": {"type": {"$ref": "#/definitions/Circle"}}},
            },
        },
        "definitions": {
            "Shape": {"abstract": True, "type": "object", "properties": {"name": {"type": "string"}}},
            "Circle": {
                "type": "object",
                "$extends": "#/definitions/Shape",
                "properties": {"r": {"type": "double"}},
                "required": ["r"],
            },
        },
    },
    "root": {
        "$root": "#/definitions/A/B",
        "definitions": {
            "A": {
                "B": {
                    "type": "object",
                    "properties": {"c": {"type": [{"$ref": "#/definitions/C"}, "null"]}, "b": {"type": "string"}},
                    "required": ["b"],
                    "additionalProperties": False,
                }
            },
            "C": {"type": "object", "properties": {"up": {"type": {"$ref": "#/definitions/A/B"}}}},
        },
    },
    "facets": {
        "$uses": ["JSONStructureValidation"],
        "type": "object",
        "required": ["code", "level", "list"],
        "properties": {
            "code": {"type": "string", "pattern": "^[a-z]{2}$|^xx$"},
            "level": {"type": "int32", "minimum": 3, "maximum": 5},
            "list": {"type": "array", "items": {"type": "boolean"}, "minItems": 3},
            "const": {"type": "string", "const": "k"},
            "enum": {"type": "int32", "enum": [1, 4]},
        },
    },
}


@pytest.mark.parametrize("name", JSON_STRUCTURES)
def test_json_structure(name: str) -> None:
    validator = InstanceValidator(JSON_STRUCTURES[name])
    for payload in payloads_of("JsonStructure", JSON_STRUCTURES[name]):
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


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[A-Za-z0-9_.-]+$",
        r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}:\d{2})$",
        r"^([01]\d|2[0-3]):[0-5]\d$",
        r"^[a-z]{2}$|^xx$",
        r"^(?:a|b)+?\/[^/]+$",
        r"^\S+@\S+\.\w{2,}$",
        r"[\d\-x]{3}",
        r"\x41\u00e4",
        r"^$",
    ],
)
def test_plain_patterns_are_met(pattern: str) -> None:
    for filling in fillings():
        text = make_matching_text(pattern, filling)
        assert text is not None
        assert re.search(pattern, text), text


@pytest.mark.parametrize("pattern", [r"\p{L}+", "(?=a)b", "(", "[a", "a**", r"(a)\1", "a^b", "((a{999}){999}){9}"])
def test_other_patterns_give_no_text(pattern: str) -> None:
    assert make_matching_text(pattern, Chooser(random.Random(1), NOW)) is None
