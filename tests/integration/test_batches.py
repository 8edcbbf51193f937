"""Batches that a sink never takes: seen, set aside as dead letters beside a running router or without, replayed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient

from bindings.inbox.source import SPARK_SCHEMA
from catalog.load import load
from router.batches.pipeline import Pipeline
from router.batches.plans import PlanCache
from router.batches.waiting import Draining
from router.commands.batches.unfinished import order_parking
from router.evaluation.plan import Plan
from router.reading import generations
from router.reading.generations import Generation
from router.settings import settings_from_dict
from router.sources import INBOX
from router.state.state import Hold, Park, StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from router.writing.outcomes import parse_sinks
from tests.conftest import Kafka, TopicFactory
from tests.support import shop
from tests.support.kafka import create_topics, read_all
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until
from tests.support.web import Answer, Webhook

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LIMIT = 300.0
RECORDS = 30


@pytest.mark.full
def test_a_batch_for_a_topic_that_is_gone_is_set_aside_and_replayed_there_alone(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    topic = topic_factory("gone")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    configure(router, kafka.bootstrap, topic)
    shop.fill(router.folder / "state", [*shop.records("good", range(RECORDS)), *shop.records("undecodable", [99])])
    router.start()
    wait_until(lambda: router.readiness()["queries"].get(INBOX, {}).get("state") == "held", LIMIT, lambda: router.log)
    assert f"has no topic {topic}" in router.log and f"create topic {topic}" in router.log
    assert "batches park" not in router.log

    (batch,) = shop.answer(router, "batches", "show", "CONFIG")["batches"]
    assert (batch["query"], batch["state"], batch["records"]) == (INBOX, "held", RECORDS + 1)
    assert "sink bus" in batch["reason"]
    assert {share["sink"]: share["has"] for share in batch["sinks"]} == {"lake": True, "bus": None}
    shown = shop.command(router, "batches", "show", "CONFIG").stdout
    assert f"batches park {router.config} {INBOX}" in shown

    done = shop.command(router, "batches", "park", "CONFIG", INBOX, "--yes")
    assert done.returncode == 0, done.stderr
    dead = router.folder / "dead"
    wait_until(lambda: len(shop.rows_of(dead)) == RECORDS + 1, LIMIT, lambda: router.log[-3000:])
    wait_until(lambda: router.readiness()["ready"], LIMIT, lambda: router.log[-3000:])
    letters = [row for row in shop.rows_of(dead) if row["reason"] == "sink-rejected"]
    assert len(letters) == RECORDS
    assert {parse_sinks(row["detail"]) for row in letters} == {("bus",)}
    assert all("moved to dead letters by an operator: Kafka at" in row["detail"] for row in letters)
    counted = router.total("xrouter_records_total", outcome="dead-letter", reason="sink-rejected")
    assert (counted, router.total("xrouter_records_total", outcome="routed")) == (RECORDS, 0)
    assert shop.answer(router, "batches", "show", "CONFIG") == {"running": True, "batches": []}

    create_topics(kafka.bootstrap, [topic])
    result = shop.answer(router, "dead-letters", "replay", "CONFIG", "--reason", "sink-rejected")
    assert result["routed"] == RECORDS
    assert router.stop() == 0, router.log[-2000:]
    sent = Counter(message.header("ce_id") for message in read_all(kafka.bootstrap, topic))
    assert sent == Counter(f"id-{n}" for n in range(RECORDS))
    assert len(shop.rows_of(router.folder / "lake")) == RECORDS


def configure(router: RouterProcess, bootstrap: str, topic: str) -> None:
    """Send every event to a table, and then to a topic of Kafka."""
    quick = {"max.block.ms": "1000", "delivery.timeout.ms": "1500", "request.timeout.ms": "1000", "linger.ms": "0"}
    shop.write_catalog(router.folder, mended=True)
    told = shop.settings(router.folder, "http://127.0.0.1:9")
    bus = {"type": "kafka", "bootstrap_servers": bootstrap, "topic": topic, "options": quick}
    told["sinks"] = {"lake": told["sinks"]["lake"], "dead": told["sinks"]["dead"], "bus": bus}
    told["routes"] = [{"to": ["lake", "bus"]}]
    router.configure(told)


def test_parking_what_is_not_there_says_what_is(router: RouterProcess) -> None:
    router.configure(shop.settings(router.folder, "http://127.0.0.1:9"))
    done = shop.command(router, "batches", "park", "CONFIG", "kafka-1", "--yes")
    assert done.returncode == 6
    assert "is not a state folder" in done.stderr
    with StateFolder.open(router.folder / "state"):
        done = shop.command(router, "batches", "park", "CONFIG", "kafka-1", "--yes")
    assert done.returncode == 1
    assert "query 'kafka-1' has no unfinished batch" in done.stderr


class Line:
    """One query of a router, without its stream: batches are handed in."""

    def __init__(self, spark: SparkSession, state: StateFolder, plan: Plan, generation: Generation) -> None:
        self.metrics = Metrics(plan.settings.sinks, [])
        self.status = RouterStatus()
        self._state = state
        self._generation = generation
        self._plans = PlanCache(spark, state.batches, plan, self.metrics, lambda document: plan)
        self.activate(plan)
        self.go_on()

    def activate(self, plan: Plan) -> None:
        """Let a plan be the active one, as a reload does."""
        self._plans.activate(plan)

    def go_on(self) -> None:
        """Take batches, again after a drain, in the same process."""
        self.pipeline = Pipeline(
            INBOX,
            "inbox",
            self._generation,
            self._state,
            self._plans,
            self.metrics,
            self.status,
        )

    @property
    def reason(self) -> str:
        """Why the batch is held; '' while it is not."""
        query = self.status.check_readiness()[1]["queries"].get(INBOX, {})
        return str(query.get("reason", "")) if query.get("state") == "held" else ""

    def until_held(self, rows: DataFrame, number: int, sign: str) -> None:
        """Write a batch until it is held for a reason with *sign* in it, then stop as a router does."""
        ended: list[BaseException] = []

        def write() -> None:
            try:
                self.pipeline.batch(rows, number)
            except Draining as error:
                ended.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            wait_until(lambda: sign in self.reason, LIMIT, lambda: f"{sign}, not {self.reason!r}")
        finally:
            self.pipeline.drain()
            thread.join(LIMIT)
        assert ended


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateFolder]:
    """A state folder of its own."""
    with StateFolder.open(tmp_path / "state") as opened:
        yield opened


def plan_of(folder: Path, hook: str, **more: Any) -> Plan:
    """Return a plan with a table at a place that may be a file."""
    shop.write_catalog(folder, mended=True)
    told = {**shop.settings(folder, hook, state=str(folder / "state")), **more}
    told["sinks"]["files"] = {"type": "jsonl", "path": str(folder / "files")}
    told["routes"] = [{"when": {"message": "*/picky"}, "to": ["files", "hook", "lake"]}, {"to": ["lake", "files"]}]
    return Plan(load([str(folder / "catalog.json")]), settings_from_dict(told, {}, folder))


def rows_of(spark: SparkSession) -> DataFrame:
    """Return inbox rows: five of either route, and one that is a dead letter anyway."""
    found = [*shop.records("good", range(5)), *shop.records("sink-rejected", range(5, 10))]
    found += shop.records("undecodable", [10])
    when = datetime(2026, 1, 2, tzinfo=UTC)
    made = [
        (row.endpoint, "HTTP", when, [tuple(part) for part in row.properties], row.body, f"u-0-{at}")
        for at, row in enumerate(found)
    ]
    return spark.createDataFrame(made, SPARK_SCHEMA).coalesce(1)


def letters_of(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return the sinks that each letter names, by position; each position once."""
    rows = shop.rows_of(folder / "dead")
    assert len({row["position"] for row in rows}) == len(rows)
    return {row["position"]: parse_sinks(row["detail"]) for row in rows}


