"""The match UDF: rows of a source in, lists of outcomes out, one compiled plan broadcast per epoch.

Without Spark, :func:`judge_letters` says what would become of dead letters now.
"""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from bindings.kafka.binding import INTEGERS
from bindings.kafka.binding import PROTOCOL as KAFKA
from bindings.kafka.facts import SOURCE_SCHEMA, body_column
from bindings.parts import Part
from bindings.protocols import binding_of
from catalog.schemas.ids.deciding import HEAD_BYTES
from router.judging.outputs import RoutedOutcomes
from router.judging.plan import TOPIC, Judge
from router.matching.facts import NO_SOURCE, Facts
from router.matching.inbox_facts import HEAD, facts_of_inbox, facts_of_kafka, inbox_parts, join
from router.matching.index.classes import IntArray

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import Column

# The kinds of sources: topics (``kafka``), the inbox (``inbox``), and dead letters that are judged again.

Kind = Literal["kafka", "inbox", "letters"]


# A limit on the memory that judging takes in a Python worker of Spark.
#
# A worker that asks for more than it may have gets a ``MemoryError``, which fails its task with a reason. Without the
# limit the kernel would end some process of the machine. The limit holds only while our code runs: Spark's own code,
# when it has no memory left to report an error, waits for an answer that never comes.

ENVIRONMENT: Final = {"MIMALLOC_ARENA_EAGER_COMMIT": "0"}
"""For the workers: Arrow's allocator else takes a gigabyte at once, whether it needs it or not."""
SETTING: Final = "memory.worker"
_STATM: Final = Path("/proc/self/statm")
_DATA: Final = 5
_MIB: Final = 2**20

T = TypeVar("T")


@dataclass(slots=True)
class _Process:
    """What a worker knows of itself: its bytes ``bare`` of any plan, the plan it has, and its ceiling with that."""

    bare: int | None = None
    plan: Judge | None = None
    ceiling: int = 0


_process: Final = _Process()


def load(judge: Broadcast[Judge]) -> Judge:
    """Return the compiled plan, in a worker. What loading it takes is not counted against the limit."""
    before = data_bytes()
    if _process.bare is None:
        _process.bare = before
    plan = judge.value
    if plan is not _process.plan:
        if _process.plan is not None:
            gc.unfreeze()
        _process.plan = plan
        # A compiled plan is hundreds of thousands of objects that stay: collections need not look at them. Nor at what
        # lay in memory before the fork, as long as there was no plan before.
        gc.collect()
        gc.freeze()
        _process.ceiling = _process.bare + max(0, data_bytes() - before) + plan.memory
    return plan


def judging(plan: Judge, rows: int, judge: Callable[[], T]) -> T:
    """Return what *judge* returns, which looks at so many rows by the plan that was loaded.

    Raises:
        MemoryError: it needs more memory than there may be; names the setting. What it had taken is free again.
    """
    try:
        return _limited(_process.ceiling, judge)
    except MemoryError:
        pass  # Left behind before anything else, for its traceback holds on to all that was allocated.
    raise MemoryError(
        f"judging {rows} records takes a Python worker more memory than {SETTING} allows it, "
        f"{plan.memory // _MIB} MiB; raise {SETTING}"
    )


def data_bytes() -> int:
    """Return the bytes that count against the limit: private writable memory, resident or not."""
    try:
        return int(_STATM.read_text().split()[_DATA]) * resource.getpagesize()
    except OSError:
        return 0  # Not Linux: the limit below is then one on growth alone, if it holds at all.


def _limited(ceiling: int, call: Callable[[], T]) -> T:
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        ceiling = min(ceiling, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (ceiling, hard))
    try:
        return call()
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))


Judged = tuple[pa.ListArray, str | None]
"""A list for each row, of outcomes or what becomes of them, and their tally (:mod:`router.judging.outputs`)."""
HEADER: Final = "headers."
SIZE: Final = "size"
"""Bytes of key and body of a Kafka row."""
INBOX_COLUMNS: Final = ("endpoint", "protocol", "received", "properties", "body", "position")


def judge_kafka(judge: Judge, rows: pa.RecordBatch) -> RoutedOutcomes:
    """Judge one Arrow batch of Kafka rows: ``SOURCE_SCHEMA``, with bodies as :func:`body_column` has them, and
    ``SIZE``.
    """
    topics = pc.dictionary_encode(rows.column("topic"))
    numbers = [judge.channels.get(f"{TOPIC}{topic}", -1) for topic in topics.dictionary.to_pylist()]
    channels = np.array(numbers, np.int64)[topics.indices.to_numpy(zero_copy_only=False)]
    facts = facts_of_kafka(rows, judge.matcher, judge.reader, channels, bodies=bool(judge.bodies))
    outcomes = judge.matcher.match(facts)
    arrivals = rows.column("timestamp").to_numpy(zero_copy_only=False).astype(np.int64)
    sizes = rows.column(SIZE).to_numpy(zero_copy_only=False).astype(np.int64)
    return judge.outputs.decide(outcomes, arrivals, sizes)


