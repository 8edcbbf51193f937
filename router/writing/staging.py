"""Write the files of tables in the workers; the driver gets only file names and counts.

A :class:`RowsForSink` (a *share*) selects the rows of one sink. :class:`SinkRows` writes the shares of the outcomes
of an attempt, which it evaluates itself or reads from Spark's cache. A worker buffers rows up to a limit, and writes
the rest when its task ends. The files of a failed or superseded task attempt are in no result, and so in no commit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from router.evaluation.evaluator import Batches, Kind, evaluate, load_evaluator, run_within_memory_limit
from router.evaluation.outcome_rows import OUTCOME, OUTCOME_COLUMNS, RAW_COLUMNS, build_outcome_rows, dead_letter_ids
from router.evaluation.outputs import Tally, sum_tallies
from router.evaluation.plan import Plan
from router.matching.context import RELATED
from router.matching.record_columns import SCHEMA_ID
from router.rendering.events import event_columns, native_texts
from router.rendering.texts import TYPED
from router.sinks.contract import Commit, FileStager, StagedCommit, StagedFile
from router.sinks.jsonlines import AMBIGUOUS, DEAD_LETTER

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import DataFrame

    from catalog.definitions.constraints import MatchCandidate
    from router.evaluation.plan import Evaluator

# The id of a batch, and its transaction ids at sinks.


@dataclass(frozen=True, slots=True)
class BatchId:
    """One batch of one query: ``generation`` makes its commits unique, ``failed`` is the time of its dead letters.

    ``part`` is the path of the written part (:mod:`router.batches.splitting`), () for the whole batch. ``source_query``
    is the query that first read the records, from which dead letter ids are derived; '' for this query.
    """

    kind: Kind
    query: str
    generation: str
    number: int
    failed: str
    part: tuple[int, ...] = ()
    source_query: str = ""

    @property
    def first_query(self) -> str:
        """The query that first read the records."""
        return self.source_query or self.query

    @property
    def label(self) -> str:
        """The path of the part as text."""
        return ".".join(map(str, self.part))


def create_commit(name: str, batch: BatchId, *, letters: bool = False) -> Commit:
    """Return the transaction id of a batch or a part of one at a sink, for its events or its dead letters."""
    paths = (batch.part[:depth] for depth in range(len(batch.part), -1, -1))
    app, *larger = (commit_app_id(batch.generation, name, letters=letters, part=path) for path in paths)
    return Commit(app, batch.number, tuple(larger))


def commit_app_id(generation: str, sink: str, *, letters: bool = False, part: Sequence[int] = ()) -> str:
    """Return the app id of a sink's commits for a generation, or a part of a batch; for events or dead letters."""
    return f"{'.'.join((generation, *map(str, part)))}-{sink}{'-letters' if letters else ''}"


# Outcomes as the rows of sinks: Arrow batches of events or dead letters.


@dataclass(frozen=True, slots=True)
class RowsForSink:
    """The rows of one sink: events or dead letters on these routes, in its columns."""

    sink: str
    dead_letters: bool
    routes: tuple[int, ...]
    schema: pa.Schema
    staging: FileStager


