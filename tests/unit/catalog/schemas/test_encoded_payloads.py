"""Payloads of Avro and Protobuf: each is read back by the library of its family."""

from __future__ import annotations

import io
import random
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


PROTO3 = """syntax = "proto3"; package a.b;
import "google/protobuf/any.proto"; import "google/protobuf/duration.proto"; import "google/protobuf/field_mask.proto";
import "google/protobuf/struct.proto"; import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Tree {
  string s = 1; optional int32 o = 2; repeated Tree children = 3; map<string, Tree> m = 4; map<int32, bool> flags = 5;
  oneof choice { Tree t = 6; string text = 7; bytes raw = 8; }
  google.protobuf.Timestamp at = 9; google.protobuf.Struct st = 10; google.protobuf.Int64Value w = 11;
  google.protobuf.Any any = 12; google.protobuf.FieldMask mask = 13; google.protobuf.Duration span = 14;
  google.protobuf.Value v = 15; repeated google.protobuf.Value vs = 16; google.protobuf.ListValue list = 17;
  Kind kind = 18; repeated Kind kinds = 19; float f = 20; double d = 21; uint64 u = 22; fixed32 x = 23; sint64 z = 24;
  enum Kind { A = 0; B = -1; }
}"""
PROTO2 = """syntax = "proto2"; package c;
message Report {
  required string a = 1; required Inner n = 2; optional Report r = 3;
  repeated group Line = 4 { required int32 z = 1; }
  message Inner { required bytes q = 1; }
  extensions 100 to 200;
}"""


@pytest.mark.slow
@pytest.mark.parametrize(("text", "name"), [(PROTO3, "Tree"), (PROTO2, ""), (PROTO2, "Report.Inner")])
def test_protobuf(text: str, name: str) -> None:
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
