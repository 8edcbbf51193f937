"""Outcomes as rows: one row for each event or dead letter of a batch, built in the workers.

Workers evaluate Arrow batches of source rows, and return rows with the columns of :data:`OUTCOME_COLUMNS`. The records
of every sink are built from these rows: Kafka (:mod:`router.writing.kafka_records`), tables and messages
(:mod:`router.writing.staging`). The rows stay in the workers or in Spark's cache; the driver gets counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.entries import Entries
from bindings.kafka.record_columns import SOURCE_SCHEMA
from catalog.values import YEAR_10000
from router.evaluation.evaluator import INBOX_COLUMNS, Batches, Kind, WorkerPass, evaluate_batches
from router.evaluation.forwarding import PARTITION_KEY
from router.evaluation.outputs import DEAD_LETTER, RoutedOutcomes, Tally
from router.evaluation.plan import Plan
from router.matching.inbox_columns import kafka_instants, kafka_positions
from router.routing import SizeLimits
from router.settings.routes import make_dead_letter_values

if TYPE_CHECKING:
    from pyspark import Accumulator, Broadcast
    from pyspark.sql import Column, DataFrame

    from router.evaluation.plan import Evaluator

HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
RAW_COLUMNS: Final[dict[Kind, tuple[str, ...]]] = {
    "kafka": tuple(SOURCE_SCHEMA.names),
    "inbox": INBOX_COLUMNS,
    "letters": (*INBOX_COLUMNS, "headers", "key", "letter"),
}
"""The columns of source rows, with bodies."""
OUTCOME: Final = "m"
"""The struct with the outcome (:attr:`router.evaluation.outputs.OutputBuilder.outcome_type`)."""
OUTCOME_COLUMNS: Final = ("raw", OUTCOME, "position", "received", "protocol", "body")
"""The columns of outcomes. ``raw`` has the source's columns without the body. ``body`` is the data of a routed event;
for a dead letter it is the original body, or the one event of a batch of events."""
ORIGINAL_BODY: Final = "arrived"
"""The column with the original body, or the one event of a batch, where ``body`` is the event's data."""
_BODY_COLUMN: Final = {"kafka": "value", "inbox": "body", "letters": "body"}
_INSTANT: Final = pa.timestamp("us", tz="UTC")


def needs_milliseconds(rows: DataFrame, kind: Kind) -> bool:
    """Whether the timestamps of the rows must be converted to milliseconds.

    Rows of our own Kafka client already have milliseconds (:mod:`bindings.kafka.offsets`).
    """
    return kind == "kafka" and dict(rows.dtypes)["timestamp"] == "timestamp"


def source_columns(kind: Kind, *, converts: bool) -> list[Column]:
    """Return the columns of source rows as Spark columns; with *converts* Kafka's timestamp becomes milliseconds."""
    from pyspark.sql import functions as F

    return [
        F.unix_millis(name).alias(name) if converts and name == "timestamp" else F.col(name)
        for name in RAW_COLUMNS[kind]
    ]


def normalize_rows(rows: DataFrame, kind: Kind) -> DataFrame:
    """Convert source rows to those that workers evaluate: Kafka's timestamp becomes milliseconds."""
    return rows.select(*source_columns(kind, converts=True)) if needs_milliseconds(rows, kind) else rows


def create_outcome_pass(
    kind: Kind,
    rows: DataFrame,
    judge: Broadcast[Evaluator],
    tallies: Accumulator[dict[str, str]],
    *,
    arrived: bool = False,
) -> WorkerPass:
    """Create the pass that evaluates rows like *rows*; its tallies go to *tallies* when Spark runs it.

    *arrived* adds the column :data:`ORIGINAL_BODY`.
    """
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import BinaryType, StringType, StructField, StructType, TimestampType

    type_ = judge.value.outputs.outcome_type
    names = [name for name in RAW_COLUMNS[kind] if name != _BODY_COLUMN[kind]]
    types = {field.name: field.dataType for field in normalize_rows(rows, kind).schema}
    fields = [
        ("raw", StructType([StructField(name, types[name]) for name in names])),
        (OUTCOME, from_arrow_type(type_)),
        ("position", StringType()),
        ("received", TimestampType()),
        ("protocol", StringType()),
        ("body", BinaryType()),
        *([(ORIGINAL_BODY, BinaryType())] if arrived else []),
    ]

    function = partial(_evaluate_to_rows, kind, judge, tallies, arrived)
    schema = StructType([StructField(name, each) for name, each in fields])
    return WorkerPass.create(
        source_columns(kind, converts=needs_milliseconds(rows, kind)), RAW_COLUMNS[kind], function, schema
    )


def _evaluate_to_rows(
    kind: Kind, judge: Broadcast[Evaluator], tallies: Accumulator[dict[str, str]], arrived: bool, batches: Batches
) -> Batches:
    def render(evaluator: Evaluator, rows: pa.RecordBatch, outcomes: RoutedOutcomes) -> pa.RecordBatch:
        return build_outcome_rows(kind, evaluator.outputs.outcome_type, rows, outcomes, arrived=arrived)

    return evaluate_batches(kind, judge, tallies, render, batches)


