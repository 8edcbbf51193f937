"""The plan of a replay batch is stored with it, and restored as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from catalog.load import load
from router.batches.plans import restore_plan
from router.errors import BatchPinError
from router.evaluation.plan import Plan, compile_plan
from router.settings import load_settings
from router.state.ledger import LetterLedger, PendingReplay
from router.state.state import BatchStore


def plan_of(folder: Path, topic: str) -> Plan:
    message = {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": topic}}}
    (folder / "catalog.json").write_text(json.dumps({"messagegroups": {"g": {"messages": {"m": message}}}}))
    (folder / "router.yaml").write_text("catalog: {source: ./catalog.json}\n")
    return Plan(load([folder / "catalog.json"]), load_settings(folder / "router.yaml", {}))


def test_the_plan_of_an_unfinished_replay_is_stored_and_others_are_removed(tmp_path: Path) -> None:
    first, second = plan_of(tmp_path, "first"), plan_of(tmp_path, "second")
    with LetterLedger.open(tmp_path / "state") as ledger:
        store = BatchStore(ledger.database)
        for number, plan in enumerate((first, second, first, second), 1):
            ledger.begin(PendingReplay(number, plan.id, ("a",)), plan.to_bytes())
            assert restore_plan(store, plan.id, compile_plan).id == plan.id
            ledger.finish(number, [])
        with pytest.raises(BatchPinError, match="does not have it"):
            restore_plan(store, first.id, compile_plan)
