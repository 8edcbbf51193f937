"""Spark compiles what a batch needs with the first batches, and nothing more after them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from router.judging.judging import Tallies
from router.reading import generations
from router.sources.sources import INBOX
from router.state.state import State
from router.writing.kafka_columns import OutgoingColumns
from router.writing.outgoing import OnePass
from tests.integration.test_match_equals_run import KAFKA_MEMBERS, KAFKA_SCHEMA, catalog_for, kafka_row, lines_of
from tests.integration.test_one_pass import ONE, UNTRACED
from tests.integration.test_one_pass import plan_of as kafka_plan_of
from tests.support.poisoned import Line, plan_of, rows_of
from tests.support.webhook import Webhook

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    """A state folder of its own."""
    with State.open(tmp_path / "state") as opened:
        yield opened


def compiled(spark: SparkSession) -> int:
    """Return how often Spark has compiled generated code since it started."""
    jvm: Any = spark._jvm
    count: int = jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME().getCount()
    return count


@pytest.mark.spark
def test_nothing_is_compiled_from_the_third_batch_on(spark: SparkSession, state: State, tmp_path: Path) -> None:
    with Webhook() as hook:
        line = Line(spark, state, plan_of(tmp_path, hook.url), generations.begin(state, INBOX, ()))
        counts = []
        for number in range(5):
            rows = rows_of(spark, 6, {}, {2: "no-match"})
            before = compiled(spark)
            line.pipeline.batch(rows, number)
            counts.append(compiled(spark) - before)
    assert counts[0] > 0
    assert counts[2:] == [0, 0, 0], counts


@pytest.mark.spark
@pytest.mark.parametrize(
    "settings", [pytest.param(ONE, id="lineage"), pytest.param(UNTRACED, id="none", marks=pytest.mark.full)]
)
def test_nothing_is_compiled_for_one_write_from_the_third_batch_on(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any]
) -> None:
    catalog = catalog_for(7, "KAFKA")
    lines = lines_of(Random(7), catalog, "KAFKA", KAFKA_MEMBERS)
    plan = kafka_plan_of(catalog, settings, tmp_path)
    once, judge = OnePass.of(plan, "kafka"), spark.sparkContext.broadcast(plan.judge)
    columns = OutgoingColumns.of(once, plan.judge)
    counts = []
    for number in range(5):
        rows = spark.createDataFrame([kafka_row(line) for line in lines[number:]], KAFKA_SCHEMA)
        attempt = replace(once, query="q", failed=f"2026-01-02T03:04:05.00000{number}+00:00")
        before = compiled(spark)
        columns.of_rows(rows, judge, spark.sparkContext.accumulator({}, Tallies()), attempt).toArrow()
        counts.append(compiled(spark) - before)
    assert counts[0] > 0
    assert counts[2:] == [0, 0, 0], counts
