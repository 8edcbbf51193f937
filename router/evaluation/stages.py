"""The steps from a source's rows to outcomes, each a function from DataFrame to DataFrame.

After :func:`unified` a row is one outcome, with the same columns for all sources: ``raw`` has the source's columns,
``m`` the outcome. A replayed dead letter (``letters``) keeps its position and id, and is evaluated as its original
source would evaluate it now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.kafka.record_columns import SOURCE_SCHEMA
from bindings.kafka.store import first_bytes, first_text
from catalog.values import YEAR_10000
from router.evaluation.evaluator import INBOX_COLUMNS, SIZE, Kind, evaluated_columns, evaluation_column, outcome_lists
from router.evaluation.outputs import DEAD_LETTER, RoutedOutcomes, Tally
from router.evaluation.plan import Plan
from router.matching.inbox_columns import instants, positions_of
from router.routing import SpillLimits
from router.settings.routes import dead_letter_values

if TYPE_CHECKING:
    from pyspark import Accumulator, Broadcast
    from pyspark.sql import Column, DataFrame

    from router.evaluation.plan import Evaluator

HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
RAW_COLUMNS: Final[dict[Kind, tuple[str, ...]]] = {
    "kafka": tuple(SOURCE_SCHEMA.names),
    "inbox": ("endpoint", "protocol", "received", "properties", "body", "position"),
    "letters": ("endpoint", "protocol", "received", "properties", "body", "position", "headers", "key", "letter"),
}
MATCHED: Final = "m"
ARRIVED: Final = "arrived"
"""The original body (or the one event of a batch), if ``body`` has the event's data; only if a sink may reject."""


def converts(rows: DataFrame, kind: Kind) -> bool:
    """Whether the timestamps of the rows must be converted to milliseconds.

    Rows of our own Kafka client already have milliseconds (:mod:`bindings.kafka.offsets`).
    """
    return kind == "kafka" and dict(rows.dtypes)["timestamp"] == "timestamp"


def normalized_rows(rows: DataFrame, kind: Kind) -> DataFrame:
    """Return the source's rows with the columns for evaluation; Kafka's timestamp becomes milliseconds."""
    from pyspark.sql import functions as F

    if not converts(rows, kind):
        return rows
    names = RAW_COLUMNS["kafka"]
    return rows.select(*(F.unix_millis(name).alias(name) if name == "timestamp" else F.col(name) for name in names))


def evaluated(
    rows: DataFrame, kind: Kind, judge: Broadcast[Evaluator], tallies: Accumulator[dict[str, str]]
) -> DataFrame:
    """Return one row per outcome: the source's columns and ``m``; counts go to *tallies* when Spark runs it."""
    from pyspark.sql import functions as F

    decide, lists = partial(outcome_lists, kind), pa.list_(judge.value.outputs.type)
    outcomes = evaluation_column(evaluated_columns(kind, judge.value), judge, decide, lists, tallies)
    return rows.select(*RAW_COLUMNS[kind], F.explode(outcomes).alias(MATCHED))


def unified_outcomes(rows: DataFrame, kind: Kind, query: str, *, arrived: bool = False) -> DataFrame:
    """Return the outcomes with the same columns for every source, the source's own in the struct ``raw``.

    ``body`` is the event's data of a routed record, and the original body of a dead letter (or its one event of a
    batch). ``letter`` is the id of its possible dead letter, the same in every retry. *arrived* adds ``ARRIVED``.
    """
    from pyspark.sql import functions as F

    place = F.when(F.col("m.place").isNotNull(), F.concat(F.lit("#"), F.col("m.place").cast("string")))
    if kind == "kafka":
        position = F.concat_ws("-", "topic", "partition", "offset")
        body, headers, key = F.col("value"), F.col("headers"), F.col("key")
        protocol: Column = F.lit("KAFKA")
        # A timestamp out of range stays in the native record only; no table column can store it.
        in_calendar = (F.col("timestamp") >= 0) & (F.col("timestamp") < YEAR_10000)
        received = F.timestamp_millis(F.when(in_calendar, F.col("timestamp")))
    else:
        position = F.col("position")
        body = F.col("body")
        replayed = kind == "letters"
        headers = F.col("headers") if replayed else F.lit(None).cast(HEADERS_TYPE)
        key = F.col("key") if replayed else F.lit(None).cast("binary")
        protocol = F.col("protocol")
        received = F.col("received")
    whole = F.concat(position, F.coalesce(place, F.lit("")))
    original = F.when(F.col("m.place").isNull(), body).otherwise(F.coalesce(F.col("m.came"), F.col("m.data")))
    extra = [F.when(F.col("m.replaced"), original).alias(ARRIVED)] if arrived else []
    return rows.select(
        F.struct(*(name for name in RAW_COLUMNS[kind] if name not in ("value", "body"))).alias("raw"),
        F.col(MATCHED),
        whole.alias("position"),
        received.alias("received"),
        protocol.alias("protocol"),
        F.when(F.col("m.replaced"), F.col("m.data")).otherwise(body).alias("body"),
        headers.alias("headers"),
        key.alias("key"),
        dead_letter_id(kind, query, whole).alias("letter"),
        *extra,
    )


