"""The steps from a source's rows to outcomes, each a function from DataFrame to DataFrame.

After :func:`judged` a row is one outcome, whatever its source: ``raw`` columns as the source gave them, ``m`` what the
matcher said, and ``position``, ``received``, ``protocol``, ``body`` under the same names for all sources. Sources are
topics (``kafka``), the inbox (``inbox``), and dead letters that are judged again (``letters``): those bring the
position and the letter's id that they have, and are judged as their first source would judge them now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from bindings.kafka.columns import first_bytes, first_text
from bindings.kafka.facts import SOURCE_SCHEMA
from catalog.values import YEAR_10000
from router.judging.judging import judged_columns, judging_column, outcome_lists
from router.judging.kinds import Kind

if TYPE_CHECKING:
    from pyspark import Accumulator, Broadcast
    from pyspark.sql import Column, DataFrame

    from router.judging.plan import Judge

HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
RAW_COLUMNS: Final[dict[Kind, tuple[str, ...]]] = {
    "kafka": tuple(SOURCE_SCHEMA.names),
    "inbox": ("endpoint", "protocol", "received", "properties", "body", "position"),
    "letters": ("endpoint", "protocol", "received", "properties", "body", "position", "headers", "key", "letter"),
}
MATCHED: Final = "m"
ARRIVED: Final = "arrived"
"""The body as it arrived (of a batch the one event), for rows whose ``body`` is the event's data instead.

Only where a sink may refuse records.
"""


def converts(rows: DataFrame, kind: Kind) -> bool:
    """Return whether the timestamps of a source's rows still have to be converted to milliseconds.

    Rows that our own client read have milliseconds already (:mod:`bindings.kafka.ranges`).
    """
    return kind == "kafka" and dict(rows.dtypes)["timestamp"] == "timestamp"


def prepared(rows: DataFrame, kind: Kind) -> DataFrame:
    """Return the source's rows with the columns that judging takes; Kafka's timestamp becomes milliseconds."""
    from pyspark.sql import functions as F

    if not converts(rows, kind):
        return rows
    names = RAW_COLUMNS["kafka"]
    return rows.select(*(F.unix_millis(name).alias(name) if name == "timestamp" else F.col(name) for name in names))


def judged(rows: DataFrame, kind: Kind, judge: Broadcast[Judge], tallies: Accumulator[dict[str, str]]) -> DataFrame:
    """Return one row per outcome: what the source gave, and ``m``; counts go to *tallies* when it is evaluated."""
    from pyspark.sql import functions as F

    decide, lists = partial(outcome_lists, kind), pa.list_(judge.value.outputs.type)
    outcomes = judging_column(judged_columns(kind, judge.value), judge, decide, lists, tallies)
    return rows.select(*RAW_COLUMNS[kind], F.explode(outcomes).alias(MATCHED))


def unified(rows: DataFrame, kind: Kind, query: str, *, arrived: bool = False) -> DataFrame:
    """Return the outcomes with the same columns for every source, the raw ones in a struct.

    ``body`` is the event's data for a routed record, and what arrived for a dead letter; an event of a batch stands
    for itself. ``letter`` is the id of the dead letter it would be, the same for every retry. With *arrived* there is
    the column ``ARRIVED`` as well.
    """
    from pyspark.sql import functions as F

    place = F.when(F.col("m.place").isNotNull(), F.concat(F.lit("#"), F.col("m.place").cast("string")))
    if kind == "kafka":
        position = F.concat_ws("-", "topic", "partition", "offset")
        body, headers, key = F.col("value"), F.col("headers"), F.col("key")
        protocol: Column = F.lit("KAFKA")
        # A timestamp outside of the calendar stays in the native record only; no column of a table takes it.
        in_calendar = (F.col("timestamp") >= 0) & (F.col("timestamp") < YEAR_10000)
        received = F.timestamp_millis(F.when(in_calendar, F.col("timestamp")))
    else:
        position = F.col("position")
        body = F.col("body")
        given = kind == "letters"
        headers = F.col("headers") if given else F.lit(None).cast(HEADERS_TYPE)
        key = F.col("key") if given else F.lit(None).cast("binary")
        protocol = F.col("protocol")
        received = F.col("received")
    whole = F.concat(position, F.coalesce(place, F.lit("")))
    came = F.when(F.col("m.place").isNull(), body).otherwise(F.coalesce(F.col("m.came"), F.col("m.data")))
    extra = [F.when(F.col("m.replaced"), came).alias(ARRIVED)] if arrived else []
    return rows.select(
        F.struct(*(name for name in RAW_COLUMNS[kind] if name not in ("value", "body"))).alias("raw"),
        F.col(MATCHED),
        whole.alias("position"),
        received.alias("received"),
        protocol.alias("protocol"),
        F.when(F.col("m.replaced"), F.col("m.data")).otherwise(body).alias("body"),
        headers.alias("headers"),
        key.alias("key"),
        letter_id(kind, query, whole).alias("letter"),
        *extra,
    )


def letter_id(kind: Kind, query: str, position: Column) -> Column:
    """Return the id of the dead letter that a row is or would be; a letter that is judged again keeps its own."""
    from pyspark.sql import functions as F

    if kind == "letters":
        return F.col("letter")
    return F.substring(F.sha2(F.concat(F.lit(f"{query}|"), position), 256), 1, 32)


def letter_ids(query: str, positions: pa.StringArray) -> list[str]:
    """Return what :func:`letter_id` makes of the positions of topics and the inbox."""
    texts = (f"{query}|{position}".encode() for position in positions.to_pylist())
    return [hashlib.sha256(text).hexdigest()[:32] for text in texts]


def came_from(kind: Kind) -> Column:
    """Return the endpoint that a dead letter names: the matcher's, else the one it came by, even if now unknown."""
    from pyspark.sql import functions as F

    return F.col("m.endpoint") if kind == "kafka" else F.coalesce(F.col("m.endpoint"), F.col("raw.endpoint"))


