"""Spark's own Kafka to Delta: the peer of our tables, by the Delta connector that is published for this Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from router.spark.connectors import fetch_jars

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

DELTA_PINS: Final = Path(__file__).resolve().with_name("delta_jars.json")
"""Delta\'s source and sink for Spark, without what is on Spark\'s own class path."""
_COLUMNED: Final = ("id", "source", "specversion", "type", "subject", "dataschema", "time")


def delta_conf() -> dict[str, str]:
    """Return the configuration of a session that has it, fetching its jars when the cache lacks them.

    Raises:
        ConnectorError: they cannot be had, or are not those of the manifest.
    """
    return {
        "spark.driver.extraClassPath": ":".join(str(jar) for jar in fetch_jars(DELTA_PINS)),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # Else it reads its small log in fifty tasks, which is for clusters.
        "spark.databricks.delta.snapshotPartitions": "1",
    }


def as_it_came(rows: DataFrame) -> DataFrame:
    """Return the records of a topic as Kafka has them."""
    return rows.select("key", "value", "topic", "partition", "offset", "timestamp", "headers")


def wide(rows: DataFrame) -> DataFrame:
    """Return the records with the columns of our wide table, as one would write it by hand: no catalog, no checks."""
    from pyspark.sql import functions as F

    texts = F.transform("headers", lambda each: F.struct(each["key"], each["value"].cast("string")))
    named = rows.withColumn("named", F.map_from_entries(texts))

    def attribute(name: str) -> Column:
        return F.col("named")[f"ce_{name}"]

    extensions = F.map_filter(
        "named", lambda name, _: name.startswith("ce_") & ~name.isin(*(f"ce_{each}" for each in _COLUMNED))
    )
    shown = F.transform("headers", lambda each: F.struct(each["key"].alias("name"), each["value"].cast("string")))
    native = F.struct("topic", "partition", "offset", "timestamp", shown.alias("headers"), F.col("key").cast("string"))
    return named.select(
        *(attribute(name).alias(name) for name in ("id", "source", "specversion", "type", "subject")),
        F.col("named")["content-type"].alias("datacontenttype"),
        attribute("dataschema").alias("dataschema"),
        attribute("time").cast("timestamp").alias("time"),
        extensions.alias("extensions"),
        F.col("value").alias("data"),
        attribute("type").alias("message"),
        F.lit("/endpoints/plant").alias("endpoint"),
        F.lit("0" * 64).alias("epoch"),
        F.concat_ws("-", "topic", "partition", "offset").alias("position"),
        F.lit("KAFKA").alias("protocol"),
        F.lit(None).cast("map<string,string>").alias("context"),
        F.to_json(native).alias("native"),
        F.col("timestamp").alias("received"),
    )


def writer(rows: DataFrame, table: Path, checkpoint: str) -> DataStreamWriter:
    """Return a stream of rows into a Delta table."""
    return rows.writeStream.format("delta").option("path", str(table)).option("checkpointLocation", checkpoint)
