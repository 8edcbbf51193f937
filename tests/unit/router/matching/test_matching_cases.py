"""Hand-made catalogs, and data schemas with each setting of ``validate``: held against the plain matcher as well."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, get_args

import pytest

from bindings.parts import Part
from bindings.protocols import BINDINGS
from catalog.load import load
from catalog.model import Catalog, Definition, Endpoint, Property
from router.matching import record_columns as facts
from router.matching.record_columns import RawRow, RecordColumns, RecordColumnsBuilder
from router.matching.records import RecordMatcher
from router.matching.schema_validation import Validation
from tests.support.cases import judged, kafka_rows, plan_of, read_cases
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


def test_one_line_that_is_no_record_does_not_disturb_the_next() -> None:
    catalog = Catalog({SIBLINGS[0].xid: SIBLINGS[0]})
    good = json.dumps({"protocol": "KAFKA", "native": headers(("a", "1"))})
    bad = ['{"protocol":"KAFKA","native":{"topic":5}}', '{"protocol":"KAFKA","native":{"partition":1e3}}', "[" * 9999]
    bad += ['{"protocol":"KAFKA","native":{"offset":99999999999999999999}}', '{"protocol":"X"}', "\x00", '"\\ud800"']
    told = RecordMatcher(catalog).decide([line for each in bad for line in (each, good)])
    assert {found["reason"] for found in told[::2]} == {"undecodable"}
    assert {found["outcome"] for found in told[1::2]} == {"routed"}


# Facts of records that are made to be costly: what comes of them stays in proportion to their size.


BATCH = Part("headers.content-type", b"application/cloudevents-batch+json")


def read(headers: int, events: int, protocol: str = "KAFKA") -> RecordColumns:
    body = json.dumps([{"specversion": "1.0", "id": str(n), "source": "s", "type": "t"} for n in range(events)])
    parts = [*(Part(f"headers.h{count}", b"value") for count in range(headers)), BATCH]
    raw = RecordColumnsBuilder(())
    raw.add(RawRow(0, BINDINGS[protocol], parts, body.encode(), 0, lambda: False, "t-0-0", None))
    return raw.build()


def test_a_batch_whose_headers_would_multiply_is_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of thousands of events and headers would be gigabytes, for each event has every header."""
    monkeypatch.setattr(facts, "MAX_COPIED_BYTES", 100_000)
    assert len(read(50, 50).sources) == 50
    refused = read(400, 50)
    assert (refused.sources.tolist(), refused.batches) == ([0], frozenset())
    reason, detail = refused.faults[0]
    assert reason == "undecodable"
    assert "the 50 events of the batch" in detail
    assert len(read(400, 1).sources) == 1
    assert not read(400, 1).faults


