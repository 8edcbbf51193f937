"""Tables that workers stage have the rows that the driver's own way gives, for records that no sane client sends."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from router.batches.batch import Batch
from router.batches.plans import LoadedPlan, PlanCache
from router.batches.splitting import BatchPart
from router.evaluation.evaluator import Kind
from router.sinks.jsonlines import DEAD_LETTER, WIDE_WITH_AMBIGUOUS
from router.watching.metrics import Metrics
from router.writing import outcomes as spark_outcomes
from router.writing.outcomes import Outcomes
from router.writing.staging import BatchId, collect_results
from tests.integration.test_match_equals_run import source
from tests.integration.test_one_pass import plan_of
from tests.support import plain
from tests.support.tables import by_delta, by_duckdb

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
FAILED = "2026-01-02T03:04:05.000006+00:00"


def loaded_plan(spark: SparkSession, folder: Path, kind: Kind, seed: int, **more: Any) -> tuple[LoadedPlan, DataFrame]:
    """A plan whose sinks are tables in the folder, and rows for it."""
    catalog, lines, frame = source(spark, kind, seed, envelopeoptions={"mode": "structured"})
    sinks = plain.tables(folder, "lake", **more.pop("lake", {})) | plain.tables(folder, "dead")
    plan = plan_of(catalog, plain.routed(folder, sinks, **more), folder)
    return PlanCache(spark, None, plan, Metrics()).current(), frame(lines).repartition(2)


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: row["position"])


def written(folder: Path, schema: pa.Schema) -> pa.Table:
    table = DeltaTable(folder).to_pyarrow_table()
    assert table.schema.names == schema.names
    return table.cast(schema)


def test_no_record_passes_the_driver(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql.classic.dataframe import DataFrame

    def only_results(function: Any) -> Any:
        def asked(frame: Any, *arguments: Any, **named: Any) -> Any:
            assert frame.columns == ["share", "content"], frame.columns
            return function(frame, *arguments, **named)

        return asked

    loaded, frame = loaded_plan(spark, tmp_path, "kafka", 7)
    frame = frame.withColumn("value", F.concat(F.lit(bytearray(b"mark")), F.col("value")))
    batch = BatchId("kafka", "q", "g", 0, FAILED)
    for name in ("toArrow", "collect", "toPandas", "toLocalIterator", "take", "head", "first"):
        monkeypatch.setattr(DataFrame, name, only_results(getattr(DataFrame, name)))
    given: list[bytes] = []

    def recorded(results: DataFrame) -> list[tuple[int, bytes]]:
        found = collect_results(results)
        given.extend(told for _, told in found)
        return found

    monkeypatch.setattr(spark_outcomes, "collect_results", recorded)
    for number, arrived in enumerate((False, True)):
        each = replace(batch, number=number)
        tally = Batch(each, loaded.outcomes(frame, each, BatchPart(), arrived=arrived), loaded.writer).write()
        assert tally.total > tally.dead_letters > 0
    assert given and not any(b"mark" in told for told in given)
    rows = DeltaTable(tmp_path / "lake").to_pyarrow_table()["data"].to_pylist()
    assert any(body is not None and body.startswith(b"mark") for body in rows)


@pytest.mark.parametrize(
    ("kind", "seed", "arrived"),
    [
        pytest.param("kafka", 7, False, id="kafka judged on the way"),
        pytest.param("inbox", 4, True, id="inbox judged and kept"),
        pytest.param("kafka", 7, True, id="kafka judged and kept", marks=pytest.mark.full),
        pytest.param("inbox", 4, False, id="inbox judged on the way", marks=pytest.mark.full),
    ],
)
def test_tables_have_what_the_columns_say(
    spark: SparkSession, tmp_path: Path, kind: Kind, seed: int, arrived: bool
) -> None:
    loaded, frame = loaded_plan(spark, tmp_path, kind, seed, match={"ambiguous": "first"})
    batch = BatchId(kind, "q", "g", 0, FAILED)
    outcomes = loaded.outcomes(frame, batch, BatchPart(), arrived=arrived)
    assert (outcomes._staging is None) is arrived
    tally = Batch(batch, outcomes, loaded.writer).write()
    kept: Outcomes = loaded.outcomes(frame, batch, BatchPart(), arrived=True)
    assert kept.evaluate() == replace(tally, delivered=Counter(), delivered_bytes=Counter())
    decided = pa.schema([*WIDE_WITH_AMBIGUOUS, *((name, pa.string()) for name in loaded.plan.optional_lineage)])
    events = kept.select_routes(loaded.plan.routes.event_sinks["lake"]).events_table(decided)
    letters = kept.select_dead_letters().dead_letters_table()
    kept.release()
    assert events.num_rows and letters.num_rows
    delivered = {sink: sum(n for (name, _), n in tally.delivered.items() if name == sink) for sink in ("lake", "dead")}
    assert delivered == {"lake": events.num_rows, "dead": letters.num_rows}
    assert rows_of(written(tmp_path / "lake", decided)) == rows_of(events)
    assert rows_of(written(tmp_path / "dead", DEAD_LETTER)) == rows_of(letters)
    for name in ("lake", "dead"):
        assert by_duckdb(tmp_path / name).rows == by_delta(tmp_path / name).rows
    # A repeat is left out, and what it staged is gone.
    files = sorted(tmp_path.rglob("*.parquet"))
    again = loaded.outcomes(frame, batch, BatchPart(), arrived=arrived)
    assert Batch(batch, again, loaded.writer).write() == tally
    assert sorted(tmp_path.rglob("*.parquet")) == files
    assert DeltaTable(tmp_path / "lake").count() == events.num_rows
