"""Every number that a broker or a client may send, at its bounds: judged, rendered and kept as it came."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pytest

from bindings.inbox.format import SCHEMA, rows_to_batch
from bindings.parts import InboxRow
from bindings.protocols import binding_of
from catalog.load import load
from router.evaluation.outcome_rows import RAW_COLUMNS
from router.evaluation.plan import Evaluator, Plan
from router.matching.inbox_columns import inbox_parts
from router.rendering.texts import native_json
from router.settings import Settings
from router.sinks.jsonlines import DEAD_LETTER, WIDE, render_letter_lines, wide_to_json_line
from tests.support.cases import read_cases
from tests.support.evaluating import outcome_lists
from tests.support.exact_rendering import render_event

CASES: Final[Mapping[str, Any]] = read_cases(Path(__file__).parents[3] / "cases" / "values" / "numbers.yaml")

U32, U64, I64 = 2**32 - 1, 2**64 - 1, 2**63 - 1
PROTOCOLS = {"HTTP": "HTTP", "MQTT/5.0": "MQTT/5.0", "AMQP/1.0": "AMQP/1.0", "NATS": "NATS"}
RECEIVED = (0, 1, 1_700_000_000_000_000, 253_402_300_799_999_999)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Evaluator:
    folder = tmp_path_factory.mktemp("numbers")
    endpoints = {
        name.partition("/")[0].lower(): {
            "usage": ["consumer"],
            "protocol": name,
            "protocoloptions": {"options": {"path": "/n", "topic": "n", "node": "n", "subject": "n"}},
            "messages": {"Any": {"protocol": name, "envelopemetadata": {"type": {"value": "n"}}}},
        }
        for name in PROTOCOLS
    }
    catalog = folder / "catalog.json"
    catalog.write_text(json.dumps({"endpoints": endpoints}))
    sources = [
        {"endpoint": f"/endpoints/{name}", **({} if name == "http" else {"uris": [f"{name}://127.0.0.1:1"]})}
        for name in endpoints
    ]
    given = {"catalog": {"source": str(catalog)}, "sinks": {"out": {"type": "jsonl", "path": "-"}}, "sources": sources}
    settings = Settings.model_validate({**given, "routes": [{"to": ["out"]}], "dead_letters": {"sinks": ["out"]}})
    return Plan(load([str(catalog)]), settings).evaluator


def rows_of(protocol: str, native: dict[str, Any]) -> pa.RecordBatch:
    binding = binding_of(protocol)
    assert binding is not None
    endpoint = f"/endpoints/{protocol.partition('/')[0].lower()}"
    rows = [InboxRow(endpoint, protocol, at, binding.split(native), b"{}") for at in RECEIVED]
    stored = rows_to_batch(rows)
    assert stored.schema == SCHEMA
    return stored.append_column("position", pa.array([f"i-0-0-{at}" for at in range(len(rows))]))


@pytest.mark.parametrize(("protocol", "native"), CASES["native"], ids=lambda value: str(value)[:70])
def test_a_number_at_its_bounds_is_routed_and_kept(judge: Evaluator, protocol: str, native: dict[str, Any]) -> None:
    batch = rows_of(protocol, native)
    lists, _ = outcome_lists("inbox", judge, batch)
    outcomes = [outcome for outcomes in lists.to_pylist() for outcome in outcomes]
    assert [outcome["reason"] for outcome in outcomes] == [None] * len(RECEIVED)
    binding = binding_of(protocol)
    assert binding is not None
    for row, outcome, at in zip(batch.to_pylist(), outcomes, RECEIVED, strict=True):
        assert set(row) == set(RAW_COLUMNS["inbox"])
        parts = inbox_parts(row["properties"])
        assert msgspec.json.decode(native_json(parts, binding)) == native
        event = render_event(parts, binding, outcome["attributes"])
        table = pa.Table.from_pylist([{**event, "received": at, "data": row["body"]}], schema=WIDE)
        line = msgspec.json.decode(wide_to_json_line(table.to_pylist()[0]))
        assert datetime.fromisoformat(line["received"]) == row["received"].astimezone(UTC)
        letter = {"letter": "1", "native": event["native"], "received": at, "failed": at}
        (written,) = render_letter_lines(pa.RecordBatch.from_pylist([letter], schema=DEAD_LETTER)).to_pylist()
        assert msgspec.json.decode(written)["native"] == native


@pytest.mark.parametrize(
    ("time", "kept"),
    [
        ("0000-06-01T00:00:00Z", False),
        ("0001-01-01T00:00:00+00:01", False),
        ("0001-01-01T00:00:00Z", True),
        ("9999-12-31T23:59:59.999999999Z", True),
        ("9999-12-31T23:59:60Z", False),
        ("9999-12-31T23:59:59-00:01", False),
    ],
)
def test_a_time_outside_of_the_calendar_is_no_instant_of_a_table(time: str, kept: bool) -> None:
    binding = binding_of("KAFKA")
    assert binding is not None
    native = {"topic": "n", "headers": [{"name": "ce_specversion", "value": "1.0"}, {"name": "ce_time", "value": time}]}
    event = render_event(binding.split(native), binding, None)
    assert (event["time"] is not None) is kept
    [row] = pa.Table.from_pylist([event], schema=WIDE).to_pylist()
    assert json.loads(wide_to_json_line({**row, "time_text": event["time_text"]}))["cloudevent"]["time"] == time
