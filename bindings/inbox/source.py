"""Reading an inbox: its durable rows, and the Spark source for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from bindings.inbox.format import (
    SCHEMA,
    DurableEnd,
    InboxPosition,
    checksum_seed,
    count_rows,
    count_rows_within,
    divide_rows,
    list_segments,
    parse_offset,
    partition_directory,
    read_layout,
    read_published_end,
    read_rows,
    segment_path,
    to_offset,
)
from bindings.inbox.log import join_batches
from bindings.inbox.space import InboxDamaged

# The reading side of an inbox, without Spark.

READ_SCHEMA = SCHEMA.append(pa.field("position", pa.string()))
"""The columns of a frame, and ``position``: ``<inbox>-<partition>-<segment>-<row>``, unique for ever."""


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Rows ``first`` to ``last`` (exclusive) of one segment; ``hint`` is where the frame of the first one may start."""

    segment: int
    first: int
    last: int
    hint: int = 0


class InboxView:
    """A reader's view of an inbox: durable rows only, even if the writer has written more.

    It caches row counts of sealed segments, which never change.

    Raises:
        InboxFormatError: there is no inbox at *path*, or not one that this version reads.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.layout = read_layout(path)
        self.partitions = range(self.layout.partitions)
        self._sealed_rows: dict[tuple[int, int], int] = {}
        self._seen_ends: dict[int, tuple[DurableEnd, ...]] = {}

    def first_position(self, partition: int) -> InboxPosition:
        """Return the position before the oldest stored row."""
        existing = list_segments(self._directory(partition))
        return InboxPosition(existing[0] if existing else self.end_position(partition).segment, 0)

    def end_position(self, partition: int) -> InboxPosition:
        """Return the position after the last published durable row."""
        published = read_published_end(self._directory(partition))
        if published is None:
            # Not written yet, or lost in a power cut: nothing is certain until the writer has opened the log.
            return InboxPosition(0, 0)
        # The previous end as well: a batch begins there when its end is computed.
        seen = self._seen_ends.get(partition, ())
        if not seen or published > seen[-1]:
            self._seen_ends[partition] = (*seen[-1:], published)
        return InboxPosition(published.segment, published.rows)

    def count_rows(self, partition: int, start: InboxPosition, end: InboxPosition) -> int:
        """Return the number of rows from *start* to *end*; drops cached counts of earlier segments.

        Raises:
            InboxDamaged: a segment between them is gone or broken.
        """
        for segment in [known for owner, known in self._sealed_rows if owner == partition and known < start.segment]:
            del self._sealed_rows[partition, segment]
        return sum(span.last - span.first for span in self.plan_spans(partition, start, end))

    def advance_position(self, partition: int, start: InboxPosition, rows: int, end: InboxPosition) -> InboxPosition:
        """Return the position *rows* rows after *start*, at most *end*; the end of a segment is the start of the next.

        Raises:
            InboxDamaged: a segment between them is gone or broken.
        """
        segment, row = start
        while segment < end.segment:
            left = max(0, self._count_sealed_rows(partition, segment) - row)
            if left > rows:
                return InboxPosition(segment, row + rows)
            segment, row, rows = segment + 1, 0, rows - left
        return max(start, InboxPosition(segment, row + max(0, min(rows, end.row - row))))

    def max_bytes_between(self, partition: int, start: InboxPosition, end: InboxPosition) -> int:
        """Return an upper bound of the bytes from *start* to *end*, from the sizes of the segments.

        Raises:
            InboxDamaged: a segment between them is gone.
        """
        total = -self._find_hint(partition, start.segment, start.row)
        for segment in range(start.segment, end.segment + bool(end.row)):
            with self._find_segment(partition, segment) as path:
                total += path.stat().st_size
        return total

    def end_within(self, partition: int, start: InboxPosition, end: InboxPosition, size: int) -> InboxPosition:
        """Return the last position within *size* bytes of *start*, at most *end*, and at least one row after *start*.

        Raises:
            InboxDamaged: a segment between them is gone or broken.
        """
        if self.max_bytes_between(partition, start, end) <= size:
            return end
        left = size
        for span in self.plan_spans(partition, start, end):
            seed = checksum_seed(self.layout.inbox, partition, span.segment)
            with self._find_segment(partition, span.segment, span.first) as path:
                taken, left = count_rows_within(path, span.first, span.last, left, seed, span.hint)
            position = InboxPosition(span.segment, span.first + taken)
            if span.first + taken < span.last:
                return max(position, InboxPosition(start.segment, start.row + 1))
        return end

    def plan_spans(self, partition: int, start: InboxPosition, end: InboxPosition) -> list[RowSpan]:
        """Return the spans to read from *start* to *end*, in order.

        Raises:
            InboxDamaged: a segment between them is gone or broken.
        """
        spans = []
        for segment in range(start.segment, end.segment + 1):
            first = start.row if segment == start.segment else 0
            last = end.row if segment == end.segment else self._count_sealed_rows(partition, segment)
            if first < last:
                spans.append(RowSpan(segment, first, last, self._find_hint(partition, segment, first)))
        return spans

    def read_spans(self, partition: int, spans: list[RowSpan]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of *spans* in order, as batches of :data:`READ_SCHEMA`; repeated reads yield the same rows.

        Raises:
            InboxDamaged: a row cannot be read.
        """
        for span in spans:
            seed = checksum_seed(self.layout.inbox, partition, span.segment)
            prefix = f"{self.layout.inbox}-{partition}-{span.segment}-"
            row = span.first
            with self._find_segment(partition, span.segment, span.first) as path:
                for batch in join_batches(read_rows(path, span.first, span.last, seed, span.hint)):
                    positions = pa.array([f"{prefix}{row + index}" for index in range(batch.num_rows)], pa.string())
                    yield pa.RecordBatch.from_arrays([*batch.columns, positions], schema=READ_SCHEMA)
                    row += batch.num_rows

    def trim_segments(self, partition: int, before: InboxPosition) -> None:
        """Delete the segments entirely before a position; never the open one.

        Raises:
            OSError: a file cannot be deleted.
        """
        directory = self._directory(partition)
        limit = min(before.segment, self.end_position(partition).segment)
        for segment in list_segments(directory):
            if segment < limit:
                segment_path(directory, segment).unlink(missing_ok=True)
                self._sealed_rows.pop((partition, segment), None)

    def _directory(self, partition: int) -> Path:
        return partition_directory(self.path, partition)

    def _count_sealed_rows(self, partition: int, segment: int) -> int:
        known = self._sealed_rows.get((partition, segment))
        if known is None:
            with self._find_segment(partition, segment) as path:
                known = count_rows(path)
            self._sealed_rows[partition, segment] = known
        return known

    def _find_hint(self, partition: int, segment: int, row: int) -> int:
        """Return the byte at which a row starts, 0 if unknown; it saves scanning old frames."""
        seen = (end for end in self._seen_ends.get(partition, ()) if (end.segment, end.rows) == (segment, row))
        return next((end.size for end in seen), 0)

    @contextmanager
    def _find_segment(self, partition: int, segment: int, row: int = 0) -> Iterator[Path]:
        """Yield the file of a segment that has rows from *row* on to read.

        Raises:
            InboxDamaged: the block does not find it.
        """
        path = segment_path(self._directory(partition), segment)
        try:
            yield path
        except FileNotFoundError:
            raise InboxDamaged(
                f"{path} is missing, but this query has not committed its rows; restore it together with the "
                f"checkpoint, or start a new checkpoint generation",
                file=str(path),
                row=row,
            ) from None