def dead_letter_id(kind: Kind, query: str, position: Column) -> Column:
    """Return the dead letter id of a row; a replayed dead letter keeps its id."""
    from pyspark.sql import functions as F

    if kind == "letters":
        return F.col("letter")
    return F.substring(F.sha2(F.concat(F.lit(f"{query}|"), position), 256), 1, 32)


def dead_letter_ids(query: str, positions: pa.StringArray) -> list[str]:
    """Return the dead letter ids of positions in topics and the inbox, as :func:`dead_letter_id` does."""
    texts = (f"{query}|{position}".encode() for position in positions.to_pylist())
    return [hashlib.sha256(text).hexdigest()[:32] for text in texts]


def arrival_endpoint(kind: Kind) -> Column:
    """Return the endpoint of a dead letter: the matcher's, else the one it arrived at, even if now unknown."""
    from pyspark.sql import functions as F

    return F.col("m.endpoint") if kind == "kafka" else F.coalesce(F.col("m.endpoint"), F.col("raw.endpoint"))


def event_headers() -> Column:
    """Return the headers of a routed event in binary mode: its attributes, then the record's other headers."""
    from pyspark.sql import functions as F

    headers = F.col("headers")
    size = F.size(headers)
    at = F.array_position(F.col("headers.key"), "content-type").cast("int")
    rest = F.when(at > 0, F.concat(F.slice(headers, 1, at - 1), F.slice(headers, at + 1, size - at))).otherwise(headers)
    empty = F.array().cast(HEADERS_TYPE)
    own = F.concat(F.col("m.attributes"), F.coalesce(F.col("m.passed"), rest, empty))
    return F.coalesce(F.when(F.col("m.attributes").isNotNull(), own).otherwise(headers), empty)


def lineage_headers(epoch: str, related: Sequence[str] = ()) -> Column:
    """Return the lineage headers of an event (MATCHING.md#what-comes-out).

    *related* are the plan's outcome columns of relations (:mod:`router.evaluation.forwarding`).
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
    # Only for a record that several definitions match: how the tie was decided.
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
    """Return an attribute of a routed event as text; null if it is missing."""
    from pyspark.sql import functions as F

    key = "content-type" if name == "datacontenttype" else f"ce_{name}"
    own, given = (first_text(entries, key) for entries in ("headers", "m.attributes"))
    return F.when(F.col("m.attributes").isNull(), own).otherwise(given)


def partition_key() -> Column:
    """Return the event's ``partitionkey``, else the record's key."""
    from pyspark.sql import functions as F

    own = first_bytes("headers", "ce_partitionkey")
    return F.coalesce(F.col("m.key"), F.when(F.col("m.attributes").isNull(), own), F.col("key"))


# Outcomes of one Arrow batch, with the same columns as :func:`unified`.

SOURCE_COLUMNS: Final[dict[Kind, tuple[str, ...]]] = {"kafka": tuple(SOURCE_SCHEMA.names), "inbox": INBOX_COLUMNS}
"""The columns of source rows, with bodies."""
OUTCOME_COLUMNS: Final = ("raw", MATCHED, "position", "received", "protocol", "body")
"""The columns of outcomes for sinks. The id of a dead letter is derived from them."""
_BODY: Final = {"kafka": "value", "inbox": "body"}
_INSTANT: Final = pa.timestamp("us", tz="UTC")


def with_sizes(kind: Kind, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows for evaluation: Kafka rows with the size of key and body in bytes."""
    if kind != "kafka":
        return rows
    lengths = (pc.fill_null(pc.binary_length(rows.column(name)), 0) for name in ("key", "value"))
    return rows.append_column(SIZE, pc.add(*lengths))


def outcome_rows(kind: Kind, type_: pa.StructType, rows: pa.RecordBatch, decided: RoutedOutcomes) -> pa.RecordBatch:
    """Return one row (``OUTCOME_COLUMNS``) for each outcome, in the order of the source's rows.

    *type_* is the type of an outcome (:attr:`router.evaluation.outputs.OutputBuilder.type`).
    """
    order = decided.order
    sources = decided.sources[order]
    given = rows if _is_range(sources, rows.num_rows) else rows.take(pa.array(sources))
    fields = [decided.column(field.name).cast(field.type) for field in type_]
    matched = pa.StructArray.from_arrays(fields, fields=list(type_))
    if not _is_range(order, len(matched)):
        matched = matched.take(pa.array(order))
    names = [name for name in SOURCE_COLUMNS[kind] if name != _BODY[kind]]
    raw = pa.StructArray.from_arrays([given.column(name) for name in names], names=names)
    replaced, data = pc.struct_field(matched, "replaced"), pc.struct_field(matched, "data")
    body = given.column(_BODY[kind])
    columns = [
        raw,
        matched,
        positions_in(kind, given, pc.struct_field(matched, "place")),
        _received(kind, given),
        pa.repeat(pa.scalar("KAFKA"), len(raw)) if kind == "kafka" else given.column("protocol"),
        pc.if_else(replaced, data, body) if pc.any(replaced).as_py() else body,
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(OUTCOME_COLUMNS))


