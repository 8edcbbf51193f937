"""Full batches are bounded by the time that their work takes: a slow sink makes them smaller, a quick one larger."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from catalog.load import load
from router.batches import pipeline
from router.batches.pipeline import Pipeline
from router.batches.plans import PlanCache
from router.batches.splitting import Splitting
from router.evaluation.plan import Plan
from router.machine import TARGET_SECONDS, BatchSizing
from router.reading import generations
from router.settings import settings_from_dict
from router.sources import INBOX
from router.state.state import StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.support import shop
from tests.support.poison import rows_of
from tests.support.web import Answer, Taken, Webhook

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST = 80
SLOW, QUICK = 1.0, 0.01


class SlowSink:
    """A webhook that takes a while for each message: its own clock goes on by that, and nothing else moves it."""

    def __init__(self) -> None:
        self.seconds = SLOW
        self.now = 0.0
        self._lock = threading.Lock()

    def answer(self, request: Taken) -> Answer:
        """Take a message."""
        with self._lock:
            self.now += self.seconds
        return Answer()


@pytest.mark.spark
def test_batches_behind_a_slow_sink_shrink_and_grow_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = SlowSink()
    clock = SimpleNamespace(monotonic=lambda: sink.now, time=time.time)
    monkeypatch.setattr(pipeline, "time", clock)
    with Webhook(sink.answer) as hook, StateFolder.open(tmp_path / "state") as state:
        shop.write_catalog(tmp_path, mended=False)
        told = shop.settings(tmp_path, hook.url, state=str(tmp_path / "state"), max_records_per_batch=MOST)
        told["routes"] = [{"to": ["hook"]}]
        plan = Plan(load([str(tmp_path / "catalog.json")]), settings_from_dict(told, {}, tmp_path))
        sizing = BatchSizing.of(plan.settings)
        generation = generations.begin(state, INBOX, ())
        metrics = Metrics(plan.settings.sinks, [])
        plans = PlanCache(spark, state.batches, plan, metrics)
        plans.activate(plan)
        splitting = Splitting(state.batches, INBOX, "inbox", generation, sizing)
        line = Pipeline(INBOX, "inbox", generation, state, plans, metrics, RouterStatus(), splitting=splitting)
        limits = [sizing.begin(None)]
        for number in range(6):
            sink.seconds = SLOW if number < 3 else QUICK
            line.batch(rows_of(spark, limits[-1], {}), number)
            if sizing.relimit:
                limits.append(sizing.begin(None))
            shown = f"{number}: {limits}"
            assert limits == (
                [MOST, int(TARGET_SECONDS / SLOW)] if number < 3 else [MOST, int(TARGET_SECONDS / SLOW), MOST]
            ), shown
