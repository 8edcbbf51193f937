"""A batch that dies at each of its steps is written by the next process: once where commits are kept, nothing lost.

Everything from Spark's callback on is the router's own: pins, notes, ledger and counts on the disk. Records, outcomes
and sinks are lists (:mod:`tests.support.listed`).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
import pytest

from router.batches.batch import PARKED, StoredBatch
from router.batches.pipeline import Pipeline
from router.batches.plans import SharedParts
from router.batches.splitting import SAME_FAILURES, Splitting
from router.batches.waiting import BatchWaiting, Draining
from router.evaluation.plan import Plan
from router.reading import generations
from router.reading.generations import Generation
from router.sinks import Commit, WriteResult
from router.sources import INBOX
from router.state.ledger import LetterLedger
from router.state.state import BatchStore, Hold, Park, StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from router.writing.outcomes import SINK_REJECTED, parse_sinks
from router.writing.writer import BatchWriter
from tests.support.format_1 import as_format_1
from tests.support.listed import (
    RECORDS,
    Died,
    Given,
    ListOutcomes,
    ListPlan,
    ListRows,
    ListSink,
    Process,
    World,
    dying,
    places,
    plan_of,
    points,
)
from tests.unit.router.batches.test_conservation import begun, planned

SINKS: Final = ("lake", "files", "bus", "hook")
"""Two tables; Kafka by Spark; and one that keeps no commits."""
KEPT: Final = ("lake", "files")
WRITTEN: Final = {0, 1, 2, 3, 4, 7}
LETTERS: Final = {3: SINK_REJECTED, 5: "no-match", 6: SINK_REJECTED}


def assert_written(state: StateFolder, world: World) -> None:
    """Every record is where it belongs: once where commits are kept, and at least once elsewhere."""
    assert not world.files
    for name in KEPT:
        assert Counter(world.numbers(name)) == Counter(WRITTEN)
    assert set(world.numbers("hook")) == WRITTEN - {3}
    assert set(world.published["bus"]) == WRITTEN
    letters = world.letters()
    assert {n: row["reason"] for n, row in letters.items()} == LETTERS
    assert parse_sinks(letters[3]["detail"]) == ("hook",)
    assert parse_sinks(letters[6]["detail"]) == SINKS
    with LetterLedger.open(state.root, create=False) as ledger:
        assert sorted(ledger.order.first_letters()) == ["A", "B"]
        assert len(ledger.order.positions()) == 3


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("owner", "name", "nth"), points("batches"))
def test_dying_at_each_step_loses_and_doubles_nothing(
    state: StateFolder, world: World, owner: type, name: str, nth: int, when: str
) -> None:
    plan = plan_of(SINKS, order="park")
    generation = generations.begin(state, INBOX, ())
    with dying(owner, name, when, nth), pytest.raises(Died):
        Process(state, plan, world, generation).batch()
    process = Process(state, plan, world, generation)
    process.batch()
    assert_written(state, world)
    assert process.counts() == Counter({"routed": 5, "no-match": 1, SINK_REJECTED: 2})
    assert len(world.published["bus"]) <= 2 * len(WRITTEN)
    # As when Spark's own commit is lost: all is known already.
    Process(state, plan, world, generation).batch()
    assert_written(state, world)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("owner", "name"),
    [(StoredBatch, "pin"), (BatchWriter, "send_all"), (ListOutcomes, "publish"), (StoredBatch, "spill")],
)
def test_dying_in_one_pass_loses_nothing(state: StateFolder, world: World, owner: type, name: str, when: str) -> None:
    plan = plan_of(["bus"], kafka=True)
    generation = generations.begin(state, INBOX, ())
    with dying(owner, name, when), pytest.raises(Died):
        Process(state, plan, world, generation).batch()
    process = Process(state, plan, world, generation)
    process.batch()
    assert set(world.published["bus"]) == set(range(8)) - {5}
    assert set(world.published["dead"]) == {5}
    assert process.counts() == Counter({"routed": 7, "no-match": 1})


def test_what_an_earlier_router_began_is_finished_after_the_upgrade(tmp_path: Path, world: World) -> None:
    plan = plan_of(SINKS, order="park")
    with StateFolder.open(tmp_path / "old") as state:
        generation = generations.begin(state, INBOX, ())
        with dying(ListOutcomes, "publish", "after"), pytest.raises(Died):
            Process(state, plan, world, generation).batch()
    as_format_1(tmp_path / "old")
    with StateFolder.open(tmp_path / "old") as state:
        assert state.batches.pinned(INBOX, 0) == plan.id
        Process(state, plan, world, generation).batch()
        assert_written(state, world)


def test_nothing_is_written_before_the_pin(state: StateFolder, world: World) -> None:
    plan = plan_of(SINKS, order="park")
    generation = generations.begin(state, INBOX, ())
    with dying(StoredBatch, "pin", "before"), pytest.raises(Died):
        Process(state, plan, world, generation).batch()
    assert state.batches.pinned(INBOX, 0) is None
    assert not world.published and not any(sink.rows for sink in world.sinks.values())
    with dying(StoredBatch, "pin", "after"), pytest.raises(Died):
        Process(state, plan, world, generation).batch()
    assert state.batches.pinned(INBOX, 0) == plan.id
    assert not world.published and not any(sink.rows for sink in world.sinks.values())


def test_letters_are_written_after_all_events(state: StateFolder, world: World) -> None:
    plan = plan_of(SINKS)
    world.down = {"hook"}
    process = Process(state, plan, world, generations.begin(state, INBOX, ()))
    with dying(BatchWaiting, "_wait", "before"), pytest.raises(Died):
        process.batch()
    assert world.numbers("lake") and world.published["bus"]
    assert not world.letters()


def test_a_sink_that_has_its_share_is_not_asked_again_while_another_holds_the_batch(
    state: StateFolder, world: World
) -> None:
    plan = plan_of(["bus", "lake", "hook"])
    world.down = {"hook"}
    generation = generations.begin(state, INBOX, ())
    process = Process(state, plan, world, generation)
    with dying(BatchWaiting, "_note", "after", 3), pytest.raises(Died):
        process.batch()
    held = state.batches.noted(Hold, INBOX, 0, generation.id)
    assert held is not None and (held.sink, held.taken) == ("hook", ("bus", "lake"))
    world.down = set()
    process.batch()
    once = Counter(set(range(8)) - {5})
    assert Counter(world.published["bus"]) == Counter(world.numbers("lake")) == once
    assert state.batches.noted(Hold, INBOX, 0, generation.id) is None


def test_a_drain_ends_a_held_batch_and_a_batch_to_come(state: StateFolder, world: World) -> None:
    plan = plan_of(SINKS)
    world.down = {"lake"}
    process = Process(state, plan, world, generations.begin(state, INBOX, ()))
    process.pipeline.drain()
    with pytest.raises(Draining):
        process.batch()
    assert state.batches.pinned(INBOX, 0) is None


def test_the_breaker_holds_a_batch_unwritten_until_it_is_pinned(state: StateFolder, world: World) -> None:
    generation = generations.begin(state, INBOX, ())
    strict = plan_of(SINKS, max_ratio=0.1)
    process = Process(state, strict, world, generation)
    with dying(BatchWaiting, "_wait", "before"), pytest.raises(Died):
        process.batch()
    held = state.batches.noted(Hold, INBOX, 0, generation.id)
    assert held is not None and held.sink == "" and "1 of 8 records" in held.reason
    assert state.batches.pinned(INBOX, 0) is None and not world.published
    # Another plan judges it anew, and what is pinned to it is not looked at again.
    with dying(StoredBatch, "pin", "after"), pytest.raises(Died):
        Process(state, plan_of(SINKS), world, generation).batch()
    Process(state, strict, world, generation).batch()
    assert set(world.letters()) == {3, 5}


def test_another_plan_ends_the_wait_of_the_breaker(
    state: StateFolder, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict, lenient = plan_of(SINKS, max_ratio=0.1), plan_of(SINKS, max_ratio=0.5)
    process = Process(state, strict, world, generations.begin(state, INBOX, ()))
    looks: list[float] = []

    def look(seconds: float) -> None:
        looks.append(seconds)
        process.plans.active, process.loaded = lenient, ListPlan(lenient, world)

    monkeypatch.setattr(BatchWaiting, "pause", lambda self, seconds: look(seconds))
    process.batch()
    assert len(looks) == 1
    assert set(world.letters()) == {3, 5}


def test_what_the_breaker_holds_is_told_until_a_plan_mends_it(
    state: StateFolder, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = [plan_of(SINKS, max_ratio=ratio) for ratio in (0.1, 0.12, 0.5)]
    process = Process(state, plans.pop(0), world, generations.begin(state, INBOX, ()))
    told: list[tuple[str, dict[str, float]]] = []

    def look(seconds: float) -> None:
        told.append(process.held())
        assert not world.published and not process.counts()
        process.plans.active = plans.pop(0)
        process.loaded = ListPlan(process.plans.active, world)

    monkeypatch.setattr(BatchWaiting, "pause", lambda self, seconds: look(seconds))
    process.batch()
    # A plan that mends nothing of it is tried once, and the batch is held again.
    assert [reason.partition(" would be")[0] for reason, _ in told] == ["1 of 8 records"] * 2
    assert all("fix the catalog" in reason for reason, _ in told)
    assert [gauge for _, gauge in told] == [{"": 1}] * 2
    assert process.held() == ("", {"": 0})
    assert process.counts()["routed"] == 6


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("owner", "name", "nth"), points("set aside"))
def test_dying_while_a_batch_is_set_aside_names_the_same_sinks(
    state: StateFolder, world: World, owner: type, name: str, nth: int, when: str
) -> None:
    plan = plan_of(SINKS, order="park")
    generation = generations.begin(state, INBOX, ())
    world.down = {"hook"}
    with dying(BatchWaiting, "_wait", "before"), pytest.raises(Died):
        Process(state, plan, world, generation).batch()
    notes = state.batches
    notes.note(INBOX, 0, Park(generation.id, "2026-01-02T03:04:05Z"))
    with dying(owner, name, when, nth), pytest.raises(Died):
        Process(state, plan, world, generation).batch()
    process = Process(state, plan, world, generation)
    process.batch()
    letters = world.letters()
    assert {n: parse_sinks(row["detail"]) for n, row in letters.items()} == {
        5: (),
        6: SINKS,
        **dict.fromkeys(WRITTEN, ("hook",)),
    }
    assert PARKED in letters[0]["detail"]
    assert Counter(world.numbers("lake")) == Counter(world.published["bus"]) == Counter(WRITTEN)
    assert not world.numbers("hook")
    assert process.counts() == Counter({SINK_REJECTED: 7, "no-match": 1})
    order = notes.noted(Park, INBOX, 0, generation.id)
    assert order is not None and set(order.lacking or ()) == {"hook"}


def test_an_order_ends_the_wait_for_a_sink(state: StateFolder, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    generation = generations.begin(state, INBOX, ())
    process = Process(state, plan_of(SINKS), world, generation)
    world.down = {"lake"}
    notes = state.batches

    def look(seconds: float) -> None:
        notes.note(INBOX, 0, Park(generation.id, "2026-01-02T03:04:05Z"))

    monkeypatch.setattr(BatchWaiting, "pause", lambda self, seconds: look(seconds))
    process.batch()
    assert {parse_sinks(row["detail"]) for row in world.letters().values()} == {(), SINKS}


POISONED: Final = ListRows(tuple(Given(n, fails=n == 4, reason="no-match" if n == 5 else "") for n in range(12)))


def assert_all_but_one(world: World) -> None:
    """Every record is where it belongs, and the one that fails is a dead letter."""
    good = set(range(12)) - {4, 5}
    for name in KEPT:
        assert Counter(world.numbers(name)) == Counter(good)
    assert set(world.published["bus"]) == good
    assert {n: row["reason"] for n, row in world.letters().items()} == {4: "undecodable", 5: "no-match"}


def test_the_record_that_fails_is_found_and_the_rest_is_written_once(state: StateFolder, world: World) -> None:
    world.rejecting = {}
    process = Process(state, plan_of(SINKS), world, generations.begin(state, INBOX, ()))
    process.batch(rows=POISONED)
    assert_all_but_one(world)
    assert Counter(world.published["bus"]) == Counter(set(range(12)) - {4, 5})
    assert process.counts() == Counter({"routed": 10, "no-match": 1, "undecodable": 1})


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("owner", "name"), [(BatchStore, "note"), (ListSink, "write"), (Splitting, "divide")])
def test_dying_anywhere_between_parts_doubles_nothing(
    state: StateFolder, world: World, owner: type, name: str, when: str
) -> None:
    world.rejecting = {}
    generation = generations.begin(state, INBOX, ())
    plan = plan_of(SINKS)
    deaths = 0
    while True:
        process = Process(state, plan, world, generation)
        with dying(owner, name, when, nth=deaths + 1):  # Each comes a little further than the one before it.
            try:
                process.batch(rows=POISONED)
                break
            except Died:
                deaths += 1
    assert deaths
    assert_all_but_one(world)
    assert process.counts() == Counter({"routed": 10, "no-match": 1, "undecodable": 1})


def test_what_has_the_whole_batch_does_not_get_its_parts(state: StateFolder, world: World) -> None:
    generation = generations.begin(state, INBOX, ())
    plan = plan_of(SINKS)
    with dying(ListOutcomes, "publish", "before"), pytest.raises(Died):
        Process(state, plan, world, generation).batch()
    assert set(world.numbers("lake")) == set(range(8)) - {5}
    process = Process(state, plan, world, generation)
    process.pipeline._splitting.begin(0)
    process.pipeline._splitting.cut(places(RECORDS, "inbox"), 3)
    process.batch()
    assert Counter(world.numbers("lake")) == Counter(set(range(8)) - {5})
    assert set(world.letters()) == {3, 5}
    assert process.counts() == Counter({"routed": 6, "no-match": 1, SINK_REJECTED: 1})


def test_a_sink_whose_routes_took_nothing_is_not_asked(
    state: StateFolder, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs nothing: neither a write of no rows, nor a second in what the log says of the batch."""
    plan = plan_of(SINKS)
    process = Process(state, plan, world, generations.begin(state, INBOX, ()))
    publish, write = ListOutcomes.publish, ListSink.write
    asked: list[str] = []

    def asking(self: ListOutcomes, sink: str, *, letters: bool) -> None:
        asked.append(sink)
        publish(self, sink, letters=letters)

    monkeypatch.setattr(ListOutcomes, "publish", asking)
    world.staging = set()

    def writing(self: ListSink, rows: pa.Table, commit: Commit) -> WriteResult:
        asked.append(self.name)
        return write(self, rows, commit)

    monkeypatch.setattr(ListSink, "write", writing)
    process.batch(0, ListRows((Given(0, reason="no-match"), Given(1, reason="no-match"))))
    assert asked == ["dead"] and len(world.letters()) == 2
    asked.clear()
    process.batch(1, ListRows((Given(2),)))
    assert asked == list(SINKS)


