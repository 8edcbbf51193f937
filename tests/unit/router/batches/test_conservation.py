"""What was taken is held against what sinks have: nothing is missing wherever a process dies, and losses show."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import pytest
import structlog

from bindings.inbox.format import to_offset
from bindings.inbox.log import Inbox
from bindings.inbox.source import InboxView
from bindings.parts import InboxRow
from router.batches.pipeline import ConservationCheck
from router.batches.waiting import BatchWaiting, Draining
from router.errors import SinkError
from router.evaluation.outputs import Tally
from router.reading import generations
from router.reading.generations import Generation, Spans
from router.sinks import Commit, WriteResult
from router.sources import INBOX
from router.state.database import StateDatabase
from router.state.state import Accounts, BatchStore, StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from router.writing.outcomes import SINK_REJECTED
from router.writing.staging import BatchId
from tests.support import shop
from tests.support.listed import (
    RECORDS,
    Died,
    ListSink,
    Process,
    World,
    dying,
    forget_accounts,
    plan_of,
    points,
)

SINKS: Final = ("lake", "files", "bus", "hook")


def everything(spans: Spans) -> Spans:
    """All of these offsets are lost."""
    return spans


def planned(generation: Generation, batch: int, end: dict[str, Any]) -> None:
    """Leave what Spark leaves of a batch that it has planned."""
    path = generation.path / "offsets" / str(batch)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(("v1", json.dumps({"batchTimestampMs": 0}), json.dumps(end))))


def committed(generation: Generation, batch: int) -> None:
    """Leave what Spark leaves of one that is done."""
    path = generation.path / "commits" / str(batch)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("v1\n{}")


def begun(state: StateFolder, first: int = 0) -> Generation:
    return generations.begin(state, INBOX, ("t",), json.dumps({"t": {"0": first}}))


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("owner", "name", "nth"), points("counts"))
def test_counts_equal_what_sinks_have_wherever_a_process_dies(
    state: StateFolder, world: World, owner: type, name: str, nth: int, when: str
) -> None:
    plan = plan_of(SINKS)
    generation = begun(state)
    planned(generation, 0, {"t": {"0": 8}})
    with dying(owner, name, when, nth), pytest.raises(Died):
        Process(state, plan, world, generation).batch()
    for _ in range(2):  # As when Spark's own commit is lost as well: it is counted already.
        process = Process(state, plan, world, generation)
        process.batch()
        assert process.gap() == 0
        assert process.counts() == Counter({"routed": 6, "no-match": 1, SINK_REJECTED: 1})
        tables = {name: len(world.numbers(name)) for name in ("lake", "files")}
        assert {name: process.delivered()[name] for name in tables} == tables == {"lake": 7, "files": 7}
        assert process.delivered()["dead"] == len(world.letters()) == 2
        assert process.delivered()["bus"] == len(set(world.published["bus"])) == 7
        assert process.delivered()["hook"] == len(set(world.numbers("hook"))) == 6
    committed(generation, 0)
    planned(generation, 1, {"t": {"0": 16}})
    process.batch(1)
    assert process.gap() == 0
    assert process.counts().total() == 16
    assert Process(state, plan, world, generation).counts().total() == 16


def test_one_pass_and_records_held_back_are_accounted_for(state: StateFolder, world: World) -> None:
    generation = begun(state)
    planned(generation, 0, {"t": {"0": 8}})
    process = Process(state, plan_of(["bus"], kafka=True), world, generation)
    process.batch()
    assert (process.gap(), process.delivered()) == (0, {"bus": 7, "dead": 1})
    generation = begun(state, 8)
    planned(generation, 0, {"t": {"0": 16}})
    process = Process(state, plan_of(SINKS, order="park"), world, generation)
    process.batch()
    assert process.gap() == 0


def test_rows_that_a_sink_does_not_have_are_missing(
    state: StateFolder, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = ListSink._write

    def losing(sink: ListSink, rows: Sequence[dict[str, Any]], commit: Commit) -> WriteResult:
        result = written(sink, list(rows), commit)
        return replace(result, rows=result.rows - 2) if sink.name == "lake" else result

    monkeypatch.setattr(ListSink, "_write", losing)
    generation = begun(state)
    planned(generation, 0, {"t": {"0": 8}})
    process = Process(state, plan_of(SINKS), world, generation)
    process.batch()
    assert process.gap() == 2
    assert Process(state, plan_of(SINKS), world, generation).gap() == 2


def test_a_batch_that_nobody_wrote_is_missed(state: StateFolder, world: World) -> None:
    plan, generation = plan_of(SINKS), begun(state)
    process = Process(state, plan, world, generation)
    for batch, end in enumerate((8, 16, 24)):
        planned(generation, batch, {"t": {"0": end}})
        if batch != 1:
            process.batch(batch)
        committed(generation, batch)
    assert process.gap() == 8


def added(accounting: ConservationCheck, metrics: Metrics, batch: int, rows: int) -> int:
    assert accounting.add(batch, Tally(rows=rows), metrics)
    return accounting.account.gap


def test_the_inbox_is_counted_by_its_rows(state: StateFolder) -> None:
    inbox, metrics = Inbox(state.inbox, partitions=2), Metrics()
    generation = generations.begin(state, INBOX, ())
    accounting = ConservationCheck(INBOX, generation, state)
    view = InboxView(state.inbox)
    try:
        for batch, rows in enumerate((5, 7, 4)):
            inbox.append_many([InboxRow("/endpoints/e", "HTTP", 1, [], b"{}") for _ in range(rows)]).result(60)
            planned(
                generation, batch, to_offset(inbox.layout.inbox, {n: view.end_position(n) for n in view.partitions})
            )
            assert added(accounting, metrics, batch, rows) == 0
            forget_accounts(state)  # Another process knows where this one was.
            accounting = ConservationCheck(INBOX, generation, state)
        inbox.append_many([InboxRow("/endpoints/e", "HTTP", 1, [], b"{}") for _ in range(3)]).result(60)
        planned(generation, 3, to_offset(inbox.layout.inbox, {n: view.end_position(n) for n in view.partitions}))
        assert added(accounting, metrics, 3, 1) == 2
        taken = metrics.registry.get_sample_value("xrouter_taken_records_total", {"query": INBOX})
        assert taken == 19
    finally:
        inbox.close()


def test_an_account_that_cannot_be_read_begins_anew_and_stops_nobody(state: StateFolder, world: World) -> None:
    generation = begun(state)
    planned(generation, 0, {"t": {"0": 8}})
    process = Process(state, plan_of(SINKS), world, generation)
    process.batch()
    committed(generation, 0)
    with state.database.transaction() as connection:
        connection.execute("UPDATE accounts SET account = '{'")
    planned(generation, 1, {"t": {"0": 16}})
    process = Process(state, plan_of(SINKS), world, generation)
    process.batch(1)
    assert process.gap() == 0
    assert process.counts().total() == len(RECORDS.given)


def test_what_a_full_disk_did_not_take_is_known_to_the_query_that_starts_anew(state: StateFolder) -> None:
    metrics = Metrics()
    generation = generations.begin(state, "kafka-1", ("t",), json.dumps({"t": {"0": 0}}))
    tally = Tally(Counter({("/endpoints/e", "routed", ""): 10}), rows=10)
    for batch in range(3):
        planned(generation, batch, {"t": {"0": 10 * batch + 10}})
    first = ConservationCheck("kafka-1", generation, state, everything)
    assert first.add(0, tally, metrics)
    state.database.read("PRAGMA query_only = ON")  # A disk that takes nothing.
    assert first.add(1, tally, metrics)
    # Spark could not note it either, and the batch comes again.
    again = ConservationCheck("kafka-1", generation, state, everything)
    assert not again.add(1, tally, metrics)
    assert again.add(2, tally, metrics)
    assert (again.account.taken, again.account.gap) == (30, 0)
    state.database.read("PRAGMA query_only = OFF")
    state.accounts.keep_all()
    kept = Accounts(state.database).of("kafka-1")
    assert (kept.batch, kept.taken, kept.records.total()) == (2, 30, 30)


# A batch that is held: the log's advice is what would end the hold.


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
