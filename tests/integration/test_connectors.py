"""The jars of the Kafka connector: exactly those that Spark lacks, or a line about what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from router.spark.connectors import fetch_jars


def test_the_four_jars_and_none_that_spark_has() -> None:
    import pyspark

    stems = {jar.name.rsplit("-", 1)[0] for jar in fetch_jars()}
    assert stems == {
        "commons-pool2",
        "kafka-clients",
        "spark-sql-kafka-0-10_2.13",
        "spark-token-provider-kafka-0-10_2.13",
    }
    shipped = {jar.name.rsplit("-", 1)[0] for jar in Path(pyspark.__file__).parent.joinpath("jars").glob("*.jar")}
    assert not stems & shipped


def test_a_machine_without_them_gets_one_line_and_code_7(tmp_path: Path) -> None:
    environment = {**os.environ, "XROUTER_CACHE": str(tmp_path), "XROUTER_MAVEN_REPOSITORY": tmp_path.as_uri()}
    command = [sys.executable, "-m", "router.spark.connectors"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (7, "")
    assert len(done.stderr.splitlines()) == 1
    assert "commons-pool2-2.13.1.jar" in done.stderr
    assert "make connectors" in done.stderr