# A batch that fails with a shadow catalog beside it goes on without, and has lost none of its tries.

FAULT = ValueError("a schema that nobody expected")


class Shadowed(ListPlan):
    """A plan beside which a shadow judges, with which every batch fails."""

    __slots__ = ()

    def __init__(self, plan: Plan, world: World, alone: ListPlan) -> None:
        super().__init__(plan, world)
        self.without_shadow = alone

    def outcomes(self, *given: Any, **more: Any) -> Any:
        """Fail."""
        raise FAULT


class Failing(ListPlan):
    """A plan by which the first batches fail."""

    __slots__ = ("left",)

    def __init__(self, plan: Plan, world: World, times: int) -> None:
        super().__init__(plan, world)
        self.left = times

    def outcomes(self, *given: Any, **more: Any) -> Any:
        """Fail for a while."""
        if self.left:
            self.left -= 1
            raise FAULT
        return super().outcomes(*given, **more)


class Plans:
    """What a pipeline asks for plans, with a shadow until it is set aside."""

    def __init__(self, plan: Plan, world: World, failing: int = 0) -> None:
        self.active = plan
        self.alone = Failing(plan, world, failing)
        self.loaded: ListPlan = Shadowed(plan, world, self.alone)
        self.reasons: list[str] = []

    def current(self, *pinned: object) -> ListPlan:
        """Return the plan, with the shadow while there is one."""
        return self.loaded

    pinned = current

    def set_aside_shadow(self, reason: str) -> None:
        """Note why."""
        self.reasons.append(reason)
        self.loaded = self.alone


