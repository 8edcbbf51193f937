"""The pass in which workers write what tables get of a batch; the driver only gets names of files, and counts.

A :class:`Share` says what one sink gets. :class:`StagingPass` writes any number of shares of the same outcomes. It
either judges them on the way, or takes them from Spark, judged and kept. A worker gathers rows as long as it has room,
and writes the rest when its task ends. If a try of a task fails, or another try is quicker, its files are in no result,
and so in no commit.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from router.judging.arrow_outcomes import OUTCOME_COLUMNS, SOURCE_COLUMNS, outcome_rows, with_sizes
from router.judging.judging import judge_rows
from router.judging.stages import MATCHED
from router.judging.tally import Tally, collect
from router.judging.worker_memory import judging, load
from router.sinks.contract import Staged, StagedFile, Staging
from router.writing.sink_rows import SinkRows

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import DataFrame

    from catalog.definitions.targets import Target
    from router.judging.plan import Judge

ROOM: Final = 64 * 2**20
"""Bytes of rows that a worker gathers before it writes some of them; at most a quarter of what judging may take."""
_SHARE: Final = "share"
_CONTENT: Final = "content"
_RESULT: Final = f"{_SHARE} int, {_CONTENT} binary"
_RESULTS: Final = pa.schema([(_SHARE, pa.int32()), (_CONTENT, pa.binary())])
_FILES: Final = msgspec.msgpack.Decoder(list[StagedFile])
_COUNTS: Final = -1
"""The number, in place of a share's, of a result with the counts of an Arrow batch."""
Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Share:
    """What a sink gets of outcomes: events or dead letters on these routes, in its columns."""

    name: str
    letters: bool
    routes: tuple[int, ...]
    schema: pa.Schema
    staging: Staging


@dataclass(slots=True)
class StagedShares:
    """What workers staged in one attempt, by sink. Shared by all that look at parts of its outcomes.

    *targets* are those of the plan that judges it.
    """

    targets: Sequence[Target]
    staged: dict[tuple[str, bool], tuple[Share, Staged]] = field(default_factory=dict)

    def get(self, share: Share) -> Staged | None:
        """Return what was staged of a share; None when nothing has asked for it yet."""
        known = self.staged.get((share.name, share.letters))
        return None if known is None else known[1]

    def add(self, shares: Sequence[Share], results: Iterable[tuple[int, bytes]]) -> Tally:
        """Take in the results of a pass over these shares, and return what it counted."""
        files: list[list[StagedFile]] = [[] for _ in shares]
        counts: list[str] = []
        for number, content in results:
            if number == _COUNTS:
                counts.append(content.decode())
            else:
                files[number] += _FILES.decode(content)
        for share, written in zip(shares, files, strict=True):
            self.staged[(share.name, share.letters)] = (share, Staged(tuple(written)))
        return collect(counts, self.targets)

    def discard(self) -> None:
        """Remove the files that no sink was offered."""
        for share, staged in self.staged.values():
            if not staged.offered:
                share.staging.discard(staged.files)
        self.staged.clear()


@dataclass(frozen=True, slots=True)
class StagingPass:
    """Stages shares of the outcomes of one attempt."""

    rows: SinkRows
    shares: tuple[Share, ...]

    def of_source(self, source: DataFrame, judge: Broadcast[Judge]) -> DataFrame:
        """Return the results of judging a source's rows and staging their outcomes on the way.

        *source* is as :func:`router.judging.stages.prepared` gives it.
        """
        # More tasks than can run at a time would make more files, and no file would be ready sooner.
        at_a_time = source.sparkSession.sparkContext.defaultParallelism
        wanted = source.select(*SOURCE_COLUMNS[self.rows.kind]).coalesce(at_a_time)
        return wanted.mapInArrow(partial(_judged_and_staged, self, judge), _RESULT)

    def of_outcomes(self, outcomes: DataFrame, judge: Broadcast[Judge]) -> DataFrame:
        """Return the results of staging outcomes of :func:`router.judging.stages.unified`."""
        return outcomes.select(*OUTCOME_COLUMNS, "letter").mapInArrow(partial(_staged, self, judge), _RESULT)


def results_of(frame: DataFrame) -> list[tuple[int, bytes]]:
    """Run a pass, and return what its tasks say of their files."""
    table = frame.toArrow()
    return list(zip(table[_SHARE].to_pylist(), table[_CONTENT].to_pylist(), strict=True))


def _judged_and_staged(staging: StagingPass, judge: Broadcast[Judge], batches: Batches) -> Batches:
    kind = staging.rows.kind
    plan = load(judge)
    gathered = _Gathered(staging, plan)
    for batch in batches:
        rows = with_sizes(kind, batch)
        decided = judging(plan, rows.num_rows, partial(judge_rows, kind, plan, rows))
        if decided.counts is not None:
            yield _result(_COUNTS, decided.counts.encode())
        gathered.add(outcome_rows(kind, plan.outputs.type, rows, decided))
    yield from gathered.written()


def _staged(staging: StagingPass, judge: Broadcast[Judge], batches: Batches) -> Batches:
    gathered = _Gathered(staging, load(judge))
    for batch in batches:
        gathered.add(batch)
    yield from gathered.written()


class _Gathered:
    """The rows that one try of a task has for each share, and what it has written of them."""

    def __init__(self, staging: StagingPass, plan: Judge) -> None:
        self._staging = staging
        self._catalog = plan.typed
        self._room = min(ROOM, plan.memory // 4)
        self._task = task_name()
        self._rows: list[list[pa.Table]] = [[] for _ in staging.shares]
        self._files: list[list[StagedFile]] = [[] for _ in staging.shares]

    def add(self, outcomes: pa.RecordBatch) -> None:
        """Take the rows of each share out of some outcomes, and write the largest when there are too many."""
        routes = pc.struct_field(outcomes.column(MATCHED), "route")
        for number, share in enumerate(self._staging.shares):
            mask = pc.is_in(routes, pa.array(share.routes, pa.int32()))
            count = pc.sum(mask).as_py()
            if not count:
                continue
            taken = outcomes if count == outcomes.num_rows else outcomes.filter(mask)
            rows = self._staging.rows
            self._rows[number].append(rows.letters(taken) if share.letters else rows.events(taken, share.schema))
        while sum(sizes := [sum(each.nbytes for each in tables) for tables in self._rows]) > self._room:
            self._write(sizes.index(max(sizes)))

    def written(self) -> Batches:
        """Write what is left, and yield the results for the driver."""
        for number in range(len(self._rows)):
            self._write(number)
            if self._files[number]:
                yield _result(number, msgspec.msgpack.encode(self._files[number]))

    def _write(self, number: int) -> None:
        tables, self._rows[number] = self._rows[number], []
        if tables:
            staging = self._staging.shares[number].staging
            self._files[number] += staging.write(pa.concat_tables(tables), self._task, self._catalog)


def task_name() -> str:
    """Return a name for this try of a task of Spark, which no other has."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return f"{context.taskAttemptId() if context else os.getpid()}-{uuid4().hex[:12]}"


def _result(share: int, content: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{_SHARE: share, _CONTENT: content}], _RESULTS)
