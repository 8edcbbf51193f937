"""The same without a router: a CASE WHEN with a branch for each definition (:mod:`tests.benchmarks.spark_by_hand`).

Arguments: bootstrap servers, catalog, topic, folder for the tables.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.spark_by_hand import read_headers, read_off

PAYLOAD = "n bigint, want string, pad string"


def main(bootstrap: str, file: str, topic: str, out: str) -> None:
    """Read the topic to its end and write the tables."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    definitions = read_off(json.loads(Path(file).read_bytes()))
    spark = SparkSession.builder.getOrCreate()
    kafka = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    rows = read_headers(kafka.option("includeHeaders", "true").load())
    branches = " ".join(f"WHEN {each.condition} THEN {each.choice}" for each in definitions)
    shapes = {each.shape: each for each in definitions}
    contexts = " ".join(f"WHEN '{shape}' THEN {each.context}" for shape, each in shapes.items())
    made = " ".join(f"WHEN '{shape}' THEN {each.made}" for shape, each in shapes.items())
    chosen = rows.select("*", F.expr(f"CASE {branches} END").alias("choice"))
    columns = [
        F.expr(f"CASE choice.shape {told} END").alias(name) for name, told in (("context", contexts), ("made", made))
    ]
    outcomes = chosen.select("*", *columns).persist()
    for group in sorted({each.choice.split("'group', '")[1].split("'")[0] for each in definitions}):
        mine = outcomes.where(F.col("choice.group") == group)
        typed = F.from_json(F.col("value").cast("string"), PAYLOAD).alias("payload")
        event = ("headers", "made", "context", "position")
        mine.select("choice.message", *event, typed).write.parquet(f"{out}/messagegroups/{group}")
    outcomes.where("choice IS NULL").select("value", "headers", "position").write.parquet(f"{out}/dead")


if __name__ == "__main__":
    main(*sys.argv[1:])