@pytest.mark.spark
def test_set_aside_before_any_write_and_after_some(spark: SparkSession, state: StateFolder, tmp_path: Path) -> None:
    rows = rows_of(spark)
    (tmp_path / "lake").write_text("no folder of a table")
    with Webhook(lambda request: Answer(422 if request.header("ce-id") == "id-7" else 202)) as hook:
        plan = plan_of(tmp_path, hook.url)
        generation = generations.begin(state, INBOX, ())
        line = Line(spark, state, plan, generation)
        notes = state.batches
        line.until_held(rows, 3, "sink lake")
        # By the order of the routes: the files have theirs, the hook all but one, the table nothing.
        held = notes.noted(Hold, INBOX, 3, generation.id)
        assert held is not None and line.reason.startswith(
            f"{held.reason}; this blocks all endpoints of the query: /endpoints/shop, /endpoints/empty"
        )
        assert held == Hold(generation.id, held.since, held.reason, "lake", ("files",))
        notes.note(INBOX, 3, Park(generation.id, "2026-01-02T03:04:05Z"))
        line.go_on()
        line.pipeline.batch(rows, 3)
    found = letters_of(tmp_path)
    assert found.pop("u-0-10") == ()
    assert found == {f"u-0-{n}": ("hook", "lake") if n == 7 else ("lake",) for n in range(10)}
    told = {row["position"]: row["detail"] for row in shop.rows_of(tmp_path / "dead")}
    assert "set aside" not in told["u-0-7"].partition("; ")[0]
    assert notes.noted(Hold, INBOX, 3, generation.id) is None
    order = notes.noted(Park, INBOX, 3, generation.id)
    assert order is not None and set(order.lacking or ()) == {"hook", "lake"}
    assert len(list((tmp_path / "files").glob("*.jsonl"))) == 1

    # The same batch again, as after a crash before Spark's commit, by a router that remembers nothing.
    # Nobody is at the hook, so that a message there would hold the batch.
    Line(spark, state, plan, generation).pipeline.batch(rows, 3)
    assert set(letters_of(tmp_path)) == {f"u-0-{n}" for n in range(11)}

    # An order for a batch that nothing has been written of; and the notes of old batches go with their pins.
    notes.note(INBOX, 5, Park(generation.id, "2026-01-02T03:04:05Z"))
    line.pipeline.batch(rows, 5)
    assert len(shop.rows_of(tmp_path / "dead")) == 22
    named = Counter(tuple(sorted(parse_sinks(row["detail"]))) for row in shop.rows_of(tmp_path / "dead"))
    assert named == Counter(
        {("lake",): 9, ("hook", "lake"): 1, ("files", "lake"): 5, ("files", "hook", "lake"): 5, (): 2}
    )
    assert state.batches.noted(Park, INBOX, 3, generation.id) is None


