"""The Spark source over an inbox: format ``xrouter_inbox``.

Register it once per session, ``spark.dataSource.register(InboxDataSource)``, then
``spark.readStream.format("xrouter_inbox").option("path", ...).option("max_records", 100000).load()``.

Promises: only durable rows are offered; a range once offered reads back identically, before and after compaction,
restart and crash; rows of one inbox partition come in order, in one task; ``commit`` is the only place that trims,
and only what the checkpoint has finished with. Nothing is lost by a crash and no row is offered under two positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType, TimestampType

from bindings.inbox.errors import InboxFormatError
from bindings.inbox.offsets import InboxPosition, offset_json, positions_of, shares
from bindings.inbox.view import InboxView, Span
from catalog.values import whole_number

NAME: Final = "xrouter_inbox"
_PROPERTY: Final = StructType(
    [StructField("key", StringType()), StructField("value", BinaryType()), StructField("type", StringType())]
)
SPARK_SCHEMA: Final = StructType(
    [
        StructField("endpoint", StringType()),
        StructField("protocol", StringType()),
        StructField("received", TimestampType()),
        StructField("properties", ArrayType(_PROPERTY)),
        StructField("body", BinaryType()),
        StructField("position", StringType()),
    ]
)


class InboxDataSource(DataSource):
    """Options: ``path``, the inbox directory; ``max_records`` and ``max_bytes``, the most of one batch (default: all).

    A row beyond ``max_bytes`` is a batch of its own.
    """

    @classmethod
    def name(cls) -> str:
        """Return the format's short name."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of a frame and ``position``."""
        return SPARK_SCHEMA

    def streamReader(self, schema: StructType) -> InboxStreamReader:
        """Return the reader; called on the driver and, pickled, on workers."""
        return InboxStreamReader(self.options)


@dataclass(frozen=True)
class InboxRange(InputPartition):
    """What one task reads: the spans of one inbox partition in one micro-batch."""

    partition: int
    spans: tuple[Span, ...]


class InboxStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches over an inbox and reads them. See the module for its promises.

    Raises:
        InboxFormatError: an option is missing or no number, an offset is foreign, or there is no such inbox.
        InboxDamaged: rows that the checkpoint still needs are gone or broken.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        path = options.get("path")
        if not path:
            raise InboxFormatError(f"the source {NAME} needs the option path, the inbox directory")
        self._path = Path(path)
        self._max_records = _limit_of("max_records", options)
        self._max_bytes = _limit_of("max_bytes", options)
        self._target: dict[int, InboxPosition] | None = None
        self._opened: InboxView | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what a worker opens for itself."""
        return {**self.__dict__, "_opened": None}

    def initialOffset(self) -> dict[str, Any]:
        """Return the oldest rows kept; called once, for a checkpoint without batches."""
        view = self._view()
        return offset_json(view.layout.inbox, {each: view.first(each) for each in view.partitions})

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that ``max_records`` asks for."""
        return ReadAllAvailable() if self._max_records is None else ReadMaxRows(self._max_records)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end: rows that become visible later are left for the next run."""
        view = self._view()
        self._target = {each: view.end(each) for each in view.partitions}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch: never before *start*, never past a limit, *start* when nothing is new."""
        view = self._view()
        positions = self._positions(start)
        ends = {each: max(position, self._end(each)) for each, position in positions.items()}
        available = {each: view.count(each, position, ends[each]) for each, position in positions.items()}
        taken = shares(available, limit.max_rows) if isinstance(limit, ReadMaxRows) else available
        moved = {each: view.advance(each, position, taken[each], ends[each]) for each, position in positions.items()}
        if self._max_bytes is not None:
            sizes = {
                each: view.size(each, position, moved[each])
                for each, position in positions.items()
                if moved[each] > position
            }
            allowed = shares(sizes, self._max_bytes)
            moved |= {each: view.reach(each, positions[each], moved[each], size) for each, size in allowed.items()}
        return offset_json(view.layout.inbox, moved)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the durable end, for the progress report and with it the lag."""
        view = self._view()
        return offset_json(view.layout.inbox, {each: self._end(each) for each in view.partitions})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one range for each inbox partition that has rows between the offsets."""
        view = self._view()
        ends = self._positions(end)
        ranges = []
        for partition, position in self._positions(start).items():
            spans = view.spans(partition, position, ends[partition])
            if spans:
                ranges.append(InboxRange(partition, tuple(spans)))
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range; runs on a worker, any number of times, always with the same result."""
        if not isinstance(partition, InboxRange):
            raise TypeError(f"not a range of an inbox: {partition!r}")
        return self._view().read(partition.partition, list(partition.spans))

    def commit(self, end: dict[str, Any]) -> None:
        """Delete the segments wholly behind *end*; called after the batch that ends there is in the commit log."""
        view = self._view()
        for partition, position in self._positions(end).items():
            view.trim(partition, position)

    def _view(self) -> InboxView:
        if self._opened is None:
            self._opened = InboxView(self._path)
        return self._opened

    def _positions(self, offset: Mapping[str, Any]) -> dict[int, InboxPosition]:
        return positions_of(offset, self._view().layout.inbox)

    def _end(self, partition: int) -> InboxPosition:
        return self._view().end(partition) if self._target is None else self._target[partition]


def _limit_of(name: str, options: Mapping[str, str]) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    limit = whole_number(text)
    if not limit:
        raise InboxFormatError(f"{name} must be a whole number above 0, not {text!r}")
    return limit
