"""Attributes of 1.0 as definitions of Message Catalog 0.1 and back: nothing is lost, and nothing said otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalog.dialects.detection import MESSAGE_CATALOG
from catalog.dialects.messages import read_message, to_message_sections
from catalog.dialects.reading import DocumentReader, Format
from catalog.findings import Declarations, Findings, SourceLocation
from catalog.protocols.properties import PROTOCOL_OPTIONS
from tests.support.cases import examples

NAMES = st.sampled_from(["type", "source", "subject", "dataschema", "time", "ext", "x-y", "value", "name"])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text("ab{}/", max_size=4))
BODIES = st.one_of(
    SCALARS,
    st.dictionaries(st.sampled_from(["value", "required", "description", "type", "name"]), SCALARS, max_size=3),
)
SCHEMAS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "dataschemauri": st.sampled_from(["http://s/1", "#/schemagroups/g/schemas/s", "None", ""]),
        "dataschemaformat": st.sampled_from(
            ["JsonSchema/draft-07", "JsonSchema", "Avro", "Avro/1.11", "Protobuf/3", "X"]
        ),
        "dataschema": st.sampled_from([{"$schema": "http://json-schema.org/draft-07/schema"}, {}, "syntax", None]),
    },
)
ENVELOPES = st.sampled_from([None, "CloudEvents/1.0", "X-Own"])
PROTOCOLS = st.sampled_from([None, *PROTOCOL_OPTIONS, "ROS/2"])


def options_of(protocol: str | None) -> st.SearchStrategy[dict[str, Any]]:
    known = PROTOCOL_OPTIONS.get(protocol or "")
    if known is None:
        return st.dictionaries(NAMES, BODIES, max_size=3)
    named = st.lists(st.one_of(BODIES, st.fixed_dictionaries({"name": NAMES, "value": SCALARS})), max_size=3)
    members: dict[str, st.SearchStrategy[Any]] = {name: st.one_of(BODIES, st.just({})) for name in known.scalars}
    members |= {name: st.one_of(named, SCALARS) for name in known.lists}
    for name, table in known.sections.items():
        inner = NAMES if table is None else st.sampled_from(sorted(table))
        members[name] = st.one_of(SCALARS, st.dictionaries(inner, BODIES, max_size=3))
    members["odd"] = BODIES
    return st.fixed_dictionaries({}, optional=members)


@st.composite
def attributes(draw: st.DrawFn) -> dict[str, Any]:
    envelope, protocol = draw(ENVELOPES), draw(PROTOCOLS)
    found: dict[str, Any] = {"envelope": envelope, "protocol": protocol, **draw(SCHEMAS)}
    if draw(st.booleans()):
        found["envelopemetadata"] = draw(st.dictionaries(NAMES, BODIES, max_size=4))
    if protocol is not None and draw(st.booleans()):
        found["protocoloptions"] = draw(options_of(protocol))
    return {name: value for name, value in found.items() if value is not None}


def read_with(dialect_document: dict[str, Any]) -> tuple[dict[str, Any], Findings]:
    findings = Findings()
    reader = DocumentReader(MESSAGE_CATALOG, Declarations(), findings)
    place = SourceLocation("a")
    *_, message = read_message(
        "/messagegroups/g/messages/m", "/messagegroups/g", dialect_document, place, Format(), reader
    )
    return {name: value for name, value in message.attributes.items() if value not in ({}, None)}, findings


@pytest.mark.slow
@given(attributes())
@settings(max_examples=examples(600), deadline=None)
def test_readers_take_what_was_written_for_what_it_was(given_attributes: dict[str, Any]) -> None:
    plain, _ = read_with({"id": "m", **given_attributes})
    text = to_message_sections(given_attributes)
    document = {
        "id": "m",
        **({"format": text.format} if text.format else {}),
        **text.beside,
        "definition": text.definition,
    }
    assert read_with(document)[0] == plain