def pipeline_of(plans: Plans, state: StateFolder, generation: Generation) -> tuple[Pipeline, Metrics]:
    metrics = Metrics(plans.active.settings.sinks)
    made = Pipeline(INBOX, "inbox", generation, SharedParts(state, cast(Any, plans), metrics, RouterStatus()))
    return made, metrics


@pytest.mark.parametrize("failing", [0, SAME_FAILURES - 1])
def test_what_failed_with_it_is_tried_again_without(state: StateFolder, world: World, failing: int) -> None:
    generation = begun(state)
    planned(generation, 0, {"t": {"0": 8}})
    plans = Plans(plan_of(["lake"]), world, failing)
    pipeline, metrics = pipeline_of(plans, state, generation)
    pipeline.batch(RECORDS, 0)  # type: ignore[arg-type]
    assert len(world.numbers("lake")) == 7
    # The try with the shadow is none of its own: another failure, and the batch would have been cut.
    fault = {"query": INBOX, "fault": "error"}
    assert metrics.registry.get_sample_value("xrouter_batch_faults_total", fault) == failing
    if failing:
        assert plans.reasons == []  # It fails without, too: the shadow is not why.
    else:
        assert not state.database.read("SELECT * FROM notes")
        (reason,) = plans.reasons
        assert reason.startswith(f"batch 0 of {INBOX} failed only with it: ValueError")