def judge_inbox(judge: Judge, batch: pa.RecordBatch) -> RoutedOutcomes:
    """Judge one Arrow batch of inbox rows."""
    outcomes = judge.matcher.match(_facts_of_inbox(judge, batch))
    return judge.outputs.decide(outcomes, _arrivals(batch), _sizes(batch))


def judge_letters(judge: Judge, batch: pa.RecordBatch) -> RoutedOutcomes:
    """Judge one Arrow batch of dead letters, with the columns of an inbox row, as their own sources would now.

    Records of Kafka take the reading of Kafka's rows, so that they leave with the very bytes they would have left with.
    """
    protocols = pc.dictionary_encode(batch.column("protocol"), null_encoding="encode")
    known = np.array([_is_kafka(name) for name in protocols.dictionary.to_pylist()], bool)
    ours = known[protocols.indices.to_numpy()]
    kafka, rest = np.flatnonzero(ours), np.flatnonzero(~ours)
    facts: list[Facts] = []
    arrivals, sizes = np.zeros(batch.num_rows, np.int64), np.zeros(batch.num_rows, np.int64)
    if len(kafka):
        rows = _kafka_letters(batch.take(pa.array(kafka)))
        sizes[kafka] = [len(row["key"] or b"") + len(row["value"] or b"") for row in rows]
        arrivals[kafka] = [row["timestamp"] or 0 for row in rows]
        facts.append(_facts_of_kafka_letters(judge, rows, kafka))
    if len(rest):
        others = batch.take(pa.array(rest))
        arrivals[rest], sizes[rest] = _arrivals(others), _sizes(others)
        facts.append(_placed(_facts_of_inbox(judge, others), rest))
    both = facts[0] if len(facts) == 1 else join(facts[0], facts[1], judge.matcher.keys)
    return judge.outputs.decide(judge.matcher.match(both), arrivals, sizes)


def _facts_of_inbox(judge: Judge, batch: pa.RecordBatch) -> Facts:
    return facts_of_inbox(batch, judge.matcher, judge.channels, judge.outputs.attributes)


def _arrivals(batch: pa.RecordBatch) -> IntArray:
    """Return when rows arrived, in milliseconds; 0 for one that does not say."""
    moments = batch.column("received").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    milliseconds: IntArray = pc.fill_null(moments, 0).to_numpy() // 1000
    return milliseconds


def _sizes(batch: pa.RecordBatch) -> IntArray:
    """Return the bytes of bodies."""
    sizes: IntArray = pc.fill_null(pc.binary_length(batch.column("body")), 0).to_numpy().astype(np.int64)
    return sizes


def _placed(facts: Facts, numbers: IntArray) -> Facts:
    """Return the facts of rows whose places in the batch are *numbers*."""
    sources = np.where(facts.sources == NO_SOURCE, NO_SOURCE, numbers[facts.sources])
    return replace(facts, sources=sources, batches=frozenset(int(numbers[at]) for at in facts.batches))


def _is_kafka(protocol: str | None) -> bool:
    binding = binding_of(protocol or "")
    return binding is not None and binding.protocol == KAFKA