def test_an_event_of_a_batch_brings_its_own_text_for_a_letter_that_it_may_become(tmp_path: Path) -> None:
    """A sink's refusal once cut it from the batch, which was read anew, and held in memory, for each event of it."""
    path = tmp_path / "catalog.xreg.json"
    message = {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": "t"}}}
    endpoint = {"usage": ["consumer"], "protocol": "KAFKA", "protocoloptions": {"options": {"topic": "t"}}}
    groups = {"g": {"messages": {"m": message}}}
    catalog = {"endpoints": {"e": {**endpoint, "messagegroups": ["/messagegroups/g"]}}, "messagegroups": groups}
    path.write_text(json.dumps(catalog))
    settings = {
        "sources": [{"endpoint": "/endpoints/e", "bootstrap_servers": "b:9092"}],
        "sinks": {"out": {"topic": "o"}, "dead": {"topic": "d"}},
        "routes": [{"to": ["out"]}],
    }
    events = [{"specversion": "1.0", "id": str(n), "source": "s", "type": "t", "data": [n]} for n in range(2)]
    native = {
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "timestamp": 1,
        "headers": [{"name": "content-type", "value": BATCH.text}],
    }
    line = json.dumps({"protocol": "KAFKA", "native": native, "body": json.dumps(events)})
    (outcomes,) = judged(plan_of(load([path]), settings, tmp_path).evaluator, kafka_rows([line]))
    assert [(each["reason"], json.loads(each["data"])) for each in outcomes] == [(None, [0]), (None, [1])]
    assert [json.loads(each["batch_event"]) for each in outcomes] == events


# Messages that are no events and say what trace they are part of, as deploy/docs/howto/telemetry.md says.


GUIDE: Final = Path(__file__).resolve().parents[4] / "deploy" / "docs" / "howto" / "telemetry.md"
TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ORDER: Final = {
    "protocol": "HTTP",
    "envelope": "CloudEvents/1.0",
    "envelopemetadata": {"type": {"value": "order"}, "source": {"value": "/shop"}},
}


def traced() -> dict[str, Any]:
    """Return the definition of the guide."""
    (block,) = (each for each in GUIDE.read_text().split("```json\n") if each.startswith('{"basemessage"'))
    definition: dict[str, Any] = json.loads(block.partition("```")[0])
    return definition


@pytest.fixture
def matcher(tmp_path: Path) -> RecordMatcher:
    messages = {"Order": ORDER, "TracedOrder": traced()}
    endpoint = {"usage": ["consumer"], "protocol": "HTTP", "messagegroups": ["/messagegroups/Shop"]}
    path = tmp_path / "shop.json"
    path.write_text(json.dumps({"endpoints": {"e": endpoint}, "messagegroups": {"Shop": {"messages": messages}}}))
    catalog = load([path])
    assert not catalog.findings
    return RecordMatcher(catalog)


@pytest.mark.parametrize(
    ("headers", "message", "trace"),
    [({"traceparent": TRACE}, "TracedOrder", TRACE), ({"other": TRACE}, "Order", None)],
    ids=["traced", "not traced"],
)
def test_an_event_has_the_trace_of_its_message(
    matcher: RecordMatcher, headers: dict[str, str], message: str, trace: str | None
) -> None:
    native = {"method": "POST", "headers": [{"name": name, "value": value} for name, value in headers.items()]}
    record = {"endpoint": "/endpoints/e", "protocol": "HTTP", "native": native, "body": "{}"}
    (found,) = matcher.decide([json.dumps(record)])
    assert found["message"].endswith(f"/{message}")
    assert found["cloudevent"].get("traceparent") == trace


# Data schemas in matching, from data files: with each setting of ``validate``, by the matcher and the reference.

CASES = Path(__file__).resolve().parents[3] / "cases" / "matching" / "schemas.yaml"


def cases() -> Iterator[Any]:
    for case in read_cases(CASES):
        for number, record in enumerate(case["records"]):
            for validation in get_args(Validation):
                yield pytest.param(case, record, validation, id=f"{case['title']}-{number}-{validation}")


def catalog_of(case: dict[str, Any], folder: Path) -> tuple[Catalog, str]:
    path = folder / "catalog.json"
    path.write_text(json.dumps(case["catalog"]), encoding="utf-8")
    catalog = load([path])
    (endpoint,) = catalog.endpoints
    if "group" in case:
        known = catalog.endpoints[endpoint]
        chosen = tuple(xid for xid in known.candidates if xid.rsplit("/", 1)[-1] in case["group"])
        catalog = replace(catalog, endpoints={endpoint: replace(known, candidates=chosen)})
    return catalog, endpoint


@pytest.mark.parametrize(("case", "record", "validation"), list(cases()))
def test_a_schema_decides_where_it_should(
    case: dict[str, Any], record: dict[str, Any], validation: Validation, tmp_path: Path
) -> None:
    catalog, endpoint = catalog_of(case, tmp_path)
    line = {"endpoint": endpoint, "protocol": "KAFKA", "native": record.get("native", case["native"])}
    line |= {"body": record["body"]} if "body" in record else {}
    found = decide_both(RecordMatcher(catalog, validation=validation), json.dumps(line))
    expected = Reference(catalog, validation=validation).outcome(json.dumps(line))
    assert found.get("reason") == expected.get("reason") and found.get("message") == expected.get("message")
    assert record[validation] == (found.get("reason") or found["message"].rsplit("/", 1)[-1]), found
    if found.get("reason") == "schema-violation":
        assert all(xid in found["detail"] for xid in (each["message"] for each in found["nearest"]))
        assert {each["property"] for near in found["nearest"] for each in near["mismatches"]} == {"data"}
