"""A real-time query ends behind a note of how far it is, where one comes in time; batches take over after an error."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from prometheus_client import generate_latest
from pyspark.sql import Row

from router.reading.generations import Generation
from router.realtime import RealTimeQuery, find_fast_types, read_tally
from router.state.state import StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.unit.router.realtime.test_checks import ORDERS, plan


class Reports:
    """A streaming query that reports a batch more at each look; ``error`` is why it ended."""

    def __init__(self, error: Exception | None = None) -> None:
        self.number = 3
        self.error = error
        self.stopped = False

    @property
    def isActive(self) -> bool:
        return self.error is None and not self.stopped

    @property
    def lastProgress(self) -> dict[str, Any]:
        self.number += 1
        return report(self.number)

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self.stopped = True


def report(number: int, *counts: tuple[int, float]) -> dict[str, Any]:
    observed = Row(settled=[{"x": x, "y": y} for x, y in counts])
    return {"batchId": number, "observedMetrics": {"settled": observed}, "sources": []}


def real_time(folder: Path, checkpoint: str = "5s", metrics: Metrics | None = None) -> RealTimeQuery:
    told = {"rest": "rest", "checkpoint": checkpoint}
    generation = Generation(folder / "1", "g", ("orders",))
    return RealTimeQuery(
        "q",
        generation,
        plan({"a": ORDERS}, realtime=told),
        metrics or Metrics(),
        RouterStatus(),
        StateFolder(folder).accounts,
    )


def test_counts_of_a_report_are_those_of_definitions() -> None:
    types = find_fast_types(plan({"a": ORDERS}))
    tally = read_tally(report(1, (0, 2.0), (0, 3.0)), types)
    assert dict(tally.records) == {("/endpoints/a", "routed", ""): 5}
    assert dict(tally.delivered) == {("bus", "/endpoints/a"): 5}
    assert dict(tally.definitions) == {("/endpoints/a", "/messagegroups/g/messages/m"): 5}
    assert read_tally({"batchId": 1, "observedMetrics": {}}, types).total == 0
    assert read_tally({"batchId": 1, "observedMetrics": {"settled": Row(settled=None)}}, types).total == 0


def test_a_report_counts_once(tmp_path: Path) -> None:
    metrics = Metrics()
    query = real_time(tmp_path, metrics=metrics)
    for number in (7, 7, 8):
        query.record_progress(report(number, (0, 2.0)))
    sample = 'xrouter_records_total{endpoint="/endpoints/a",outcome="routed",reason=""} 4.0'
    assert sample in generate_latest(metrics.registry).decode()
    assert query.last == 8


def test_counts_go_on_after_a_restart(tmp_path: Path) -> None:
    for total in (2.0, 4.0):
        metrics = Metrics()
        real_time(tmp_path, metrics=metrics).record_progress(report(7, (0, 2.0)))
        labels = {"endpoint": "/endpoints/a", "outcome": "routed", "reason": ""}
        assert metrics.registry.get_sample_value("xrouter_records_total", labels) == total


def test_it_is_idle_once_a_batch_has_ended_since_it_was_asked(tmp_path: Path) -> None:
    query = real_time(tmp_path)
    query.record_progress(report(3))
    query._query = Reports()  # type: ignore[assignment]
    query.drain()
    assert query.draining and not query.ended_batch
    assert query.wait_idle(60) and query.ended_batch


def test_it_does_not_wait_for_a_note_that_comes_too_late(tmp_path: Path) -> None:
    query = real_time(tmp_path, checkpoint="10m")
    query._query = Reports()  # type: ignore[assignment]
    query.drain()
    began = time.monotonic()
    assert not query.wait_idle(60) and time.monotonic() - began < 30
