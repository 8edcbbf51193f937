"""Split a batch that is too large, or that fails because of a record, into parts that are written one by one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from router.errors import Fault
from router.evaluation.evaluator import Kind
from router.evaluation.outputs import Tally
from router.logs import get_logger
from router.machine import BatchSizing
from router.reading.backlogs import BYTES, Range, Ranges, cut, extents, within
from router.reading.generations import Generation, planned, ranges_of, records_in, spans_of
from router.reading.streams import QueryReader
from router.state.state import BatchNote, BatchStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The note ``parts`` of a batch (:mod:`router.state.state`) lists the remaining parts, and the counts of those already
# written. It is durable before the first write of any part. Parts are written in order; the first one is the current
# part. A part's identity is its *path*, () for the whole batch. Each part has its own transaction ids
# (:class:`router.sinks.contract.Commit`): a sink that has the whole batch, or a part that was split further, has its
# parts too. So tables have every row once through crashes, retries and further splits.
#
# A part that failed :data:`SAME_FAILURES` times with the same fault, also across restarts, is split. A single record
# becomes a dead letter ``undecodable`` that names the fault; if that fails in the same way, one without what Python
# would render.

SAME_FAILURES: Final = 3
"""Consecutive failures with the same fault after which a part is split."""
ANY_FAILURES: Final = 10
"""Failures of any kind after which a part is split."""
PIECES: Final = 8
Path = tuple[int, ...]
WHOLE: Final[Path] = ()


@dataclass(frozen=True, slots=True)
class BatchPart:
    """What one write contains; *ranges* is None for the whole batch.

    *condemned* is the fault that makes its only record a dead letter; *bare* omits the headers from that dead letter.
    """

    path: Path = WHOLE
    ranges: Ranges | None = None
    condemned: str = ""
    bare: bool = False


@dataclass(slots=True)
class Failures:
    """Counts failures of the current part: *alike* in a row with the same fault, *all* in total."""

    digest: str = ""
    alike: int = 0
    all: int = 0

    def add(self, fault: Fault) -> None:
        """Count one failure."""
        self.alike = self.alike + 1 if self.digest == fault.digest else 1
        self.digest = fault.digest
        self.all += 1


@dataclass(frozen=True)
class PartsNote(BatchNote):
    """How a batch is split, and what is left of it; ``tally`` is that of the parts already written, as JSON."""

    kind: ClassVar[str] = "parts"
    without: ClassVar[str] = "the batch is then written from its start, and tables may double"
    left: list[BatchPart]
    tally: dict[str, Any]
    failures: Failures
    known: list[str]

    @cached_property
    def counts(self) -> Tally:
        """The tally."""
        return Tally.from_json(self.tally)

    def __post_init__(self) -> None:
        """Check the tally."""
        _ = self.counts


# A batch may be planned too large: Spark limits records, not bytes, and a range in the checkpoint stays, whatever the
# settings are now. Such a batch is split before its first write, and each part reads its own offsets.

OWN_BATCHES: Final = 20
"""Batches that our own Kafka client reads after one that Spark's source could not read."""
TASK_RECORDS: Final = 1_000
"""Minimum records for a task of their own: evaluating fewer takes about as long as starting and ending a task."""
_log = get_logger()


class TooLarge(Exception):
    """An evaluated batch, or a part of one, is too large; nothing of it has been written."""


