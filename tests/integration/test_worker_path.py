"""Python workers import pyspark where the driver does, and not from an archive that each would compile anew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
import pytest

from router.spark.worker_path import import_as_driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_workers_import_pyspark_as_the_driver_does(spark: SparkSession) -> None:
    def where(_: Iterator[Any]) -> Iterator[pa.RecordBatch]:
        import sys

        import pyspark

        yield pa.RecordBatch.from_pydict({"file": [pyspark.__file__], "path": [";".join(sys.path)]})

    (row,) = spark.range(1).coalesce(1).mapInArrow(where, "file string, path string").collect()
    assert row.file == pyspark.__file__
    assert "pyspark.zip" not in row.path


class Untouched:
    """A session of which nothing may be asked but its master."""

    def __init__(self, master: str) -> None:
        self.sparkContext = type("Context", (), {"master": master})


@pytest.mark.parametrize(
    ("master", "home"), [("spark://host:7077", None), ("local-cluster[1,1,512]", None), ("local[2]", "/opt/spark")]
)
def test_other_machines_and_a_spark_that_was_named_are_left_alone(
    master: str, home: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    if home:
        monkeypatch.setenv("SPARK_HOME", home)
    session: Any = Untouched(master)
    import_as_driver(session)
