"""JSON schemas and JSON Structure documents of any shape, for hypothesis: ``ANY_SCHEMA`` gives (family, document)."""

from __future__ import annotations

from typing import Any, TypeAlias

import hypothesis.strategies as st

Strategy: TypeAlias = "st.SearchStrategy[Any]"
TYPES: Strategy = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"])
NAMES: Strategy = st.sampled_from(["a", "b", "x-c"])
SMALL: Strategy = st.integers(-2, 4)
TEXTS: Strategy = st.sampled_from(["^a+$", "^(?=x)x$", "[", "date-time", "uuid"])
LITERALS: Strategy = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS
)
SCHEMAS: Strategy = st.deferred(
    lambda: st.one_of(
        st.booleans(),
        st.fixed_dictionaries(
            {},
            optional={
                "type": st.one_of(TYPES, st.lists(TYPES, min_size=1, max_size=3, unique=True)),
                "enum": st.lists(LITERALS, min_size=1, max_size=3),
                "const": LITERALS,
                "default": LITERALS,
                **{each: st.dictionaries(NAMES, SCHEMAS, max_size=3) for each in ("properties", "dependentSchemas")},
                "patternProperties": st.dictionaries(st.sampled_from(["^x-", "^a$"]), SCHEMAS, max_size=1),
                "required": st.lists(NAMES, max_size=3, unique=True),
                **dict.fromkeys(("items", "additionalProperties", "propertyNames", "contains", "not"), SCHEMAS),
                **dict.fromkeys(("if", "then", "else"), SCHEMAS),
                **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), st.lists(SCHEMAS, min_size=1, max_size=3)),
                **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), SMALL),
                **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties"), st.integers(0, 4)),
                "multipleOf": st.sampled_from([1, 3, 0.1, 1e-300]),
                "uniqueItems": st.booleans(),
                **dict.fromkeys(("pattern", "format"), TEXTS),
                "$ref": st.sampled_from(["#", "#/properties/a", "#/$defs/n"]),
            },
        ),
    )
)
KINDS: Strategy = st.sampled_from([*"string int8 int64 decimal double boolean null date uuid binary any".split()])
STRUCTURES: Strategy = st.deferred(
    lambda: st.one_of(
        st.fixed_dictionaries({"type": st.one_of(KINDS, st.lists(KINDS, min_size=1, max_size=3, unique=True))}),
        st.fixed_dictionaries({"type": st.sampled_from(["array", "set"]), "items": STRUCTURES}),
        st.fixed_dictionaries({"type": st.just("map"), "values": STRUCTURES}),
        st.fixed_dictionaries({"type": st.just("choice"), "choices": MEMBERS}),
        st.fixed_dictionaries({"type": st.just("tuple"), "properties": MEMBERS, "tuple": st.lists(NAMES, max_size=2)}),
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": MEMBERS},
            optional={"required": st.lists(NAMES, max_size=2), "additionalProperties": st.booleans()},
        ),
        st.fixed_dictionaries({"type": st.just({"$ref": "#/definitions/n"})}),
    )
)
MEMBERS: Strategy = st.dictionaries(NAMES, STRUCTURES, min_size=1, max_size=3)
ANY_SCHEMA: Strategy = st.one_of(
    st.tuples(st.just("JsonSchema"), SCHEMAS.map(lambda s: {**s, "$defs": {"n": s}} if isinstance(s, dict) else s)),
    st.tuples(
        st.just("JsonStructure"),
        STRUCTURES.map(lambda s: {"name": "N", **s, "definitions": {"n": {"name": "n", **s}}}),
    ),
)
