"""Payloads of Avro and Protobuf: each is read back by the library of its family."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pytest
from google.protobuf import json_format

from catalog.schemas.avro.filling import AvroSampler
from catalog.schemas.avro.types import SINGLE_OBJECT, read_schema
from catalog.schemas.contract import SchemaSource
from catalog.schemas.filling import Chooser, UnsupportedSchema
from catalog.schemas.protobuf.validating import open_message as compile_protobuf
from tests.support.cases import read_cases
from tests.support.schemas import NOTHING, NOW, payloads_of

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "a.Reading",
    "fields": [
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "span", "type": {"type": "fixed", "name": "Span", "size": 12, "logicalType": "duration"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


def test_avro_as_a_single_object_names_its_schema() -> None:
    schema = read_schema(SchemaSource("Avro", "", AVRO), NOTHING)
    payload = AvroSampler(schema).payload(Chooser(random.Random(1), NOW), "application/avro-single-object")
    assert payload.startswith(SINGLE_OBJECT + schema.fingerprint)


def test_avro_in_json_names_the_branch_of_a_union() -> None:
    flat = {"type": "record", "name": "F", "fields": [{"name": "x", "type": ["null", "bytes", "long"]}]}
    schema = fastavro.parse_schema(flat)
    seen = set()
    for payload in payloads_of("Avro", flat, "application/json"):
        (datum,) = fastavro.json_reader(io.StringIO(payload.decode()), schema)
        assert isinstance(datum, dict)
        seen.add(type(datum["x"]))
    assert seen == {type(None), bytes, int}


def test_avro_takes_the_type_that_the_deep_link_names() -> None:
    (payload, *_) = payloads_of("Avro", AVRO, "application/json", name="Kind")
    assert msgspec.json.decode(payload) in ("A", "B")


CASES: dict[str, str] = read_cases(Path(__file__).parents[3] / "cases" / "schemas" / "samples.yaml")["Protobuf"]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "name"), [("Tree", "Tree"), ("Report", ""), ("Report", "Report.Inner")])
def test_protobuf(case: str, name: str) -> None:
    text = CASES[case]
    validator = compile_protobuf(SchemaSource("Protobuf", "", text, name=name), NOTHING)
    for binary, mapped in zip(
        payloads_of("Protobuf", text, "application/protobuf", name=name),
        payloads_of("Protobuf", text, "application/json", name=name),
        strict=True,
    ):
        message = validator.message.FromString(binary)
        assert message.IsInitialized()
        assert json_format.Parse(mapped, validator.message()) == message


def test_xsd_has_no_samples() -> None:
    with pytest.raises(UnsupportedSchema, match="payloads of XSD are not generated"):
        next(payloads_of("XSD", "<xs:schema xmlns:xs='http://www.w3.org/2001/XMLSchema'/>"))