@pytest.mark.spark
def test_a_batch_keeps_its_plan_through_any_number_of_reloads(
    spark: SparkSession, state: StateFolder, tmp_path: Path
) -> None:
    rows = rows_of(spark)
    (tmp_path / "lake").write_text("no folder of a table")
    with Webhook() as hook:
        plan = plan_of(tmp_path, hook.url)
        line = Line(spark, state, plan, generations.begin(state, INBOX, ()))
        batch = threading.Thread(target=line.pipeline.batch, args=(rows, 0))
        batch.start()
        wait_until(lambda: "sink lake" in line.reason, LIMIT, lambda: f"sink lake, not {line.reason!r}")
        for number in range(4):
            line.activate(plan_of(tmp_path, hook.url, max_records_per_batch=100 + number))
        (tmp_path / "lake").unlink()
        batch.join(LIMIT)
        posted = Counter(request.header("ce-id") for request in hook.taken)
    assert line.pipeline.last == 0
    # What the hook has settled is remembered with the plan, for as long as the batch is in progress.
    assert posted == Counter({f"id-{n}": 1 for n in range(5, 10)})
    assert len(shop.rows_of(tmp_path / "lake")) == 10


def test_an_order_is_for_one_generation_only(tmp_path: Path) -> None:
    with StateFolder.open(tmp_path / "state") as state:
        first = generations.begin(state, INBOX, ())
        for folder in ("offsets", "commits"):
            (first.path / folder).mkdir()
        (first.path / "offsets" / "0").write_text("v1\n{}\n{}")
        batch = order_parking(state, INBOX)
        assert (batch.batch, batch.generation) == (0, first.id)
        notes = state.batches
        order = notes.noted(Park, INBOX, 0, first.id)
        assert order is not None
        second = generations.begin(state, INBOX, ())
        notes.note(INBOX, 0, order)  # As by a command that looked before the new generation began.
        assert notes.noted(Park, INBOX, 0, second.id) is None
