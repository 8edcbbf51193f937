"""Payloads of Avro, Protobuf and XSD: each is read back by the library of its family."""

from __future__ import annotations

import io
import random
from typing import Any

import fastavro
import msgspec
import pytest
from google.protobuf import json_format
from lxml import etree

from catalog.schemas.avro.filling import SINGLE_OBJECT, AvroSampler
from catalog.schemas.avro.types import read_schema
from catalog.schemas.contract import SchemaSource
from catalog.schemas.filling import Chooser, UnsupportedSchema
from catalog.schemas.protobuf.validating import open_message as compile_protobuf
from tests.support.schemas import NOTHING, NOW, Documents, payloads_of

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "a.Reading",
    "fields": [
        {"name": "next", "type": ["null", "a.Reading", {"type": "map", "values": "a.Reading"}]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "other", "type": ["Kind", "double"]},
        {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}},
        {"name": "raw", "type": {"type": "fixed", "name": "Raw", "size": 3}},
        {"name": "span", "type": {"type": "fixed", "name": "Span", "size": 12, "logicalType": "duration"}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "list", "type": {"type": "array", "items": ["string", "bytes"]}},
    ],
}


def test_avro_datums_are_read_back_whole() -> None:
    schema = fastavro.parse_schema(AVRO)
    for payload in payloads_of("Avro", AVRO, "application/vnd.apache.avro"):
        body = io.BytesIO(payload)
        datum = fastavro.schemaless_reader(body, schema, None)
        assert not body.read()
        assert isinstance(datum, dict)
        assert datum["at"].isoformat() == "2026-03-04T05:06:07.008000+00:00"


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