def event_headers() -> Column:
    """Return the headers of a routed event in binary mode: its attributes, then what else the record carried."""
    from pyspark.sql import functions as F

    headers = F.col("headers")
    size = F.size(headers)
    at = F.array_position(F.col("headers.key"), "content-type").cast("int")
    rest = F.when(at > 0, F.concat(F.slice(headers, 1, at - 1), F.slice(headers, at + 1, size - at))).otherwise(headers)
    empty = F.array().cast(HEADERS_TYPE)
    given = F.concat(F.col("m.attributes"), F.coalesce(F.col("m.passed"), rest, empty))
    return F.coalesce(F.when(F.col("m.attributes").isNotNull(), given).otherwise(headers), empty)


def lineage_headers(epoch: str, related: Sequence[str] = ()) -> Column:
    """Return the headers that say where an event comes from (JUDGING.md#what-comes-out).

    *related* are the columns of relations (:mod:`router.judging.relating`) that outcomes of the plan have.
    """
    from pyspark.sql import functions as F

    lineage = {
        "message": F.col("m.message"),
        "endpoint": F.col("m.endpoint"),
        "epoch": F.lit(epoch),
        "position": F.col("position"),
        "context": F.to_json(F.col("m.context")),
    }
    always = [header(f"xrouter-{name}", value) for name, value in lineage.items()]
    every = F.array(*always, header("xrouter-ambiguous", F.col("m.ambiguous")))
    # Only a record that several definitions match says how the tie was decided.
    headers = F.when(F.col("m.ambiguous").isNull(), F.slice(every, 1, len(always))).otherwise(every)
    none = F.array().cast(HEADERS_TYPE)
    more = [
        F.when(F.col(f"m.{name}").isNotNull(), F.array(header(f"xrouter-{name}", F.col(f"m.{name}")))).otherwise(none)
        for name in related
    ]
    return F.concat(headers, *more) if more else headers


def header(name: str, value: Column) -> Column:
    """Return one Kafka header with a text value."""
    from pyspark.sql import functions as F

    return F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))


def event_attribute(name: str) -> Column:
    """Return an attribute of a routed event as text; null where it has none."""
    from pyspark.sql import functions as F

    key = "content-type" if name == "datacontenttype" else f"ce_{name}"
    own, given = (first_text(entries, key) for entries in ("headers", "m.attributes"))
    return F.when(F.col("m.attributes").isNull(), own).otherwise(given)


def partition_key() -> Column:
    """Return the event's ``partitionkey``, else the key the record came with."""
    from pyspark.sql import functions as F

    own = first_bytes("headers", "ce_partitionkey")
    return F.coalesce(F.col("m.key"), F.when(F.col("m.attributes").isNull(), own), F.col("key"))
