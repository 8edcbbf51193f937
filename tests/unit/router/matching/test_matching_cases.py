"""Hand-made catalogs for the corners that random ones seldom meet, each held against the plain matcher as well."""

from __future__ import annotations

import json
from typing import Any

import pytest

from catalog.model import CLOUDEVENTS, Catalog, Definition, Endpoint, Property
from router.matching.records import RecordMatcher
from tests.support.generation import ENDPOINT, GROUP
from tests.support.reference import Reference
from tests.support.rule_ways import decide_both

Defined = tuple[Definition, ...]


def define(name: str, *options: Property, **rest: Any) -> Definition:
    return Definition(f"{GROUP}/messages/{name}", GROUP, protocoloptions=options, **rest)


def judge(definitions: Defined, record: dict[str, Any], **endpoint: Any) -> dict[str, Any]:
    """Judge a record by both matchers, which must agree; messages by their short names."""
    xids = tuple(each.xid for each in definitions)
    channel = Endpoint(ENDPOINT, candidates=xids, **endpoint)
    catalog = Catalog({each.xid: each for each in definitions}, {GROUP: xids}, {ENDPOINT: channel})
    line = json.dumps({"endpoint": ENDPOINT, **record})
    found = decide_both(RecordMatcher(catalog), line)
    expected = Reference(catalog).outcome(line)
    for name in ("outcome", "reason", "message", "context"):
        assert expected.get(name) == found.get(name), (expected, found)
    return found


def outcome(found: dict[str, Any]) -> str:
    return str(found.get("reason") or found["message"].rsplit("/", 1)[-1])


def headers(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"headers": [{"name": name, "value": value} for name, value in pairs]}


EQUAL = (
    define(
        "m", Property("headers.a", "string", "{x}-{y}"), Property("headers.b", "string", "{x}-{y}"), protocol="KAFKA"
    ),
)
DECODED = (
    define("m", Property("path", "uritemplate", "/{x}"), Property("headers.a", "string", "{x}"), protocol="HTTP"),
)
TWICE = (define("m", Property("headers.a", "string", "1"), Property("headers.a", "string", "{x}/2"), protocol="KAFKA"),)
SIBLINGS = tuple(
    define(name, Property("headers.a", "string", "1"), protocol=protocol)
    for name, protocol in (("kafka", "KAFKA"), ("http", "HTTP"), ("nats", "NATS"))
)
RANKED = (
    define("template", Property("headers.a", "string", "v{x}"), protocol="KAFKA"),
    define("longer", Property("headers.a", "string", "va{x}"), protocol="KAFKA"),
    define("literal", Property("headers.a", "string", "vab"), protocol="KAFKA"),
    define("twin", Property("headers.a", "string", "twin"), protocol="KAFKA"),
    define("other", Property("headers.a", "string", "twin"), protocol="KAFKA"),
)
BASED = (
    define("base", Property("headers.a", "string", "1"), protocol="KAFKA"),
    define("derived", Property("headers.a", "string", "1"), protocol="KAFKA", base=(f"{GROUP}/messages/base",)),
)
OPTIONAL = (define("m", Property("headers.n", "integer"), protocol="KAFKA"),)
HUGE = (define("m", Property("headers.a", "number", "10000000000000000"), protocol="KAFKA"),)


