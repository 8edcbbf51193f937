"""Rendering outcomes for tables and dead letters: the native record as JSON, the event's attributes as columns.

Python sees what it needs of each row and no body; the body joins in the JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import pyarrow as pa

from bindings.kafka.codec import parts_of_row
from bindings.parts import Part
from bindings.protocols import BINDINGS, Binding, binding_of
from catalog.record import Record
from catalog.values import YEAR_1, YEAR_10000, instant
from router.judging.judging import inbox_parts
from router.judging.stages import Kind, came_from
from router.matching.facts import single
from router.sinks.forms import INSTANT, TEXT_MAP, TIME_TEXT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

COLUMNS: Final = ("id", "source", "specversion", "type", "subject", "datacontenttype", "dataschema")
EVENT: Final = pa.struct(
    [
        *((name, pa.string()) for name in COLUMNS),
        ("time", INSTANT),
        (TIME_TEXT, pa.string()),
        ("extensions", TEXT_MAP),
        ("native", pa.string()),
    ]
)


def render_event(parts: list[Part], binding: Binding, attributes: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Return the columns of one routed event; ``attributes`` are given where the record's own do not serve."""
    named = attributes_of(parts, binding, attributes)
    row: dict[str, Any] = {name: named.pop(name, None) for name in COLUMNS}
    row[TIME_TEXT] = named.pop("time", None)
    row["time"] = moment(row[TIME_TEXT])
    row["extensions"] = list(named.items())
    row["native"] = native_json(parts, binding)
    return row


def attributes_of(parts: list[Part], binding: Binding, given: list[dict[str, Any]] | None) -> dict[str, str]:
    """Return the attributes of an event: those given as headers of Kafka's binary mode, else the record's own."""
    if given is None:
        return dict(binding.envelope(parts, None, lambda: False).attributes)
    return {attribute_of(entry["key"]): entry["value"].decode() for entry in given}


def attribute_of(header: str) -> str:
    """Return the attribute that a Kafka header of binary mode carries."""
    return "datacontenttype" if header == "content-type" else header.removeprefix("ce_")


def native_json(parts: list[Part], binding: Binding) -> str:
    """Return the native record as JSON, without the body."""
    return msgspec.json.encode(binding.native(parts)).decode("utf-8")


def moment(text: str | None) -> int | None:
    """Return an event's time in microseconds; None for one outside of the years 1 to 9999.

    RFC 3339 has a year 0, and offsets and leap seconds reach past 9999; readers of tables know neither.
    """
    nanoseconds = instant(text) if text is not None else None
    if nanoseconds is None:
        return None
    return nanoseconds // 1000 if YEAR_1 <= nanoseconds // 1_000_000 < YEAR_10000 else None


def parts_of_raw(raw: Mapping[str, Any], kind: Kind, place: int | None) -> tuple[list[Part], Binding]:
    """Return the parts of a raw row; for an event out of a batch, those of that event alone."""
    if kind == "kafka":
        binding, parts = BINDINGS["KAFKA"], parts_of_row(raw)
    else:
        binding = binding_of(raw["protocol"]) or BINDINGS["HTTP"]
        parts = inbox_parts(raw["properties"])
    return (parts if place is None else single(parts, binding.rule.content_type)), binding


def event_column(kind: Kind) -> Column:
    """Return the struct ``EVENT`` for routed rows of :func:`router.judging.stages.unified`."""
    from pyspark.sql import functions as F

    def rendered(raw: pa.Array, attributes: pa.Array, place: pa.Array) -> pa.Array:
        rows = zip(raw.to_pylist(), attributes.to_pylist(), place.to_pylist(), strict=True)
        made = [render_event(*parts_of_raw(row, kind, at), given) for row, given, at in rows]
        return pa.array(made, EVENT)

    return _arrow(rendered, EVENT)(F.col("raw"), F.col("m.attributes"), F.col("m.place"))


def native_column(kind: Kind) -> Column:
    """Return the native record as JSON for rows of :func:`router.judging.stages.unified`."""
    from pyspark.sql import functions as F

    def rendered(raw: pa.Array, place: pa.Array) -> pa.Array:
        rows = zip(raw.to_pylist(), place.to_pylist(), strict=True)
        return pa.array([native_json(*parts_of_raw(row, kind, at)) for row, at in rows], pa.string())

    return _arrow(rendered, pa.string())(F.col("raw"), F.col("m.place"))


def spilled_records(rows: DataFrame, kind: Kind) -> Iterator[tuple[str, bytes]]:
    """Yield the id and the whole native record (semantics.md section 3) of each letter to be kept in a file."""
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

    from bindings.events import encode_event

    def rendered(raw: pa.Array, attributes: pa.Array, place: pa.Array, body: pa.Array) -> pa.Array:
        made: list[bytes] = []
        rows = zip(raw.to_pylist(), attributes.to_pylist(), place.to_pylist(), body.to_pylist(), strict=True)
        for row, given, at, data in rows:
            parts, binding = parts_of_raw(row, kind, at)
            made.append(encode_event(attributes_of(parts, binding, given), data))
        return pa.array(made, pa.binary())

    return _arrow(rendered, pa.binary())(F.col("raw"), F.col("m.attributes"), F.col("m.place"), F.col("body"))


def _arrow(function: Callable[..., pa.Array], kind: pa.DataType) -> Callable[..., Column]:
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import from_arrow_type

    function.__annotations__ = {name: pa.Array for name in function.__annotations__}
    return cast("Callable[..., Column]", cast(Any, arrow_udf)(function, returnType=from_arrow_type(kind)))
