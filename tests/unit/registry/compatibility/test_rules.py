"""What a write to a resource with many versions may cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from registry.compatibility import rules, schemas
from tests.support.registry import served

SCHEMA = "/schemagroups/g/schemas/s"


def version(number: int) -> dict[str, Any]:
    fields = [{"name": f"f{each}", "type": "int", "default": 0} for each in range(number)]
    return {"format": "Avro", "schema": {"type": "record", "name": "R", "fields": fields}}


def test_what_all_versions_cost_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"meta": {"compatibility": "backward"}, "versions": {str(each): version(each) for each in range(1, 7)}}
    with served(tmp_path) as client:
        client.put(f"{SCHEMA}$details", json=body).raise_for_status()
        monkeypatch.setattr(schemas, "MAX_STEPS", 12 * rules.MIN_PAIR_STEPS)
        answer = client.patch(f"{SCHEMA}/meta", json={"compatibility": "backward_transitive"})
        assert (answer.status_code, answer.json()["type"].rpartition("#")[2]) == (400, "compatibility_unknown")
        assert "the schemas are too large to compare" in answer.json()["detail"]
        client.patch(f"{SCHEMA}/versions/2$details", json={"name": "n"}).raise_for_status()
