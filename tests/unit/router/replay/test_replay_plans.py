"""The plan of a replay batch is kept whole, whatever a process left that died while it kept one."""

from __future__ import annotations

import json
from pathlib import Path

from catalog.load import load
from router.evaluation.plan import Plan
from router.replay.batches import FOLDER, ReplayPlans
from router.settings import load_settings


def plan_of(folder: Path, topic: str) -> Plan:
    message = {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": topic}}}
    (folder / "catalog.json").write_text(json.dumps({"messagegroups": {"g": {"messages": {"m": message}}}}))
    (folder / "router.yaml").write_text("catalog: {source: ./catalog.json}\n")
    return Plan(load([folder / "catalog.json"]), load_settings(folder / "router.yaml", {}))


def test_only_the_last_plan_is_kept_and_it_is_whole(tmp_path: Path) -> None:
    first, second = plan_of(tmp_path, "first"), plan_of(tmp_path, "second")
    folder = tmp_path / FOLDER
    plans = ReplayPlans(tmp_path, tmp_path, {})
    plans.keep(first)
    (folder / f".{second.id}.json.99").write_bytes(b"{")
    (folder / f"{second.id}.json").write_bytes(b"{")
    for plan in (second, first, second, second):
        plans.keep(plan)
        assert plans.restore(plan.id).id == plan.id
        assert [path.stem for path in folder.iterdir()] == [plan.id]