# The Spark source over an inbox: format ``xrouter_inbox``.
#
# Register it once per session, ``spark.dataSource.register(InboxDataSource)``, then
# ``spark.readStream.format("xrouter_inbox").option("path", ...).option("max_records", 100000).load()``.
#
# Guarantees: only durable rows are offered; a range once offered reads back identically, before and after compaction,
# restart and crash; rows of one inbox partition come in order, in one task; only ``commit`` trims, and only what the
# checkpoint has finished. A crash loses nothing, and no row is offered under two positions.

NAME: Final = "xrouter_inbox"
SPARK_SCHEMA: Final = from_arrow_schema(READ_SCHEMA)


class InboxDataSource(DataSource):
    """Options: ``path``, the inbox directory; ``max_records`` and ``max_bytes``, the maximum of one batch (default:
    all).

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
    """One task's input: the spans of one inbox partition in one micro-batch."""

    partition: int
    spans: tuple[RowSpan, ...]


class InboxStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches over an inbox and reads them. See above for its guarantees.

    Raises:
        InboxFormatError: an offset is foreign, or there is no such inbox.
        InboxDamaged: rows that the checkpoint still needs are missing or broken.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._path = Path(options["path"])
        self._max_records = int(options["max_records"]) if "max_records" in options else None
        self._max_bytes = int(options["max_bytes"]) if "max_bytes" in options else None
        self._target: dict[int, InboxPosition] | None = None
        self._opened: InboxView | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the open view; a worker opens its own."""
        return {**self.__dict__, "_opened": None}

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset of the oldest stored rows; called once, for a checkpoint without batches."""
        view = self._open_view()
        return to_offset(view.layout.inbox, {each: view.first_position(each) for each in view.partitions})

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit from ``max_records``."""
        return ReadAllAvailable() if self._max_records is None else ReadMaxRows(self._max_records)

    def prepareForTriggerAvailableNow(self) -> None:
        """Set the end of this run: later rows are left for the next run."""
        view = self._open_view()
        self._target = {each: view.end_position(each) for each in view.partitions}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch, within the limits; *start* if there are no new rows."""
        view = self._open_view()
        positions = self._parse_offset(start)
        ends = {each: max(position, self._target_end(each)) for each, position in positions.items()}
        available = {each: view.count_rows(each, position, ends[each]) for each, position in positions.items()}
        taken = divide_rows(available, limit.max_rows) if isinstance(limit, ReadMaxRows) else available
        moved = {
            each: view.advance_position(each, position, taken[each], ends[each]) for each, position in positions.items()
        }
        if self._max_bytes is not None:
            sizes = {
                each: view.max_bytes_between(each, position, moved[each])
                for each, position in positions.items()
                if moved[each] > position
            }
            allowed = divide_rows(sizes, self._max_bytes)
            moved |= {each: view.end_within(each, positions[each], moved[each], size) for each, size in allowed.items()}
        return to_offset(view.layout.inbox, moved)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the durable end, for the progress report and with it the lag."""
        view = self._open_view()
        return to_offset(view.layout.inbox, {each: self._target_end(each) for each in view.partitions})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one range for each inbox partition that has rows between the offsets."""
        view = self._open_view()
        ends = self._parse_offset(end)
        ranges = []
        for partition, position in self._parse_offset(start).items():
            spans = view.plan_spans(partition, position, ends[partition])
            if spans:
                ranges.append(InboxRange(partition, tuple(spans)))
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range; runs on a worker, any number of times, always with the same result."""
        assert isinstance(partition, InboxRange)
        return self._open_view().read_spans(partition.partition, list(partition.spans))

    def commit(self, end: dict[str, Any]) -> None:
        """Delete the segments before *end*; called after the batch that ends there is in the commit log."""
        view = self._open_view()
        for partition, position in self._parse_offset(end).items():
            view.trim_segments(partition, position)

    def _open_view(self) -> InboxView:
        if self._opened is None:
            self._opened = InboxView(self._path)
        return self._opened

    def _parse_offset(self, offset: Mapping[str, Any]) -> dict[int, InboxPosition]:
        return parse_offset(offset, self._open_view().layout.inbox)

    def _target_end(self, partition: int) -> InboxPosition:
        return self._open_view().end_position(partition) if self._target is None else self._target[partition]