def _kafka_letters(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return letters of Kafka as rows of its source, with the endpoint; instants beyond the calendar are not read."""
    columns = ("endpoint", "properties", "body")
    given = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
    return [{**source_row(inbox_parts(parts)), "value": body, "endpoint": xid} for xid, parts, body in given]


def source_row(parts: Sequence[Part]) -> dict[str, Any]:
    """Return the row of Spark's Kafka source, without its value, that a record's parts were taken from."""
    scalars = {part.key: part for part in parts if not part.key.startswith(HEADER)}
    row: dict[str, Any] = {name: int(scalars[name].value or b"0") if name in scalars else None for name in INTEGERS}
    row["topic"] = scalars["topic"].text if "topic" in scalars else None
    row["key"] = scalars["key"].value if "key" in scalars else None
    headers = (part for part in parts if part.key.startswith(HEADER))
    row["headers"] = [{"key": part.key.removeprefix(HEADER), "value": part.value} for part in headers]
    return row


def _facts_of_kafka_letters(judge: Judge, rows: Sequence[Mapping[str, Any]], numbers: IntArray) -> Facts:
    """Return the facts of rows of Kafka, whose places in the batch are *numbers*."""
    # The topic decides, as when the record was read. If no source reads that topic any more, the endpoint decides.
    places = judge.channels
    channels = [places.get(f"{TOPIC}{row['topic']}", places.get(row["endpoint"] or "", -1)) for row in rows]
    table = pa.RecordBatch.from_pylist([{n: row[n] for n in SOURCE_SCHEMA.names} for row in rows], SOURCE_SCHEMA)
    facts = facts_of_kafka(table, judge.matcher, judge.reader, np.array(channels, np.int64))
    return _placed(facts, numbers)


JUDGING: Final[Mapping[Kind, Callable[[Judge, pa.RecordBatch], RoutedOutcomes]]] = {
    "kafka": judge_kafka,
    "inbox": judge_inbox,
    "letters": judge_letters,
}
"""What judges the rows of each kind of source."""


def judge_rows(kind: Kind, judge: Judge, rows: pa.RecordBatch) -> RoutedOutcomes:
    """Judge one Arrow batch of a source's rows as a worker does: with the shadow catalog beside, if there is one."""
    return JUDGING[kind](judge, rows) if judge.shadow is None else judge.shadow.beside(kind, judge, rows)


class TallyAccumulator(AccumulatorParam[dict[str, str]]):
    """An accumulator of the tallies of Arrow batches, by their places: one that is judged again counts once.

    Spark judges rows again when an executor is lost that kept them, or had written what another stage takes.
    """

    def zero(self, value: dict[str, str]) -> dict[str, str]:
        """Return no tallies."""
        return {}

    def addInPlace(self, value1: dict[str, str], value2: dict[str, str]) -> dict[str, str]:
        """Add the second tallies to the first."""
        value1.update(value2)
        return value1


@dataclass(slots=True)
class _Task:
    """The task that this worker is at, and how many Arrow batches of it were judged."""

    attempt: int = -1
    batches: int = 0


_task: Final = _Task()


def _place() -> str:
    """Return the place of an Arrow batch among those of its job: the same whenever it is judged."""
    context = TaskContext.get()
    attempt, partition = (context.taskAttemptId(), context.partitionId()) if context else (0, 0)
    if attempt != _task.attempt:
        _task.attempt, _task.batches = attempt, 0
    _task.batches += 1
    return f"{partition}.{_task.batches}"


def outcome_lists(kind: Kind, judge: Judge, rows: pa.RecordBatch) -> Judged:
    """Judge one Arrow batch of a source's rows; a list of outcomes for each."""
    return judge.outputs.lists(judge_rows(kind, judge, rows))


def judging_column(
    columns: Mapping[str, Column],
    judge: Broadcast[Judge],
    decide: Callable[[Judge, pa.RecordBatch], Judged],
    type_: pa.DataType,
    tallies: Accumulator[dict[str, str]],
) -> Column:
    """Return the column of what *decide* makes of Arrow batches of these columns, in the workers of Spark.

    The columns are those of :func:`judged_columns`.
    """
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import from_arrow_type

    names = list(columns)

    def judged(*arrays: pa.Array) -> pa.Array:
        plan = load(judge)
        rows = pa.RecordBatch.from_arrays(list(arrays), names=names)
        place = _place()
        outcomes, counts = judging(plan, rows.num_rows, lambda: decide(plan, rows))
        if counts is not None:
            tallies.add({place: counts})
        return outcomes

    # Spark cannot use annotations that are texts, as they are in all our modules.
    judged.__annotations__ = {"arrays": pa.Array, "return": pa.Array}
    column = cast("Callable[..., Column]", cast(Any, arrow_udf)(judged, returnType=from_arrow_type(type_)))
    return column(*columns.values())


def judged_columns(kind: Kind, judge: Judge) -> dict[str, Column]:
    """Return what judging takes of a source's rows; the same in every batch of a plan."""
    from pyspark.sql import functions as F

    if kind != "kafka":
        return {name: F.col(name) for name in INBOX_COLUMNS}
    columns = {name: F.col(name) for name in SOURCE_SCHEMA.names}
    judges = [judge] if judge.shadow is None else [judge, judge.shadow.judge]
    topics = frozenset[str]().union(*(each.bodies for each in judges))
    columns["value"] = body_column(topics, sniffs=any(each.reader.sniffs for each in judges))
    heads = frozenset[str]().union(*(each.heads for each in judges))
    if heads:
        columns[HEAD] = F.when(F.col("topic").isin(sorted(heads)), F.substring("value", 1, HEAD_BYTES))
    columns[SIZE] = F.coalesce(F.octet_length("key"), F.lit(0)) + F.coalesce(F.octet_length("value"), F.lit(0))
    return columns
