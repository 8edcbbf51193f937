"""What holds for payload columns of any schema and any body."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from catalog.schemas.columns import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    JSON,
    TEXT,
    TIMESTAMP,
    MapShape,
    Member,
    PayloadColumn,
    Struct,
    Undecoded,
    integer_leaf,
    payload_column,
)
from catalog.schemas.columns import ListShape as List
from catalog.schemas.contract import SchemaSource
from catalog.schemas.families import compile_schema, family_of
from catalog.schemas.filling import Chooser, UnsupportedSchema
from catalog.schemas.json.columns import JsonReader
from tests.support.cases import examples
from tests.support.catalogs import XID, catalog_of
from tests.support.schemas import ANY_SCHEMA, NOTHING, NOW, Strategy

JSON_TYPE: Final = "application/json"
LEAVES: Final = (
    TEXT,
    JSON,
    BOOLEAN,
    BINARY,
    DATE,
    TIMESTAMP,
    DOUBLE,
    integer_leaf(8),
    integer_leaf(64),
    integer_leaf(64, written=True),
)
SHAPES: Strategy = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        st.builds(List, inner),
        st.builds(lambda value: MapShape(value, TEXT), inner),
        st.builds(
            lambda shapes, positional: Struct(
                tuple(Member(name, name, shape) for name, shape in zip("abc", shapes, strict=False)), positional
            ),
            st.lists(inner, min_size=1, max_size=3),
            st.booleans(),
        ),
    ),
    max_leaves=6,
)
TEXTS: Strategy = st.one_of(
    st.text(max_size=5), st.sampled_from(["2026-03-04", "2026-03-04T05:06:07Z", "5", "-9223372036854775809", "YQ=="])
)
VALUES: Strategy = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.integers(-9, 9), st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)),
    max_leaves=8,
)


def column_of(family: str, document: Any) -> PayloadColumn | None:
    return payload_column(catalog_of(family, document), XID)


def decoded(
    column: PayloadColumn, bodies: Sequence[bytes], content_type: str = JSON_TYPE
) -> tuple[pa.StructArray, tuple[Undecoded, ...]]:
    array, undecoded = column.decode(pa.array(bodies, pa.binary()), [content_type] * len(bodies))
    array.validate(full=True)
    assert array.type == column.type and len(array) == len(bodies)
    return array, undecoded


def agrees(kind: pa.DataType, found: Any, value: Any) -> bool:
    """Whether a value of a column says what the JSON value says, told from the type alone."""
    if value is None or found is None:
        return value is None and found is None
    if isinstance(kind, pa.StructType):
        members = value if isinstance(value, dict) else dict(zip(found, value, strict=True))
        return all(agrees(each.type, found[each.name], members.get(each.name)) for each in kind)
    if isinstance(kind, pa.ListType):
        return all(agrees(kind.value_type, one, other) for one, other in zip(found, value, strict=True))
    if isinstance(kind, pa.MapType):
        return dict(found).keys() == value.keys() and all(agrees(kind.item_type, e, value[n]) for n, e in found)
    if isinstance(found, str):
        return found == value or bool(json.loads(found) == value)
    if isinstance(found, bytes):
        return found == base64.b64decode(value)
    if isinstance(found, datetime):
        return found == datetime.fromisoformat(value)
    if isinstance(found, date):
        return found == date.fromisoformat(value)
    return bool(found == (Decimal(value) if isinstance(value, str) else value)) and (
        found is value or kind != pa.bool_()
    )


@pytest.mark.slow
@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ANY_SCHEMA, st.integers(0, 9))
def test_what_conforms_to_any_schema_has_its_values_in_columns(schema: tuple[str, Any], seed: int) -> None:
    family, document = schema
    column = column_of(family, document)
    if column is None:
        return
    source = SchemaSource(family, "", document)
    validator, filler = compile_schema(source, NOTHING), family_of(source.family).open_sampler(source, NOTHING)
    bodies = []
    for fullness in (1.0, 0.5, 0.0):
        try:
            body = filler.payload(Chooser(random.Random(seed), NOW, fullness), JSON_TYPE)
        except UnsupportedSchema:
            continue
        if validator.fault(body, JSON_TYPE, at_any_cost=True) is None:
            bodies.append(body)
    array, undecoded = decoded(column, bodies)
    assert not undecoded
    for body, found in zip(bodies, array.to_pylist(), strict=True):
        value = json.loads(body)
        value = {"value": value} if column._is_whole and value is not None else value
        assert agrees(column.type, found, value), (body, found)


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(SHAPES, VALUES)
def test_both_json_readers_say_the_same(shape: Any, value: Any) -> None:
    body = json.dumps(value).replace("NaN", "null").replace("-Infinity", "0").replace("Infinity", "0").encode()
    reader = JsonReader(shape)
    columns = PayloadColumn(SchemaSource("JsonSchema", "", {}), NOTHING, shape, reader)
    array, undecoded = decoded(columns, [body])
    if any(each.column is None for each in undecoded):
        assert array.to_pylist() == [None]
        return
    exact, misfits = columns._columns.build_array([reader._exact(body, ())])
    assert exact.equals(array.field(0) if columns._is_whole else array)
    assert sum(len(rows) for _, rows in misfits.values()) == sum(each.values for each in undecoded)
    if not undecoded:
        found = array.to_pylist()[0]
        value = json.loads(body)
        wanted = value if isinstance(shape, Struct) or value is None else {"value": value}
        assert agrees(columns.type, found, wanted)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 599), st.sampled_from([None, b"", b"{", b'{"n":1.0}', b'{"n":"1"}', b"[1]"]))))
def test_json_bodies_are_read_together_as_one_by_one(others: list[tuple[int, bytes | None]]) -> None:
    column = column_of("JsonSchema", {"properties": {"n": {"type": "integer"}, "any": {}}})
    assert column is not None
    bodies: list[bytes | None] = [b'{"n":%d,"any":[1]}' % number for number in range(600)]
    for row, body in others:
        bodies[row] = body
    array, undecoded = column.decode(pa.array(bodies, pa.binary()), [JSON_TYPE] * len(bodies))
    alone = [column.decode(pa.array([body], pa.binary()), [JSON_TYPE]) for body in bodies]
    assert array.equals(pa.concat_arrays([each for each, _ in alone]))
    told = [(each, row) for row, (_, refused) in enumerate(alone) for each in refused]
    assert [(each.row, each.why) for each in undecoded if each.column is None] == [
        (row, each.why) for each, row in told if each.column is None
    ]
    unfit = {each.column: (each.row, each.why, each.values) for each in undecoded if each.column is not None}
    for column_name, (first, why, values) in unfit.items():
        mine = [(row, each.why) for each, row in told if each.column == column_name]
        assert (mine[0], len(mine)) == ((first, why), values)


READING: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "device", "type": "string"},
        {"name": "celsius", "type": ["null", "double"]},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["ON", "OFF"]}},
        {"name": "marks", "type": {"type": "array", "items": {"type": "map", "values": "int"}}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "next", "type": ["null", "Reading"]},
    ],
}
MESSAGE: Final = """
syntax = "proto3";
message M {
  string s = 1; M next = 2; repeated sint32 n = 3; map<string, double> d = 4;
  oneof o { bool b = 5; bytes y = 6; }
}
"""


@settings(max_examples=examples(300), deadline=None)
@given(
    st.sampled_from([("Avro", READING), ("Protobuf", MESSAGE), ("JsonSchema", {"properties": {"a": {"items": {}}}})]),
    st.lists(st.binary(max_size=40), max_size=3),
    st.sampled_from(["application/octet-stream", JSON_TYPE, ""]),
)
def test_any_bytes_are_a_value_or_told_of(schema: tuple[str, Any], bodies: list[bytes], content_type: str) -> None:
    column = column_of(*schema)
    assert column is not None
    array, undecoded = decoded(column, bodies, content_type)
    validator = compile_schema(SchemaSource(schema[0], "", schema[1]), NOTHING)
    broken = {each.row for each in undecoded if each.column is None}
    unfit = any(each.column is not None for each in undecoded)
    for row, body in enumerate(bodies):
        if row in broken:
            assert array[row].as_py() is None
        elif schema[0] == "Avro" and not unfit and content_type != JSON_TYPE:
            assert validator.fault(body, content_type) is None


def tree(levels: int, keyword: str) -> dict[str, Any]:
    """Return a schema whose types refer to the next one twice each, so that it stands for 2^levels places."""
    last = {"type": "integer"}
    types: dict[str, Any] = {f"d{levels}": last}
    for level in range(levels):
        reference = {"$ref": f"#/$defs/d{level + 1}"}
        inner: Any = {"l": reference, "r": reference} if keyword == "properties" else [reference, reference]
        types[f"d{level}"] = {keyword: inner}
    return {"$defs": types, "$ref": "#/$defs/d0"}


HOSTILE: Final[dict[str, tuple[str, Any]]] = {
    **{keyword: ("JsonSchema", tree(60, keyword)) for keyword in ("properties", "anyOf", "allOf")},
    "wide": ("JsonSchema", {"properties": {f"m{number}": {"type": "integer"} for number in range(20_000)}}),
    "in itself": ("JsonSchema", {"anyOf": [{"$ref": "#"}, {"type": "string"}]}),
    "letter case": (
        "JsonSchema",
        {
            "properties": {
                "".join(c.upper() if n >> i & 1 else c for i, c in enumerate("abcdefghijk")): {} for n in range(2048)
            }
        },
    ),
    "mutual": (
        "JsonSchema",
        {
            "$defs": {
                f"d{number}": {"properties": {f"p{other}": {"$ref": f"#/$defs/d{other}"} for other in range(30)}}
                for number in range(30)
            },
            "$ref": "#/$defs/d0",
        },
    ),
    "messages": (
        "Protobuf",
        'syntax = "proto3";'
        + "".join(f"message M{n} {{ M{n + 1} l = 1; M{n + 1} r = 2; }}" for n in range(60))
        + "message M60 { int32 x = 1; }",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.timeout(300)
def test_hostile_schemas_stay_within_bounds(name: str) -> None:
    column = column_of(*HOSTILE[name])
    if column is not None:
        assert fields_of(column.type) <= 2_000
        assert len(column.findings) <= 51
        array, undecoded = decoded(column, [b"{}"])
        assert array.null_count == len(undecoded)


def fields_of(kind: pa.DataType) -> int:
    if isinstance(kind, pa.StructType):
        return sum(1 + fields_of(each.type) for each in kind)
    if isinstance(kind, pa.ListType):
        return fields_of(kind.value_type)
    return fields_of(kind.item_type) if isinstance(kind, pa.MapType) else 0


def test_deep_and_large_bodies_are_told_of() -> None:
    column = column_of("JsonSchema", {"properties": {"a": {}, "b": {"type": "integer"}}})
    assert column is not None
    deep = b'{"c": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    kept = b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    huge = b'{"b": 1, "c": "' + b"x" * (17 * 1024 * 1024) + b'"}'
    broken = b'{"a": "\xff", "b": 1}'
    array, undecoded = decoded(column, [deep, kept, huge, broken, b'{"b": 1}'])
    assert [each.row for each in undecoded] == [0, 1, 2, 3]
    assert [each.why for each in undecoded] == [
        "the body nests too deeply to be looked into",
        "the body nests too deeply to be looked into",
        "bodies of more than 16777216 bytes are not looked into",
        "the body is not valid JSON: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
    ]
    assert array[4].as_py() == {"a": None, "b": 1}
