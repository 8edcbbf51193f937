"""The reading side of an inbox, without Spark: which rows are visible, how many, and the rows themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from bindings.inbox.compaction import joined
from bindings.inbox.ends import End, published_end
from bindings.inbox.errors import InboxDamaged
from bindings.inbox.frames import SCHEMA, seed_of
from bindings.inbox.layout import read_layout
from bindings.inbox.offsets import InboxPosition
from bindings.inbox.segments import partition_directory, read_rows, rows_in, rows_within, segment_path, segments_in

READ_SCHEMA = SCHEMA.append(pa.field("position", pa.string()))
"""The columns of a frame, and ``position``: ``<inbox>-<partition>-<segment>-<row>``, unique for ever."""


@dataclass(frozen=True, slots=True)
class Span:
    """Rows ``first`` to ``last`` (exclusive) of one segment; ``hint`` as for :func:`segments.read_rows`."""

    segment: int
    first: int
    last: int
    hint: int = 0


class InboxView:
    """What a reader sees of an inbox: durable rows only, however far the writer has got beyond them.

    It keeps row counts of sealed segments, which never change, and nothing that a restart would miss.

    Raises:
        InboxFormatError: there is no inbox at *path*, or not one this version reads.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.layout = read_layout(path)
        self.partitions = range(self.layout.partitions)
        self._sealed_rows: dict[tuple[int, int], int] = {}
        self._seen: dict[int, tuple[End, ...]] = {}

    def first(self, partition: int) -> InboxPosition:
        """Return the position before the oldest row that is kept."""
        existing = segments_in(self._directory(partition))
        return InboxPosition(existing[0] if existing else self.end(partition).segment, 0)

    def end(self, partition: int) -> InboxPosition:
        """Return the position behind the last durable row that is published."""
        published = published_end(self._directory(partition))
        if published is None:
            # Not written yet, or lost with the power: nothing can be vouched for until the writer has opened the log.
            return InboxPosition(0, 0)
        # The one before as well: a batch begins there when its end is looked for.
        seen = self._seen.get(partition, ())
        if not seen or published > seen[-1]:
            self._seen[partition] = (*seen[-1:], published)
        return InboxPosition(published.segment, published.rows)

    def count(self, partition: int, start: InboxPosition, end: InboxPosition) -> int:
        """Return the number of rows from *start* to *end*; the caller no longer needs what lies before *start*.

        Raises:
            InboxDamaged: a segment between them is gone or broken.
        """
        for segment in [known for owner, known in self._sealed_rows if owner == partition and known < start.segment]:
            del self._sealed_rows[partition, segment]
        return sum(span.last - span.first for span in self.spans(partition, start, end))

    def advance(self, partition: int, start: InboxPosition, rows: int, end: InboxPosition) -> InboxPosition:
        """Return the position *rows* rows behind *start*, at most *end*; past a finished segment it is in the next.

        Raises:
            InboxDamaged: a segment between them is gone or broken.
        """
        segment, row = start
        while segment < end.segment:
            left = max(0, self._rows(partition, segment) - row)
            if left > rows:
                return InboxPosition(segment, row + rows)
            segment, row, rows = segment + 1, 0, rows - left
        return max(start, InboxPosition(segment, row + max(0, min(rows, end.row - row))))

    def size(self, partition: int, start: InboxPosition, end: InboxPosition) -> int:
        """Return at least the bytes that lie from *start* to *end*: those of the segments, but for what was seen read.

        Raises:
            InboxDamaged: a segment between them is gone.
        """
        total = -self._hint(partition, start.segment, start.row)
        for segment in range(start.segment, end.segment + 1):
            path = segment_path(self._directory(partition), segment)
            try:
                total += path.stat().st_size
            except FileNotFoundError:
                if segment != end.segment or end.row:
                    raise self._gone(path, 0) from None
        return total

    def reach(self, partition: int, start: InboxPosition, end: InboxPosition, size: int) -> InboxPosition:
        """Return the last position up to *end* before which lie at most *size* bytes; at least a row behind *start*.

        Raises:
            InboxDamaged: a segment between them is gone or broken.
        """
        if self.size(partition, start, end) <= size:
            return end
        left = size
        for span in self.spans(partition, start, end):
            path = segment_path(self._directory(partition), span.segment)
            seed = seed_of(self.layout.inbox, partition, span.segment)
            try:
                taken, left = rows_within(path, span.first, span.last, left, seed, span.hint)
            except FileNotFoundError:
                raise self._gone(path, span.first) from None
            position = InboxPosition(span.segment, span.first + taken)
            if span.first + taken < span.last:
                return max(position, InboxPosition(start.segment, start.row + 1))
        return end

    def spans(self, partition: int, start: InboxPosition, end: InboxPosition) -> list[Span]:
        """Return what has to be read from *start* to *end*, in order.

        Raises:
            InboxDamaged: a segment between them is gone or broken.
        """
        spans = []
        for segment in range(start.segment, end.segment + 1):
            first = start.row if segment == start.segment else 0
            last = end.row if segment == end.segment else self._rows(partition, segment)
            if first < last:
                spans.append(Span(segment, first, last, self._hint(partition, segment, first)))
        return spans

    def read(self, partition: int, spans: list[Span]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of *spans* in order, as batches of :data:`READ_SCHEMA`; the same rows at every reading.

        Raises:
            InboxDamaged: a row cannot be read.
        """
        for span in spans:
            path = segment_path(self._directory(partition), span.segment)
            seed = seed_of(self.layout.inbox, partition, span.segment)
            prefix = f"{self.layout.inbox}-{partition}-{span.segment}-"
            row = span.first
            try:
                for batch in joined(read_rows(path, span.first, span.last, seed, span.hint)):
                    positions = pa.array([f"{prefix}{row + index}" for index in range(batch.num_rows)], pa.string())
                    yield pa.RecordBatch.from_arrays([*batch.columns, positions], schema=READ_SCHEMA)
                    row += batch.num_rows
            except FileNotFoundError:
                raise self._gone(path, span.first) from None

    def trim(self, partition: int, before: InboxPosition) -> None:
        """Delete the segments that lie wholly behind a position; never the open one.

        Raises:
            OSError: a file cannot be deleted.
        """
        directory = self._directory(partition)
        limit = min(before.segment, self.end(partition).segment)
        for segment in segments_in(directory):
            if segment < limit:
                segment_path(directory, segment).unlink(missing_ok=True)
                self._sealed_rows.pop((partition, segment), None)

    def _directory(self, partition: int) -> Path:
        return partition_directory(self.path, partition)

    def _rows(self, partition: int, segment: int) -> int:
        known = self._sealed_rows.get((partition, segment))
        if known is None:
            path = segment_path(self._directory(partition), segment)
            try:
                known = rows_in(path)
            except FileNotFoundError:
                raise self._gone(path, 0) from None
            self._sealed_rows[partition, segment] = known
        return known

    def _hint(self, partition: int, segment: int, row: int) -> int:
        """Return the byte where a row starts, when an end was seen there. It saves walking over old frames."""
        seen = (end for end in self._seen.get(partition, ()) if (end.segment, end.rows) == (segment, row))
        return next((end.size for end in seen), 0)

    def _gone(self, path: Path, row: int) -> InboxDamaged:
        return InboxDamaged(
            f"{path} is gone though its rows were not committed by this query; restore it together with the "
            f"checkpoint, or start a new checkpoint generation",
            file=str(path),
            row=row,
        )
