"""A batch that waits for executors is held, and no limit on its own time counts meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import pytest
import structlog

from router.watching import batches
from router.watching.batches import BatchWatch
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.support.waiting import wait_until

LIMIT = 30.0
HOOK = ("xrouter_query_held", {"query": "q", "sink": "hook"})


@dataclass
class Context:
    """A context of Spark, as far as a watch asks it, whose executors come and go as a test says."""

    master: str
    executors: int = 1
    cancelled: list[str] = field(default_factory=list)

    def getLocalProperty(self, name: str) -> str:
        return name

    @property
    def _jsc(self) -> Context:
        return self

    def sc(self) -> Context:
        return self

    def getExecutorMemoryStatus(self) -> Context:
        return self

    def size(self) -> int:
        return self.executors + 1

    def cancelJobGroup(self, group: str, reason: str) -> None:
        self.cancelled.append(reason)


@dataclass
class Session:
    """A session with that context."""

    sparkContext: Context


def held(metrics: Metrics) -> bool:
    return metrics.registry.get_sample_value("xrouter_query_held", {"query": "q", "sink": "spark"}) == 1


def state(status: RouterStatus) -> str | None:
    query = status.check_readiness()[1]["queries"].get("q")
    return query and str(query["state"])


@pytest.mark.parametrize(("master", "stranded"), [("spark://h:7077", True), ("local[2]", False)])
def test_no_limit_counts_while_nobody_works(master: str, stranded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "LOOK_SECONDS", 0.01)
    context, metrics, status = Context(master, executors=0), Metrics(), RouterStatus()
    seen: list[tuple[str | None, bool]] = []
    query = RouterStatus.query

    def noted(changed: RouterStatus, *told: Any, **more: Any) -> None:
        query(changed, *told, **more)
        seen.append((state(changed), held(metrics)))

    monkeypatch.setattr(RouterStatus, "query", noted)
    watch = BatchWatch("q", metrics, status, lambda: {"endpoints": "/endpoints/e", "topics": "t"})
    with structlog.testing.capture_logs() as logged, watch.attempt(cast(Any, Session(context)), 7, 0.1):
        if stranded:
            wait_until(lambda: state(status) == "held", LIMIT, "the batch to be held")
            assert held(metrics)
            context.executors = 2
            wait_until(lambda: state(status) == "running", LIMIT, "the batch to go on")
            assert not held(metrics)
        wait_until(lambda: context.cancelled, LIMIT, "the limit")
    # Whoever reads the status and then the metrics finds the same in both.
    assert seen[: 2 * stranded] == [("held", True), ("running", False)] * stranded
    assert [line["event"] for line in logged] == [
        *(["batch blocked", "batch resumed"] * stranded),
        "batch takes too long",
    ]
    assert {(line["endpoints"], line["topics"], line["query"], line["batch"]) for line in logged} == {
        ("/endpoints/e", "t", "q", 7)
    }


def test_a_slow_sink_is_told_once_and_the_router_stays_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many batches it takes long for; only a write that makes no progress at all holds the batch."""
    for name, seconds in {"LOOK_SECONDS": 0.01, "_ASKS_SECONDS": 0.0, "SLOW_SECONDS": 0.1}.items():
        monkeypatch.setattr(batches, name, seconds)
    metrics, status = Metrics(), RouterStatus()
    session = cast(Any, Session(Context("local[2]", executors=0)))
    watch = BatchWatch("q", metrics, status)
    status.query("q", "running")

    def write(until: Callable[[], object]) -> None:
        with watch.attempt(session, 1, 0.0), batches.watch_write("hook"):
            wait_until(lambda: bool(until()), LIMIT, "what a write is to show")

    with structlog.testing.capture_logs() as logged:
        for _ in range(3):
            until = time.monotonic() + 0.3
            write(partial(lambda until: logged and time.monotonic() > until, until))
            assert state(status) == "running" and not metrics.registry.get_sample_value(*HOOK)
        write(lambda: True)
        write(lambda: True)
        assert [(line["log_level"], line["event"]) for line in logged] == [
            ("warning", "sink is slow"),
            ("info", "sink is no longer slow"),
        ]
        assert logged[0]["sink"] == logged[1]["sink"] == "hook" and logged[1]["seconds"] >= 0.9
        monkeypatch.setattr(batches, "WAITS_SECONDS", 0.2)
        with watch.attempt(session, 2, 0.0), batches.watch_write("hook"):
            wait_until(lambda: state(status) == "held", LIMIT, "the batch to be held")
            batches.report_progress()
            assert state(status) == "running" and metrics.registry.get_sample_value(*HOOK) == 0
