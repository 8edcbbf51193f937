"""Outcomes of source rows as tests look at them: lists in this process, or a frame of Spark."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.events import restore_types, to_json_members
from bindings.protocols import BINDINGS, binding_of
from catalog.record import Record
from router.evaluation.evaluator import Kind, TallyAccumulator, WorkerPass, evaluate
from router.evaluation.outcome_rows import HEADERS_TYPE, add_dead_letter_ids, create_outcome_pass, needs_milliseconds
from router.evaluation.outputs import RoutedOutcomes
from router.evaluation.plan import Evaluator, Plan
from router.rendering.events import event_columns
from router.rendering.texts import ATTRIBUTE_COLUMNS, TIME_TEXT
from router.writing.kafka_records import KafkaRecords, create_single_write, to_kafka_records

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import DataFrame

KAFKA_SCHEMA: Final = (
    f"key binary, value binary, topic string, partition int, offset long, timestamp long, headers {HEADERS_TYPE}"
)
RECEIVED: Final = "2026-01-02T03:04:05.000000Z"


def kafka_row(record: Record, offset: int = 0, timestamp: int = 1_700_000_000_123) -> tuple[Any, ...]:
    """Return a record as a row of Spark's Kafka source; where it came from counts if it says so."""
    told = {"topic": "in", "partition": 0, "offset": offset, "timestamp": timestamp, **record.native}
    parts = BINDINGS["KAFKA"].split(record.native)
    headers = [(part.key.removeprefix("headers."), part.value) for part in parts if part.key.startswith("headers.")]
    key = next((part.value for part in parts if part.key == "key"), None)
    return (key, record.body, told["topic"], told["partition"], told["offset"], told["timestamp"], headers)


def inbox_row(record: Record, position: object, received: str = RECEIVED) -> tuple[Any, ...]:
    """Return a record as a row of the inbox."""
    binding = binding_of(record.protocol)
    assert binding is not None, record
    parts = [(part.key, part.value, part.kind) for part in binding.split(record.native)]
    return (record.endpoint, record.protocol, datetime.fromisoformat(received), parts, record.body, str(position))


def lists_of(judge: Evaluator, decided: RoutedOutcomes) -> tuple[pa.ListArray, str | None]:
    """Return a list of outcomes for each source row, and their tally."""
    type_ = judge.outputs.outcome_type
    every = pa.StructArray.from_arrays(
        [decided.column(each.name).cast(each.type) for each in type_], fields=list(type_)
    )
    return pa.ListArray.from_arrays(pa.array(decided.offsets), every.take(pa.array(decided.order))), decided.tally


def outcome_lists(kind: Kind, judge: Evaluator, rows: pa.RecordBatch) -> tuple[pa.ListArray, str | None]:
    """Evaluate source rows; return a list of outcomes for each, and their tally."""
    return lists_of(judge, evaluate(kind, judge, rows))


def tallies_of(frame: DataFrame) -> Accumulator[dict[str, str]]:
    """Return an accumulator for counts."""
    return frame.sparkSession.sparkContext.accumulator({}, TallyAccumulator())


def evaluated(
    frame: DataFrame,
    kind: Kind,
    judge: Evaluator,
    tallies: Accumulator[dict[str, str]] | None = None,
    query: str = "q",
    *,
    arrived: bool = False,
) -> DataFrame:
    """Return the outcomes of source rows, as a batch has them."""
    workers = frame.sparkSession.sparkContext.broadcast(judge)
    made = create_outcome_pass(kind, frame, workers, tallies or tallies_of(frame), arrived=arrived)
    return add_dead_letter_ids(made.apply(frame), kind, query)


class SingleWrite:
    """The pass of one write to all sinks of a plan, for rows like these."""

    def __init__(self, made: WorkerPass) -> None:
        self.made = made

    def to_records(self, rows: DataFrame, failed: str) -> DataFrame:
        return to_kafka_records(self.made, rows, failed)


def single_write(
    frame: DataFrame, kind: Kind, plan: Plan, tallies: Accumulator[dict[str, str]] | None = None
) -> SingleWrite:
    workers = frame.sparkSession.sparkContext.broadcast(plan.evaluator)
    records = KafkaRecords.for_all_sinks(plan, kind, "q")
    counts = tallies or tallies_of(frame)
    return SingleWrite(create_single_write(records, workers, counts, converts=needs_milliseconds(frame, kind)))


def with_events(outcomes: DataFrame, kind: Kind) -> list[dict[str, Any]]:
    """Return outcomes as dictionaries, with ``event``, the columns of a routed one, and ``sent``, its headers."""
    batch = outcomes.toArrow().combine_chunks().to_batches()[0]
    raw, matched = batch.column("raw"), batch.column("m")
    routes = pc.struct_field(matched, "route")
    columns = (pc.struct_field(matched, name) for name in ("attributes", "position_in_batch"))
    events = event_columns(kind, raw, *columns).to_pylist()
    numbers = range(max(pc.max(routes).as_py() or 0, 0) + 1)
    form = KafkaRecords(kind, "q", "epoch", "", "out", (), (True,) * len(numbers), (None,) * len(numbers))
    routed = np.flatnonzero(pc.greater_equal(routes, 0).to_numpy(zero_copy_only=False))
    headers: dict[int, Any] = {}
    if len(routed):
        sent = form.render(batch.take(pa.array(routed))).column("headers").to_pylist()
        headers = dict(zip(routed.tolist(), sent, strict=True))
    rows: list[dict[str, Any]] = batch.to_pylist()
    for number, row in enumerate(rows):
        row["event"] = events[number] if number in headers else None
        row["sent"] = headers.get(number)
    return rows


def in_form_of_match(row: dict[str, Any]) -> dict[str, Any]:
    """Return an outcome of :func:`with_events` as ``match`` tells it, with the body that leaves."""
    told = {"body": row["body"]}
    if row["reason"] is not None:
        nearest = json.loads(row["nearest"] or "[]")
        dead = {"outcome": "dead-letter", "reason": row["reason"], "detail": row["detail"], "nearest": nearest}
        return told | dead
    event = row["event"]
    attributes = {name: event[name] for name in ATTRIBUTE_COLUMNS} | {"time": event[TIME_TEXT]}
    attributes |= dict(event["extensions"])
    attributes = {name: text for name, text in attributes.items() if text is not None}
    row["attributes"] = attributes
    members = to_json_members(restore_types(attributes, row["typed"]))
    routed = {"outcome": "routed", "message": row["message"], "context": dict(row["context"]), "cloudevent": members}
    return told | routed
