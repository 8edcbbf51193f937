"""``log.level: debug`` tells of each try of a batch, and where its time went."""

from __future__ import annotations

import io
import json

import pytest

from router.logs import configure_logs
from router.settings import LogSettings
from router.sources import INBOX
from router.state.state import StateFolder
from tests.support.listed import RECORDS, World, plan_of
from tests.unit.router.batches.test_beside_a_shadow import Plans, pipeline_of
from tests.unit.router.batches.test_conservation import begun, planned


@pytest.mark.parametrize("level", ["debug", "info"])
def test_each_batch_is_told(state: StateFolder, world: World, level: str) -> None:
    generation = begun(state)
    planned(generation, 0, {"t": {"0": 8}})
    plans = Plans(plan_of(["lake"]), world)
    plans.loaded = plans.alone
    pipeline, _ = pipeline_of(plans, state, generation)
    out = io.StringIO()
    configure_logs(LogSettings.model_validate({"format": "json", "level": level}), out)
    pipeline.batch(RECORDS, 0)  # type: ignore[arg-type]
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    if level == "info":
        assert not lines
        return
    tried, done = lines
    assert (tried["event"], tried["batch"], tried["pinned"]) == ("batch attempt", 0, False)
    assert tried["epoch"] == plans.active.epoch
    assert (done["event"], done["query"], done["records"]) == ("batch done", INBOX, 8)
    assert sum(sum(counts.values()) for counts in done["outcomes"].values()) == 8
    assert "rest" in done["steps"] and sum(done["steps"].values()) <= done["seconds"] + 0.01
