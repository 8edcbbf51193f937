"""``dead_letters.order: park``: a record waits for an earlier dead letter of its key, through crashes and replays."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import Mock

import pytest
import yaml

from bindings.inbox.source import SPARK_SCHEMA
from catalog.load import load
from router.batches.batch import KeyOrdering, position_sort_key
from router.evaluation.plan import Plan
from router.reading import generations
from router.settings import settings_from_dict
from router.sources import INBOX
from router.state.ledger import HELD, LetterLedger
from router.state.state import StateFolder
from router.writing.outcomes import parse_sinks
from tests.conftest import Kafka, TopicFactory
from tests.support import plain, shop
from tests.support.dying_router import ENDED_BY_SIGNAL
from tests.support.kafka import Headers, produce, read_all
from tests.support.ledger import replayed
from tests.support.poison import Line
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until
from tests.support.web import Answer, Webhook

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LIMIT: Final = 300.0
WAITS: Final = "waits for dead letter "


def test_positions_sort_as_records_arrived() -> None:
    inbox = "0f3a-11-7"
    for told in (["a-1-0-9", "a-1-0-10", "a-1-2-3"], [f"{inbox}-0-2-9", f"{inbox}-0-2-9#2", f"{inbox}-0-2-9#10"]):
        assert sorted(reversed(told), key=position_sort_key) == told
    assert position_sort_key("plant-x-3-12") == ("plant-x", (3, 12), -1)


def put_catalog(folder: Path, topic: str, *, fixed: bool) -> None:
    """Write a catalog with one Kafka endpoint; its definitions do not know ``late`` before somebody fixed them."""
    shop_endpoint = plain.endpoint("KAFKA", {"topic": topic}, "G")
    plain.write(folder, plain.catalog({"shop": shop_endpoint}, G=plain.events("good", *["late"] * fixed)))


def record(key: str | None, n: int, kind: str = "good") -> tuple[bytes | None, bytes, Headers]:
    """Return an event of Kafka with that key."""
    return (None if key is None else key.encode()), b"{}", plain.kafka_headers(kind, f"{key}-{n}")


def sent(kafka: Kafka, topic: str) -> list[str]:
    """Return the ids of a topic's events in order, each where it came first: a crash may repeat some."""
    return list(dict.fromkeys(str(message.header("ce_id")) for message in read_all(kafka.bootstrap, topic)))


def of_key(ids: Iterable[str], key: str) -> list[int]:
    """Return the numbers of a key's events."""
    return [int(name.partition("-")[2]) for name in ids if name.startswith(f"{key}-")]


