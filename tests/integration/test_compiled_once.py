"""Spark compiles what a batch needs with the first batches, and nothing more after them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from router.reading import generations
from router.sources.sources import INBOX
from router.state.state import State
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
