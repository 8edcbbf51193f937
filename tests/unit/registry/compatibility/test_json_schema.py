"""Compatibility of JSON schemas: cases as data, and no proof that a value refutes."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from catalog.schemas.contract import SchemaSource
from catalog.schemas.sandbox import MAX_SECONDS, LimitExceeded, sandbox
from registry.compatibility.containment import is_contained
from registry.compatibility.json_schema import find_json_gap, find_witness
from registry.compatibility.schemas import Budget, Undecided
from tests.support.cases import examples, read_cases

FILE = Path(__file__).parents[3] / "cases" / "compatibility" / "json_schema.yaml"
CASES = read_cases(FILE)
WORDS = {True: "yes", False: "no", "unknown": "unknown"}


def source(document: Any, draft: str = "draft/2020-12") -> SchemaSource:
    return SchemaSource("JsonSchema", draft, document)


def verdict(reader: SchemaSource, writer: SchemaSource) -> str:
    try:
        return "no" if find_json_gap(reader, writer, Budget()) else "yes"
    except Undecided:
        return "unknown"


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_case(case: dict[str, Any]) -> None:
    draft = case.get("draft", "draft/2020-12")
    older, newer = source(case["older"], draft), source(case["newer"], draft)
    assert verdict(newer, older) == WORDS[case["backward"]]
    assert verdict(older, newer) == WORDS[case["forward"]]


MANY = 60_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        ({"enum": [f"a{n}" for n in range(MANY)]}, {"enum": [f"b{n}" for n in range(MANY)]}),
        ({"enum": [n * (2**61 - 1) for n in range(MANY)]}, {"enum": [n * (2**61 - 1) for n in reversed(range(MANY))]}),
        ({"allOf": [{"minimum": 0}] * 10_000}, {"enum": list(range(10_000))}),
        ({"enum": [[n] for n in range(MANY)]}, {"enum": [[n, n] for n in range(MANY)]}),
        (
            {"patternProperties": {f"^{n}": {} for n in range(1000)}},
            {"properties": {f"x{n}": {} for n in range(1000)}},
        ),
        ({"allOf": [{"required": ["a"]}] * 10_000}, {"required": [f"r{n}" for n in range(MANY)] + ["a"]}),
        ({"$defs": {"n": {"not": {"enum": list(range(MANY))}}}, "allOf": [{"$ref": "#/$defs/n"}] * 10_000}, {}),
        (
            {"properties": {f"x{n}": {} for n in range(9000)}},
            {"allOf": [{"title": "x"}] * 9000},
        ),
    ],
    ids=["words", "numbers of one hash", "bounds", "lists", "patterns", "required", "references", "members"],
)
def test_looking_for_a_proof_ends_soon(reader: Any, writer: Any) -> None:
    before = time.monotonic()
    with contextlib.suppress(LimitExceeded):
        sandbox.call(is_contained, writer, reader, "2020-12")
    assert time.monotonic() - before < 20 * MAX_SECONDS, "generous, as other tests may keep the machine busy"


def test_a_proof_follows_one_that_met_a_limit() -> None:
    endless = {"allOf": [{"$ref": "#/$defs/n"}] * 1000, "$defs": {"n": {"not": {"enum": list(range(1000))}}}}
    with pytest.raises(LimitExceeded):
        sandbox.call(is_contained, endless, {"type": "string"}, "2020-12", seconds=0.001)
    assert sandbox.call(is_contained, {"type": "integer"}, {"type": "number"}, "2020-12")[0]


NAMES = st.sampled_from(["a", "b", "x_c"])
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
NUMBERS = st.integers(-2, 3)
LEAVES = st.one_of(
    st.booleans(),
    st.fixed_dictionaries({"type": st.one_of(TYPES, st.lists(TYPES, min_size=1, max_size=3, unique=True))}),
    st.fixed_dictionaries(
        {"enum": st.lists(st.sampled_from([None, True, 0, 1, 1.5, "", "a"]), min_size=1, max_size=3)}
    ),
    st.fixed_dictionaries({"type": st.just("integer")}, optional={"minimum": NUMBERS, "exclusiveMaximum": NUMBERS}),
    st.fixed_dictionaries({"type": st.just("number"), "multipleOf": st.sampled_from([0.5, 1, 2])}),
    st.fixed_dictionaries({"type": st.just("string")}, optional={"minLength": st.integers(0, 2)}),
    st.just({"$ref": "#/$defs/d"}),
)


def _composed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.fixed_dictionaries(
        {},
        optional={
            "type": st.just("object"),
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "patternProperties": st.dictionaries(st.just("^x_"), inner, max_size=1),
            "additionalProperties": inner,
            "required": st.lists(NAMES, max_size=2, unique=True),
            "minProperties": st.integers(0, 2),
        },
    )
    arrays = st.fixed_dictionaries(
        {},
        optional={
            "type": st.just("array"),
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "items": inner,
            "minItems": st.integers(0, 2),
            "maxItems": st.integers(0, 3),
            "contains": inner,
            "minContains": st.integers(0, 2),
        },
    )
    branches = st.lists(inner, min_size=1, max_size=3)
    choices = st.sampled_from(["anyOf", "oneOf", "allOf"]).flatmap(lambda name: st.fixed_dictionaries({name: branches}))
    mixed = st.builds(lambda one, other: {**one, **other}, objects, choices)
    return st.one_of(objects, arrays, choices, mixed, st.fixed_dictionaries({"not": inner}))


SCHEMAS = st.recursive(LEAVES, _composed, max_leaves=6)


def _whole(schema: Any, defined: Any) -> Any:
    """Return a document with a definition, which may refer to itself below an object's member."""
    defined = {"properties": {"a": defined}} if "$ref" in repr(defined) else defined
    return {"allOf": [schema], "$defs": {"d": defined}}


@pytest.mark.slow
@hypothesis.settings(max_examples=examples(2000))
@hypothesis.given(SCHEMAS, SCHEMAS, SCHEMAS, SCHEMAS)
def test_no_value_refutes_a_proof(one: Any, other: Any, defined: Any, another: Any) -> None:
    smaller, larger = _whole(one, defined), _whole(other, another)
    if is_contained(smaller, larger, "2020-12"):
        assert not find_witness(source(smaller), source(larger))


@pytest.mark.slow
@hypothesis.settings(max_examples=examples(500))
@hypothesis.given(SCHEMAS, SCHEMAS)
def test_a_schema_is_within_itself_and_with_more_choices(schema: Any, other: Any) -> None:
    document = _whole(schema, True)
    hypothesis.assume(not any(name in repr(schema) for name in ("'not'", "'oneOf'", "'contains'")))
    assert is_contained(document, {"title": "x", **document}, "2020-12")
    assert is_contained(document, {"anyOf": [other, schema], "$defs": document["$defs"]}, "2020-12")
