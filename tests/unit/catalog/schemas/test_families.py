"""What is asked of every schema family: verdicts on any bytes, refusals of what is no schema, real schemas."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalog.schemas.contract import SchemaSource, Validator
from catalog.schemas.families import FAMILIES, compile_schema, family_of
from tests.support.cases import examples
from tests.support.corpora import SHARED
from tests.support.schemas import NOTHING, real_schemas

JSON: Final = "application/json"
XS: Final = '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">{}</xs:schema>'
CORE: Final = {"$schema": "https://json-structure.org/meta/core/v0/#", "$id": "https://example.com/s", "name": "S"}


class Member(NamedTuple):
    """A family's valid schema, pieces of its bodies, and its real schemas.

    Each real one is held against ``probes``, whose faults have one of the texts; None is no fault.
    """

    schema: Any
    pieces: tuple[str, ...]
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
        ("jsonschema",),
        0,
        ((b"\xff", None, ("not valid JSON",)),),
    ),
    "JsonStructure": Member(
        {**CORE, "type": "object", "properties": {"a": {"type": "int64"}, "b": {"type": ["string", "null"]}}},
        ('{"a":', '"1"', '"b"', "[", "]", "}", ","),
        ("jsonstructure",),
        0,
        ((b"7", None, ("type", "7")),),
    ),
    "Avro": Member(
        READING,
        ('{"device":', '"d"', '"kids"', "[", "]", "}", "null", "\x02", "\x00"),
        ("avro",),
        100,
        ((b"{}", JSON, ("None", "field", "is not any of")),),
    ),
    "Protobuf": Member(
        'syntax = "proto3"; message M { string s = 1; M m = 2; map<string, M> k = 3; repeated sint32 n = 4; }',
        ('{"s":', '"m"', '"k"', "{", "}", "[", "]", "\x0a\x01", "\x12"),
        ("proto",),
        10,
        ((b"{}", JSON, ("None",)), (base64.b64decode("+P///w8B"), None, ("None",))),
    ),
    "XSD": Member(
        XS.format('<xs:element name="Reading" type="xs:int"/>'),
        ("<Reading>", "</Reading>", "<mark/>", "1", "<!--", "-->"),
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


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("family", MEMBERS)
def test_every_real_schema_compiles(family: str) -> None:
    member, count = MEMBERS[family], 0
    for place, document in real_schemas(*member.formats):
        count += 1
        if family == "JsonSchema" and any(True for _ in family_of(family).references_of(source_of(family, document))):
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
