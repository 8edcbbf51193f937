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


SIBLINGS = tuple(
    define(name, Property("headers.a", "string", "1"), protocol=protocol)
    for name, protocol in (("kafka", "KAFKA"), ("http", "HTTP"), ("nats", "NATS"))
)


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
