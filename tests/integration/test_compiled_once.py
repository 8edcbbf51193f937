"""Spark compiles what a batch needs with the first batches, and nothing more after them. It is asked for little."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.clientserver import ClientServerConnection

from router.batches.plans import PlanCache
from router.batches.splitting import BatchPart
from router.reading import generations
from router.sources import INBOX
from router.state.state import StateFolder
from router.watching.metrics import Metrics
from router.writing.staging import BatchId
from tests.integration.test_match_equals_run import source
from tests.integration.test_one_pass import ONE, UNTRACED
from tests.integration.test_one_pass import plan_of as kafka_plan_of
from tests.support.evaluating import single_write
from tests.support.poison import Line, plan_of, rows_of
from tests.support.web import Webhook

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def compiled(spark: SparkSession) -> int:
    """Return how often Spark has compiled generated code since it started."""
    jvm: Any = spark._jvm
    count: int = jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME().getCount()
    return count


@pytest.mark.full
@pytest.mark.spark
def test_nothing_is_compiled_from_the_third_batch_on(spark: SparkSession, state: StateFolder, tmp_path: Path) -> None:
    with Webhook() as hook:
        line = Line(spark, state, plan_of(tmp_path, hook.url), generations.begin(state, INBOX, ()))
        counts = []
        for number in range(5):
            rows = rows_of(spark, 6, {}, {2: "no-match"})
            before = compiled(spark)
            line.pipeline.batch(rows, number)
            counts.append(compiled(spark) - before)
    # What an earlier test of this session had compiled alike is not compiled again.
    assert compiled(spark) > 0
    assert counts[2:] == [0, 0, 0], counts


@pytest.mark.spark
@pytest.mark.parametrize(
    "settings", [pytest.param(ONE, id="lineage"), pytest.param(UNTRACED, id="none", marks=pytest.mark.full)]
)
def test_nothing_is_compiled_for_one_write_from_the_third_batch_on(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any]
) -> None:
    catalog, lines, frame = source(spark, "kafka", 7)
    plan = kafka_plan_of(catalog, settings, tmp_path)
    counts = []
    columns = single_write(frame(lines), "kafka", plan)
    for number in range(5):
        rows = frame(lines[number:])
        before = compiled(spark)
        columns.to_records(rows, f"2026-01-02T03:04:05.00000{number}+00:00").toArrow()
        counts.append(compiled(spark) - before)
    # What an earlier test of this session had compiled alike is not compiled again.
    assert compiled(spark) > 0
    assert counts[2:] == [0, 0, 0], counts


@pytest.mark.spark
def test_an_attempt_of_one_write_asks_the_jvm_three_times(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, lines, frame = source(spark, "kafka", 7)
    plan, rows = kafka_plan_of(catalog, ONE, tmp_path), frame(lines)
    columns = single_write(rows, "kafka", plan)
    asked: list[str] = []
    send = ClientServerConnection.send_command

    def asking(connection: ClientServerConnection, command: str) -> Any:
        asked.append(command)
        return send(connection, command)

    monkeypatch.setattr(ClientServerConnection, "send_command", asking)
    columns.to_records(rows, "2026-01-02T03:04:05+00:00")
    # "m" lets the JVM forget an object.
    assert len([command for command in asked if not command.startswith("m\n")]) == 3, asked


@pytest.mark.spark
def test_a_changed_catalog_is_prepared_beside_the_batches(
    spark: SparkSession, tmp_path: Path, state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, lines, frame = source(spark, "kafka", 7)
    kept = list(catalog.definitions)[:-1]
    changed = replace(catalog, definitions={xid: catalog.definitions[xid] for xid in kept}, epoch="changed")
    first, second = (kafka_plan_of(each, ONE, tmp_path) for each in (catalog, changed))
    rows = frame(lines)
    plans, attempts = PlanCache(spark, state.batches, first, Metrics()), count()

    def attempt() -> int:
        before, number = compiled(spark), next(attempts)
        batch = BatchId("kafka", "q", "g", number, f"2026-01-02T03:04:0{number}+00:00")
        outcomes = plans.current().outcomes(rows, batch, BatchPart(), arrived=False, at_once=True)
        monkeypatch.setattr(outcomes, "_save", lambda records, *_: records.toArrow())
        outcomes.publish_all(["a"])
        return compiled(spark) - before

    plans.activate(first)
    assert not plans.current().once
    for _ in range(2):
        attempt()
    columns = plans.current().once
    plans.activate(second, {"q", "other"})
    assert plans.current().plan is second
    assert plans.current().once.keys() == columns.keys()
    assert attempt() == 0