class Splitting:
    """Which offsets each write of a query's batches has, and why: the remaining parts of the current batch.

    ``left`` are these parts, ``tally`` the counts of those already written. *reader* reads offsets again; None for
    sources without offsets. Not thread-safe.
    """

    def __init__(
        self,
        store: BatchStore,
        query: str,
        kind: Kind,
        generation: Generation,
        sizing: BatchSizing,
        reader: QueryReader | None = None,
    ) -> None:
        self._store = store
        self._query = query
        self._kind = kind
        self._generation = generation
        self._sizing = sizing
        self._reader = reader
        self._own_until = -1
        # A batch begun before a restart may have killed the process, or had other settings.
        self._inherited = generation.pending
        self._indivisible: tuple[int, Path] | None = None
        self._rows: DataFrame | None = None
        self._set_parts(-1, None)

    def begin(self, number: int) -> None:
        """Take up a batch where it was left; without a note it is one part.

        Raises:
            StateError: the note is damaged.
        """
        self._set_parts(number, self._store.noted(PartsNote, self._query, number, self._generation.id))

    def _set_parts(self, number: int, note: PartsNote | None) -> None:
        self.number = number
        self._noted = note is not None
        self.left = [BatchPart()] if note is None else note.left
        self.tally = Tally() if note is None else note.counts
        self.failures = Failures() if note is None else note.failures
        self._known = set(() if note is None else note.known)

    @property
    def part(self) -> BatchPart | None:
        """The part to write now; None if all are written."""
        return self.left[0] if self.left else None

    def rows(self, rows: DataFrame) -> DataFrame:
        """Return the rows of the current part of a batch; sources with offsets read only the offsets of the part.

        A small batch has fewer tasks than its topics have partitions.
        """
        number, ranges = self.number, self.left[0].ranges
        if self._reader is not None and number <= self._own_until:
            rows = self._reader.read_ranges(ranges_of(self._generation, number))
        elif ranges is None:
            rows = self._in_few_tasks(rows)
        elif self._reader is not None and (whole := planned(self._generation, number)) is not None:
            rows = self._reader.read_spans(spans_of(ranges, whole))
        self._rows = rows if ranges is None else within(rows, self._kind, ranges)
        return self._rows

    def _in_few_tasks(self, rows: DataFrame) -> DataFrame:
        spans = planned(self._generation, self.number) or {}
        partitions = sum(first < end for partitions in spans.values() for first, end in partitions.values())
        tasks = -(-records_in(spans) // TASK_RECORDS)
        return rows.coalesce(tasks) if 0 < tasks < partitions else rows

    def measure(self) -> pa.Table:
        """Return the source locations of the current rows (:func:`router.reading.backlogs.extents`), by a Spark job."""
        assert self._rows is not None
        return extents(self._rows, self._kind)

    def read_anew(self) -> bool:
        """Read this batch and the next ones with our own Kafka client; return False if that is already so.

        A sender with timestamps out of Spark's range mostly sends more of them.
        """
        if self._reader is None or self.number <= self._own_until:
            return False
        self._own_until = self.number + OWN_BATCHES
        return True

    def cut_if_large(self) -> bool:
        """Split the batch, durably, if it is too large and nothing of it has been written."""
        if self._noted:
            return False
        spans = planned(self._generation, self.number)
        if self.number == self._inherited or (spans is not None and self._sizing.suspects(records_in(spans))):
            self.cut_large()
        return self._noted

    def cut_large(self) -> None:
        """Measure the current part, and split it, durably, if it is too large and has several records."""
        places = self.measure()
        size = int(places.column(BYTES).to_numpy().sum()) if places.num_rows else 0
        pieces = min(self._sizing.pieces(size), places.num_rows)
        self._sizing.learn(places.num_rows, size)
        if pieces < 2:
            # One record with many events, or only its outcomes are large: it is written whole.
            self._indivisible = (self.number, self.left[0].path)
            return
        _log.warning(
            "batch is too large; writing it in parts",
            query=self._query,
            batch=self.number,
            records=places.num_rows,
            bytes=size,
            max_bytes_per_batch=self._sizing.bound,
            parts=pieces,
        )
        self.cut(places, pieces, by_bytes=True)

    def check(self, tally: Tally) -> None:
        """Check the size of the evaluated part before its first write.

        Raises:
            TooLarge: it is too large for the driver.
        """
        if self._sizing.pieces(tally.bytes) > 1 and self._indivisible != (self.number, self.left[0].path):
            raise TooLarge

    def learn(self, tally: Tally, seconds: float) -> None:
        """Learn from the size of a written part, and from how long it took."""
        self._sizing.learn(tally.total, tally.bytes)
        self._sizing.worked(tally.total, seconds)

    def written(self, tally: Tally) -> None:
        """Record that all sinks have the current part, with these counts."""
        self.tally.add(tally)
        self.left = self.left[1:]
        self.failures = Failures()
        if self._noted:
            self.note()

    def failed(self, fault: Fault) -> bool:
        """Count a failure of the current part, durably; return whether to split it now (:meth:`divide`)."""
        self.failures.add(fault)
        enough = self.failures.alike >= SAME_FAILURES or self.failures.all >= ANY_FAILURES
        ranges = self.left[0].ranges
        is_one = ranges is not None and len(ranges) == 1 and ranges[0].first == ranges[0].last
        # A fault that already split a larger part, or a timeout, splits at once. A single record must fail three times.
        again = (fault.digest in self._known or fault.kind == "time") and not is_one
        if enough or again:
            self._known.add(fault.digest)
        self.note()
        return enough or again

    def divide(self, places: pa.Table, fault: Fault) -> bool:
        """Split the current part, or mark its only record as poison once it failed often enough; durably.

        *places* are its source locations (:meth:`measure`). Return False if there is no record, or if it cannot even be
        made a dead letter.
        """
        part = self.left[0]
        if places.num_rows > 1:
            self.cut(places)
        elif places.num_rows == 1 and self.failures.alike < SAME_FAILURES and self.failures.all < ANY_FAILURES:
            # A batch of one record that timed out: retry it.
            self.left[0] = replace(part, path=(*part.path, 0), ranges=single_range(places))
            self.note()
        elif places.num_rows == 1 and not part.bare:
            # A new path: rows that the failed attempt left in a table must not count as the dead letter.
            ranges = single_range(places)
            condemned = part.condemned or fault.text
            self.left[0] = BatchPart((*part.path, 0), ranges, condemned, bare=bool(part.condemned))
            self.failures = Failures()
            self.note()
        else:
            return False
        return True

    def cut(self, places: pa.Table, pieces: int = PIECES, *, by_bytes: bool = False) -> None:
        """Split the current part into at most *pieces* of about equal records or bytes, durably.

        *places* has two or more source locations. A batch that is too large must be split before its first write.
        """
        part = self.left[0]
        divisions = cut(places, pieces, by_bytes=by_bytes)
        self.left[:1] = [replace(part, path=(*part.path, n), ranges=ranges) for n, ranges in enumerate(divisions)]
        self.failures = Failures()
        self.note()

    def note(self) -> None:
        """Store what is left, durably."""
        self._noted = True
        note = PartsNote(self._generation.id, self.left, self.tally.to_json(), self.failures, sorted(self._known))
        self._store.note(self._query, self.number, note)


def single_range(places: pa.Table) -> Ranges:
    """Return the range of the only row in *places*."""
    channel, first, second, _ = (column[0].as_py() for column in places.itercolumns())
    return (Range(channel, first, second, first, second),)