XSD = """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:t="urn:t" targetNamespace="urn:t"
  elementFormDefault="qualified">
 <xs:element name="order" type="t:Order"/>
 <xs:element name="shape" abstract="true" type="t:Shape"/>
 <xs:element name="circle" substitutionGroup="t:shape" type="t:Circle"/>
 <xs:element name="square" substitutionGroup="t:shape"/>
 <xs:complexType name="Shape">
  <xs:sequence><xs:element name="n" type="xs:NCName"/></xs:sequence><xs:attribute name="a" type="xs:ID"/>
 </xs:complexType>
 <xs:complexType name="Circle"><xs:complexContent><xs:extension base="t:Shape">
  <xs:sequence><xs:element name="r" type="xs:decimal"/></xs:sequence>
  <xs:attribute name="q" use="required" type="xs:boolean"/>
 </xs:extension></xs:complexContent></xs:complexType>
 <xs:complexType name="Abstract" abstract="true"><xs:sequence/></xs:complexType>
 <xs:complexType name="Concrete"><xs:complexContent><xs:extension base="t:Abstract">
  <xs:sequence><xs:element name="z" type="xs:gYear"/></xs:sequence>
 </xs:extension></xs:complexContent></xs:complexType>
 <xs:simpleType name="Code"><xs:restriction base="xs:string">
  <xs:pattern value="[A-Z]{3}\\d{2}"/><xs:maxLength value="5"/>
 </xs:restriction></xs:simpleType>
 <xs:simpleType name="Share"><xs:restriction base="xs:decimal">
  <xs:minInclusive value="0"/><xs:maxExclusive value="1"/><xs:fractionDigits value="3"/>
 </xs:restriction></xs:simpleType>
 <xs:simpleType name="Codes"><xs:list itemType="t:Code"/></xs:simpleType>
 <xs:simpleType name="ThreeCodes"><xs:restriction base="t:Codes"><xs:length value="3"/></xs:restriction></xs:simpleType>
 <xs:simpleType name="Either"><xs:union memberTypes="t:Code xs:int"><xs:simpleType>
  <xs:restriction base="xs:token"><xs:enumeration value="yes"/></xs:restriction>
 </xs:simpleType></xs:union></xs:simpleType>
 <xs:complexType name="Money"><xs:simpleContent><xs:extension base="t:Share">
  <xs:attribute name="currency" type="t:Code" use="required"/>
 </xs:extension></xs:simpleContent></xs:complexType>
 <xs:complexType name="LittleMoney"><xs:simpleContent><xs:restriction base="t:Money">
  <xs:maxInclusive value="0.5"/>
 </xs:restriction></xs:simpleContent></xs:complexType>
 <xs:group name="Group"><xs:choice>
  <xs:element name="g1" type="xs:time"/><xs:element name="g2" type="xs:hexBinary" minOccurs="0"/>
 </xs:choice></xs:group>
 <xs:attributeGroup name="Attributes"><xs:attribute name="short" type="xs:short"/></xs:attributeGroup>
 <xs:attribute name="global" type="xs:byte"/>
 <xs:complexType name="Order"><xs:sequence>
  <xs:element name="id" type="t:Code"/><xs:element name="share" type="t:Share"/>
  <xs:element name="codes" type="t:ThreeCodes"/><xs:element name="either" type="t:Either"/>
  <xs:element name="money" type="t:Money" maxOccurs="unbounded"/>
  <xs:element name="little" type="t:LittleMoney" minOccurs="0"/>
  <xs:element ref="t:shape" maxOccurs="3"/><xs:element name="derived" type="t:Abstract"/>
  <xs:group ref="t:Group"/>
  <xs:choice maxOccurs="2">
   <xs:element name="nested" type="t:Order"/><xs:sequence><xs:element name="leaf"/></xs:sequence>
  </xs:choice>
  <xs:element name="all" minOccurs="0"><xs:complexType><xs:all>
   <xs:element name="x" type="xs:positiveInteger"/><xs:element name="y" type="xs:dateTime" minOccurs="0"/>
  </xs:all></xs:complexType></xs:element>
  <xs:element name="bounded"><xs:simpleType><xs:restriction base="xs:int">
   <xs:minExclusive value="3"/><xs:maxInclusive value="5"/>
  </xs:restriction></xs:simpleType></xs:element>
  <xs:element name="past"><xs:simpleType><xs:restriction base="xs:date">
   <xs:maxInclusive value="2020-01-01"/>
  </xs:restriction></xs:simpleType></xs:element>
  <xs:element name="fixed" type="xs:string" fixed="abc"/>
  <xs:element name="bytes"><xs:simpleType><xs:restriction base="xs:base64Binary">
   <xs:length value="4"/>
  </xs:restriction></xs:simpleType></xs:element>
  <xs:any namespace="##other" processContents="lax"/>
 </xs:sequence>
 <xs:attributeGroup ref="t:Attributes"/><xs:attribute ref="t:global" use="required"/>
 <xs:attribute name="qualified" form="qualified" use="required" type="xs:unsignedByte"/>
 </xs:complexType>
</xs:schema>"""


def test_xsd() -> None:
    schema = etree.XMLSchema(etree.fromstring(XSD))
    for payload in payloads_of("XSD", XSD, "application/xml"):
        schema.assertValid(etree.fromstring(payload))


def test_xsd_takes_the_named_element_and_what_other_documents_declare() -> None:
    main = """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" targetNamespace="urn:m" xmlns="urn:m">
      <xs:include schemaLocation="part.xsd"/>
      <xs:element name="first"/><xs:element name="second" type="Part"/></xs:schema>"""
    part = """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">
      <xs:complexType name="Part"><xs:sequence><xs:element name="n" type="Number"/></xs:sequence></xs:complexType>
      <xs:simpleType name="Number"><xs:restriction base="xs:int"/></xs:simpleType></xs:schema>"""
    for payload in payloads_of("XSD", main, name="second", library=Documents({"part.xsd": part})):
        root = etree.fromstring(payload)
        assert root.tag == "{urn:m}second"
        assert [each.tag for each in root] == ["n"]
        assert (root.findtext("n") or "").isdecimal()


@pytest.mark.parametrize("text", ["<a", "<a/>", "<xs:schema xmlns:xs='http://www.w3.org/2001/XMLSchema'/>"])
def test_an_xml_schema_without_elements_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedSchema):
        next(payloads_of("XSD", text))
