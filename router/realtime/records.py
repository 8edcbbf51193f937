"""What a real-time query sends, and what it counts of it; all in expressions that Spark's real-time mode takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from router.judging.plan import Plan
from router.judging.tally import ROUTED, Tally
from router.realtime.rest import rest_headers
from router.settling.columns import NUMBER, SETTLED, sent_headers, table_of, with_settled
from router.settling.types import SettledType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COUNTS: Final = "settled"
"""The name of the counts in Spark's reports."""


def sent_records(rows: DataFrame, plan: Plan, types: Sequence[SettledType], rest: str) -> DataFrame:
    """Return what becomes of rows of Spark's Kafka source: topic, key, value and headers of a record for each.

    What *types* settle goes where its type says, all else to the topic *rest*, as it came.
    """
    from pyspark.sql import functions as F

    decided = with_settled(rows, table_of(rows.sparkSession, types))
    # Exact, since there are no more numbers than it may keep apart; it is the one count by value that needs no groups.
    kept_apart = max(len(types), 2)
    number = F.when(F.col(SETTLED), F.col(NUMBER))
    counted = decided.observe(COUNTS, F.histogram_numeric(number, F.lit(kept_apart)).alias(COUNTS))
    return counted.select(
        F.when(F.col(SETTLED), F.col("to")).otherwise(F.lit(rest)).alias("topic"),
        "key",
        "value",
        F.when(F.col(SETTLED), sent_headers(plan.epoch)).otherwise(rest_headers()).alias("headers"),
    )


def tally_of(progress: Mapping[str, Any], types: Sequence[SettledType]) -> Tally:
    """Return the counts of a batch that Spark reports as done; what went to the rest topic is not among them."""
    tally = Tally()
    observed = (progress.get("observedMetrics") or {}).get(COUNTS)
    for bar in (observed[COUNTS] or ()) if observed is not None else ():
        settled, count = types[int(bar["x"])], int(bar["y"])
        endpoint = settled.endpoint or ""
        tally.records[(endpoint, ROUTED, "")] += count
        tally.delivered[(settled.way.sink, endpoint)] += count
        tally.definitions[settled.endpoint or "", settled.message] += count
    return tally
