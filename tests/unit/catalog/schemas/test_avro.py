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
from tests.support.schemas import NOTHING, Documents

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


@pytest.mark.parametrize(
    ("schema", "crc"),
    [("null", 7195948357588979594), ("int", 8247732601305521295), ({"type": "string"}, 0x8F014872634503C7)],
)
def test_fingerprints_are_those_of_the_specification(schema: Any, crc: int) -> None:
    body = {"null": b"", "int": b"\x02"}.get(str(schema), b"\x02a")
    single = b"\xc3\x01" + crc.to_bytes(8, "little") + body
    assert validator(schema).fault(single, "avro/binary") is None


def test_every_binary_form() -> None:
    held = validator(READING)
    raw = written(READING, VALUE)
    assert held.fault(raw, "avro/binary") is None
    assert held.fault(raw, None) is None
    assert told(held.fault(raw + b"!", "avro/binary")) == "1 bytes follow the value"
    assert "where" in told(held.fault(raw[:1], "avro/binary"))
    other = b"\xc3\x01" + b"\x00" * 8 + raw
    assert "another schema wrote it: fingerprint 0000000000000000" in told(held.fault(other, "avro/binary"))


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


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        ({"celsius": "hot"}, "celsius", "'hot' is not a number"),
        ({"state": "MAYBE"}, "state", "none of the symbols OFF, ON"),
        ({"at": True}, "at", "a boolean is not long-timestamp-millis"),
        ({"at": 2**63}, "at", "out of the range of long-timestamp-millis"),
        ({"marks": [{}, {"a.b": 2**31}]}, "marks[1].a.b", "out of the range of int"),
        ({"raw": "\u0100"}, "raw", "is not any of null, bytes, plant.sensors.Pair, plant.sensors.State"),
        ({"raw": {"bytes": 1}}, "raw", "a number is not bytes"),
        ({"extra": 1}, "extra", "plant.sensors.Reading has no such field"),
        ({"device": None}, "device", "null is not a string"),
    ],
)
def test_json_faults_say_where(change: dict[str, Any], path: str, message: str) -> None:
    plain = {**VALUE, "raw": None, **change}
    fault = validator(READING).fault(json.dumps(plain).encode(), "application/json")
    assert fault is not None
    assert fault.path == path
    assert message.replace("a number is", "1 is") in fault.message


def test_json_as_the_specification_and_as_people_write_it() -> None:
    held = validator(READING)
    tagged = {**VALUE, "celsius": {"double": 1.5}, "raw": {"plant.sensors.Pair": "\u0000\u00ff"}}
    bare = {"device": "d", "at": "2026-01-02T03:04:05Z", "marks": [], "raw": "OFF"}
    for each in (tagged, bare):
        body = json.dumps(each).encode()
        assert held.fault(body, "application/vnd.x+json; charset=utf-8") is None
        assert held.fault(body, None) is None
        assert held.fault(body, "application/octet-stream") is not None
    assert "the field at of plant.sensors.Reading is missing" in told(held.fault(b'{"device":"d"}', "application/json"))
    assert "JSON is expected" in told(held.fault(None, "application/json"))
    assert "not JSON" in told(held.fault(b'{"device":', "text/json"))
    assert validator("null").fault(None, None) is None


def test_logical_types_are_held_to_in_both_encodings() -> None:
    cases: list[tuple[Any, bytes, str]] = [
        ({"type": "int", "logicalType": "time-millis"}, b"\x01", "-1"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, b"\x04\x00\x64", '"\\u0000\\u0064"'),
    ]
    for schema, binary, text in cases:
        assert validator(schema).fault(binary, "avro/binary") is not None, schema
        assert validator(schema).fault(text.encode(), "application/json") is not None, schema


def test_a_named_type_stands_for_itself() -> None:
    assert validator(READING, "State").fault(b"\x02", "avro/binary") is None
    assert validator(READING, "plant.sensors.Pair").fault(b"ab", "avro/binary") is None
    assert validator([READING, TREE], "T").fault(b"\x00", "avro/binary") is None
    assert validator({"protocol": "P", "types": [TREE]}).fault(b"\x00", "avro/binary") is None
    assert validator({"a": [TREE]}, pointer="/a/0").fault(b"\x00", "avro/binary") is None
    inner = {"type": "record", "name": "In", "fields": [{"name": "t", "type": "T"}]}
    whole = {**TREE, "fields": [*TREE["fields"], {"name": "i", "type": ["null", inner]}]}
    body = b"\x00\x00"
    crc = fastavro.schema.fingerprint(
        fastavro.schema.to_parsing_canonical_form(
            {
                **inner,
                "fields": [
                    {"name": "t", "type": {**TREE, "fields": [*TREE["fields"], {"name": "i", "type": ["null", "In"]}]}}
                ],
            }
        ),
        "CRC-64-AVRO",
    )
    assert validator(whole, "In").fault(b"\xc3\x01" + bytes.fromhex(crc) + body, "avro/binary") is None


def test_types_of_other_documents() -> None:
    outer = {
        "type": "record",
        "name": "a.Outer",
        "fields": [{"name": "x", "type": "Inner"}, {"name": "y", "type": "b.C"}],
    }
    source = SchemaSource("Avro", "", outer)
    inner = {"type": "record", "name": "Inner", "namespace": "a", "fields": [{"name": "c", "type": "b.C"}]}
    library = Documents({"a.Inner": inner, "b.C": json.dumps({"type": "enum", "name": "b.C", "symbols": ["Q"]})})
    assert list(references_of(source)) == ["a.Inner", "b.C"]
    assert compile_schema(source, library).fault(b"\x00\x00", "avro/binary") is None
    with pytest.raises(SchemaError, match=r"the Avro type a\.Inner is not known"):
        compile_schema(source, NOTHING)
    ring = Documents({"a.Inner": {**inner, "fields": [{"name": "o", "type": "Outer"}]}})
    with pytest.raises(SchemaError, match="is not known"):
        compile_schema(source, ring)


def test_unknown_and_ambiguous_names_say_what_there_is() -> None:
    with pytest.raises(SchemaError) as caught:
        validator(READING, "Nothing")
    assert "plant.sensors.Pair" in caught.value.hint
    two = [{"type": "fixed", "name": f"{space}.F", "size": 1} for space in "ab"]
    with pytest.raises(SchemaError, match=r"F is the name of a\.F, b\.F"):
        validator(two, "F")
    deep: Any = "int"
    for _ in range(5000):
        deep = {"type": "array", "items": deep}
    with pytest.raises(SchemaError, match="levels"):
        validator(deep)


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
