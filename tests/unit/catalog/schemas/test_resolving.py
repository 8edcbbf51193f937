"""Avro bodies of one schema read as values of another: what the specification prescribes, and what fastavro reads."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import fastavro
import hypothesis.strategies as st
import pyarrow as pa
import pytest
from fastavro.read import SchemaResolutionError
from hypothesis import given, settings

from catalog.schemas.avro.types import TypeMismatch
from catalog.schemas.avro.validating import compile_schema as compile_avro
from catalog.schemas.contract import SchemaSource, WriterSchema
from catalog.schemas.families import compile_schema
from catalog.schemas.ids.client import WrittenSchema
from catalog.schemas.ids.deciding import PLAIN
from catalog.schemas.validation import BoundedValidation
from tests.support.cases import examples, read_cases
from tests.support.schemas import NOTHING


def written_by(schema: Any, references: dict[str, Any] | None = None) -> WriterSchema:
    texts = {name: json.dumps(each) for name, each in (references or {}).items()}
    return WriterSchema(WrittenSchema("7", "Avro", json.dumps(schema), texts, (("s", 3),)))


def encoded(schema: Any, value: Any) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), value)
    return body.getvalue()


def fault_of(schema: Any, written: Any, body: bytes, references: dict[str, Any] | None = None) -> str | None:
    source = SchemaSource("Avro", "", schema, written=written_by(written, references))
    fault = compile_schema(source, NOTHING).fault(body, "application/json")
    return None if fault is None else str(fault)


def value_of(schema: Any, written: Any, body: bytes, references: dict[str, Any] | None = None) -> Any:
    return compile_avro(SchemaSource("Avro", "", schema, written=written_by(written, references)), NOTHING).decode(
        body, None
    )


def record(*fields: Any, name: str = "a.R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def f(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
WIDER = {"type": "enum", "name": "E", "symbols": ["C", "B", "A"]}
CASES: dict[str, list[dict[str, Any]]] = read_cases(Path(__file__).parents[3] / "cases" / "schemas" / "resolution.yaml")
READ = [
    *(pytest.param(c["written"], c["value"], c["schema"], c["due"], id=c["name"]) for c in CASES["read"]),
    pytest.param(
        record(f("x", "int")),
        {"x": 1},
        record(f("x", "int"), f("u", ["long", "string"], default=4), f("b", "bytes", default="\u00ff")),
        {"x": 1, "u": {"long": 4}, "b": b"\xff"},
        id="defaults of unions and bytes",
    ),
    pytest.param("string", "é", "bytes", "é".encode(), id="string to bytes"),
    pytest.param(record(f("x", "bytes")), {"x": b"ab"}, record(f("x", "string")), {"x": "ab"}, id="bytes to string"),
    pytest.param(
        [record(f("x", "int"), name="A"), record(f("x", "int"), name="B")],
        ("B", {"x": 1}),
        record(f("x", "int"), name="B"),
        {"x": 1},
        id="a union of records",
    ),
]
NEVER = [pytest.param(c["written"], c["schema"], c["says"], id=c["name"]) for c in CASES["never"]]


@pytest.mark.parametrize(("written", "value", "schema", "due"), READ)
def test_bodies_are_read_as_the_specification_prescribes(written: Any, value: Any, schema: Any, due: Any) -> None:
    body = encoded(written, value)
    assert fault_of(schema, written, body) is None
    assert value_of(schema, written, body) == due
    assert "follow the value" in str(fault_of(schema, written, body + b"\0"))


@pytest.mark.parametrize(("written", "schema", "due"), NEVER)
def test_what_can_never_be_read_is_told_with_id_subject_and_version(written: Any, schema: Any, due: str) -> None:
    told = fault_of(schema, written, b"")
    assert told is not None and told.startswith(due)
    assert told.endswith("; written with schema id 7 (s version 3)")
    with pytest.raises(TypeMismatch):
        value_of(schema, written, b"")


def test_what_depends_on_a_body_is_a_misfit_of_that_body() -> None:
    assert "no symbol C" in str(fault_of(ENUM, WIDER, encoded(WIDER, "C")))
    assert fault_of(ENUM, WIDER, encoded(WIDER, "B")) is None
    union = ["int", "string"]
    assert "string was written" in str(fault_of("long", union, encoded(union, "t")))
    assert fault_of("long", union, encoded(union, 1)) is None
    date = {"type": "int", "logicalType": "time-millis"}
    assert "out of the range" in str(fault_of(date, "int", encoded("int", -1)))


def test_types_of_other_subjects_are_found() -> None:
    inner = record(f("x", "int"), name="b.Inner")
    written = record(f("in", "b.Inner"))
    body = encoded(record(f("in", inner)), {"in": {"x": 3}})
    schema = record(f("in", record(f("x", "long"), name="c.Inner")))
    assert value_of(schema, written, body, {"b.Inner": inner}) == {"in": {"x": 3}}
    assert value_of(schema, written, body, {"inner-value": inner}) == {"in": {"x": 3}}
    assert "is not known" in str(fault_of(schema, written, body))


def test_bytes_alone_are_written_without_their_length() -> None:
    assert fault_of("bytes", "bytes", b"\xff\xff") is None
    assert value_of("bytes", "bytes", b"ab") == b"ab"


KINDS = ["int", "long", "float", "double", "string", "bytes", "boolean", "null"]
NAMES = ["x", "y", "z"]


def types(depth: int) -> st.SearchStrategy[Any]:
    leaf = st.sampled_from([*KINDS, ENUM, WIDER])
    if not depth:
        return leaf
    inner = types(depth - 1)
    return st.one_of(
        leaf,
        st.builds(lambda items: {"type": "array", "items": items}, inner),
        st.builds(lambda values: {"type": "map", "values": values}, inner),
        st.lists(st.sampled_from(KINDS), min_size=1, max_size=3, unique=True),
        st.builds(
            lambda kinds: record(*(f(*each) for each in zip(NAMES, kinds, strict=False)), name=f"R{depth}"),
            st.lists(inner, max_size=3),
        ),
    )


def values(schema: Any) -> st.SearchStrategy[Any]:
    if isinstance(schema, list):
        return st.one_of([values(each) for each in schema])
    kind = schema if isinstance(schema, str) else schema["type"]
    plain: dict[str, st.SearchStrategy[Any]] = {
        "int": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "float": st.floats(width=32, allow_nan=False),
        "double": st.floats(allow_nan=False),
        "string": st.text(max_size=4),
        "bytes": st.binary(max_size=4),
        "boolean": st.booleans(),
        "null": st.none(),
    }
    if kind in plain:
        return plain[kind]
    if kind == "enum":
        return st.sampled_from(schema["symbols"])
    if kind == "array":
        return st.lists(values(schema["items"]), max_size=3)
    if kind == "map":
        return st.dictionaries(st.text(max_size=2), values(schema["values"]), max_size=2)
    return st.fixed_dictionaries({each["name"]: values(each["type"]) for each in schema["fields"]})


def bare(value: Any) -> Any:
    """A value of ours as fastavro has it: unions without labels."""
    if isinstance(value, dict):
        (only,) = value.values() if len(value) == 1 else (None,)
        if len(value) == 1 and next(iter(value)) in KINDS:
            return bare(only)
        return {name: bare(each) for name, each in value.items()}
    return [bare(each) for each in value] if isinstance(value, list) else value


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.slow
@settings(max_examples=examples(400), deadline=None)
@given(st.data(), types(2), types(2))
def test_what_both_read_is_the_same(data: st.DataObject, written: Any, schema: Any) -> None:
    try:
        own, theirs = fastavro.parse_schema(written), fastavro.parse_schema(schema)
    except Exception:  # a name twice
        return
    value = data.draw(values(written))
    body = io.BytesIO()
    try:
        fastavro.schemaless_writer(body, own, value)
    except (ValueError, OverflowError):
        return
    try:
        read = fastavro.schemaless_reader(io.BytesIO(body.getvalue()), own, theirs)
    except (SchemaResolutionError, UnicodeDecodeError):
        return
    except (ValueError, KeyError, TypeError, AttributeError):
        return  # fastavro breaks
    if written == "bytes" or fault_of(schema, written, body.getvalue()) is not None:
        return  # fastavro reads more than the specification lets
    assert same(bare(value_of(schema, written, body.getvalue())), read)


def verdicts(schema: Any, written: Any, bodies: list[bytes]) -> tuple[list[bool], list[bool]]:
    """Which bodies are accepted together, and which one by one."""
    source = SchemaSource("Avro", "", schema, written=None if written is None else written_by(written))
    held = BoundedValidation(source, NOTHING)
    column = pa.array(bodies, pa.binary())
    types = pa.array(["avro/binary"] * len(bodies), pa.string())
    return held.find_valid(column, types, PLAIN).tolist(), [held.fault(body, "avro/binary") is None for body in bodies]


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(st.data(), types(2), types(2), st.booleans())
def test_what_is_accepted_together_conforms_one_by_one(
    data: st.DataObject, one: Any, other: Any, resolves: bool
) -> None:
    try:
        own, _ = fastavro.parse_schema(one), fastavro.parse_schema(other)
        bodies = []
        for value in data.draw(st.lists(values(one), min_size=20, max_size=30)):
            written = io.BytesIO()
            fastavro.schemaless_writer(written, own, value)
            bodies.append(written.getvalue())
    except Exception:  # a name twice, or a value that the writer takes for another branch
        return
    whole = len(bodies)
    for body in list(bodies):
        at = data.draw(st.integers(0, len(body)))
        bodies += [body[:at], body[:at] + data.draw(st.binary(max_size=12)) + body[at + 1 :]]
    together, alone = verdicts(other if resolves else one, one if resolves else None, bodies)
    assert not [body for body, fits, known in zip(bodies, together, alone, strict=True) if fits and not known]
    if not resolves and one not in ("bytes", "null"):
        assert all(alone[:whole])


TEN = record(
    f("id", "string"), f("at", {"type": "long", "logicalType": "timestamp-millis"}), f("n", "int"), f("d", "double"),
    f("ok", "boolean"), f("note", ["null", "string"]), f("kind", ENUM), f("km", "float"),
    f("list", {"type": "array", "items": "string"}), f("in", ["null", record(f("x", "long"), name="a.In")]),
)  # fmt: skip


def test_ordinary_bodies_are_all_accepted_together() -> None:
    bodies = [
        encoded(
            TEN,
            {
                "id": "é" * (n % 3),
                "at": n,
                "n": -n,
                "d": 0.5,
                "ok": True,
                "note": None if n % 2 else "x",
                "kind": "B",
                "km": 1.5,
                "list": ["a"] * (n % 2),
                "in": {"x": n},
            },
        )
        for n in range(200)
    ]
    together, alone = verdicts(TEN, None, bodies)
    assert all(together) and all(alone)
    later = {**TEN, "fields": [f("new", "long", default=1), *TEN["fields"][:8]]}
    together, alone = verdicts(later, TEN, bodies)
    assert all(together) and all(alone)


@pytest.mark.slow
def test_long_lists_take_no_more_steps_than_a_batch_may() -> None:
    kind = {"type": "array", "items": {"type": "array", "items": {"type": "array", "items": "int"}}}
    body = encoded(kind, [[[1] * 30] * 30] * 30)
    begin = time.process_time()
    together, _ = verdicts(kind, None, [body] * 40)
    assert not any(together)
    endless = b"\xfe\xff\xff\xff\x0f" + b"\0" * 30
    nothing = {"type": "array", "items": record(name="a.Empty")}
    assert not any(verdicts(nothing, None, [endless] * 40)[0])
    assert time.process_time() - begin < 20
