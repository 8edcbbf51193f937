"""Evaluate Arrow batches of source rows in workers, with one compiled plan broadcast per epoch.

Without Spark, :func:`evaluate` evaluates dead letters with the current plan.
"""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.kafka.binding import INTEGERS
from bindings.kafka.binding import PROTOCOL as KAFKA
from bindings.kafka.record_columns import SOURCE_SCHEMA
from bindings.parts import Part
from bindings.protocols import binding_of
from router.evaluation.outputs import RoutedOutcomes
from router.evaluation.plan import TOPIC_PREFIX, Evaluator
from router.matching.inbox_columns import concat_record_columns, inbox_parts, read_inbox_rows, read_kafka_rows
from router.matching.index.classes import IntArray
from router.matching.record_columns import NO_SOURCE, RecordColumns

if TYPE_CHECKING:
    from pyspark import Accumulator, Broadcast, SparkContext
    from pyspark.accumulators import AccumulatorParam
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    TallyParam = AccumulatorParam[dict[str, str]]
else:
    TallyParam = object  # pyspark is not imported where records are matched without Spark.

# The kinds of sources: topics (``kafka``), the inbox (``inbox``), and replayed dead letters (``letters``).

Kind = Literal["kafka", "inbox", "letters"]


# The memory limit for evaluation in a Python worker of Spark.
#
# Above the limit a worker gets a ``MemoryError``, which fails its task with a reason. Without it the kernel would kill
# some process of the machine. The limit applies only while our code runs: Spark's own code hangs if it has no memory
# left to report an error.

WORKER_ENVIRONMENT: Final = {"MIMALLOC_ARENA_EAGER_COMMIT": "0"}
"""For the workers: otherwise Arrow's allocator reserves a gigabyte at once."""
MEMORY_SETTING: Final = "memory.worker"
_STATM: Final = Path("/proc/self/statm")
_DATA_FIELD: Final = 5
_MIB: Final = 2**20

T = TypeVar("T")


@dataclass(slots=True)
class _WorkerState:
    """The state of a worker: its memory before any plan, its current plan, and its memory limit with that plan."""

    base_bytes: int | None = None
    evaluator: Evaluator | None = None
    memory_limit: int = 0


_process: Final = _WorkerState()


def load_evaluator(broadcast: Broadcast[Evaluator]) -> Evaluator:
    """Return the compiled plan in a worker. The memory of the plan does not count against the limit."""
    before = private_memory_bytes()
    if _process.base_bytes is None:
        _process.base_bytes = before
    evaluator = broadcast.value
    if evaluator is not _process.evaluator:
        if _process.evaluator is not None:
            gc.unfreeze()
        _process.evaluator = evaluator
        # A compiled plan has hundreds of thousands of permanent objects: garbage collection need not visit them, nor
        # those from before the fork.
        gc.collect()
        gc.freeze()
        _process.memory_limit = _process.base_bytes + max(0, private_memory_bytes() - before) + evaluator.memory_limit
    return evaluator


def run_within_memory_limit(evaluator: Evaluator, rows: int, call: Callable[[], T]) -> T:
    """Return the result of *call*, run within the worker's memory limit; *rows* is for the error message.

    Raises:
        MemoryError: it needs more memory than the limit; names the setting. Its memory is free again.
    """
    try:
        return _run_limited(_process.memory_limit, call)
    except MemoryError:
        pass  # The traceback would keep all that was allocated.
    raise MemoryError(
        f"evaluating {rows} records needs more memory than {MEMORY_SETTING} allows a Python worker, "
        f"{evaluator.memory_limit // _MIB} MiB; raise {MEMORY_SETTING}"
    )


def private_memory_bytes() -> int:
    """Return the bytes that count against the limit: private writable memory, also if not resident."""
    try:
        return int(_STATM.read_text().split()[_DATA_FIELD]) * resource.getpagesize()
    except OSError:
        return 0  # Not Linux: the limit then applies to growth only, if at all.


def _run_limited(ceiling: int, call: Callable[[], T]) -> T:
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        ceiling = min(ceiling, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (ceiling, hard))
    try:
        return call()
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))


HEADER_PREFIX: Final = "headers."
INBOX_COLUMNS: Final = ("endpoint", "protocol", "received", "properties", "body", "position")


def evaluate_kafka(evaluator: Evaluator, rows: pa.RecordBatch) -> RoutedOutcomes:
    """Evaluate an Arrow batch of Kafka rows (``SOURCE_SCHEMA``)."""
    topics = pc.dictionary_encode(rows.column("topic"))
    numbers = [evaluator.channel_numbers.get(f"{TOPIC_PREFIX}{topic}", -1) for topic in topics.dictionary.to_pylist()]
    channels = np.array(numbers, np.int64)[topics.indices.to_numpy(zero_copy_only=False)]
    columns = read_kafka_rows(rows, evaluator.matcher, evaluator.kafka_reader, channels)
    outcomes = evaluator.matcher.match(columns)
    arrivals = rows.column("timestamp").to_numpy(zero_copy_only=False).astype(np.int64)
    sizes = pc.add(*(pc.fill_null(pc.binary_length(rows.column(name)), 0) for name in ("key", "value")))
    return evaluator.outputs.route_outcomes(outcomes, arrivals, sizes.to_numpy(zero_copy_only=False).astype(np.int64))