def add_dead_letter_ids(outcomes: DataFrame, kind: Kind, query: str) -> DataFrame:
    """Add ``letter`` to outcomes, the id of the possible dead letter; the same in every retry."""
    from pyspark.sql import functions as F

    letter = F.col("raw.letter") if kind == "letters" else dead_letter_id_column(query, F.col("position"))
    return outcomes.withColumn("letter", letter)


def source_column(kind: Kind, name: Literal["headers", "key"]) -> Column:
    """Return the headers or keys of the source records of outcomes; null for the inbox, which has neither."""
    from pyspark.sql import functions as F

    null = F.lit(None).cast(HEADERS_TYPE if name == "headers" else "binary")
    return null if kind == "inbox" else F.col(f"raw.{name}")


def dead_letter_id_column(query: str, position: Column) -> Column:
    """Return the dead letter id of a position as a Spark column."""
    from pyspark.sql import functions as F

    return F.substring(F.sha2(F.concat(F.lit(f"{query}|"), position), 256), 1, 32)


def dead_letter_ids(query: str, positions: pa.StringArray) -> list[str]:
    """Return the dead letter ids of positions in topics and the inbox, as :func:`dead_letter_id_column` does."""
    texts = (f"{query}|{position}".encode() for position in positions.to_pylist())
    return [hashlib.sha256(text).hexdigest()[:32] for text in texts]


def header_column(name: str, value: Column) -> Column:
    """Return one Kafka header with a text value."""
    from pyspark.sql import functions as F

    return F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))


# The outcome rows of one Arrow batch.


def build_outcome_rows(
    kind: Kind, type_: pa.StructType, rows: pa.RecordBatch, outcomes: RoutedOutcomes, *, arrived: bool = False
) -> pa.RecordBatch:
    """Return one row (``OUTCOME_COLUMNS``) for each outcome, in the order of the source's rows.

    *type_* is the type of an outcome, or of its needed part. *arrived* adds the column :data:`ORIGINAL_BODY`.
    """
    order = outcomes.order
    sources = outcomes.source_rows[order]
    records = rows if _is_range(sources, rows.num_rows) else rows.take(pa.array(sources))
    fields = [outcomes.column(field.name).cast(field.type) for field in type_]
    matched = pa.StructArray.from_arrays(fields, fields=list(type_))
    if not _is_range(order, len(matched)):
        matched = matched.take(pa.array(order))
    names = [name for name in RAW_COLUMNS[kind] if name != _BODY_COLUMN[kind]]
    raw = pa.StructArray.from_arrays([records.column(name) for name in names], names=names)
    replaced, data = pc.struct_field(matched, "replaced"), pc.struct_field(matched, "data")
    place, body = pc.struct_field(matched, "position_in_batch"), records.column(_BODY_COLUMN[kind])
    columns = {
        "raw": raw,
        OUTCOME: _fill_partition_keys(matched, raw) if kind != "inbox" else matched,
        "position": event_positions(kind, records, place),
        "received": _arrival_instants(kind, records),
        "protocol": pa.repeat(pa.scalar("KAFKA"), len(raw)) if kind == "kafka" else records.column("protocol"),
        "body": pc.if_else(replaced, data, body) if pc.any(replaced).as_py() else body,
    }
    if arrived:
        original = pc.if_else(place.is_null(), body, pc.coalesce(pc.struct_field(matched, "batch_event"), data))
        columns[ORIGINAL_BODY] = pc.if_else(replaced, original, pa.scalar(None, pa.binary()))
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _fill_partition_keys(matched: pa.StructArray, raw: pa.StructArray) -> pa.StructArray:
    """Fill the key of outcomes with the ``partitionkey`` of Kafka records in binary mode."""
    headers = pc.struct_field(raw, "headers")
    if not pc.any(pc.equal(headers.flatten().field("key"), _PARTITION_KEY)).as_py():
        return matched
    entries = Entries(headers)
    keys = entries.values_at(entries.first_entries(_PARTITION_KEY))
    keys = pc.if_else(pc.struct_field(matched, "attributes").is_null(), keys, pa.scalar(None, pa.binary()))
    fields = dict(zip(matched.type.names, matched.flatten(), strict=True))
    fields["key"] = pc.coalesce(fields["key"], keys)
    return pa.StructArray.from_arrays(list(fields.values()), fields=list(matched.type))


_PARTITION_KEY: Final = f"ce_{PARTITION_KEY}"


def _is_range(numbers: np.typing.NDArray[np.int64], length: int) -> bool:
    return len(numbers) == length and bool((numbers == np.arange(length)).all())


def event_positions(kind: Kind, rows: pa.RecordBatch, numbers: pa.Int32Array) -> pa.StringArray:
    """Return the position of each record, with ``#`` and the event's number in its batch (*numbers*) if it has one."""
    records = kafka_positions(rows) if kind == "kafka" else rows.column("position")
    if numbers.null_count == len(numbers):
        return records
    events = pc.binary_join_element_wise(records, numbers.cast(pa.string()), "#")
    return pc.if_else(numbers.is_valid(), events, records)


