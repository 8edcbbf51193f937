"""Records chosen to break judging, mapping and rendering: each has its outcomes, and can be rendered for the sinks."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from catalog.load import load
from router.evaluation.plan import Plan
from router.rendering.texts import EVENT_TYPE, native_json, parts_of_raw
from router.settings import settings_from_dict
from tests.support.evaluating import outcome_lists
from tests.support.exact_rendering import render_event
from tests.support.poison import Case, cases, catalog

ROWS = pa.schema(
    [
        ("endpoint", pa.string()),
        ("protocol", pa.string()),
        ("received", pa.timestamp("us", "UTC")),
        ("properties", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary()), ("type", pa.string())]))),
        ("body", pa.binary()),
        ("position", pa.string()),
    ]
)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Return a plan that holds every body against its schema."""
    folder = tmp_path_factory.mktemp("poison")
    (folder / "catalog.json").write_text(json.dumps(catalog()))
    told = {
        "sources": [{"endpoint": "/endpoints/web"}, {"endpoint": "/endpoints/mqtt"}],
        "match": {"validate": "always"},
        "sinks": {"lake": {"type": "jsonl", "path": str(folder / "lake")}},
        "routes": [{"to": ["lake"]}],
        "dead_letters": {"sinks": ["lake"]},
    }
    return Plan(load([str(folder / "catalog.json")]), settings_from_dict(told, {}, folder))


def row_of(case: Case) -> dict[str, Any]:
    row = case.row
    parts = [{"key": part.key, "value": part.value, "type": part.kind} for part in row.properties]
    received = datetime(2026, 1, 2, tzinfo=UTC)
    given = {"endpoint": row.endpoint, "protocol": row.protocol, "body": row.body}
    return {**given, "received": received, "properties": parts, "position": "u-0-0-1"}


def test_there_are_enough() -> None:
    assert len(cases()) >= 60
    assert len(catalog()["messagegroups"]["P"]["messages"]) >= 20


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_each_record_has_its_outcomes_and_can_be_rendered(plan: Plan, case: Case) -> None:
    row = row_of(case)
    lists, _ = outcome_lists("inbox", plan.evaluator, pa.RecordBatch.from_pylist([row], ROWS))
    (outcomes,) = lists.to_pylist()
    assert len(outcomes) == case.outcomes
    for outcome in outcomes[:5]:
        parts, binding = parts_of_raw(row, "inbox", outcome["position_in_batch"])
        pa.array([native_json(parts, binding)], pa.string())
        if outcome["reason"] is None:
            pa.array([render_event(parts, binding, outcome["attributes"])], EVENT_TYPE)
