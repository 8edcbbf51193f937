"""Keeps the batches of one query within their bytes: measures those that may be too large, and reads them in parts.

A batch may be planned too large: Spark counts records, and a range that is in the checkpoint stays as it is, whatever
the settings say since. It is cut before its first write (:mod:`router.batches.parts`), and each part reads its own
offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from router.batches.parts import BatchParts, Part, Path
from router.judging.kinds import Kind
from router.judging.tally import Tally
from router.logs import get_logger
from router.machine.sizing import BatchSizing
from router.reading.extents import BYTES, within
from router.reading.generations import Generation
from router.reading.offsets import ReadRanges, ReadSpans
from router.reading.planned import planned, ranges_of, records_in, spans_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OWN_BATCHES: Final = 20
"""Batches that our own client reads behind one that Spark's source could not."""
TASK_RECORDS: Final = 1_000
"""Records that are worth a task of their own: judging fewer takes about as long as a task takes to begin and end."""
Measure: TypeAlias = Callable[[], pa.Table]
"""Gives the places of the rows at work (:func:`router.reading.extents.extents`), which takes a Spark job."""
_log = get_logger()


class TooLarge(Exception):
    """A batch, or a part of one, turned out too large when it was judged; nothing of it has been written."""


class Bounding:
    """The bounds of one query's batches.

    *read* returns the records between some offsets, *own* those of ranges by our own client; None where there are no
    offsets.
    """

    def __init__(
        self,
        kind: Kind,
        generation: Generation,
        sizing: BatchSizing,
        read: ReadSpans | None,
        own: ReadRanges | None = None,
    ) -> None:
        self._kind = kind
        self._generation = generation
        self._sizing = sizing
        self._read = read
        self._own = own
        self._own_until = -1
        # A batch that was begun before may have killed its last try, or was bounded by other settings.
        self._inherited = generation.pending
        self._as_it_is: tuple[int, Path] | None = None

    def read_anew(self, number: int) -> bool:
        """Read this batch and some behind it by our own client, since Spark's source cannot; False when that is so.

        A sender with timestamps beyond Spark's mostly has others like it.
        """
        if self._own is None or number <= self._own_until:
            return False
        self._own_until = number + OWN_BATCHES
        return True

    def cut(self, parts: BatchParts, measure: Measure) -> bool:
        """Cut a batch that nothing is known to be written of, durably, if it is too large to be written at once."""
        if parts.noted:
            return False
        inherited = parts.number == self._inherited
        spans = planned(self._generation, parts.number)
        if inherited or (spans is not None and self._sizing.suspects(records_in(spans))):
            self.divide(parts, measure)
        return parts.noted

    def divide(self, parts: BatchParts, measure: Measure) -> None:
        """Measure the part at work, and cut it, durably, if it is too large and can be cut."""
        places = measure()
        size = int(places.column(BYTES).to_numpy().sum()) if places.num_rows else 0
        pieces = min(self._sizing.pieces(size), places.num_rows)
        self._sizing.learn(places.num_rows, size)
        if pieces < 2:
            # One record of many events, or only its outcomes are large: it is written as it is.
            part = parts.next
            self._as_it_is = (parts.number, part.path) if part is not None else None
            return
        _log.warning(
            "batch is too large, and is written in parts",
            query=parts.query,
            batch=parts.number,
            records=places.num_rows,
            bytes=size,
            max_bytes_per_batch=self._sizing.bound,
            parts=pieces,
        )
        parts.cut(places, pieces, by_bytes=True)

    def rows(self, rows: DataFrame, number: int, part: Part) -> DataFrame:
        """Return the rows of a part out of those of its batch; where there are offsets, only its own are read.

        A small batch is read by fewer tasks than its topics have partitions.
        """
        if self._own is not None and number <= self._own_until:
            rows = self._own(ranges_of(self._generation, number))
            return rows if part.ranges is None else within(rows, self._kind, part.ranges)
        if part.ranges is None:
            return self._in_few_tasks(rows, number)
        whole = planned(self._generation, number) if self._read is not None else None
        if self._read is not None and whole is not None:
            rows = self._read(spans_of(part.ranges, whole))
        return within(rows, self._kind, part.ranges)

    def _in_few_tasks(self, rows: DataFrame, number: int) -> DataFrame:
        spans = planned(self._generation, number) or {}
        partitions = sum(first < end for partitions in spans.values() for first, end in partitions.values())
        tasks = -(-records_in(spans) // TASK_RECORDS)
        return rows.coalesce(tasks) if 0 < tasks < partitions else rows

    def check(self, tally: Tally, number: int, part: Part) -> None:
        """Look at a part of a batch that was judged and not yet written.

        Raises:
            TooLarge: it must not be brought to the driver as one.
        """
        if self._sizing.pieces(tally.bytes) > 1 and self._as_it_is != (number, part.path):
            raise TooLarge

    def learn(self, tally: Tally, seconds: float) -> None:
        """Take in the size of what was written, and how long that took."""
        self._sizing.learn(tally.total, tally.bytes)
        self._sizing.worked(tally.total, seconds)
