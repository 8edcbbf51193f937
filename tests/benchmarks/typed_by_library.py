"""What a notebook has for it: a topic into a typed table for each message group, and one of dead letters.

Arguments: bootstrap servers, catalog, topic, folder for the tables.
"""

from __future__ import annotations

import sys


def main(bootstrap: str, file: str, topic: str, out: str) -> None:
    """Read the topic to its end and write the tables."""
    from pyspark.sql import SparkSession

    import xrouter
    from xrouter.spark import demultiplex, payload

    spark = SparkSession.builder.getOrCreate()
    catalog = xrouter.load(file)
    kafka = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    outcomes = demultiplex(kafka.option("includeHeaders", "true").load(), catalog).persist()
    for group in sorted({each.group for each in catalog.definitions.values()}):
        payload(outcomes, catalog, f"{group}/messages/*").write.parquet(f"{out}{group}")
    outcomes.where("outcome = 'dead-letter'").write.parquet(f"{out}/dead")


if __name__ == "__main__":
    main(*sys.argv[1:])
