"""What was taken is held against what sinks have: nothing is missing wherever a process dies, and losses show."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from bindings.inbox.format import to_offset
from bindings.inbox.log import Inbox
from bindings.inbox.source import InboxView
from bindings.parts import InboxRow
from router.batches.batch import StoredBatch
from router.batches.pipeline import ConservationCheck, Pipeline
from router.batches.splitting import Splitting
from router.evaluation.outputs import Tally
from router.reading import generations
from router.reading.generations import Generation, Spans
from router.sinks import Commit, WriteResult
from router.sources import INBOX
from router.state.state import Accounts, StateFolder
from router.watching.metrics import Metrics
from router.writing.outcomes import SINK_REJECTED
from router.writing.writer import BatchWriter
from tests.support.listed import RECORDS, Died, ListOutcomes, ListSink, Process, World, dying, forget_accounts, plan_of

SINKS: Final = ("lake", "files", "bus", "hook")
POINTS: Final[tuple[tuple[type, str, int], ...]] = (
    (StoredBatch, "pin", 1),
    (ListSink, "commit_staged", 1),
    (ListSink, "write", 1),
    (ListOutcomes, "publish", 1),
    (BatchWriter, "send_dead_letters", 1),
    (StoredBatch, "settle", 1),
    (Splitting, "written", 1),
    (ConservationCheck, "add", 1),
    (Accounts, "keep", 1),
    (Metrics, "count_written_batch", 1),
    (Pipeline, "batch", 1),
)


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
@pytest.mark.parametrize(("owner", "name", "nth"), POINTS, ids=lambda value: getattr(value, "__name__", str(value)))
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
