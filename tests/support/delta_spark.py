"""Spark with its own Delta connector in a process of its own: another engine beside the router, and another reader.

A session has the connector's jars from its start or never, so that of the tests cannot have them. The process takes
statements of SQL, one JSON text a line, and answers each with its rows or its error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, cast

from router.spark.connectors import fetch_jars
from tests.benchmarks.spark_delta import DELTA_PINS, delta_conf
from tests.support.processes import below, command_of
from tests.support.router import SECONDS, start_options
from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).resolve().parents[2]


class DeltaSparkError(Exception):
    """A statement that Spark refused."""


class DeltaSpark:
    """The process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def sql(self, statement: str) -> list[list[Any]]:
        """Run a statement and return its rows, with values as JSON has them.

        Raises:
            DeltaSparkError: Spark refused it.
        """
        given, answers = cast(IO[str], self._process.stdin), cast(IO[str], self._process.stdout)
        given.write(json.dumps(statement) + "\n")
        given.flush()
        line = answers.readline()
        if not line:
            raise DeltaSparkError(f"the process ended with {self._process.wait(60)}")
        answer = json.loads(line)
        if "error" in answer:
            raise DeltaSparkError(answer["error"])
        rows: list[list[Any]] = answer["rows"]
        return rows

    def column(self, table: Path, expression: str) -> list[Any]:
        """Read an expression of each row of a table."""
        return [row[0] for row in self.sql(f"SELECT {expression} FROM delta.`{table}`")]


@contextmanager
def delta_spark(folder: Path, *, options: Sequence[str] = ()) -> Iterator[DeltaSpark]:
    """Start such a Spark, which keeps what it has of its own in *folder*; its JVM has other *options* than usual."""
    folder.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-m", "tests.support.delta_spark", " ".join(options or _start_options())]
    with (folder / "spark.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        yield DeltaSpark(process)
    finally:
        cast(IO[str], process.stdin).close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        cast(IO[str], process.stdout).close()


def _start_options() -> list[str]:
    import pyspark

    jars = sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
    return start_options("delta", [*fetch_jars(DELTA_PINS), *jars], _run_one)


def _run_one(options: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with delta_spark(Path(folder) / "spark", options=options) as spark:
            for statement in (
                "CREATE TABLE delta.`{0}/t` (id STRING, n INT) USING delta",
                "INSERT INTO delta.`{0}/t` VALUES ('a', 1)",
                "INSERT INTO delta.`{0}/t` VALUES ('b', 2)",
                "OPTIMIZE delta.`{0}/t`",
                "DELETE FROM delta.`{0}/t` WHERE id = 'a'",
                "SELECT * FROM delta.`{0}/t`",
            ):
                spark.sql(statement.format(folder))
            below_it = below(spark.pid)[1:]
        # Its JVM writes the archive when the program has ended.
        wait_until(lambda: not any(map(command_of, below_it)), SECONDS, "the end of the JVM")


def main(java: str) -> None:
    """Answer the statements of standard input."""
    from pyspark.sql import SparkSession

    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What Spark prints is no answer.
    options = {
        **delta_conf(),
        "spark.ui.enabled": "false",
        "spark.driver.memory": "768m",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": java,
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.databricks.delta.vacuum.parallelDelete.enabled": "false",
    }
    builder = SparkSession.builder.master("local[1]").appName("another-engine")
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = {"rows": [list(row) for row in spark.sql(json.loads(line)).collect()]}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        told.write(json.dumps(answer, default=str) + "\n")
        told.flush()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
