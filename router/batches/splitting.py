"""Which offsets one write of a batch has, and why: parts of a batch that is too large, or that failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from router.errors import Fault, StateError
from router.judging.judging import Kind
from router.judging.outputs import Tally
from router.logs import get_logger
from router.machine import BatchSizing
from router.reading.backlogs import BYTES, Range, Ranges, cut, within
from router.reading.generations import Generation, planned, ranges_of, records_in, spans_of
from router.reading.streams import ReadRanges, ReadSpans
from router.state.state import BatchNotes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A batch that is written in parts: since something in it cannot be judged or written, or since it is too large.
#
# The note ``state/batches/<query>/<batch>.parts`` says how the batch is cut. It is durable before the first write of
# any part, and parts are written in their order, one after the other, so that it holds what is left: the first part is
# the one at work. A part's identity is its *path*, () for the whole batch, and each part has commits of its own
# (:class:`router.sinks.contract.Commit`): a sink that has the whole, or a part that was cut further, has its parts too.
# So tables have every row once through crashes, further tries and further cuts.
#
# Counts of parts that are written stand in the note as well; those of the batch are their sum, once.
#
# A part that failed :data:`ALIKE` times alike, through restarts too, is cut. One of a single record becomes a dead
# letter ``undecodable`` that names the fault; if that fails alike, one that leaves out what Python would have to
# render.

ALIKE: Final = 3
"""Failures alike, one after the other, after which a batch or a part is cut."""
UNLIKE: Final = 10
"""Failures of any kind after which it is cut as well."""
PIECES: Final = 8
Path = tuple[int, ...]
WHOLE: Final[Path] = ()


@dataclass(frozen=True, slots=True)
class BatchPart:
    """What is written at one time: *ranges* None is the whole batch.

    *condemned* names the fault for which its only record becomes a dead letter; *bare* leaves its headers out there.
    """

    path: Path = WHOLE
    ranges: Ranges | None = None
    condemned: str = ""
    bare: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the part as JSON."""
        ranges = None if self.ranges is None else [each.to_json() for each in self.ranges]
        return {"path": list(self.path), "ranges": ranges, "condemned": self.condemned, "bare": self.bare}

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> BatchPart:
        """Return the part that :meth:`to_json` wrote."""
        ranges = None if form["ranges"] is None else tuple(Range.from_json(each) for each in form["ranges"])
        return cls(tuple(form["path"]), ranges, form["condemned"], form["bare"])


@dataclass(slots=True)
class Failures:
    """How the part at work has failed: *alike* times with the last fault, *all* times in all."""

    digest: str = ""
    alike: int = 0
    all: int = 0

    def add(self, fault: Fault) -> None:
        """Count one."""
        self.alike = self.alike + 1 if self.digest == fault.digest else 1
        self.digest = fault.digest
        self.all += 1


