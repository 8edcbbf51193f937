"""What is asked of every schema family: verdicts on any bytes, refusals of what is no schema, real schemas."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalog.schemas.contract import SchemaError, SchemaSource, Validator
from catalog.schemas.families import FAMILIES, compile_schema, references_of
from tests.support.cases import examples
from tests.support.corpora import SHARED
from tests.support.schemas import NOTHING, real_schemas

JSON: Final = "application/json"
XS: Final = '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">{}</xs:schema>'
XSD11: Final = XS.format(
    '<xs:element name="r"><xs:complexType><xs:sequence/><xs:assert test="true()"/></xs:complexType></xs:element>'
)
CORE: Final = {"$schema": "https://json-structure.org/meta/core/v0/#", "$id": "https://example.com/s", "name": "S"}


class Member(NamedTuple):
    """A family's valid schema, pieces of its bodies, documents that are none of its schemas, and its real schemas.

    Each real one is held against ``probes``, whose faults have one of the texts; None is no fault.
    """

    schema: Any
    pieces: tuple[str, ...]
    none: tuple[tuple[Any, str], ...]
    formats: tuple[str, ...]
    fewest: int
    probes: tuple[tuple[bytes, str | None, tuple[str, ...]], ...]


READING: Final[Mapping[str, Any]] = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "device", "type": "string"},
        {"name": "celsius", "type": ["null", "double"]},
        {"name": "kids", "type": {"type": "array", "items": {"type": "map", "values": ["null", "int", "Reading"]}}},
    ],
}
MEMBERS: Final[dict[str, Member]] = {
    "JsonSchema": Member(
        {"properties": {"a": {"anyOf": [{"type": "integer"}, {"$ref": "#"}]}, "b": {"items": {"type": "string"}}}},
        ('{"a":', "1", '"b"', "[", "]", "}", ","),
        (({"type": "strin"}, "not a valid JSON schema"), ("text", "must be an object"), ([], "must be an object")),
        ("jsonschema",),
        0,
        ((b"\xff", None, ("not valid JSON",)),),
    ),
    "JsonStructure": Member(
        {**CORE, "type": "object", "properties": {"a": {"type": "int64"}, "b": {"type": ["string", "null"]}}},
        ('{"a":', '"1"', '"b"', "[", "]", "}", ","),
        (
            ({**CORE, "type": "strin"}, "not a valid"),
            ({**CORE, "type": "array"}, "not a valid"),
            ({**CORE, "type": "object", "properties": 7}, "not a valid"),
            ("text", "must be an object"),
            ([], "must be an object"),
        ),
        ("jsonstructure",),
        0,
        ((b"7", None, ("type", "7")),),
    ),
    "Avro": Member(
        READING,
        ('{"device":', '"d"', '"kids"', "[", "]", "}", "null", "\x02", "\x00"),
        (
            ("record Foo { }", "not JSON"),
            ('{"type": "record"', "not JSON"),
            *((each, "") for each in ("", 7, None, {}, {"type": "record", "name": "R"}, {"type": "array"})),
            *((each, "") for each in ({"type": "map"}, {"type": {"type": {"type": 5}}}, {"type": "enum", "name": "E"})),
            ({"type": "record", "name": "R", "fields": [{"name": "a"}]}, ""),
            ({"type": "record", "name": "R", "fields": [7]}, "list of fields"),
            ({"type": "record", "fields": []}, ""),
            ({"type": "enum", "name": "E", "symbols": [None, "A"]}, ""),
            ({"type": "fixed", "name": "F", "size": "two"}, "size"),
            ({"type": "fixed", "name": "F", "size": -1}, "size"),
            ({"__fastavro_parsed": True, "__named_schemas": {}, "type": "record", "name": 5, "fields": []}, ""),
            ({1: 2, "type": "record", "name": "R", "fields": [{"name": ["x"], "type": "int"}]}, ""),
        ),
        ("avro",),
        100,
        ((b"{}", JSON, ("None", "field", "is not any of")),),
    ),
    "Protobuf": Member(
        'syntax = "proto3"; message M { string s = 1; M m = 2; map<string, M> k = 3; repeated sint32 n = 4; }',
        ('{"s":', '"m"', '"k"', "{", "}", "[", "]", "\x0a\x01", "\x12"),
        (
            ('syntax = "proto3";\nmessage M { int32 x = 1 }', "line 2, column 25: "),
            ('syntax = "proto3"; message M { Unknown x = 1; }', '"Unknown" is not defined'),
            ('syntax = "proto3"; enum E { A = 0; }', "defines no message"),
            ("", "defines no message"),
            ("message M {" * 200, "line 1"),
            ({"type": "record"}, "text of a .proto file"),
            (None, "text of a .proto file"),
        ),
        ("proto",),
        10,
        ((b"{}", JSON, ("None",)), (base64.b64decode("+P///w8B"), None, ("None",))),
    ),
    "XSD": Member(
        XS.format('<xs:element name="Reading" type="xs:int"/>'),
        ("<Reading>", "</Reading>", "<mark/>", "1", "<!--", "-->"),
        (
            ("", "not XML"),
            ("<a", "not XML"),
            ("<a/>", "not an XML Schema"),
            (XS.format(""), "no global element"),
            (XS.format('<xs:element name="r" type="Unknown"/>'), "Unknown"),
            (XSD11, "not a valid XML Schema"),
            ("<!DOCTYPE x [<!ENTITY e 'x'>]>" + XS.format('<xs:element name="r"/>'), "DTD"),
            ({"type": "record"}, "is a text"),
            ("\ud800", "not XML"),
        ),
        ("xsd", "xmlschema"),
        4,
        ((b"<q/>", None, ("No matching global declaration",)),),
    ),
}


def source_of(family: str, document: Any) -> SchemaSource:
    return SchemaSource(family, "1.1" if family == "XSD" else "", document)


HELD: Final[dict[str, Validator]] = {
    name: compile_schema(source_of(name, member.schema), NOTHING) for name, member in MEMBERS.items()
}


def test_every_family_is_asked() -> None:
    assert list(MEMBERS) == [family.name for family in FAMILIES]


@settings(max_examples=examples(1500), deadline=None)
@given(st.data(), st.sampled_from(list(MEMBERS)), st.sampled_from([JSON, "application/octet-stream", None]))
def test_any_bytes_get_a_verdict(data: st.DataObject, family: str, content_type: str | None) -> None:
    pieces = st.lists(st.sampled_from(MEMBERS[family].pieces), max_size=9).map(lambda parts: "".join(parts).encode())
    body = data.draw(st.binary(max_size=60) | pieces)
    for fault in (HELD[family].fault(body, content_type), *HELD[family].faults(body, content_type)):
        assert fault is None or (len(fault.message) <= 300 and "\n" not in str(fault))


NAMES = st.sampled_from(["a", "b", "kids", "m", "k", "n"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=examples(1000), deadline=None)
@given(st.sampled_from(["JsonSchema", "JsonStructure", "Avro", "Protobuf"]), VALUES)
def test_any_json_gets_a_verdict(family: str, value: Any) -> None:
    HELD[family].fault(json.dumps(value).encode(), JSON)


@pytest.mark.parametrize(
    ("family", "document", "message"),
    [(name, *each) for name, member in MEMBERS.items() for each in member.none],
)
def test_what_is_no_schema_says_so(family: str, document: Any, message: str) -> None:
    source = source_of(family, document)
    with pytest.raises(SchemaError) as caught:
        compile_schema(source, NOTHING)
    assert message in str(caught.value) and len(str(caught.value)) < 400
    assert caught.value.hint or family.startswith("Json")
    assert tempfile.gettempdir() not in f"{caught.value}{caught.value.hint}"
    assert set(references_of(source)) <= {"x"}


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("family", MEMBERS)
def test_every_real_schema_compiles(family: str) -> None:
    member, count = MEMBERS[family], 0
    for place, document in real_schemas(*member.formats):
        count += 1
        if family == "JsonSchema" and any(True for _ in references_of(source_of(family, document))):
            continue
        validator = compile_schema(source_of(family, document), NOTHING)
        for body, content_type, allowed in member.probes:
            said = str(validator.fault(body, content_type))
            assert any(each in said for each in allowed), (place, said)
    assert count > member.fewest or not SHARED


def test_faults_are_short_and_of_one_line() -> None:
    null = compile_schema(SchemaSource("JsonSchema", "", {"type": "null"}), NOTHING)
    fault = null.fault(b'"' + b"a\\n\\u0007" * 10_000 + b'"', None)
    assert fault is not None
    assert len(fault.message) <= 300 and fault.message.isprintable()