def _arrival_instants(kind: Kind, rows: pa.RecordBatch) -> pa.TimestampArray:
    """Return the arrival times of records; null if out of range."""
    instants = kafka_instants(rows.column("timestamp")) if kind == "kafka" else rows.column("received")
    return instants.cast(_INSTANT)


# The dead letter of a poison record, built without evaluating the record.
#
# Its reason is ``undecodable``, and its detail names the fault. Only JVM expressions and the rendering of the native
# record read it. A *bare* dead letter has a native record with its source location but without properties; the complete
# record is then in ``state/spill``.

UNDECODABLE: Final = "undecodable"
_BARE_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "kafka": ("topic", "partition", "offset", "timestamp", "timestampType", "value"),
    "inbox": ("endpoint", "protocol", "received", "body", "position"),
}
"""The columns of a bare dead letter."""


def make_poison_outcome(
    rows: DataFrame, kind: Kind, plan: Plan, fault: str, *, bare: bool = False, arrived: bool = False
) -> tuple[DataFrame, Tally]:
    """Return the single row of *rows* (:func:`normalize_rows`) as a dead letter, with its tally.

    Both are empty if the source no longer has the record.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_type

    endpoint = _find_endpoint(rows, kind, plan)
    route = plan.routes.dead_letter_route(endpoint, UNDECODABLE)
    size: Column = F.lit(0)
    for name in ("key", "value") if kind == "kafka" else ("body",):
        size = size + F.coalesce(F.length(name), F.lit(0))
    spilled = size > F.lit(SizeLimits(plan.settings).max_bytes(route))
    values: dict[str, Column] = {
        "endpoint": F.lit(endpoint),
        "reason": F.lit(UNDECODABLE),
        "detail": F.lit(fault),
        "replaced": F.lit(False),
        "route": F.lit(route),
        "spilled": spilled,
    }
    for name, template in plan.routes.dead_letter_topics.items():
        values[f"letters_{name}"] = F.lit(template.expand(make_dead_letter_values(endpoint, UNDECODABLE), escape="_"))
    members = (
        values.get(field.name, F.lit(None)).cast(from_arrow_type(field.type)).alias(field.name)
        for field in plan.evaluator.outputs.outcome_type
    )
    columns = _BARE_COLUMNS[kind] if bare else RAW_COLUMNS[kind]
    raw = {
        name: (F.col(name) if name in columns else F.lit(None).cast(rows.schema[name].dataType)).alias(name)
        for name in RAW_COLUMNS[kind]
    }
    tally = Tally()
    for spills, length in rows.select(spilled, size).collect():
        tally.add(Tally(spilled=int(spills), rows=1))
        tally.add_route(endpoint, route, 1, length)
        tally.records[(endpoint, DEAD_LETTER, UNDECODABLE)] += 1
    kafka = kind == "kafka"
    # A timestamp out of range stays in the native record only; no table column can store it.
    in_calendar = (F.col("timestamp") >= 0) & (F.col("timestamp") < YEAR_10000) if kafka else F.lit(True)
    extra = [F.lit(None).cast("binary").alias(ORIGINAL_BODY)] if arrived else []
    return rows.select(
        F.struct(*(column for name, column in raw.items() if name != _BODY_COLUMN[kind])).alias("raw"),
        F.struct(*members).alias(OUTCOME),
        (F.concat_ws("-", "topic", "partition", "offset") if kafka else F.col("position")).alias("position"),
        (F.timestamp_millis(F.when(in_calendar, F.col("timestamp"))) if kafka else F.col("received")).alias("received"),
        (F.lit("KAFKA") if kafka else F.col("protocol")).alias("protocol"),
        F.col(_BODY_COLUMN[kind]).alias("body"),
        *extra,
    ), tally


def iter_source_rows(rows: DataFrame, kind: Kind, query: str) -> Iterator[tuple[str, bytes]]:
    """Yield the dead letter id and the complete source row, as JSON from the JVM with bytes in base64."""
    from pyspark.sql import functions as F

    position = F.concat_ws("-", "topic", "partition", "offset") if kind == "kafka" else F.col("position")
    id = F.col("letter") if kind == "letters" else dead_letter_id_column(query, position)
    lines = rows.select(id, F.to_json(F.struct(*RAW_COLUMNS[kind])))
    for letter, line in lines.toLocalIterator():
        yield letter, line.encode("utf-8", "surrogatepass")


def _find_endpoint(rows: DataFrame, kind: Kind, plan: Plan) -> str:
    """Return the endpoint where the record arrived, or the first endpoint that reads its topic; "" for none."""
    channel = next((row[0] for row in rows.select("topic" if kind == "kafka" else "endpoint").collect()), None)
    if kind != "kafka":
        return channel or ""
    return next((source.endpoint for source in plan.sources if source.topic == channel), "")
