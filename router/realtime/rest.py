"""The rest topic: records that only the matcher decides, as they came, with where they came from.

Where a record came from stands in its last headers, by their place: whatever headers a sender gave stay as they are,
and are never taken for ours. A record of the rest topic that does not end so was written by somebody else; it is judged
as a record of that topic, which no source reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bindings.kafka.facts import LINEAGE
from router.judging.stages import HEADERS_TYPE, converts, header

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ORIGIN: Final = ("topic", "partition", "offset", "timestamp")
_NAMES: Final = tuple(f"{LINEAGE}rest-{name}" for name in _ORIGIN)


def rest_headers() -> Column:
    """Return the headers that a row of Spark's Kafka source goes to the rest topic with."""
    from pyspark.sql import functions as F

    values = (F.col("topic"), *(F.col(name).cast("string") for name in _ORIGIN[1:3]), _milliseconds().cast("string"))
    ours = F.array(*(header(name, value) for name, value in zip(_NAMES, values, strict=True)))
    return F.concat(F.coalesce("headers", F.array().cast(HEADERS_TYPE)), ours)


def restored(rows: DataFrame) -> DataFrame:
    """Return rows of the rest topic as those that they were in the topics that they came by.

    *rows* are those of Spark's Kafka source, or of our own client; timestamps become milliseconds.
    """
    from pyspark.sql import functions as F

    count = len(_ORIGIN)
    ours = F.when(F.size("headers") >= count, F.slice("headers", -count, count))
    timestamp = _milliseconds() if converts(rows, "kafka") else F.col("timestamp")
    marked = rows.withColumns({"timestamp": timestamp, "ours": ours})
    texts = [F.try_validate_utf8(F.get("ours", F.lit(place))["value"].cast("string")) for place in range(count)]
    numbers = [text.try_cast(kind) for text, kind in zip(texts[1:], ("int", "bigint", "bigint"), strict=True)]
    is_ours = F.coalesce(F.transform("ours", lambda entry: entry["key"]) == F.array(*map(F.lit, _NAMES)), F.lit(False))
    for value in (texts[0], *numbers):
        is_ours = is_ours & value.isNotNull()
    left = F.slice("headers", 1, F.greatest(F.size("headers") - count, F.lit(0)))
    # A record without headers has none, and not an empty list of them.
    came = F.when(F.size(left) > 0, left)
    origin = dict(zip(_ORIGIN, (texts[0], *numbers), strict=True))
    return marked.select(
        "key",
        "value",
        *(F.when(is_ours, value).otherwise(F.col(name)).alias(name) for name, value in origin.items()),
        F.when(is_ours, came).otherwise(F.col("headers")).alias("headers"),
    )


def _milliseconds() -> Column:
    from pyspark.sql import functions as F

    return F.unix_millis("timestamp")
