"""The pass in which workers write what tables get of a batch; the driver only gets names of files, and counts.

A :class:`RowsForSink` says what one sink gets. :class:`StagingPass` writes any number of shares of the same outcomes.
It either judges them on the way, or takes them from Spark, judged and kept. A worker gathers rows as long as it has
room, and writes the rest when its task ends. If a try of a task fails, or another try is quicker, its files are in no
result, and so in no commit.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from router.judging.judging import Kind, judge_rows, judging, load
from router.judging.outputs import Tally, collect
from router.judging.plan import Plan
from router.judging.stages import MATCHED, OUTCOME_COLUMNS, SOURCE_COLUMNS, letter_ids, outcome_rows, with_sizes
from router.matching.context import RELATED
from router.matching.facts import SCHEMA_ID
from router.rendering.events import event_columns, native_texts
from router.rendering.texts import TYPED
from router.sinks.contract import Commit, Staged, StagedFile, Staging
from router.sinks.jsonlines import AMBIGUOUS, DEAD_LETTER

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import DataFrame

    from catalog.definitions.constraints import MatchCandidate
    from router.judging.plan import Judge

# Which batch is written, and under which name each sink keeps it.


@dataclass(frozen=True, slots=True)
class BatchId:
    """One batch of one query: ``generation`` makes its commits unique, ``failed`` is when its letters were made.

    ``part`` is the path of the part of it that is written (:mod:`router.batches.splitting`), () the whole. ``came_by``
    is the query that first read the records, and gives their letters ids; empty where it is this one.
    """

    kind: Kind
    query: str
    generation: str
    number: int
    failed: str
    part: tuple[int, ...] = ()
    came_by: str = ""

    @property
    def first_query(self) -> str:
        """The query that first read the records."""
        return self.came_by or self.query

    @property
    def label(self) -> str:
        """The part as text."""
        return ".".join(map(str, self.part))


def commit_of(name: str, batch: BatchId, *, letters: bool = False) -> Commit:
    """Return the identity of a batch, or a part of one, at a sink; of its events or of its dead letters."""
    paths = (batch.part[:depth] for depth in range(len(batch.part), -1, -1))
    app, *larger = (commit_app(batch.generation, name, letters=letters, part=path) for path in paths)
    return Commit(app, batch.number, tuple(larger))


def commit_app(generation: str, sink: str, *, letters: bool = False, part: Sequence[int] = ()) -> str:
    """Return the name under which a sink commits batches of a generation, or that part of them; events or letters."""
    return f"{'.'.join((generation, *map(str, part)))}-{sink}{'-letters' if letters else ''}"


# Outcomes as rows of sinks: whole Arrow batches as the columns of events or of dead letters, wherever they are.


@dataclass(frozen=True, slots=True)
class SinkRows:
    """Makes the rows of one attempt. ``failed`` is when its letters were made, ``epoch`` that of what judged it."""

    kind: Kind
    query: str
    epoch: str
    failed: str

    @classmethod
    def of(cls, batch: BatchId, plan: Plan) -> SinkRows:
        """Return that of a batch which a plan judges."""
        return cls(batch.kind, batch.first_query, plan.epoch, batch.failed)

    def events(self, outcomes: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
        """Return routed outcomes (``OUTCOME_COLUMNS``) as events with the columns of *schema*."""
        matched = outcomes.column(MATCHED)
        place = pc.struct_field(matched, "place")
        events = event_columns(self.kind, outcomes.column("raw"), pc.struct_field(matched, "attributes"), place)
        columns: dict[str, pa.Array] = dict(zip(events.type.names, events.flatten(), strict=True))
        fields = (
            "message",
            "endpoint",
            "context",
            TYPED,
            AMBIGUOUS,
            *(name for name in (*RELATED, SCHEMA_ID) if name in schema.names),
        )
        columns |= {name: pc.struct_field(matched, name) for name in fields}
        columns |= {name: outcomes.column(name) for name in ("position", "received", "protocol")}
        columns["data"] = outcomes.column("body")
        return _table(columns, schema, epoch=self.epoch)

    def letters(self, outcomes: pa.RecordBatch) -> pa.Table:
        """Return outcomes as dead letters; ids are made of positions where the outcomes have no column ``letter``."""
        matched = outcomes.column(MATCHED)
        columns = {name: pc.struct_field(matched, name) for name in ("reason", "detail", "nearest", "endpoint")}
        if self.kind != "kafka":
            came_by = pc.struct_field(outcomes.column("raw"), "endpoint")
            columns["endpoint"] = pc.coalesce(columns["endpoint"], came_by)
        columns |= {name: outcomes.column(name) for name in ("position", "received", "protocol", "body")}
        columns["native"] = native_texts(self.kind, outcomes.column("raw"), pc.struct_field(matched, "place"))
        if "letter" in outcomes.schema.names:
            columns["letter"] = outcomes.column("letter")
        else:
            columns["letter"] = pa.array(letter_ids(self.query, outcomes.column("position")), pa.string())
        failed = datetime.fromisoformat(self.failed)
        return _table(columns, DEAD_LETTER, epoch=self.epoch, failed=failed, attempts=1)


def _table(columns: dict[str, pa.Array], schema: pa.Schema, **same: Any) -> pa.Table:
    """Return the columns as a table; *same* are the values of those that are the same in every row."""
    rows = len(columns["position"])
    columns |= {name: pa.repeat(pa.scalar(value, schema.field(name).type), rows) for name, value in same.items()}
    return pa.table([columns[name].cast(schema.field(name).type) for name in schema.names], schema=schema)


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
class RowsForSink:
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

    targets: Sequence[MatchCandidate]
    staged: dict[tuple[str, bool], tuple[RowsForSink, Staged]] = field(default_factory=dict)

    def get(self, share: RowsForSink) -> Staged | None:
        """Return what was staged of a share; None when nothing has asked for it yet."""
        known = self.staged.get((share.name, share.letters))
        return None if known is None else known[1]

    def add(self, shares: Sequence[RowsForSink], results: Iterable[tuple[int, bytes]]) -> Tally:
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
    shares: tuple[RowsForSink, ...]

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