def _is_range(numbers: np.typing.NDArray[np.int64], length: int) -> bool:
    return len(numbers) == length and bool((numbers == np.arange(length)).all())


def positions_in(kind: Kind, rows: pa.RecordBatch, places: pa.Int32Array) -> pa.StringArray:
    """Return the position of each record, followed by ``#`` and the event's number in its batch (*places*)."""
    records = positions_of(rows) if kind == "kafka" else rows.column("position")
    if places.null_count == len(places):
        return records
    events = pc.binary_join_element_wise(records, places.cast(pa.string()), "#")
    return pc.if_else(places.is_valid(), events, records)


def _received(kind: Kind, rows: pa.RecordBatch) -> pa.TimestampArray:
    """Return when records arrived; null if out of range."""
    moments = instants(rows.column("timestamp")) if kind == "kafka" else rows.column("received")
    return moments.cast(_INSTANT)


# The dead letter of a poison record, made without evaluating or mapping it.
#
# Its reason is ``undecodable``, its detail names the fault, and it is routed like its endpoint's dead letters. Only JVM
# expressions and the rendering of the native record read it. With *bare*, the native record has its source location but
# no properties, and the complete record is in ``state/spill``.

REASON: Final = "undecodable"
_PLACE: Final[dict[str, tuple[str, ...]]] = {
    "kafka": ("topic", "partition", "offset", "timestamp", "timestampType", "value"),
    "inbox": ("endpoint", "protocol", "received", "body", "position"),
}
"""The columns of a bare dead letter."""


def poison_outcome(
    rows: DataFrame, kind: Kind, plan: Plan, fault: str, *, bare: bool = False
) -> tuple[DataFrame, Tally]:
    """Return the one row of *rows* (:func:`prepared`) as a dead letter, and its count.

    If the source no longer has the record, *rows* and the result are empty.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_type

    endpoint = _endpoint(rows, kind, plan)
    route = plan.routes.letters(endpoint, REASON)
    size: Column = F.lit(0)
    for name in ("key", "value") if kind == "kafka" else ("body",):
        size = size + F.coalesce(F.length(name), F.lit(0))
    spilled = size > F.lit(SpillLimits(plan.settings).of(route))
    given: dict[str, Column] = {
        "endpoint": F.lit(endpoint),
        "reason": F.lit(REASON),
        "detail": F.lit(fault),
        "replaced": F.lit(False),
        "route": F.lit(route),
        "spilled": spilled,
    }
    for name, template in plan.routes.letter_topics.items():
        given[f"letters_{name}"] = F.lit(template.expand(dead_letter_values(endpoint, REASON), escape="_"))
    members = (
        given.get(field.name, F.lit(None)).cast(from_arrow_type(field.type)).alias(field.name)
        for field in plan.judge.outputs.type
    )
    kept = _PLACE[kind] if bare else RAW_COLUMNS[kind]
    raw = (
        (F.col(name) if name in kept else F.lit(None).cast(rows.schema[name].dataType)).alias(name)
        for name in RAW_COLUMNS[kind]
    )
    tally = Tally()
    for spills, length in rows.select(spilled, size).collect():
        tally.add(Tally(spilled=int(spills), rows=1))
        tally.route(endpoint, route, 1, length)
        tally.records[(endpoint, DEAD_LETTER, REASON)] += 1
    return rows.select(*raw, F.struct(*members).alias(MATCHED)), tally


def source_rows_json(rows: DataFrame, kind: Kind, query: str) -> Iterator[tuple[str, bytes]]:
    """Yield dead letter id and complete source row as JSON, written by the JVM; bytes are in base64."""
    from pyspark.sql import functions as F

    position = F.concat_ws("-", "topic", "partition", "offset") if kind == "kafka" else F.col("position")
    lines = rows.select(dead_letter_id(kind, query, position), F.to_json(F.struct(*RAW_COLUMNS[kind])))
    for letter, line in lines.toLocalIterator():
        yield letter, line.encode("utf-8", "surrogatepass")


def _endpoint(rows: DataFrame, kind: Kind, plan: Plan) -> str:
    """Return the endpoint of the record: where it arrived, or the first that reads its topic; "" for none."""
    channel = next((row[0] for row in rows.select("topic" if kind == "kafka" else "endpoint").collect()), None)
    if kind != "kafka":
        return channel or ""
    return next((source.endpoint for source in plan.sources if source.topic == channel), "")
