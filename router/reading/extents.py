"""Where the rows of a batch lie, and how a batch is cut into parts that can be found again.

A row's place is its channel (a topic, or a partition of the inbox) and two numbers that grow with it: partition and
offset, or segment and row. A batch that is read again has the same places, so that ranges of them name its parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router.judging.judging import Kind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CHANNEL: Final = "channel"
NUMBERS: Final = ("first", "second")
BYTES: Final = "bytes"
_POSITION: Final = r"^(.*)-(\d+)-(\d+)$"
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Range:
    """The rows of one channel from ``first`` to ``last``, both included."""

    channel: str
    first: Pair
    last: Pair

    def to_json(self) -> list[Any]:
        """Return the range as JSON."""
        return [self.channel, *self.first, *self.last]

    @classmethod
    def from_json(cls, written: Sequence[Any]) -> Range:
        """Return the range that :meth:`to_json` wrote."""
        channel, a, b, c, d = written
        return cls(str(channel), (int(a), int(b)), (int(c), int(d)))


Ranges = tuple[Range, ...]


def within(rows: DataFrame, kind: Kind, ranges: Ranges) -> DataFrame:
    """Return the rows of a source that lie in any of these ranges."""
    from pyspark.sql import functions as F

    channel, *numbers = _place(kind)
    place = F.struct(*numbers)
    inside: Column = F.lit(False)
    for each in ranges:
        first, last = (F.struct(*(F.lit(n).cast("bigint") for n in pair)) for pair in (each.first, each.last))
        inside = inside | ((channel == F.lit(each.channel)) & (place >= first) & (place <= last))
    return rows.where(inside)


def extents(rows: DataFrame, kind: Kind) -> pa.Table:
    """Return the places of the rows of a source in their order, and the bytes of body, key and headers of each."""
    channel, *numbers = _place(kind)
    columns = [channel.alias(CHANNEL), *(column.alias(name) for column, name in zip(numbers, NUMBERS, strict=True))]
    table = rows.select(*columns, _bytes(kind).alias(BYTES)).toArrow()
    return table.sort_by([(name, "ascending") for name in (CHANNEL, *NUMBERS)])


def cut(places: pa.Table, pieces: int, *, by_bytes: bool = False) -> list[Ranges]:
    """Return the ranges of at least two and at most *pieces* (two or more) parts, in order, of at least two places.

    Parts have about as many rows each or, *by_bytes*, about as many bytes.
    """
    rows = places.num_rows
    weights = places.column(BYTES).to_numpy().astype(np.float64) + 1 if by_bytes else np.ones(rows)
    middles = np.cumsum(weights) - weights / 2
    piece = np.minimum((middles * min(pieces, rows) / weights.sum()).astype(np.int64), pieces - 1)
    channels = pc.dictionary_encode(places.column(CHANNEL).combine_chunks())
    codes = channels.indices.to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.diff(piece, prepend=-1) | np.diff(codes, prepend=-1))
    ends = np.append(starts[1:], rows) - 1
    first, second = (places.column(name).to_numpy() for name in NUMBERS)
    parts: dict[int, list[Range]] = {}
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        channel = channels.dictionary[int(codes[start])].as_py()
        bounds = ((int(first[at]), int(second[at])) for at in (start, end))
        parts.setdefault(int(piece[start]), []).append(Range(channel, *bounds))
    return [tuple(ranges) for ranges in parts.values()]


def first_of(places: pa.Table) -> str:
    """Return the position of the first row, as dead letters have it."""
    channel, first, second, _ = (column[0].as_py() for column in places.itercolumns())
    return f"{channel}-{first}-{second}"


def _place(kind: Kind) -> tuple[Column, Column, Column]:
    from pyspark.sql import functions as F

    if kind == "kafka":
        return F.col("topic"), F.col("partition").cast("bigint"), F.col("offset")
    position = F.col("position")
    numbers = (F.regexp_extract(position, _POSITION, group).cast("bigint") for group in (2, 3))
    return F.regexp_extract(position, _POSITION, 1), *numbers  # type: ignore[return-value]


def _bytes(kind: Kind) -> Column:
    from pyspark.sql import functions as F

    def held(entry: Column) -> Column:
        return F.coalesce(F.length(entry["value"]), F.lit(0)) + F.length(entry["key"])

    named, blobs = ("headers", ("value", "key")) if kind == "kafka" else ("properties", ("body",))
    total = F.aggregate(F.coalesce(F.col(named), F.array()), F.lit(0), lambda sum_, entry: sum_ + held(entry))
    for name in blobs:
        total = total + F.coalesce(F.length(name), F.lit(0))
    return total.cast("bigint")