@dataclass(slots=True)
class BatchParts:
    """What is left of one batch, as its note has it; of one thread."""

    notes: BatchNotes
    query: str
    number: int
    generation: str
    left: list[BatchPart] = field(default_factory=lambda: [BatchPart()])
    tally: Tally = field(default_factory=Tally)
    failures: Failures = field(default_factory=Failures)
    known: set[str] = field(default_factory=set)
    noted: bool = False

    @classmethod
    def of(cls, notes: BatchNotes, query: str, number: int, generation: str) -> BatchParts:
        """Return the parts of a batch as noted; one that has no note is one part.

        Raises:
            StateError: the note is damaged.
        """
        note = notes.parts(query, number, generation)
        if note is None:
            return cls(notes, query, number, generation)
        try:
            left = [BatchPart.from_json(part) for part in note["left"]]
            failures = Failures(**note["failures"])
            tally, known = Tally.from_json(note["tally"]), set(note["known"])
        except (KeyError, TypeError, ValueError) as error:
            hint = "restore it from a backup; without it the batch is written from its start, and tables may double"
            raise StateError(
                f"the note of batch {number} of {query} in parts is damaged: {error}", hint=hint
            ) from error
        return cls(notes, query, number, generation, left, tally, failures, known, noted=True)

    @property
    def next(self) -> BatchPart | None:
        """The part to be written now; None when all are."""
        return self.left[0] if self.left else None

    def written(self, tally: Tally) -> None:
        """Note that the part at work is at all its sinks, with these counts."""
        self.tally.add(tally)
        self.left = self.left[1:]
        self.failures = Failures()
        if self.noted:
            self._note()

    def failed(self, fault: Fault) -> bool:
        """Count a failure of the part at work, durably; return whether it is to be cut now (:meth:`divide`)."""
        self.failures.add(fault)
        enough = self.failures.alike >= ALIKE or self.failures.all >= UNLIKE
        # A fault that cut a larger part, or took a whole time limit, need not come three times. To condemn a record,
        # it must.
        again = (fault.digest in self.known or fault.kind == "time") and not self._is_one
        if enough or again:
            self.known.add(fault.digest)
        self._note()
        return enough or again

    @property
    def _is_one(self) -> bool:
        ranges = self.left[0].ranges
        return ranges is not None and len(ranges) == 1 and ranges[0].first == ranges[0].last

    def divide(self, places: pa.Table, fault: Fault) -> bool:
        """Cut the part at work, or condemn its only record for *fault* once that came often enough; durably.

        *places* are those of its rows (:func:`router.reading.backlogs.extents`). False when there is nothing to cut: no
        record, or one that cannot even be made a dead letter.
        """
        part = self.left[0]
        if places.num_rows > 1:
            self.cut(places)
        elif places.num_rows == 1 and self.failures.alike < ALIKE and self.failures.all < UNLIKE:
            # A batch of one record, met by a limit of time: it has its further tries.
            self.left[0] = replace(part, path=(*part.path, 0), ranges=cut_one(places))
            self._note()
        elif places.num_rows == 1 and not part.bare:
            # It gets a path of its own: rows that the record's own try left in a table must not count as its letter.
            ranges = cut_one(places)
            condemned = part.condemned or fault.text
            self.left[0] = BatchPart((*part.path, 0), ranges, condemned, bare=bool(part.condemned))
            self._divided()
        else:
            return False
        return True

    def cut(self, places: pa.Table, pieces: int = PIECES, *, by_bytes: bool = False) -> None:
        """Cut the part at work into at most so many, of about as many records or bytes each; durably.

        *places* are those of its rows, two or more. Whoever finds a batch too large calls this before its first write.
        """
        part = self.left[0]
        divisions = cut(places, pieces, by_bytes=by_bytes)
        self.left[:1] = [replace(part, path=(*part.path, n), ranges=ranges) for n, ranges in enumerate(divisions)]
        self._divided()

    def _divided(self) -> None:
        self.failures = Failures()
        self._note()

    def _note(self) -> None:
        self.noted = True
        note = {
            "generation": self.generation,
            "left": [part.to_json() for part in self.left],
            "tally": self.tally.to_json(),
            "failures": {"digest": self.failures.digest, "alike": self.failures.alike, "all": self.failures.all},
            "known": sorted(self.known),
        }
        self.notes.note_parts(self.query, self.number, note)


def cut_one(places: pa.Table) -> Ranges:
    """Return the range of the one row in *places*."""
    channel, first, second, _ = (column[0].as_py() for column in places.itercolumns())
    return (Range(channel, (first, second), (first, second)),)


# Keeps the batches of one query within their bytes: measures those that may be too large, and reads them in parts.
#
# A batch may be planned too large: Spark counts records, and a range that is in the checkpoint stays as it is, whatever
# the settings say since. It is cut before its first write (:mod:`router.batches.splitting`), and each part reads its
# own offsets.

OWN_BATCHES: Final = 20
"""Batches that our own client reads behind one that Spark's source could not."""
TASK_RECORDS: Final = 1_000
"""Records that are worth a task of their own: judging fewer takes about as long as a task takes to begin and end."""
Measure: TypeAlias = Callable[[], pa.Table]
"""Gives the places of the rows at work (:func:`router.reading.backlogs.extents`), which takes a Spark job."""
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

    def rows(self, rows: DataFrame, number: int, part: BatchPart) -> DataFrame:
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

    def check(self, tally: Tally, number: int, part: BatchPart) -> None:
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
