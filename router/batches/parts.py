"""A batch that is written in parts: since something in it cannot be judged or written, or since it is too large.

The note ``state/batches/<query>/<batch>.parts`` says how the batch is cut. It is durable before the first write of any
part, and parts are written in their order, one after the other, so that it holds what is left: the first part is the
one at work. A part's identity is its *path*, () for the whole batch, and each part has commits of its own
(:class:`router.sinks.contract.Commit`): a sink that has the whole, or a part that was cut further, has its parts too.
So tables have every row once through crashes, further tries and further cuts.

Counts of parts that are written stand in the note as well; those of the batch are their sum, once.

A part that failed :data:`ALIKE` times alike, through restarts too, is cut. One of a single record becomes a dead
letter ``undecodable`` that names the fault; if that fails alike, one that leaves out what Python would have to render.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from router.errors import StateError
from router.faults import Fault
from router.judging.tally import Tally
from router.reading.extents import Range, Ranges, cut
from router.state.notes import BatchNotes

ALIKE: Final = 3
"""Failures alike, one after the other, after which a batch or a part is cut."""
UNLIKE: Final = 10
"""Failures of any kind after which it is cut as well."""
PIECES: Final = 8
Path = tuple[int, ...]
WHOLE: Final[Path] = ()


@dataclass(frozen=True, slots=True)
class Part:
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
    def from_json(cls, form: dict[str, Any]) -> Part:
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
    left: list[Part] = field(default_factory=lambda: [Part()])
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
            left = [Part.from_json(part) for part in note["left"]]
            failures = Failures(**note["failures"])
            tally, known = Tally.from_json(note["tally"]), set(note["known"])
        except (KeyError, TypeError, ValueError) as error:
            hint = "restore it from a backup; without it the batch is written from its start, and tables may double"
            raise StateError(
                f"the note of batch {number} of {query} in parts is damaged: {error}", hint=hint
            ) from error
        return cls(notes, query, number, generation, left, tally, failures, known, noted=True)

    @property
    def next(self) -> Part | None:
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

        *places* are those of its rows (:func:`router.reading.extents.extents`). False when there is nothing to cut: no
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
            self.left[0] = Part((*part.path, 0), ranges, condemned, bare=bool(part.condemned))
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
