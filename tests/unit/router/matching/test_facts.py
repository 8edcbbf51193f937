"""Facts of records that are made to be costly: what comes of them stays in proportion to their size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bindings.parts import Part
from bindings.protocols import BINDINGS
from catalog.load import load
from router.matching import record_columns as facts
from router.matching.record_columns import RawRow, RecordColumns, RecordColumnsBuilder
from tests.support.cases import judged, kafka_rows, plan_of

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
