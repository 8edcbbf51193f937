from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from catalog.schemas.contract import SchemaError, SchemaFault, SchemaSource
from catalog.schemas.validation import BoundedValidation
from catalog.schemas.xsd.validating import MAX_LOCATED_BYTES, XsdValidator, compile_schema
from tests.support.schemas import NOTHING, Documents

XS = 'xmlns:xs="http://www.w3.org/2001/XMLSchema"'
READING = f"""<?xml version="1.0" encoding="UTF-16"?>
<xs:schema {XS} targetNamespace="urn:plant" xmlns="urn:plant" elementFormDefault="qualified">
  <xs:element name="Reading"><xs:complexType><xs:sequence>
    <xs:element name="device" type="xs:string"/>
    <xs:element name="mark" maxOccurs="unbounded" type="xs:int"/>
    <xs:any minOccurs="0" namespace="##other" processContents="lax"/>
  </xs:sequence></xs:complexType></xs:element>
  <xs:element name="Other" type="xs:date"/>
</xs:schema>"""


def schema(inner: str, attributes: str = "") -> str:
    return f"<xs:schema {XS} {attributes}>{inner}</xs:schema>"


def validator(text: Any, name: str = "", version: str = "1.0", library: Documents = NOTHING) -> XsdValidator:
    return compile_schema(SchemaSource("XSD", version, text, name, uri="main.xsd"), library)


def told(fault: SchemaFault | None) -> str:
    return str(fault)


def reading(marks: str, more: str = "", attributes: str = "") -> bytes:
    return f'<Reading xmlns="urn:plant" {attributes}><device>d</device>{marks}{more}</Reading>'.encode()


