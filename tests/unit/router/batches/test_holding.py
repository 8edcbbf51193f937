"""A batch that is held: the log's advice is what would end the hold."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import pytest
import structlog

from router.batches.waiting import BatchWaiting, Draining
from router.errors import SinkError
from router.reading import generations
from router.sources import INBOX
from router.state.database import StateDatabase
from router.state.state import BatchStore, StateFolder
from router.watching.status import RouterStatus
from router.writing.staging import BatchId
from tests.support import shop
from tests.support.listed import Process, World, plan_of

STATUS_QUERY: Final = RouterStatus.query


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (SinkError("bus", "is away"), "repair the sink"),
        (SinkError("bus", "no topic t", hint="make topic t"), "make topic t"),
        (SinkError("pairs", "9 wait", hint="mend it, or raise relations.most"), "relations.most"),
    ],
)
def test_what_helps_a_sink_is_told_and_not_how_to_give_it_up(tmp_path: Path, error: SinkError, advice: str) -> None:
    draining = threading.Event()
    draining.set()
    loaded = Mock()
    loaded.writer.finished_sinks.return_value = frozenset()
    holding = BatchWaiting(
        "kafka", BatchStore(StateDatabase(tmp_path)), Mock(active=Mock(sources=())), Mock(), Mock(), draining
    )
    with structlog.testing.capture_logs() as logged, pytest.raises(Draining):
        holding.block(loaded, BatchId("kafka", "kafka", "g", 0, "2026-01-02T00:00:00+00:00"), error, parked=False)
    (entry,) = logged
    assert advice in entry["hint"]
    assert "park" not in entry["hint"], "good records would become dead letters"


def test_a_batch_that_was_held_says_that_it_goes_on(
    state: StateFolder, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for all its tries, with what it reads."""
    tries: list[object] = []

    def wait(*_: object, **__: object) -> None:
        tries.append(None)
        if len(tries) == 3:
            world.down = set()

    monkeypatch.setattr(BatchWaiting, "_wait", wait)
    world.down = {"files"}
    generation = generations.begin(state, INBOX, ())
    process = Process(state, plan_of(("lake", "files")), world, generation)
    with structlog.testing.capture_logs() as logged:
        process.batch()
        process.batch(1)
    logged = [entry for entry in logged if entry["log_level"] != "debug"]
    assert [entry["event"] for entry in logged] == ["batch blocked", "batch resumed"]
    assert logged[0]["log_level"] == "warning", "it ends by itself"
    assert logged[-1]["batch"] == 0
    assert logged[-1]["log_level"] == "info"
    assert logged[0]["endpoints"] == logged[-1]["endpoints"] == ", ".join((shop.SHOP, shop.EMPTY))


def test_a_batch_that_stays_held_is_an_error_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("router.batches.waiting.time.monotonic", lambda: now[0])
    holding = BatchWaiting(
        "kafka", BatchStore(StateDatabase(tmp_path)), Mock(active=Mock(sources=())), Mock(), Mock(), threading.Event()
    )
    batch = BatchId("kafka", "kafka", "g", 0, "2026-01-02T00:00:00+00:00")
    with structlog.testing.capture_logs() as logged:
        for seconds, sink in ((0, "bus"), (1, "bus"), (30, "lake"), (61, "bus"), (90, "bus")):
            now[0] = float(seconds)
            holding._report(batch, f"sink {sink}: away for {seconds} s", sink)
        holding.end(0)
    told = [(entry["log_level"], entry["event"]) for entry in logged if entry["log_level"] != "debug"]
    assert told == [*[("warning", "batch blocked")] * 2, ("error", "batch blocked"), ("info", "batch resumed")]
    assert [entry.get("held_seconds") for entry in logged if entry["log_level"] == "error"] == [61]


def test_the_status_never_says_otherwise_than_the_metrics(
    state: StateFolder, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads that the router is ready, and then the metrics, finds no sink there that holds a query."""
    process = Process(state, plan_of(("lake", "files")), world, generations.begin(state, INBOX, ()))
    seen: list[tuple[bool, bool]] = []

    def noted(status: RouterStatus, *told: Any, **more: Any) -> None:
        STATUS_QUERY(status, *told, **more)
        reason, gauge = process.held()
        seen.append((bool(reason), any(gauge.values())))

    def wait(*_: object, **__: object) -> None:
        world.down = set()

    monkeypatch.setattr(RouterStatus, "query", noted)
    monkeypatch.setattr(BatchWaiting, "_wait", wait)
    world.down = {"files"}
    process.batch()
    assert (True, True) in seen and seen[-1] == (False, False)
    assert {status for status in seen if status[0] != status[1]} == set()
