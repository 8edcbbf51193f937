"""The program that benchmarks hold beside the router does what the router does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from catalog.load import load as load_catalog
from router.evaluation.plan import Plan
from router.settings import settings_from_dict
from tests.benchmarks import spark_by_hand
from tests.integration.test_one_pass import FAILED, ONE
from tests.support import load, plain
from tests.support.evaluating import KAFKA_SCHEMA, single_write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
DEFINITIONS = 20
ARRIVED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
Way = Callable[["SparkSession", Path], Callable[["DataFrame"], "DataFrame"]]


def routed(spark: SparkSession, folder: Path) -> Callable[[DataFrame], DataFrame]:
    """The router's own way."""
    path = plain.write(folder, load.catalog(DEFINITIONS, topic="in"))
    settings = settings_from_dict(
        {"sources": [{"endpoint": "/endpoints/plant", "bootstrap_servers": "broker:9092"}], **ONE}, {}, folder
    )
    plan = Plan(load_catalog([path]), settings)
    return lambda rows: single_write(rows, "kafka", plan).to_records(rows, FAILED)


def case_when(spark: SparkSession, folder: Path) -> Callable[[DataFrame], DataFrame]:
    """A branch for each definition."""
    read = spark_by_hand.read_off(load.catalog(DEFINITIONS, topic="in"))
    return spark_by_hand.case_when(read, "out", "dead")


@pytest.mark.parametrize("way", [routed, case_when], ids=lambda way: way.__name__)
def test_each_record_becomes_what_the_load_wants(spark: SparkSession, tmp_path: Path, way: Way) -> None:
    given = list(load.records(400, DEFINITIONS, bad=10))
    rows = spark.createDataFrame(
        [
            (key, value, "in", 0, number, ARRIVED, [{"key": name, "value": _bytes(each)} for name, each in headers])
            for number, (key, value, headers) in enumerate(given)
        ],
        KAFKA_SCHEMA.replace("timestamp long", "timestamp timestamp"),
    )
    records = way(spark, tmp_path)(rows).toArrow().to_pylist()
    became: Counter[tuple[str, str]] = Counter()
    for record in records:
        headers = {each["key"]: each["value"] for each in record["headers"]}
        message = headers.get("xrouter-message", b"/dead").decode().rpartition("/")[2]
        became[json.loads(record["value"])["want"], message] += 1
        assert (record["topic"] == "dead") is (message == "dead")
        if record["topic"] == "out":
            assert {"ce_id", "ce_type", "ce_source", "xrouter-context"} <= headers.keys()
    assert {want for want, message in became if want != message} == set()
    assert became.total() == len(given)


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