@pytest.mark.parametrize("count", [1, 50_000])
def test_large_bodies_get_the_same_verdicts(count: int) -> None:
    held = BoundedValidation(SchemaSource("XSD", "", READING), NOTHING)
    marks = "<mark>1</mark>" * count
    assert held.fault(reading(marks), None) is None
    fault = held.fault(reading(marks + "<mark>x</mark>"), None)
    assert fault is not None
    assert "'x' is not a valid value" in fault.message
    assert bool(fault.path) == (count * len(marks) // count < MAX_LOCATED_BYTES)
    assert held.fault(reading("<mark>x</mark>" * count), None) is not None
    assert held.fault(reading(marks)[:-1], None) is not None
    assert "No matching" in told(held.fault(f"<q>{marks}</q>".encode(), None))


@pytest.mark.parametrize("padding", [0, MAX_LOCATED_BYTES])
def test_a_body_cannot_bring_a_schema_or_a_file(tmp_path: Path, padding: int) -> None:
    held = validator(READING)
    brought = tmp_path / "brought.xsd"
    brought.write_text(schema('<xs:element name="b" type="xs:int"/>', 'targetNamespace="urn:b"'))
    xsi = f'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:schemaLocation="urn:b {brought.as_uri()}"'
    more = f'<b xmlns="urn:b" {xsi}>no number</b>' + f"<!--{'x' * padding}-->"
    assert held.fault(reading("<mark>1</mark>", more), None) is None
    assert held.fault(reading("<mark>1</mark>", more, xsi), None) is None
    (tmp_path / "secret").write_text("1")
    entity = f'<!DOCTYPE r [<!ENTITY e SYSTEM "{(tmp_path / "secret").as_uri()}">]>'.encode()
    assert held.fault(entity + reading("<mark>&e;</mark>"), None) is not None


def test_nothing_is_read_from_files(tmp_path: Path) -> None:
    present = tmp_path / "types.xsd"
    present.write_text(schema('<xs:simpleType name="T"><xs:restriction base="xs:int"/></xs:simpleType>'))
    for location in (str(present), present.as_uri()):
        main = schema(f'<xs:include schemaLocation="{location}"/><xs:element name="r" type="T"/>')
        with pytest.raises(SchemaError, match="not known"):
            validator(main)
    hidden = schema(
        f'<xs:annotation><xs:include schemaLocation="{present}"/></xs:annotation><xs:element name="r" type="T"/>'
    )
    with pytest.raises(SchemaError):
        validator(hidden)


HOSTILE = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
import catalog.schemas.xsd.validating as xsd
from catalog.schemas import sandbox
from catalog.schemas.contract import SchemaError, SchemaSource
from tests.support.schemas import NOTHING
sandbox.COMPILE_SECONDS = 1
XS = 'xmlns:xs="http://www.w3.org/2001/XMLSchema"'
def schema(inner):
    return f"<xs:schema {XS}>{inner}</xs:schema>"
def element(content):
    return f'<xs:element name="r"><xs:complexType>{content}</xs:complexType></xs:element>'
laughs = "<!DOCTYPE r [<!ENTITY a0 'ha'>" + "".join(
    f"<!ENTITY a{n} '{('&a%d;' % (n - 1)) * 10}'>" for n in range(1, 12)) + "]>"
def doubling(kind, first, each):
    return first + "".join(each.format(n=n, m=n - 1) for n in range(1, 40))
group = doubling("group", '<xs:group name="g0"><xs:sequence><xs:element name="a"/></xs:sequence></xs:group>',
    '<xs:group name="g{n}"><xs:sequence><xs:group ref="g{m}"/><xs:group ref="g{m}"/></xs:sequence></xs:group>')
attributes = doubling("", '<xs:attributeGroup name="g0"><xs:attribute name="a"/></xs:attributeGroup>',
    '<xs:attributeGroup name="g{n}"><xs:attributeGroup ref="g{m}"/><xs:attributeGroup ref="g{m}"/></xs:attributeGroup>')
union = doubling("", '<xs:simpleType name="g0"><xs:restriction base="xs:int"/></xs:simpleType>',
    '<xs:simpleType name="g{n}"><xs:union memberTypes="g{m} g{m}"/></xs:simpleType>')
optional = "<xs:sequence>" + "".join(f'<xs:element name="e{n}" minOccurs="0"/>' for n in range(6000)) + "</xs:sequence>"
many = '<xs:sequence maxOccurs="999999999"><xs:element name="a" maxOccurs="999999999"/></xs:sequence>'
nested = '<xs:sequence minOccurs="9999" maxOccurs="9999">' * 5 + '<xs:element name="a"/>' + "</xs:sequence>" * 5
facet = '<xs:restriction base="xs:string"><xs:pattern value="%s"/></xs:restriction>'
pattern = f'<xs:element name="r"><xs:simpleType>{facet}</xs:simpleType></xs:element>'
for text in [
    laughs + schema('<xs:element name="&a11;"/>'), laughs + schema("&a11;"),
    schema(group + element('<xs:group ref="g39"/>')),
    schema(attributes + element('<xs:attributeGroup ref="g39"/>')), schema(union + '<xs:element name="r" type="g39"/>'),
    schema(element(optional)), schema(element(many)), schema(element(nested)), "<a>" * 100_000,
    schema(pattern % "((a{0,9999}){0,9999}){0,9999}"), schema(pattern % "(a?){9999}"),
]:
    try:
        xsd.compile_schema(SchemaSource("XSD", "", text), NOTHING)
        print("compiled")
    except SchemaError as error:
        print(str(error)[:90].replace(chr(10), " "))
print("--")
held = xsd.compile_schema(SchemaSource("XSD", "", schema(element(
    '<xs:sequence><xs:element name="a" type="xs:int" maxOccurs="unbounded"/></xs:sequence>'))), NOTHING)
ambiguous = xsd.compile_schema(SchemaSource("XSD", "", schema(pattern % "(a|aa)*b")), NOTHING)
for validator, body in [
    (held, (laughs + "<r>&a11;</r>").encode()), (held, (laughs + "<r a='&a11;'/>").encode()),
    (held, b"<r>" + b"<a>x</a>" * (1 << 20)), (held, b"<r>" + b"<a>1</a>" * (1 << 20) + b"</r>"),
    (held, b"<r>" + b"<a>x</a>" * (1 << 20) + b"</r>"), (held, b"<a>" * (1 << 20)), (held, b"<r " + b"a" * (1 << 24)),
    (held, b"<r>" + b"<a/>" * (1 << 22) + b"</r>"), (ambiguous, b"<r>" + b"a" * 20_000 + b"c</r>"),
]:
    print(str(validator.fault(body, None, at_any_cost=True))[:90])
"""


@pytest.mark.slow
def test_hostile_schemas_and_bodies_take_little_time_and_memory() -> None:
    done = subprocess.run([sys.executable, "-c", HOSTILE], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr[-600:]
    schemas, bodies = (part.split("\n") for part in done.stdout.strip().split("\n--\n"))
    assert len(schemas) == 11, schemas
    assert all("more than" in each for each in (schemas[2], schemas[5])), schemas
    assert len(bodies) == 9
    assert [index for index, each in enumerate(bodies) if each == "None"] == [3], bodies