@pytest.mark.parametrize(
    ("definitions", "protocol", "native", "expected"),
    [
        (EQUAL, "KAFKA", headers(("a", "1-2"), ("b", "1-2")), "m"),
        (EQUAL, "KAFKA", headers(("a", "1-2"), ("b", "1-3")), "no-match"),
        (DECODED, "HTTP", {"path": "/a%20b", **headers(("A", "a b"))}, "m"),
        (DECODED, "HTTP", {"path": "/a%20b", **headers(("A", "a%20b"))}, "no-match"),
        (DECODED, "HTTP", {"path": "/a%2", **headers(("A", "a%2"))}, "m"),
        (TWICE, "KAFKA", headers(("a", "1"), ("a", "0/2"), ("a", "9/2")), "m"),
        (TWICE, "KAFKA", headers(("a", "1"), ("a", "1")), "no-match"),
        (SIBLINGS, "KAFKA", headers(("a", "1")), "kafka"),
        (SIBLINGS, "HTTP/2", headers(("A", "1")), "http"),
        (SIBLINGS, "NATS", headers(("A", "1")), "no-match"),
        (SIBLINGS, "MQTT/5.0", {}, "no-match"),
        (RANKED, "KAFKA", headers(("a", "vx")), "template"),
        (RANKED, "KAFKA", headers(("a", "vax")), "longer"),
        (RANKED, "KAFKA", headers(("a", "vab")), "literal"),
        (RANKED, "KAFKA", headers(("a", "twin")), "ambiguous"),
        (BASED, "KAFKA", headers(("a", "1")), "derived"),
        (OPTIONAL, "KAFKA", {}, "m"),
        (OPTIONAL, "KAFKA", headers(("n", "7")), "m"),
        (OPTIONAL, "KAFKA", headers(("n", "x"), ("n", "7")), "m"),
        (OPTIONAL, "KAFKA", headers(("n", "7.5")), "no-match"),
        (HUGE, "KAFKA", headers(("a", "1e16")), "m"),
        (HUGE, "KAFKA", headers(("a", "10000000000000001")), "no-match"),
    ],
)
def test_winners(definitions: Defined, protocol: str, native: dict[str, Any], expected: str) -> None:
    assert outcome(judge(definitions, {"protocol": protocol, "native": native})) == expected


def test_context_comes_from_the_first_value_that_holds() -> None:
    found = judge(TWICE, {"protocol": "KAFKA", "native": headers(("a", "1"), ("a", "8/2"), ("a", "9/2"))})
    assert found["context"] == {"x": "8"}


@pytest.mark.parametrize(("subject", "expected"), [("a.b", "m"), ("a.b.c", "no-match"), ("a.b/c", "no-match")])
def test_dots_end_placeholders_where_the_endpoint_says_nats(subject: str, expected: str) -> None:
    definitions = (define("m", Property("subject", "string", "a.{x}"), envelope=CLOUDEVENTS),)
    record = {"protocol": "NATS", "native": {"subject": subject}}
    assert outcome(judge(definitions, record, protocol="NATS")) == expected


def test_an_envelope_by_default_of_the_endpoint_maps_too() -> None:
    definition = define("m", protocol="KAFKA", envelopemetadata=(Property("type", "string", "com.example"),))
    found = judge((definition,), {"protocol": "KAFKA", "native": {}}, envelope=CLOUDEVENTS)
    assert found["cloudevent"]["type"] == "com.example"


def test_an_empty_content_type_is_none() -> None:
    definition = define("m", protocol="KAFKA", dataschemaformat="Avro/1.11")
    found = judge((definition,), {"protocol": "KAFKA", "native": headers(("content-type", ""))})
    assert found["cloudevent"]["datacontenttype"] == "application/vnd.apache.avro"


@pytest.mark.parametrize("timestamp", [-1, -(2**63), 2**63 - 1, 253_402_300_800_000])
def test_a_time_that_rfc_3339_cannot_tell_is_none(timestamp: int) -> None:
    found = judge((define("m", protocol="KAFKA"),), {"protocol": "KAFKA", "native": {"timestamp": timestamp}})
    assert "time" not in found["cloudevent"]


def test_one_line_that_is_no_record_does_not_disturb_the_next() -> None:
    catalog = Catalog({SIBLINGS[0].xid: SIBLINGS[0]})
    good = json.dumps({"protocol": "KAFKA", "native": headers(("a", "1"))})
    bad = ['{"protocol":"KAFKA","native":{"topic":5}}', '{"protocol":"KAFKA","native":{"partition":1e3}}', "[" * 9999]
    bad += ['{"protocol":"KAFKA","native":{"offset":99999999999999999999}}', '{"protocol":"X"}', "\x00", '"\\ud800"']
    told = RecordMatcher(catalog).decide([line for each in bad for line in (each, good)])
    assert {found["reason"] for found in told[::2]} == {"undecodable"}
    assert {found["outcome"] for found in told[1::2]} == {"routed"}
