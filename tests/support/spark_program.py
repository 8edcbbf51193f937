"""A program of a user with any Spark: it demultiplexes rows as a batch and as streams, and writes what comes out.

It runs in an environment of that Spark (:mod:`tests.support.spark_versions`), where no other module of the tests is.
Arguments: a folder; for Connect the address of the server, and what to ship to its executors.
"""

from __future__ import annotations

import pickle
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xrouter
from xrouter.spark import demultiplex, payload

CONF = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "America/St_Johns",
    "spark.sql.shuffle.partitions": "2",
}
START_SECONDS = 300.0
"""How long a stream is started anew: Spark gives its function's interpreter ten seconds, too few on a busy machine."""


@dataclass(frozen=True)
class Matched:
    """Stands for a catalog that is compiled already."""

    matcher: Any

    def column_matcher(self, endpoint: str | None) -> Any:
        """Return what was compiled."""
        return self.matcher


def open_session(address: str) -> Any:
    """Return a session of the Connect server at an address, or a classic one with two cores of this machine."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(address) if address else SparkSession.builder.master("local[2]")
    session = builder.getOrCreate()
    for name, value in CONF.items():
        session.conf.set(name, value)
    return session


def write_stream(rows: Any, catalog: Any, out: Path, way: str) -> None:
    """Demultiplex a stream, written by Spark or, *each* batch, by a function."""
    writer = demultiplex(rows, catalog).writeStream.option("checkpointLocation", str(out / "checkpoint"))

    def write(batch: Any, number: int) -> None:
        batch.write.mode("append").parquet(str(out / way))

    if way == "each":
        writer = writer.foreachBatch(write)
    else:
        writer = writer.format("parquet").option("path", str(out / way))
    start_stream(writer.trigger(availableNow=True)).awaitTermination()


def start_stream(writer: Any) -> Any:
    """Start a stream, again when the interpreter of its function was too slow."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return writer.start()
        except Exception as error:
            if "failed to connect back" not in str(error) or time.monotonic() > deadline:
                raise


def main(folder: str, address: str = "", ships: str = "") -> None:
    """Run all inputs of the folder."""
    spark = open_session(address)
    assert ("connect" in type(spark).__module__) == bool(address)
    if ships:
        spark.addArtifacts(ships, pyfile="#" not in ships, archive="#" in ships)
    for given in sorted(Path(folder, "given").iterdir()):
        out = Path(folder, "out", given.name)
        catalog: Any = Matched(pickle.loads((given / "matcher").read_bytes()))
        rows = spark.read.parquet(str(given / "rows"))
        demultiplex(rows, catalog).write.parquet(str(out / "batch"))
        way = (given / "way").read_text()
        if way != "batch":
            write_stream(spark.readStream.schema(rows.schema).parquet(str(given / "rows")), catalog, out, way)
    typed = xrouter.load(Path(folder, "typed.json"))
    outcomes = demultiplex(spark.read.parquet(str(Path(folder, "typed"))), typed)
    payload(outcomes, typed, "*").write.parquet(str(Path(folder, "out", "typed")))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