# A batch whose sinks all take files of workers: staged in one pass, and taken over once, wherever the process dies.


STAGED: Final = ("lake", "files")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("owner", "name", "nth"), points("staged"))
def test_dying_at_each_step_of_a_batch_that_is_staged_whole_leaves_each_record_once(
    state: StateFolder, world: World, owner: type, name: str, nth: int, when: str
) -> None:
    world.staging |= {"files"}
    plan = plan_of(STAGED)
    generation = generations.begin(state, INBOX, ())
    with dying(owner, name, when, nth), pytest.raises(Died):
        Process(state, plan, world, generation).batch()
    with dying(ListOutcomes, "list_decisions", "before") as asked:
        process = Process(state, plan, world, generation)
        process.batch()
    assert not asked
    for each in STAGED:
        assert Counter(world.numbers(each)) == Counter(set(range(8)) - {5})
    assert set(world.letters()) == {5}
    assert process.counts() == Counter({"routed": 7, "no-match": 1})
    # A process that ended before it could tidy up leaves files that the next sweeps by their names.
    assert name == "release" or not world.files


def test_what_was_staged_for_a_sink_that_is_away_is_staged_again(state: StateFolder, world: World) -> None:
    world.staging |= {"files"}
    generation = generations.begin(state, INBOX, ())
    process = Process(state, plan_of(STAGED), world, generation)
    world.down = {"files"}
    with dying(BatchWaiting, "_wait", "before"), pytest.raises(Died):
        process.batch()
    assert not world.files
    world.down = set()
    with dying(ListOutcomes, "stage", "before", nth=99) as staged:
        process.batch()
    for each in STAGED:
        assert Counter(world.numbers(each)) == Counter(set(range(8)) - {5})
    # The lake took its share of the batch in this process, and nothing is written for it again.
    assert len(staged) == 2 * len(["files", "dead"])
