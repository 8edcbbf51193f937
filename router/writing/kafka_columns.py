"""What a row becomes as a Kafka record: key, value and headers, of events and of dead letters, as JVM columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import pyarrow as pa

from bindings.kafka.facts import LINEAGE
from bindings.parts import NAME as CODING
from catalog.record import Record
from router.judging.judging import Judged, Kind, judged_columns, judging_column
from router.judging.stages import (
    HEADERS_TYPE,
    came_from,
    event_attribute,
    event_headers,
    header,
    lineage_headers,
    partition_key,
)
from router.matching.facts import SCHEMA_ID
from router.rendering.events import event_columns, native_texts
from router.rendering.structured import structured_events
from router.rendering.texts import EVENT, parts_of_raw
from router.settings import KafkaSink
from router.settings.names import ATTRIBUTE_PREFIX, CONTEXT_PREFIX, parse_name, value_name
from router.writing.outgoing import HEADER_CAP, OnePass

if TYPE_CHECKING:
    from pyspark import Accumulator, Broadcast, SparkContext
    from pyspark.sql import Column, DataFrame

    from router.judging.plan import Judge
    from router.schemaids.framing import WrittenFrame

# Columns of Spark with what tables, dead letters and structured mode need of rows: event, native record, JSON.
#
# Python sees what it needs of each row, and a body only where it must; elsewhere the body joins in the JVM.


def event_column(kind: Kind) -> Column:
    """Return the struct ``EVENT`` for routed rows of :func:`router.judging.stages.unified`."""
    from pyspark.sql import functions as F

    def rendered(raw: pa.Array, attributes: pa.Array, place: pa.Array) -> pa.Array:
        return event_columns(kind, raw, attributes, place)

    return _arrow(rendered, EVENT)(F.col("raw"), F.col("m.attributes"), F.col("m.place"))


def native_column(kind: Kind) -> Column:
    """Return the native record as JSON for rows of :func:`router.judging.stages.unified`."""
    from pyspark.sql import functions as F

    def rendered(raw: pa.Array, place: pa.Array) -> pa.Array:
        return native_texts(kind, raw, place)

    return _arrow(rendered, pa.string())(F.col("raw"), F.col("m.place"))


def spilled_records(rows: DataFrame, kind: Kind) -> Iterator[tuple[str, bytes]]:
    """Yield the id and the whole native record (JUDGING.md#records) of each letter to be kept in a file."""
    from pyspark.sql import functions as F

    wanted = rows.where("m.spilled").select(
        "letter", "raw", F.col("m.place").alias("place"), "body", came_from(kind).alias("endpoint")
    )
    for row in wanted.toLocalIterator():
        parts, binding = parts_of_raw(row["raw"].asDict(recursive=True), kind, row["place"])
        body = None if row["body"] is None else bytes(row["body"])
        record = Record(binding.protocol, binding.native(parts), body, row["endpoint"])
        yield row["letter"], msgspec.json.encode(record.to_json())


def structured_column(kind: Kind) -> Column:
    """Return the event in structured mode for routed rows; here the body does travel to Python."""
    from pyspark.sql import functions as F

    def rendered(raw: pa.Array, attributes: pa.Array, place: pa.Array, body: pa.Array, typed: pa.Array) -> pa.Array:
        return structured_events(kind, raw, attributes, place, body, typed)

    columns = ("raw", "m.attributes", "m.place", "body", "m.typed")
    return _arrow(rendered, pa.binary())(*map(F.col, columns))


def _arrow(function: Callable[..., pa.Array], kind: pa.DataType) -> Callable[..., Column]:
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import from_arrow_type

    function.__annotations__ = {name: pa.Array for name in function.__annotations__}
    return cast("Callable[..., Column]", cast(Any, arrow_udf)(function, returnType=from_arrow_type(kind)))


# Columns that the JVM keeps, so that the same ones can be selected from each batch.
#
# To hand columns over takes about three calls of the JVM for each; to select those that it has takes one call.


@dataclass(frozen=True, slots=True)
class Projection:
    """Columns as the JVM of the session at hand has them."""

    columns: Any

    @classmethod
    def of(cls, columns: Sequence[Column]) -> Projection:
        """Hand columns over to the JVM; there is a session."""
        from pyspark.sql.classic.column import _to_java_column, _to_seq

        return cls(_to_seq(session_context(), columns, _to_java_column))

    def of_rows(self, rows: DataFrame) -> DataFrame:
        """Return these columns of some rows, as ``rows.select`` would."""
        from pyspark.sql.classic.dataframe import DataFrame as Classic

        return Classic(rows._jdf.select(self.columns), rows.sparkSession)


def session_context() -> SparkContext:
    """Return the context of the session at hand, without asking the JVM."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    assert context is not None
    return context


FAILED: Final = "xrouter.failed"
"""The property of Spark's jobs that says when the dead letters of an attempt were made."""


def sent_key(sink: KafkaSink) -> Column:
    """Return an event's key: its own, else what the sink's template gives, else none."""
    from pyspark.sql import functions as F

    if sink.key is None:
        return partition_key()
    return F.coalesce(partition_key(), key_template(sink.key).cast("binary"))


def framed_value(body: Column, frames: Mapping[str, WrittenFrame], *, identified: bool) -> Column:
    """Return a body behind the frame of its definition, where that has one.

    A body stays as it is that has a frame already (by the id that judging found, if rows are *identified*), that is in
    a content coding, or that is JSON of a schema whose bodies are bytes.
    """
    from pyspark.sql import functions as F

    def head(plain: bool) -> Column:
        pairs = [F.lit(each) for xid, frame in frames.items() if frame.plain is plain for each in (xid, frame.head)]
        return F.create_map(*pairs).getItem(F.col("m.message")) if pairs else F.lit(None).cast("binary")

    media = F.lower(event_attribute("datacontenttype"))
    is_json = F.coalesce(media.contains("/json") | media.contains("+json"), F.lit(False))
    frame = F.coalesce(head(True), F.when(~is_json, head(False)))
    coded = F.exists(F.coalesce("headers", F.array().cast(HEADERS_TYPE)), lambda each: F.lower(each["key"]) == CODING)
    asked = body.isNotNull() & frame.isNotNull() & ~coded
    if identified:
        asked &= F.col(f"m.{SCHEMA_ID}").isNull()
    return F.when(asked, F.concat(frame, body)).otherwise(body)


def sent_headers(sink: KafkaSink, epoch: str, related: Sequence[str] = ()) -> Column:
    """Return an event's headers in the sink's mode, with those of lineage where it wants them.

    *related* is as for :func:`router.judging.stages.lineage_headers`.
    """
    from pyspark.sql import functions as F

    headers = _structured_headers() if sink.mode == "structured" else event_headers()
    return F.concat(headers, lineage_headers(epoch, related)) if sink.lineage else headers


def _structured_headers() -> Column:
    from pyspark.sql import functions as F

    # The attributes of a row that columns settled are in the body now, and only there.
    rest = F.filter("headers", lambda entry: ~(entry["key"].startswith("ce_") | (entry["key"] == "content-type")))
    return F.concat(
        F.array(header("content-type", F.lit("application/cloudevents+json"))),
        F.coalesce(F.col("m.passed"), rest, F.array().cast(HEADERS_TYPE)),
    )


@dataclass(frozen=True, slots=True)
class OutgoingColumns:
    """The columns that make all events and dead letters of a source's rows records of Kafka, in one pass.

    They are the same in every attempt of a query at batches of a plan, and the JVM keeps them: making them asks it
    hundreds of times.
    """

    outcomes: Projection
    records: Projection

    @classmethod
    def of(
        cls,
        once: OnePass,
        judge: Judge,
        workers: Broadcast[Judge],
        tallies: Accumulator[dict[str, str]],
        *,
        converts: bool = False,
    ) -> OutgoingColumns:
        """Return those of a query; *workers* is the judge as these have it, *tallies* what they count with.

        *converts* is as :func:`router.judging.stages.converts` returns it.
        """
        from pyspark.sql import functions as F

        empty = F.array().cast(HEADERS_TYPE)
        if once.kind == "kafka":
            kept: tuple[str, ...] = ("topic", "partition", "offset", "key", "value", "headers")
            position, body, key = F.concat_ws("-", "topic", "partition", "offset"), F.col("value"), F.col("key")
            came = F.coalesce("o.headers", "headers", empty)
        else:
            kept = ("position", "body")
            position, body, key = F.col("position"), F.col("body"), F.lit(None).cast("binary")
            came = F.coalesce("o.headers", empty)
        topic = F.col("o.topic") if once.topic is None else F.coalesce("o.topic", F.lit(once.topic))
        records = {
            "topic": topic,
            "key": F.coalesce("o.key", key),
            "value": F.when(F.col("o.replaced"), F.col("o.data")).otherwise(body),
            "headers": _traced(came, once.epoch, position) if once.traces else came,
        }
        taken = judged_columns(once.kind, judge)
        if converts:
            taken["timestamp"] = F.unix_millis("timestamp")
        decided = judging_column(taken, workers, partial(_decide_now, once), pa.list_(once.type), tallies)
        return cls(
            Projection.of([*(F.col(name) for name in kept), F.explode(decided).alias("o")]),
            Projection.of([column.alias(name) for name, column in records.items()]),
        )

    def of_rows(self, rows: DataFrame, failed: str) -> DataFrame:
        """Return the records of an attempt: topic, key, value and headers. *rows* are the source's.

        Workers judge them when a job of this thread reads them, before another attempt begins. *failed* is when the
        attempt's dead letters were made.
        """
        # Workers get it as a property of each task: a column with it would be another one in each attempt.
        session_context().setLocalProperty(FAILED, failed)
        return self.records.of_rows(self.outcomes.of_rows(rows))


def _decide_now(once: OnePass, judge: Judge, rows: pa.RecordBatch) -> Judged:
    """Judge an Arrow batch for the attempt that the task is of, in a worker."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return replace(once, failed=context.getLocalProperty(FAILED) or "").decide(judge, rows)


def _traced(came: Column, epoch: str, position: Column) -> Column:
    """Return headers with those of lineage behind them, for records that get any."""
    from pyspark.sql import functions as F

    lineage = {
        "message": F.col("o.message"),
        "endpoint": F.col("o.endpoint"),
        "epoch": F.lit(epoch),
        "position": position,
        "context": F.col("o.context"),
    }
    added = F.array(*(header(f"{LINEAGE}{name}", value) for name, value in lineage.items()))
    return F.when(F.col("o.message").isNotNull(), F.concat(came, added)).otherwise(came)


def letter_headers(kind: Kind, epoch: str, failed: str) -> Column:
    """Return the headers of a dead letter: those it came with, then ours, texts capped."""
    from pyspark.sql import functions as F

    fields: dict[str, Column] = {
        "letter": F.col("letter"),
        "reason": F.col("m.reason"),
        "detail": F.substring(F.col("m.detail"), 1, HEADER_CAP),
        "nearest": F.substring(F.col("m.nearest"), 1, HEADER_CAP),
        "endpoint": came_from(kind),
        "protocol": F.col("protocol"),
        "epoch": F.lit(epoch),
        "position": F.col("position"),
        "received": F.date_format("received", "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"),
        "failed": F.lit(failed),
        "attempts": F.lit("1"),
    }
    if kind != "kafka":
        fields["native"] = native_column(kind)
    fields["spill"] = F.concat(F.lit("spill/"), F.col("letter"), F.lit(".json"))
    ours = F.array(*(header(f"xrouter-{name}", value) for name, value in fields.items()))
    # Only a letter that was spilled says where; the others have no such header.
    ours = F.when(F.col("m.spilled"), ours).otherwise(F.slice(ours, 1, len(fields) - 1))
    return F.concat(F.coalesce(F.col("m.passed"), F.col("headers"), F.array().cast(HEADERS_TYPE)), ours)


def letter_value() -> Column:
    """Return the value of a dead letter: its body, or none for a letter that lies in a file."""
    from pyspark.sql import functions as F

    return F.when(F.col("m.spilled"), F.lit(None).cast("binary")).otherwise(F.col("body"))


def order_key(kind: Kind) -> Column:
    """Return what a row's order is kept by, a hash of its channel and key; null for a row without a key.

    The channel is the topic, else the endpoint that the record came by: what the matcher calls its endpoint may
    depend on the outcome, where several share a channel.
    """
    from pyspark.sql import functions as F

    channel = F.concat(F.lit("kafka:"), F.col("raw.topic")) if kind == "kafka" else F.col("raw.endpoint")
    text = F.concat(F.encode(channel, "UTF-8"), F.lit(bytearray(1)), partition_key())
    return F.substring(F.sha2(text, 256), 1, 32)


def key_template(template: str) -> Column:
    """Return the key that a template gives, of values as they are.

    One that is missing, and has no default, makes it null, so that none is set.
    """
    from pyspark.sql import functions as F

    group = F.element_at(F.split("m.message", "/"), -3)
    known = {
        "message": F.col("m.message"),
        "messagegroup": group,
        "messageid": F.element_at(F.split("m.message", "/"), -1),
        "endpoint": F.col("m.endpoint"),
        "endpointid": F.element_at(F.split("m.endpoint", "/"), -1),
    }
    parsed = parse_name(template)
    pieces: list[Column] = []
    for place, part in enumerate(parsed.parts):
        if place % 2 == 0:
            pieces.append(F.lit(part))
            continue
        name = value_name(part)
        if name.startswith(CONTEXT_PREFIX):
            value = F.col("m.context").getItem(name.removeprefix(CONTEXT_PREFIX))
        elif name.startswith(ATTRIBUTE_PREFIX):
            value = event_attribute(name.removeprefix(ATTRIBUTE_PREFIX))
        else:
            value = known[name]
        default = parsed.defaults[place // 2]
        pieces.append(F.coalesce(F.when(value != "", value), F.lit(default)) if default else value)
    return F.concat(*pieces)
