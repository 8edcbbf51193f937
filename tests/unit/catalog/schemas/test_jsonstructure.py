"""JSON Structure: types, references, imports, deep links, and what the library is not left alone with."""

from __future__ import annotations

import time
from typing import Any

import pytest

from catalog.schemas.contract import MissingTypeError, SchemaError, SchemaSource, Validator
from catalog.schemas.jsonstructure.validating import compile_schema, references_of
from tests.support.schemas import NOTHING, Documents

CORE = "https://json-structure.org/meta/core/v0/#"
EXTENDED = "https://json-structure.org/meta/extended/v0/#"


def document(kind: Any, **rest: Any) -> dict[str, Any]:
    return {"$schema": EXTENDED, "$id": "https://example.com/s", "name": "S", "type": kind, **rest}


def compiled(tree: Any, *, library: Any = NOTHING, name: str = "", pointer: str = "") -> Validator:
    return compile_schema(SchemaSource("JsonStructure", "draft-02", tree, name, pointer, "key"), library)


def verdicts(tree: Any, *bodies: bytes, name: str = "") -> list[bool]:
    validator = compiled(tree, name=name)
    return [validator.fault(body, None) is None for body in bodies]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("string", b'"a"', b"1"),
        ("int32", b"1", b"true"),
        ("int32", b"-2147483648", b"2147483648"),
        ("uint8", b"255", b"256"),
        ("double", b"1.5", b"false"),
        ("int64", b'"9223372036854775807"', b'"9223372036854775808"'),
        ("decimal", b'"1.50"', b'"x"'),
        ("datetime", b'"2026-01-02T03:04:05Z"', b'"2026-01-02"'),
        ("uuid", b'"5d3c6a3e-2a4b-4f6e-9a3f-0a1b2c3d4e5f"', b'"5"'),
        (["string", "null"], b"null", b"1"),
        ("any", b"[1]", b"["),
    ],
)
def test_types(kind: Any, good: bytes, bad: bytes) -> None:
    assert verdicts(document(kind), good, bad) == [True, False]


def test_faults_name_the_place() -> None:
    inner = {"type": "array", "items": {"type": "int32"}}
    validator = compiled(document("object", properties={"a": inner}, required=["a"]))
    assert validator.fault(b'{"a": [1]}', None) is None
    assert str(validator.fault(b'{"a": [1, "x"]}', None)).startswith("/a/1: ")
    assert '"a"' in str(validator.fault(b"{}", None))
    assert validator.fault(None, None) is not None


def test_roots_references_and_deep_links() -> None:
    point = {"type": "object", "name": "Point", "properties": {"x": {"type": "int32"}}, "required": ["x"]}
    colour = {"type": "string", "name": "Colour", "enum": ["red"]}
    spot = {
        "type": "object",
        "$extends": "#/definitions/Point",
        "properties": {"c": {"type": {"$ref": "#/definitions/Colour"}}},
    }
    tree = {
        "$schema": CORE,
        "$id": "https://example.com/s",
        "$root": "#/definitions/Spot",
        "definitions": {"Point": point, "Colour": colour, "Spot": spot},
    }
    bodies = (b'{"x": 1, "c": "red"}', b'{"x": 1, "c": "blue"}', b'{"c": "red"}')
    assert verdicts(tree, *bodies) == [True, False, False]
    assert verdicts(tree, *bodies, name="Point") == [True, True, False]
    assert verdicts(tree, b'"red"', b'"blue"', name="Colour") == [True, False]
    del tree["$root"]
    assert verdicts(tree, *bodies, name="Spot") == [True, False, False]
    with pytest.raises(MissingTypeError) as caught:
        compiled(tree, name="Spott")
    assert "Spot" in caught.value.hint
    with pytest.raises(SchemaError):
        compiled(tree)


@pytest.mark.parametrize("own", [{"title": "a child"}, {"required": ["v"]}])
def test_a_reference_to_the_type_around_it_may_have_keywords_of_its_own(own: dict[str, Any]) -> None:
    child = {"type": {"$ref": "#/definitions/Tree"}, **own}
    tree = {"type": "object", "name": "Tree", "properties": {"v": {"type": "int32"}, "child": child}}
    schema = {
        "$schema": CORE,
        "$id": "https://example.com/s",
        "$root": "#/definitions/Tree",
        "definitions": {"Tree": tree},
    }
    bodies = (b'{"child": {"v": 1, "child": {"v": 2}}}', b'{"v": 1, "child": {"v": 1, "child": {"v": "2"}}}')
    assert verdicts(schema, *bodies) == [True, False]
    assert verdicts(schema, b'{"child": {}}') == ["required" not in own]


def test_a_selector_may_be_a_required_property_of_the_base() -> None:
    base = {"type": "object", "name": "B", "abstract": True, "properties": {"k": {"type": "string"}}, "required": ["k"]}
    leaf = {"type": "object", "name": "L", "$extends": "#/definitions/B", "properties": {"x": {"type": "int32"}}}
    union = {"$extends": "#/definitions/B", "selector": "k", "choices": {"leaf": {"type": {"$ref": "#/definitions/L"}}}}
    tree = document("choice", **union, definitions={"B": base, "L": leaf})
    assert verdicts(tree, b'{"k": "leaf", "x": 1}', b'{"k": "leaf", "x": "1"}', b'{"x": 1}') == [True, False, False]


