"""Python workers import pyspark where the driver does, and not from an archive that each would compile anew; and what
else they need is there before they are forked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyspark
import pytest
from pyspark import cloudpickle

from bindings.inbox.source import InboxDataSource
from catalog.load import load
from router.evaluation.plan import Plan
from router.settings import settings_from_dict
from router.spark import worker_daemon
from tests.support.cases import FOLDER
from tests.support.processes import below, command_of

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


@pytest.mark.spark
def test_workers_are_forked_with_what_they_need(spark: SparkSession) -> None:
    def parent(_: Iterator[Any]) -> Iterator[pa.RecordBatch]:
        import os

        with open(f"/proc/{os.getppid()}/cmdline") as file:
            yield pa.RecordBatch.from_pydict({"command": [file.read()]})

    (row,) = spark.range(1).coalesce(1).mapInArrow(parent, "command string").collect()
    assert row.command.split("\0")[1:-1] == ["-m", "router.spark.worker_daemon", "pyspark.worker"]


@pytest.mark.spark
def test_no_python_is_started_to_look_for_data_sources(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("one\n")
    # Spark looks, if it does, before it opens the first of any kind.
    assert [row.value for row in spark.read.text(str(tmp_path / "lines")).collect()] == ["one"]
    spark.dataSource.register(InboxDataSource)
    assert spark.readStream.format("xrouter_inbox").option("path", str(tmp_path)).load().isStreaming
    commands = [command_of(pid) for pid in below(os.getpid())]
    assert [command for command in commands if "create_data_source" in command]
    assert not [command for command in commands if "lookup_data_sources" in command]


def test_a_plan_brings_no_module_that_was_not_there_before_the_fork(tmp_path: Path) -> None:
    catalog = load([str(FOLDER)])
    endpoints = [{"endpoint": endpoint} for endpoint in catalog.endpoints]
    plan = Plan(catalog, settings_from_dict({"sources": endpoints}, {}, tmp_path))
    pickled: Any = cloudpickle
    (tmp_path / "judge").write_bytes(pickled.dumps(plan.evaluator))
    said = subprocess.run(
        [sys.executable, "-c", LOADING, tmp_path / "judge"], check=True, capture_output=True, text=True
    )
    assert json.loads(said.stdout) == {"new": [], "threads": 1}


def test_a_connection_that_spark_closed_ends_a_worker_without_a_word() -> None:
    def work(_: object, authenticated: bool) -> int:
        raise EOFError

    assert worker_daemon.silence_disconnects(work)(None, True) == 1


LOADING: Final = """
import importlib, json, os, pathlib, pickle, sys
from router.spark.worker_daemon import NEEDED, QUIET, count_threads
os.environ |= QUIET
(run,) = NEEDED
for name in (run, *NEEDED[run]):
    importlib.import_module(name)
there = {"threads": count_threads()}
before = set(sys.modules)
judge = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())
print(json.dumps({"new": sorted(set(sys.modules) - before), **there}))
"""
