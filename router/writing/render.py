"""Columns of Spark with what tables, dead letters and structured mode need of rows: event, native record, JSON.

Python sees what it needs of each row, and a body only where it must; elsewhere the body joins in the JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow as pa

from catalog.record import Record
from router.judging.kinds import Kind
from router.judging.stages import came_from
from router.rendering.events import event_columns
from router.rendering.exact import EVENT, parts_of_raw
from router.rendering.native import native_texts
from router.rendering.structured import structured_events

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


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