def evaluate_inbox(evaluator: Evaluator, batch: pa.RecordBatch) -> RoutedOutcomes:
    """Evaluate an Arrow batch of inbox rows."""
    outcomes = evaluator.matcher.match(_read_inbox_batch(evaluator, batch))
    return evaluator.outputs.route_outcomes(outcomes, _arrival_milliseconds(batch), _body_sizes(batch))


def evaluate_dead_letters(evaluator: Evaluator, batch: pa.RecordBatch) -> RoutedOutcomes:
    """Evaluate an Arrow batch of dead letters as new records of their sources; its columns are those of inbox rows.

    Kafka records are read as Kafka rows, so that their events have exactly the same bytes.
    """
    protocols = pc.dictionary_encode(batch.column("protocol"), null_encoding="encode")
    known = np.array([_is_kafka(name) for name in protocols.dictionary.to_pylist()], bool)
    is_kafka = known[protocols.indices.to_numpy()]
    kafka, rest = np.flatnonzero(is_kafka), np.flatnonzero(~is_kafka)
    columns: list[RecordColumns] = []
    arrivals, sizes = np.zeros(batch.num_rows, np.int64), np.zeros(batch.num_rows, np.int64)
    if len(kafka):
        rows = _to_kafka_rows(batch.take(pa.array(kafka)))
        sizes[kafka] = [len(row["key"] or b"") + len(row["value"] or b"") for row in rows]
        arrivals[kafka] = [row["timestamp"] or 0 for row in rows]
        columns.append(_read_kafka_batch(evaluator, rows, kafka))
    if len(rest):
        others = batch.take(pa.array(rest))
        arrivals[rest], sizes[rest] = _arrival_milliseconds(others), _body_sizes(others)
        columns.append(_with_row_numbers(_read_inbox_batch(evaluator, others), rest))
    both = columns[0] if len(columns) == 1 else concat_record_columns(columns[0], columns[1], evaluator.matcher.keys)
    return evaluator.outputs.route_outcomes(evaluator.matcher.match(both), arrivals, sizes)


def _read_inbox_batch(evaluator: Evaluator, batch: pa.RecordBatch) -> RecordColumns:
    return read_inbox_rows(batch, evaluator.matcher, evaluator.channel_numbers, evaluator.outputs.used_attributes)


def _arrival_milliseconds(batch: pa.RecordBatch) -> IntArray:
    """Return when rows arrived, in milliseconds; 0 if unknown."""
    moments = batch.column("received").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    milliseconds: IntArray = pc.fill_null(moments, 0).to_numpy() // 1000
    return milliseconds


def _body_sizes(batch: pa.RecordBatch) -> IntArray:
    """Return the bytes of bodies."""
    sizes: IntArray = pc.fill_null(pc.binary_length(batch.column("body")), 0).to_numpy().astype(np.int64)
    return sizes


def _with_row_numbers(columns: RecordColumns, numbers: IntArray) -> RecordColumns:
    """Return the columns with the row numbers *numbers* of the batch."""
    sources = np.where(columns.sources == NO_SOURCE, NO_SOURCE, numbers[columns.sources])
    return replace(columns, sources=sources, batches=frozenset(int(numbers[at]) for at in columns.batches))


def _is_kafka(protocol: str | None) -> bool:
    binding = binding_of(protocol or "")
    return binding is not None and binding.protocol == KAFKA