def test_exactly_one_of_alternative_sets_is_required() -> None:
    members = {name: {"type": "int32"} for name in ("size", "fins", "legs")}
    tree = document("object", properties=members, required=[["size", "fins"], ["size", "legs"]])
    bodies = (
        b'{"size": 1, "fins": 2}',
        b'{"size": 1, "legs": 2}',
        b'{"size": 1}',
        b'{"size": 1, "fins": 2, "legs": 2}',
    )
    assert verdicts(tree, *bodies) == [True, True, False, False]


def test_imports_over_documents() -> None:
    unit = {"$id": "https://example.com/u", "name": "Unit", "type": "string", "enum": ["C"]}
    base = {"$id": "https://example.com/b", "$import": "https://example.com/u", "name": "B", "type": "int32"}
    tree = document("object", properties={"u": {"type": {"$ref": "#/definitions/Unit"}}})
    tree["$import"] = "https://example.com/b"
    library = Documents({"https://example.com/b": base, "https://example.com/u": unit})
    assert list(references_of(SchemaSource("JsonStructure", "", tree))) == ["https://example.com/b"]
    validator = compiled(tree, library=library)
    assert validator.fault(b'{"u": "C"}', None) is None
    assert validator.fault(b'{"u": "K"}', None) is not None
    with pytest.raises(SchemaError, match="not loaded"):
        compiled(tree)
    with pytest.raises(SchemaError, match="again"):
        compiled(tree, library=Documents({"https://example.com/b": tree}))


def test_constraints() -> None:
    uses = ["JSONStructureValidation"]
    text = document("string", **{"$uses": uses, "pattern": "^a+$", "maxLength": 3})
    assert verdicts(text, b'"aa"', b'"b"', b'"aaaa"') == [True, False, False]
    number = document("int64", **{"$uses": uses, "minimum": 5})
    assert verdicts(number, b'"7"', b'"3"') == [True, False]
    wide = document("int128", **{"$uses": uses, "multipleOf": "2"})
    assert verdicts(wide, b'"' + b"4" * 38 + b'"', b'"' + b"5" * 38 + b'"') == [True, False]
    items = document("array", items={"type": "any"}, contains={"type": "string"}, **{"$uses": uses})
    assert verdicts(items, b'[1, "a"]', b"[1]") == [True, False]
    keys = document("map", values={"type": "int32"}, keyNames={"type": "string", "pattern": "^k"}, **{"$uses": uses})
    assert verdicts(keys, b'{"k1": 1}', b'{"x": 1}', b'{"k1": "a"}') == [True, False, False]
    has = document("object", has={"type": "string"}, **{"$uses": uses})
    assert verdicts(has, b'{"a": 1, "b": "x"}', b'{"a": 1}') == [True, False]


def test_a_body_may_name_its_schema_and_what_it_uses() -> None:
    closed = document("object", properties={"a": {"type": "string"}}, additionalProperties=False)
    assert verdicts(closed, b'{"$schema": "x", "$uses": ["y"], "a": "x"}', b'{"$other": 1}') == [True, False]
    plain = document("object", additionalProperties={"type": "int32"})
    assert verdicts(plain, b'{"$schema": "x", "a": 1}', b'{"a": "x"}') == [True, False]
    part = {"type": "object", "name": "Extra", "properties": {"extra": {"type": "int32"}}}
    offering = {**closed, "$offers": {"E": "#/definitions/Extra"}, "definitions": {"Extra": part}}
    assert verdicts(offering, b'{"$uses": ["E"], "extra": 1}', b'{"$uses": ["E"], "extra": "x"}') == [True, False]


@pytest.mark.parametrize(
    "tree",
    [
        document("object", properties={"a": {"type": {"$ref": "#/definitions/gone"}}}),
        document("string", pattern="(", **{"$uses": ["JSONStructureValidation"]}),
        {"$schema": CORE, "$id": "https://example.com/s"},
        document({"$ref": 5}),
    ],
)
def test_invalid_documents(tree: Any) -> None:
    with pytest.raises(SchemaError):
        compiled(tree)


def test_what_does_no_harm_is_let_pass() -> None:
    tree = {"$schema": CORE, "type": "object", "properties": {"n": {"type": ["double", "null"], "unit": "K"}}}
    assert verdicts(tree, b'{"n": null}') == [True]


def test_hostile_content_ends() -> None:
    started = time.process_time()
    text = document("string", pattern="^(a+)+$", **{"$uses": ["JSONStructureValidation"]})
    assert verdicts(text, b'"' + b"a" * 5000 + b'!"') == [False]
    tree = document("object", properties={"n": {"type": {"$ref": "#/definitions/N"}}})
    tree["definitions"] = {"N": {"type": "array", "name": "N", "items": {"type": {"$ref": "#/definitions/N"}}}}
    for levels in (50, 900):
        assert compiled(tree).fault(b'{"n": ' + b"[" * levels + b"]" * levels + b"}", None) is None
    assert time.process_time() - started < 20
