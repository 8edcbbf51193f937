"""No mapped record leaves as an invalid CloudEvent (MATCHING.md#mapping, CloudEvents 1.0.2 section 3)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unicodedata import category

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bindings.columns.entries import is_valid_string
from catalog.model import CLOUDEVENTS, Catalog, Definition, Endpoint, Property, PropertyType
from catalog.values import is_valid
from router.matching.mapping import check_types, is_always_valid, name_fault, types_of, value_fault
from router.matching.records import RecordMatcher
from tests.support.cases import read_cases
from tests.support.generation import ENDPOINT, GROUP
from tests.support.reference import Reference
from tests.support.rule_ways import decide_both

ODD = "\x00\x1f \x7e\x7f\x9f\xa0ä\ufdcf\ufdd0\ufdef\ufdf0\ufffd\ufffe\uffff\U0001fffd\U0001fffe\U0010ffff%/:?#[]2T-Z"
TEXTS = st.lists(st.none() | st.text(st.characters(codec="utf-8") | st.sampled_from(ODD), max_size=8), max_size=8)
URIS = st.text(st.sampled_from("aZ09-._~%20/:?#[]@!$&'()*+,;= {}ä"), max_size=10)
TIMES = st.from_regex(
    r"\A20[0-9]{2}-[01][0-9]-[0-3][0-9][Tt ][0-2][0-9]:[0-6]0:[0-6]0(\.[0-9]{0,10})?(Z|z|[+-]0[0-9]:00)?\Z"
)
CHECKED = ("uri", "urireference", "uritemplate", "timestamp", "symbol")
ATTRIBUTES = ("specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema")


def judge(record: dict[str, Any], *attributes: Property, uris: tuple[str, ...] = (), **rest: Any) -> dict[str, Any]:
    """Judge a record by both matchers, against one definition that takes it and maps it by these attributes."""
    options = tuple(Property(f"headers.{name}", "string", f"{{{name}}}") for name in _names(record))
    known: dict[str, Any] = {"envelope": CLOUDEVENTS, "protocol": "KAFKA", **rest}
    own = options if known["protocol"] == "KAFKA" else ()
    # Loading makes it absolute, which these values are as they are, or will never be.
    known |= next(({"schemauri": each.value} for each in attributes if each.name == "dataschema"), {})
    definition = Definition(f"{GROUP}/messages/m", GROUP, envelopemetadata=attributes, protocoloptions=own, **known)
    endpoint = Endpoint(ENDPOINT, uris=uris, candidates=(definition.xid,))
    catalog = Catalog({definition.xid: definition}, {GROUP: (definition.xid,)}, {ENDPOINT: endpoint})
    line = json.dumps({"endpoint": ENDPOINT, "protocol": known["protocol"], **record})
    found = decide_both(RecordMatcher(catalog), line)
    expected = Reference(catalog).outcome(line)
    assert (expected["outcome"], expected.get("reason")) == (found["outcome"], found.get("reason")), (expected, found)
    if found["outcome"] == "routed" and expected["cloudevent"]["id"] == "(position)":
        expected["cloudevent"]["id"] = found["cloudevent"]["id"]
    assert expected.get("cloudevent") == found.get("cloudevent")
    return found


def _names(record: dict[str, Any]) -> list[str]:
    headers = record.get("native", {}).get("headers", ())
    return [each["name"] for each in headers if each["name"] in ("x", "y")]


def with_x(text: str) -> dict[str, Any]:
    return {"native": {"topic": "t", "headers": [{"name": "x", "value": text}]}}


def refused(found: dict[str, Any], *words: str) -> None:
    assert found.get("reason") == "unmappable", found
    assert found["detail"].startswith(f"{GROUP}/messages/m: ")
    for word in words:
        assert word in found["detail"]


CASES: dict[str, Any] = read_cases(Path(__file__).parents[3] / "cases" / "matching" / "attributes.yaml")


@pytest.mark.parametrize(("name", "kind", "value"), CASES["constants"])
def test_constants_that_break_their_type(name: str, kind: PropertyType, value: Any) -> None:
    refused(judge(with_x("1"), Property(name, kind, value)), f"{name}: ")


@pytest.mark.parametrize(("name", "kind", "template", "text", "leaves"), CASES["templates"])
def test_templates_that_a_record_makes_break_their_type(
    name: str, kind: PropertyType, template: str, text: str, leaves: bool
) -> None:
    found = judge(with_x(text), Property(name, kind, template))
    if leaves:
        assert found["outcome"] == "routed" and found["cloudevent"][name]
    else:
        refused(found, f"{name}: ")


@pytest.mark.parametrize("case", CASES["records"], ids=lambda case: case["case"])
def test_a_record_is_mapped_as_its_case_says(case: dict[str, Any]) -> None:
    record = {"native": case["native"]} | ({"time": case["time"]} if "time" in case else {})
    attributes = [Property(*each) for each in case.get("attributes", ())]
    more = {"protocol": case.get("protocol", "KAFKA"), **case.get("definition", {})}
    found = judge(record, *attributes, uris=tuple(case.get("uris", ())), **more)
    if "fails" in case:
        refused(found, *case["fails"])
    else:
        assert found["outcome"] == ("dead-letter" if "dead" in case else "routed")
        assert {name: found["cloudevent"].get(name) for name in case.get("event", ())} == case.get("event", {})


@given(TEXTS)
def test_printable_agrees_with_one_by_one(texts: list[str | None]) -> None:
    expected = [None if text is None else not value_fault("ext", (), text) for text in texts]
    assert is_valid_string(pa.array(texts, pa.string())).to_pylist() == expected


@given(st.characters(codec="utf-8"))
def test_what_no_string_may_hold(text: str) -> None:
    nonchar = ord(text) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(text) <= 0xFDEF
    assert bool(value_fault("ext", (), text)) is (category(text) == "Cc" or nonchar)


@pytest.mark.slow
@given(st.lists(st.none() | URIS | TIMES | st.text(max_size=3), max_size=8), st.sampled_from(CHECKED))
def test_of_types_agrees_with_one_by_one(texts: list[str | None], kind: str) -> None:
    expected = [None if text is None else is_valid(kind, text, bits32=True) for text in texts]
    assert check_types(pa.array(texts, pa.string()), (kind,)).to_pylist() == expected


@given(st.lists(URIS, min_size=2, max_size=2), st.from_regex(r"\A([A-Za-z0-9\-._~]|%[0-9A-F]{2})+\Z"))
def test_templates_that_encode_need_no_look(pieces: list[str], value: str) -> None:
    """What is valid with a letter and with an escape is valid with all that encoding gives."""
    before, after = pieces
    types = types_of("source", "uritemplate")
    if is_always_valid("source", types, [before + probe + after for probe in ("a", "%20")]):
        assert not value_fault("source", types, before + value + after)


def test_names_of_cloudevents_are_names() -> None:
    assert not [name for name in (*ATTRIBUTES, "partitionkey", "a1") if name_fault(name)]
