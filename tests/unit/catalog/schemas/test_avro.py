from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalog.schemas.avro.validating import compile_schema, references_of
from catalog.schemas.contract import SchemaError, SchemaFault, SchemaSource, Validator
from tests.support.cases import examples
from tests.support.schemas import NOTHING

READING: dict[str, Any] = {
    "type": "record",
    "name": "Reading",
    "namespace": "plant.sensors",
    "fields": [
        {"name": "device", "type": "string"},
        {"name": "celsius", "type": ["null", "double"]},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["ON", "OFF"]}, "default": "ON"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "marks", "type": {"type": "array", "items": {"type": "map", "values": "int"}}},
        {"name": "raw", "type": ["null", "bytes", {"type": "fixed", "name": "Pair", "size": 2}, "State"]},
    ],
}
VALUE = {"device": "d", "celsius": 1.5, "state": "OFF", "at": 0, "marks": [{"a": 1}, {}], "raw": b"\x00\xff"}
TREE = {"type": "record", "name": "T", "fields": [{"name": "kids", "type": {"type": "array", "items": "T"}}]}


def validator(document: Any, name: str = "", pointer: str = "") -> Validator:
    return compile_schema(SchemaSource("Avro", "1.11", document, name, pointer), NOTHING)


def written(schema: Any, value: Any) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, schema, value)
    return target.getvalue()


def told(fault: SchemaFault | None) -> str:
    return str(fault)


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_container_files(codec: str) -> None:
    held = validator(READING)
    target = io.BytesIO()
    fastavro.writer(target, READING, [VALUE] * 50, codec=codec)
    body = target.getvalue()
    assert held.fault(body, "application/avro") is None
    # Another byte than the one there: the last of a container is random.
    assert held.fault(body[:-1] + bytes([body[-1] ^ 1]), None) is not None
    assert "another schema" in told(validator(TREE).fault(body, None))
    assert held.fault(body[: len(body) // 2], None) is not None


@pytest.mark.slow
def test_a_container_file_that_unpacks_to_too_much_is_a_fault() -> None:
    schema = {"type": "array", "items": "null"}
    target = io.BytesIO()
    fastavro.writer(target, "bytes", [b"\x00" * (80 * 1024 * 1024)], codec="deflate")
    assert "has more than" in told(validator("bytes").fault(target.getvalue(), None))
    assert validator(schema).fault(target.getvalue(), None) is not None


SCHEMAS: list[Any] = [
    READING,
    TREE,
    ["null", "long", {"type": "array", "items": "float"}],
    {"type": "map", "values": {"type": "bytes", "logicalType": "decimal", "precision": 4}},
    {"type": "array", "items": ["null", {"type": "record", "name": "P", "fields": [{"name": "b", "type": "boolean"}]}]},
]
HELD = [(schema, validator(schema)) for schema in SCHEMAS]


def decoded(schema: Any, body: bytes) -> bool:
    source = io.BytesIO(body)
    # Its instants end with Python's calendar, and every long is one.
    instants = json.loads(json.dumps(schema).replace('"timestamp-millis"', '"none"'))
    try:
        fastavro.schemaless_reader(source, instants, None)
    except (EOFError, ArithmeticError, IndexError, ValueError):
        return False
    return source.tell() == len(body)


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(HELD), st.binary(max_size=60), st.sampled_from(["avro/binary", "application/json", None]))
def test_any_bytes_get_a_verdict(held: tuple[Any, Validator], body: bytes, content_type: str | None) -> None:
    schema, compiled = held
    fault = compiled.fault(body, content_type)
    assert fault is None or (len(fault.message) <= 300 and "\n" not in str(fault))
    if fault is None and content_type == "avro/binary":
        assert decoded(schema, body)


@pytest.mark.slow
@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_what_fastavro_writes_conforms(data: st.DataObject) -> None:
    readings = st.fixed_dictionaries(
        {
            "device": st.text(),
            "celsius": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "state": st.sampled_from(["ON", "OFF"]),
            "at": st.integers(-(10**12), 10**13),
            "marks": st.lists(
                st.dictionaries(st.text(min_size=1), st.integers(-(2**31), 2**31 - 1), max_size=3), max_size=3
            ),
            "raw": st.none() | st.binary(max_size=5) | st.just("ON"),
        }
    )
    value = data.draw(readings)
    held = HELD[0][1]
    body = written(READING, value)
    assert held.fault(body, "avro/binary") is None
    text = io.StringIO()
    fastavro.json_writer(text, READING, [value])
    assert held.fault(text.getvalue().encode(), "application/json") is None
    place = data.draw(st.integers(0, len(body) - 1))
    spoilt = body[:place] + data.draw(st.binary(max_size=2)) + body[place + 1 :]
    if held.fault(spoilt, "avro/binary") is None:
        assert decoded(READING, spoilt)


PARTS = st.recursive(
    st.sampled_from(["null", "int", "string", "T", "x.Y", "", 1, None, True, -1]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "name", "namespace", "fields", "items", "values", "symbols", "size", "logicalType"]
            ),
            inner | st.sampled_from(["record", "enum", "fixed", "array", "map", "decimal"]),
        )
    ),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=examples(400), deadline=None)
@given(PARTS)
def test_any_document_compiles_or_is_refused(document: Any) -> None:
    source = SchemaSource("Avro", "", document)
    list(references_of(source))
    try:
        compile_schema(source, NOTHING).fault(b"\x00", None)
    except SchemaError as error:
        assert error.hint
