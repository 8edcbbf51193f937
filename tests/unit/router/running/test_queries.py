"""Queries that end and are started again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from router.running.queries import Queries
from router.running.starts import PAUSE_FIRST, Running
from router.state.state import State
from router.watching.metrics import Metrics
from router.watching.status import Status


@pytest.mark.parametrize(("last", "pause"), [(None, 8 * PAUSE_FIRST), (17, PAUSE_FIRST)])
def test_pauses_begin_anew_after_a_query_that_wrote_a_batch(last: int | None, pause: float, tmp_path: Path) -> None:
    nothing: Any = None
    queries = Queries(nothing, State(tmp_path), nothing, Metrics(), Status(), nothing, once=False)
    ended: Any = SimpleNamespace(exception=lambda: OSError("gone"), isActive=False)
    pipeline: Any = SimpleNamespace(failure=None, last=last, renewed={})
    running = Running("inbox", (), nothing, pipeline, ended, pause=8 * PAUSE_FIRST)
    queries._running["inbox"] = running
    queries.check()
    assert running.query is None
    assert running.pause == 2 * pause


def test_a_query_that_has_ended_is_not_at_work(tmp_path: Path) -> None:
    nothing: Any = None
    queries = Queries(nothing, State(tmp_path), nothing, Metrics(), Status(), nothing, once=False)
    for name, ended in (("inbox", False), ("kafka-1", True)):
        queries._running[name] = Running(name, (), nothing, ended=ended)
    assert queries.at_work == {"inbox"}


def test_the_time_to_find_a_batch_is_that_of_the_last_batch_though_spark_looks_on(tmp_path: Path) -> None:
    nothing: Any = None
    status = Status()
    queries = Queries(nothing, State(tmp_path), nothing, Metrics(), status, nothing, once=False)
    spark: Any = SimpleNamespace(lastProgress={"durationMs": {"triggerExecution": 700, "addBatch": 400}})
    queries._running["inbox"] = Running("inbox", (), nothing, nothing, spark)
    queries.measure()
    spark.lastProgress = {"durationMs": {"triggerExecution": 9, "latestOffset": 8}}  # It found nothing.
    queries.measure()
    assert status.steps.to_json()["inbox"]["source_seconds"] == 0.3
