"""One record by itself has the outcome that it has among others, in columns."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from catalog.model import PROTOCOLS
from router.matching.records import FEW, RecordMatcher, parse_entry
from router.matching.schema_validation import Validation
from tests.support.generation import ENDPOINT, random_catalog, random_record


def without_id(outcome: dict[str, Any]) -> dict[str, Any]:
    """Without the id that names a record's place."""
    return {**outcome, "cloudevent": {**outcome.get("cloudevent", {}), "id": ""}}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_random_records(seed: int) -> None:
    rng = Random(seed)
    catalog = random_catalog(rng, rng.choice((3, 20, 90)))
    validation: Validation = rng.choice(("never", "ambiguous", "always"))
    matcher = RecordMatcher(catalog, endpoint=ENDPOINT, validation=validation, ambiguous="first")
    lines = [json.dumps(random_record(rng, catalog)) for _ in range(FEW + 100)]
    for line, outcome in zip(lines, matcher.decide(lines), strict=True):
        assert without_id(matcher.decide([line])[0]) == without_id(outcome), line


def test_routed_records_of_every_protocol_need_no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(7)
    catalog = random_catalog(rng, 60)
    matcher = RecordMatcher(catalog, endpoint=ENDPOINT)
    lines = [json.dumps(random_record(rng, catalog)) for _ in range(1_000)]
    routed = [line for line, each in zip(lines, matcher.decide(lines), strict=True) if each["outcome"] == "routed"]
    monkeypatch.setattr(RecordMatcher, "_match_rows", lambda self, rows: [pytest.fail("columns")] if rows else [])
    assert {matcher.decide([line])[0]["outcome"] for line in routed} == {"routed"}
    assert {parse_entry(0, line)[1].protocol for line in routed} == set(PROTOCOLS)
