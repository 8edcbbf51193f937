"""The same by hand in another style: a filter for each definition over a batch that is kept, all joined by a union.

It was given what is known to help: the union is a balanced tree and has no more tasks than the batch had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tests.benchmarks.spark_by_hand import (
    ByHand,
    event_headers,
    event_topic,
    kafka_record,
    letter_headers,
    read_headers,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def filters(definitions: Sequence[ByHand], out: str, dead: str) -> Callable[[DataFrame], DataFrame]:
    """Return what makes the rows of a batch records for Kafka, by a filter for each definition and one for the rest.

    The rows are kept; whoever has written the records lets Spark forget them (``spark.catalog.clearCache``).
    """
    from pyspark.sql import functions as F

    events, letters = kafka_record(event_topic(out), event_headers()), kafka_record(F.lit(dead), letter_headers())
    outcomes = [(each.condition, F.expr(each.choice).alias("choice"), _values(each)) for each in definitions]
    rest = "NOT ({})".format(" OR ".join(f"coalesce({each.condition}, false)" for each in definitions))

    def records(rows: DataFrame) -> DataFrame:
        seen = read_headers(rows).persist()
        shares = [
            seen.where(condition).select("*", choice).select("*", *values).select(*events)
            for condition, choice, values in outcomes
        ]
        shares.append(seen.where(rest).select(*letters))
        return _union(shares).coalesce(max(1, rows.rdd.getNumPartitions()))

    return records


def _values(definition: ByHand) -> list[Column]:
    from pyspark.sql import functions as F

    return [F.expr(definition.context).alias("context"), F.expr(definition.made).alias("made")]


def _union(shares: Sequence[DataFrame]) -> DataFrame:
    """Join many by a tree whose depth is their logarithm: Spark looks at the whole tree again with each union."""
    if len(shares) == 1:
        return shares[0]
    half = len(shares) // 2
    return _union(shares[:half]).unionAll(_union(shares[half:]))