@pytest.mark.full
def test_later_records_of_a_key_wait_and_are_replayed_in_order(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    source, out = topic_factory("in"), topic_factory("out")
    folder = router.folder
    put_catalog(folder, source, fixed=False)
    sinks = plain.tables(folder, "lake", "dead") | plain.topics(kafka.bootstrap, bus=out)
    told = plain.routed(folder / "catalog.json", sinks, dead_letters={"sinks": ["dead"], "order": "park"})
    told["catalog"]["poll"] = "200ms"
    told["sources"] = [{"endpoint": shop.SHOP, "bootstrap_servers": kafka.bootstrap}]
    router.configure(told)
    produce(kafka.bootstrap, source, [record("A", 0), record("B", 0), record("A", 1, "late"), record(None, 0)])
    produce(kafka.bootstrap, source, [record("A", 2), record("B", 1), record("A", 3), record(None, 1)])
    # Killed when the letters are written and have not taken their places for good.
    router.module = ("tests.support.dying_router", "router.batches.batch:StoredBatch.settle", "before", "0")
    router.launch()
    assert router.wait(LIMIT) == ENDED_BY_SIGNAL, router.log[-3000:]
    with LetterLedger.open(folder / "state", create=False) as ledger:
        assert len(ledger.order.positions()) == 3
    router.module = ("xrouter",)
    router.start()
    produce(kafka.bootstrap, source, [record("A", 4), record("B", 2)])
    wait_until(lambda: len(shop.rows_of(folder / "dead")) == 4, LIMIT, lambda: router.log[-3000:])
    letters = sorted(shop.rows_of(folder / "dead"), key=lambda row: position_sort_key(row["position"]))
    (first, *held) = letters
    assert first["reason"] == "no-match"
    assert [row["reason"] for row in held] == ["sink-rejected"] * 3
    assert {parse_sinks(row["detail"]) for row in held} == {("lake", "bus")}
    assert all(f"{WAITS}{first['letter']} of the same key" in row["detail"] for row in held)
    assert of_key(sent(kafka, out), "A") == [0]

    put_catalog(folder, source, fixed=True)
    told = shop.answer(router, "dead-letters", "replay", "CONFIG", "--dry-run", "--reason", "sink-rejected")
    assert [(row["reason"], row["letters"]) for row in told] == [(HELD, 3)]
    result = shop.answer(router, "dead-letters", "replay", "CONFIG")
    assert result["routed"] == 4
    produce(kafka.bootstrap, source, [record("A", 5, "late"), record("A", 6)])
    lake = folder / "lake"
    wait_until(lambda: any(row["id"] == "A-6" for row in shop.rows_of(lake)), LIMIT, lambda: router.log[-3000:])
    assert router.stop() == 0, router.log[-2000:]
    ids = sent(kafka, out)
    assert of_key(ids, "A") == [0, 1, 2, 3, 4, 5, 6]
    assert of_key(ids, "B") == [0, 1, 2]
    assert Counter(row["id"] for row in shop.rows_of(lake)) == Counter(ids)
    assert len(shop.rows_of(folder / "dead")) == 4


class Died(BaseException):
    """What stands for the end of the process."""


def plan_of(folder: Path, hook: str) -> Plan:
    """Return a plan that sends every event to a folder and to a webhook, and write its settings."""
    shop.write_catalog(folder, fixed=False)
    told = shop.settings(folder, hook, state=str(folder / "state"))
    told["sinks"] |= plain.lines(folder, "lake")
    told["routes"] = [{"to": ["lake", "hook"]}]
    told["dead_letters"] = {"sinks": ["dead"], "order": "park"}
    (folder / "router.yaml").write_text(yaml.safe_dump(told))
    return Plan(load([str(folder / "catalog.json")]), settings_from_dict(told, {}, folder))


def rows_of(spark: SparkSession, told: str, start: int = 0) -> DataFrame:
    """Return inbox rows, such as ``A:good A:no-match :good``: keys and what the record ends as."""
    rows: list[tuple[Any, ...]] = []
    for n, word in enumerate(told.split(), start):
        key, _, reason = word.partition(":")
        (row,) = shop.records(reason, [n])
        parts = [tuple(part) for part in row.properties]
        body = row.body
        if key.islower():  # in structured mode
            event = plain.attributes("late" if reason != "good" else reason, f"id-{n}")
            parts = [("method", b"POST", ""), ("path", b"/shop", "")]
            parts.append(("headers.content-type", b"application/cloudevents+json", ""))
            body = json.dumps({**event, "partitionkey": key.upper()}).encode()
        elif key:
            parts.append(("headers.ce-partitionkey", key.encode(), ""))
        rows.append((row.endpoint, "HTTP", datetime(2026, 1, 2, tzinfo=UTC), parts, body, f"u-0-1-{n}"))
    return spark.createDataFrame(rows, SPARK_SCHEMA).coalesce(1)


def letters_of(folder: Path) -> dict[int, tuple[str, ...]]:
    """Return the sinks that letters name, by the number of the record; each record has one letter."""
    rows = shop.rows_of(folder / "dead")
    found = {int(row["position"].rpartition("-")[2]): parse_sinks(row["detail"]) for row in rows}
    assert len(found) == len(rows)
    return found


def in_lake(folder: Path) -> list[int]:
    """Return the numbers of the events in the folder, in order."""
    return [int(line["cloudevent"]["id"].removeprefix("id-")) for line in plain.lines_of(folder / "lake")]


@pytest.mark.spark
def test_a_batch_that_is_repeated_holds_back_the_same_records(
    spark: SparkSession, state: StateFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = ("lake", "hook")
    with Webhook(lambda request: Answer(422 if request.header("ce-id") == "id-11" else 202)) as hook:
        plan = plan_of(tmp_path, hook.url)
        generation = generations.begin(state, INBOX, ())
        Line(spark, state, plan, generation).pipeline.batch(rows_of(spark, "A:good A:no-match :good A:good a:good"), 0)
        assert letters_of(tmp_path) == {1: (), 3: both, 4: both}
        assert in_lake(tmp_path) == [0, 2]

        # It dies before it is committed, and before it is tried again a replay has all letters of the key.
        rows = rows_of(spark, "A:good B:good b:no-match B:good", 5)
        line = Line(spark, state, plan, generation)
        with monkeypatch.context() as patched, pytest.raises(Died):
            patched.setattr(line.metrics, "count_written_batch", Mock(side_effect=Died))
            line.pipeline.batch(rows, 1)
        assert letters_of(tmp_path) == {1: (), 3: both, 4: both, 5: both, 7: (), 8: both}
        with LetterLedger.open(tmp_path / "state") as ledger:
            dead = [row["letter"] for row in shop.rows_of(tmp_path / "dead") if not row["position"].endswith("-8")]
            replayed(ledger, dead, datetime.now(UTC))
        Line(spark, state, plan, generation).pipeline.batch(rows, 1)
        assert in_lake(tmp_path) == [0, 2, 6]
        with LetterLedger.open(tmp_path / "state") as ledger:
            assert len(ledger.order.positions()) == 1  # what was replayed blocks nothing: A flows, and B waits for 8

        # What a sink turns down while the batch is written holds back later records from the next batch on.
        line = Line(spark, state, plan, generation)
        line.pipeline.batch(rows_of(spark, "A:good B:good C:good C:good", 9), 2)
        line.pipeline.batch(rows_of(spark, "C:good", 13), 3)
        found = letters_of(tmp_path)
        assert {n: found[n] for n in found if n > 8} == {10: both, 11: ("hook",), 13: both}
        assert in_lake(tmp_path) == [0, 2, 6, 9, 11, 12]


def test_a_batch_waits_for_a_replay_that_is_about_to_free_its_key(tmp_path: Path) -> None:
    pauses: list[float] = []

    with StateFolder.open(tmp_path) as state, LetterLedger.open(tmp_path) as ledger:
        ledger.order.append_letters([("A", "a1"), ("B", "b1")])
        ledger.order.note_keys_to_free(["A"])

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 2:
                replayed(ledger, ["a1"], datetime.now(UTC))

        ordering = KeyOrdering(state, pause)
        assert ordering._find_blocked_keys({"A"}) == {"A": "a1", "B": "b1"}  # What a replay that is gone has said.
        with ledger.exclusive():
            assert ordering._find_blocked_keys({"B"}) == {"A": "a1", "B": "b1"}
            assert not pauses
            assert ordering._find_blocked_keys({"A"}) == {"B": "b1"}
        assert len(pauses) == 2
