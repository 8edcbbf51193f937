"""Outcomes of one Arrow batch, with the columns that :func:`router.judging.stages.unified` gives them in Spark."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.kafka.facts import SOURCE_SCHEMA
from router.judging.judging import INBOX_COLUMNS, SIZE
from router.judging.kinds import Kind
from router.judging.outputs import Decided
from router.judging.stages import MATCHED
from router.matching.kafka_facts import positions_of
from router.matching.moments import instants

SOURCE_COLUMNS: Final[dict[Kind, tuple[str, ...]]] = {"kafka": tuple(SOURCE_SCHEMA.names), "inbox": INBOX_COLUMNS}
"""What a source's rows have, bodies included."""
OUTCOME_COLUMNS: Final = ("raw", MATCHED, "position", "received", "protocol", "body")
"""The columns of outcomes that sinks are given. What a dead letter's id is made of is among them."""
_BODY: Final = {"kafka": "value", "inbox": "body"}
_INSTANT: Final = pa.timestamp("us", tz="UTC")


def with_sizes(kind: Kind, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the source's rows as they are judged: those of Kafka with the bytes of key and body."""
    if kind != "kafka":
        return rows
    lengths = (pc.fill_null(pc.binary_length(rows.column(name)), 0) for name in ("key", "value"))
    return rows.append_column(SIZE, pc.add(*lengths))


def outcome_rows(kind: Kind, type_: pa.StructType, rows: pa.RecordBatch, decided: Decided) -> pa.RecordBatch:
    """Return one row for each outcome of the source's rows, in their order: ``OUTCOME_COLUMNS``.

    *type_* is that of an outcome (:attr:`router.judging.outputs.OutputBuilder.type`).
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
    """Return where each record of a source lies, with the number of an event in its batch (*places*) behind it."""
    records = positions_of(rows) if kind == "kafka" else rows.column("position")
    if places.null_count == len(places):
        return records
    events = pc.binary_join_element_wise(records, places.cast(pa.string()), "#")
    return pc.if_else(places.is_valid(), events, records)


def _received(kind: Kind, rows: pa.RecordBatch) -> pa.TimestampArray:
    """Return when records arrived; what is no instant of the calendar is none."""
    moments = instants(rows.column("timestamp")) if kind == "kafka" else rows.column("received")
    return moments.cast(_INSTANT)
