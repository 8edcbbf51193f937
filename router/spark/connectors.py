"""The jars that Spark needs beside its own, as values for ``spark.jars``.

Only the Kafka connector so far. Run as a module it fills the cache and names what is in it, which is what
``make connectors`` does on a machine that shall start offline later.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from catalog.escaping import one_line
from router.errors import ConnectorError
from router.spark.ivy import Coordinate, IvyError, Request
from router.spark.pins import resolve_pinned

KAFKA: Final = Request(
    wanted=(Coordinate("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),),
    # The connector asks for a token provider 4.2.0 that was never published; 4.0.0 is the same code.
    overrides=(Coordinate("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),),
    # All of this is on Spark's own class path, in the versions Spark was tested with.
    excludes=(
        "at.yawk.lz4",
        "com.google.code.findbugs",
        "org.apache.hadoop",
        "org.apache.spark:spark-tags_.*",
        "org.lz4",
        "org.scala-lang",
        "org.scala-lang.modules",
        "org.slf4j",
        "org.xerial.snappy",
    ),
)
"""Spark's Kafka source and sink: the connector, its token provider, kafka-clients and commons-pool2."""
PINS: Final = Path(__file__).resolve().with_name("connectors.json")
"""The SHA-256 of each of them; ``make pins`` writes it."""


def kafka_jars(into: Path | None = None) -> list[Path]:
    """Return the four jars of the Kafka connector for ``spark.jars``, fetching them when the cache lacks them.

    *into* names another cache than :func:`router.spark.ivy.cache_root`. Once the cache is filled no network is touched.
    Every call hashes them all, 10 MB.

    Raises:
        ConnectorError: they are missing and cannot be fetched, or not those of the manifest; exit code 7.
    """
    try:
        return list(resolve_pinned(KAFKA, PINS, into))
    except IvyError as error:
        raise ConnectorError(str(error.args[0]), hint=error.hint) from error


def main() -> int:
    """Fill the cache and write the paths of the jars; return the exit code."""
    try:
        jars = kafka_jars()
    except ConnectorError as error:
        sys.stderr.write(f"{one_line(str(error))}\n")
        return error.exit_code
    sys.stdout.writelines(f"{jar}\n" for jar in jars)
    return 0


if __name__ == "__main__":
    sys.exit(main())