@dataclass(frozen=True, slots=True)
class SinkRows:
    """Converts the outcomes of one attempt to rows, and stages the files of ``shares`` of them.

    ``failed`` is the time of its dead letters.
    """

    kind: Kind
    query: str
    epoch: str
    failed: str
    shares: tuple[RowsForSink, ...] = ()

    @classmethod
    def for_batch(cls, batch: BatchId, plan: Plan, *shares: RowsForSink) -> SinkRows:
        """Create the converter for a batch with its plan."""
        return cls(batch.kind, batch.first_query, plan.epoch, batch.failed, shares)

    def to_events(self, outcomes: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
        """Convert routed outcomes (``OUTCOME_COLUMNS``) to events with the columns of *schema*."""
        matched = outcomes.column(OUTCOME)
        place = pc.struct_field(matched, "position_in_batch")
        events = event_columns(self.kind, outcomes.column("raw"), pc.struct_field(matched, "attributes"), place)
        columns: dict[str, pa.Array] = dict(zip(events.type.names, events.flatten(), strict=True))
        optional = (name for name in (*RELATED, SCHEMA_ID) if name in schema.names)
        fields = ("message", "endpoint", "context", TYPED, AMBIGUOUS, *optional)
        columns |= {name: pc.struct_field(matched, name) for name in fields}
        columns |= {name: outcomes.column(name) for name in ("position", "received", "protocol")}
        columns["data"] = outcomes.column("body")
        return _to_table(columns, schema, epoch=self.epoch)

    def to_dead_letters(self, outcomes: pa.RecordBatch) -> pa.Table:
        """Convert outcomes to dead letters; their ids derive from positions if there is no column ``letter``."""
        matched = outcomes.column(OUTCOME)
        columns = {name: pc.struct_field(matched, name) for name in ("reason", "detail", "nearest", "endpoint")}
        if self.kind != "kafka":
            came_by = pc.struct_field(outcomes.column("raw"), "endpoint")
            columns["endpoint"] = pc.coalesce(columns["endpoint"], came_by)
        columns |= {name: outcomes.column(name) for name in ("position", "received", "protocol", "body")}
        numbers = pc.struct_field(matched, "position_in_batch")
        columns["native"] = native_texts(self.kind, outcomes.column("raw"), numbers)
        if "letter" in outcomes.schema.names:
            columns["letter"] = outcomes.column("letter")
        else:
            columns["letter"] = pa.array(dead_letter_ids(self.query, outcomes.column("position")), pa.string())
        failed = datetime.fromisoformat(self.failed)
        return _to_table(columns, DEAD_LETTER, epoch=self.epoch, failed=failed, attempts=1)

    def collect_events(self, outcomes: DataFrame, schema: pa.Schema) -> pa.Table:
        """Convert routed outcomes in Spark to events, in the workers, and collect them."""
        return _collect_in_spark(outcomes.select(*OUTCOME_COLUMNS), partial(self.to_events, schema=schema), schema)

    def collect_dead_letters(self, outcomes: DataFrame) -> pa.Table:
        """Convert outcomes in Spark to dead letters, in the workers, and collect them."""
        return _collect_in_spark(outcomes.select(*OUTCOME_COLUMNS, "letter"), self.to_dead_letters, DEAD_LETTER)

    def stage_source(self, source: DataFrame, judge: Broadcast[Evaluator]) -> DataFrame:
        """Evaluate and stage rows of :func:`router.evaluation.outcome_rows.normalize_rows`, and return the results."""
        # More tasks than can run at once would make more files without being faster.
        parallelism = source.sparkSession.sparkContext.defaultParallelism
        rows = source.select(*RAW_COLUMNS[self.kind]).coalesce(parallelism)
        return rows.mapInArrow(partial(_evaluate_and_stage, self, judge), _RESULT)

    def stage_outcomes(self, outcomes: DataFrame, judge: Broadcast[Evaluator]) -> DataFrame:
        """Stage outcomes of :mod:`router.evaluation.outcome_rows`, and return the results."""
        return outcomes.select(*OUTCOME_COLUMNS, "letter").mapInArrow(partial(_stage_outcomes, self, judge), _RESULT)


def _collect_in_spark(outcomes: DataFrame, render: Callable[[pa.RecordBatch], pa.Table], schema: pa.Schema) -> pa.Table:
    from pyspark.sql.pandas.types import from_arrow_schema

    def render_batches(batches: Batches) -> Batches:
        for batch in batches:
            yield from render(batch).to_batches()

    return outcomes.mapInArrow(render_batches, from_arrow_schema(schema)).toArrow().cast(schema)


def _to_table(columns: dict[str, pa.Array], schema: pa.Schema, **same: Any) -> pa.Table:
    """Return the columns as a table; *same* has the constant columns."""
    rows = len(columns["position"])
    columns |= {name: pa.repeat(pa.scalar(value, schema.field(name).type), rows) for name, value in same.items()}
    return pa.table([columns[name].cast(schema.field(name).type) for name in schema.names], schema=schema)


MAX_BUFFER_BYTES: Final = 64 * 2**20
"""Maximum bytes that a worker buffers before it writes; at most a quarter of its memory limit."""
_SHARE: Final = "share"
_CONTENT: Final = "content"
_RESULT: Final = f"{_SHARE} int, {_CONTENT} binary"
_RESULTS: Final = pa.schema([(_SHARE, pa.int32()), (_CONTENT, pa.binary())])
_FILES: Final = msgspec.msgpack.Decoder(list[StagedFile])
_TALLY: Final = -1
"""The share number of a result that has the tally of an Arrow batch."""


@dataclass(slots=True)
class StagedFiles:
    """The files that workers staged in one attempt, by sink; all subsets of its outcomes use the same files.

    *targets* are those of the plan.
    """

    targets: Sequence[MatchCandidate]
    staged: dict[tuple[str, bool], tuple[RowsForSink, StagedCommit]] = field(default_factory=dict)

    def get(self, share: RowsForSink) -> StagedCommit | None:
        """Return the staged files of a share; None if it is not staged yet."""
        return self.staged.get((share.sink, share.dead_letters), (None, None))[1]

    def add(self, shares: Sequence[RowsForSink], results: Iterable[tuple[int, bytes]]) -> Tally:
        """Add the results of a pass over these shares, and return its tally."""
        files: list[list[StagedFile]] = [[] for _ in shares]
        counts: list[str] = []
        for number, content in results:
            if number == _TALLY:
                counts.append(content.decode())
            else:
                files[number] += _FILES.decode(content)
        for share, written in zip(shares, files, strict=True):
            self.staged[(share.sink, share.dead_letters)] = (share, StagedCommit(tuple(written)))
        return sum_tallies(counts, self.targets)

    def discard(self) -> None:
        """Remove the files that were not passed to a sink."""
        for share, staged in self.staged.values():
            if not staged.offered:
                share.staging.discard(staged.files)
        self.staged.clear()


def collect_results(frame: DataFrame) -> list[tuple[int, bytes]]:
    """Run a pass, and collect the results of its tasks."""
    table = frame.toArrow()
    return list(zip(table[_SHARE].to_pylist(), table[_CONTENT].to_pylist(), strict=True))


def _evaluate_and_stage(staging: SinkRows, judge: Broadcast[Evaluator], batches: Batches) -> Batches:
    kind = staging.kind
    evaluator = load_evaluator(judge)
    buffer = _StagingBuffer(staging, evaluator)
    for batch in batches:
        outcomes = run_within_memory_limit(evaluator, batch.num_rows, partial(evaluate, kind, evaluator, batch))
        if outcomes.tally is not None:
            yield _result_batch(_TALLY, outcomes.tally.encode())
        buffer.add(build_outcome_rows(kind, evaluator.outputs.outcome_type, batch, outcomes))
    yield from buffer.finish()


def _stage_outcomes(staging: SinkRows, judge: Broadcast[Evaluator], batches: Batches) -> Batches:
    buffer = _StagingBuffer(staging, load_evaluator(judge))
    for batch in batches:
        buffer.add(batch)
    yield from buffer.finish()


class _StagingBuffer:
    """The buffered rows and written files of each share in one task attempt."""

    def __init__(self, staging: SinkRows, evaluator: Evaluator) -> None:
        self._staging = staging
        self._catalog = evaluator.typed_catalog
        self._max_bytes = min(MAX_BUFFER_BYTES, evaluator.memory_limit // 4)
        self._task = unique_task_name()
        self._rows: list[list[pa.Table]] = [[] for _ in staging.shares]
        self._files: list[list[StagedFile]] = [[] for _ in staging.shares]

    def add(self, outcomes: pa.RecordBatch) -> None:
        """Buffer the rows of each share, and write the largest buffer when the limit is reached."""
        routes = pc.struct_field(outcomes.column(OUTCOME), "route")
        for number, share in enumerate(self._staging.shares):
            mask = pc.is_in(routes, pa.array(share.routes, pa.int32()))
            count = pc.sum(mask).as_py()
            if not count:
                continue
            chosen = outcomes if count == outcomes.num_rows else outcomes.filter(mask)
            rows = self._staging
            table = rows.to_dead_letters(chosen) if share.dead_letters else rows.to_events(chosen, share.schema)
            self._rows[number].append(table)
        while sum(sizes := [sum(each.nbytes for each in tables) for tables in self._rows]) > self._max_bytes:
            self._write(sizes.index(max(sizes)))

    def finish(self) -> Batches:
        """Write the remaining rows, and yield the results for the driver."""
        for number in range(len(self._rows)):
            self._write(number)
            if self._files[number]:
                yield _result_batch(number, msgspec.msgpack.encode(self._files[number]))

    def _write(self, number: int) -> None:
        tables, self._rows[number] = self._rows[number], []
        if tables:
            staging = self._staging.shares[number].staging
            self._files[number] += staging.write(pa.concat_tables(tables), self._task, self._catalog)


def unique_task_name() -> str:
    """Return a unique name for this Spark task attempt."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return f"{context.taskAttemptId() if context else os.getpid()}-{uuid4().hex[:12]}"


def _result_batch(share: int, content: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{_SHARE: share, _CONTENT: content}], _RESULTS)