def _to_kafka_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return dead letters of Kafka as rows of its source, with the endpoint; ``received`` is not used."""
    names = ("endpoint", "properties", "body")
    rows = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
    return [{**to_kafka_row(inbox_parts(parts)), "value": body, "endpoint": xid} for xid, parts, body in rows]


def to_kafka_row(parts: Sequence[Part]) -> dict[str, Any]:
    """Return the row of Spark's Kafka source, without its value, for a record's parts."""
    scalars = {part.key: part for part in parts if not part.key.startswith(HEADER_PREFIX)}
    row: dict[str, Any] = {name: int(scalars[name].value or b"0") if name in scalars else None for name in INTEGERS}
    row["topic"] = scalars["topic"].text if "topic" in scalars else None
    row["key"] = scalars["key"].value if "key" in scalars else None
    headers = (part for part in parts if part.key.startswith(HEADER_PREFIX))
    row["headers"] = [{"key": part.key.removeprefix(HEADER_PREFIX), "value": part.value} for part in headers]
    return row


def _read_kafka_batch(evaluator: Evaluator, rows: Sequence[Mapping[str, Any]], numbers: IntArray) -> RecordColumns:
    """Read Kafka rows as columns, with the row numbers *numbers* of the batch."""
    # As when the record was read, the topic decides the channel. If no source reads it now, the endpoint decides.
    known = evaluator.channel_numbers
    channels = [known.get(f"{TOPIC_PREFIX}{row['topic']}", known.get(row["endpoint"] or "", -1)) for row in rows]
    table = pa.RecordBatch.from_pylist([{n: row[n] for n in SOURCE_SCHEMA.names} for row in rows], SOURCE_SCHEMA)
    columns = read_kafka_rows(table, evaluator.matcher, evaluator.kafka_reader, np.array(channels, np.int64))
    return _with_row_numbers(columns, numbers)


EVALUATORS: Final[Mapping[Kind, Callable[[Evaluator, pa.RecordBatch], RoutedOutcomes]]] = {
    "kafka": evaluate_kafka,
    "inbox": evaluate_inbox,
    "letters": evaluate_dead_letters,
}
"""The evaluation function for each kind of source."""


def evaluate(kind: Kind, evaluator: Evaluator, rows: pa.RecordBatch) -> RoutedOutcomes:
    """Evaluate an Arrow batch of source rows, with the shadow catalog beside it, if there is one."""
    shadow = evaluator.shadow
    return EVALUATORS[kind](evaluator, rows) if shadow is None else shadow.evaluate_with_shadow(kind, evaluator, rows)


class TallyAccumulator(TallyParam):
    """Accumulate tallies by Arrow batch, so that an Arrow batch that is evaluated again counts once.

    Spark repeats an evaluation when it loses the executor that had the result.
    """

    def zero(self, value: dict[str, str]) -> dict[str, str]:
        """Return the empty value."""
        return {}

    def addInPlace(self, value1: dict[str, str], value2: dict[str, str]) -> dict[str, str]:
        """Add the second tallies to the first."""
        value1.update(value2)
        return value1


@dataclass(slots=True)
class _TaskState:
    """The current Spark task of this worker, and the number of its Arrow batches so far."""

    attempt: int = -1
    batches: int = 0


_task: Final = _TaskState()


def _next_batch_id() -> str:
    """Return the id of the next Arrow batch in its Spark job; a repeated evaluation gives the same ids."""
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt, partition = (context.taskAttemptId(), context.partitionId()) if context else (0, 0)
    if attempt != _task.attempt:
        _task.attempt, _task.batches = attempt, 0
    _task.batches += 1
    return f"{partition}.{_task.batches}"


Batches = Iterator[pa.RecordBatch]


def evaluate_batches(
    kind: Kind,
    broadcast: Broadcast[Evaluator],
    tallies: Accumulator[dict[str, str]],
    render: Callable[[Evaluator, pa.RecordBatch, RoutedOutcomes], pa.RecordBatch],
    batches: Batches,
) -> Batches:
    """Evaluate Arrow batches of source rows in a worker; yield the result of *render* for each, and add up the tallies.

    Raises:
        MemoryError: an Arrow batch needs more memory than the limit.
    """
    evaluator = load_evaluator(broadcast)

    def evaluate_and_render(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, str | None]:
        outcomes = evaluate(kind, evaluator, rows)
        return render(evaluator, rows, outcomes), outcomes.tally

    for rows in batches:
        number = _next_batch_id()
        rendered, tally = run_within_memory_limit(evaluator, rows.num_rows, partial(evaluate_and_render, rows))
        if tally is not None:
            tallies.add({number: tally})
        yield rendered


@dataclass(frozen=True, slots=True)
class WorkerPass:
    """Columns and a function for workers, cached in the JVM of the Spark session and applied to many batches.

    Creating them takes hundreds of calls to the JVM; applying them takes two.
    """

    columns: Any
    function: Any

    @classmethod
    def create(
        cls, columns: Sequence[Column], names: Sequence[str], function: Callable[[Batches], Batches], schema: StructType
    ) -> WorkerPass:
        """Create a pass that selects *columns*, called *names*, and maps them to rows of *schema* with *function*."""
        from pyspark.sql import functions as F
        from pyspark.sql.classic.column import _to_java_column, _to_seq
        from pyspark.sql.pandas.functions import pandas_udf
        from pyspark.util import PythonEvalType

        udf = pandas_udf(function, returnType=schema, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)  # type: ignore[call-overload]
        return cls(_to_seq(spark_context(), columns, _to_java_column), udf(*map(F.col, names))._jc)

    def apply(self, rows: DataFrame) -> DataFrame:
        """Apply the function to *rows*, as ``rows.select(...).mapInArrow(...)`` does."""
        from pyspark.sql.classic.dataframe import DataFrame as Classic

        return Classic(rows._jdf.select(self.columns).mapInArrow(self.function, False, None), rows.sparkSession)


def spark_context() -> SparkContext:
    """Return the current session's context without a call to the JVM."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    assert context is not None
    return context
