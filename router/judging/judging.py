"""The match UDF: rows of a source in, lists of outcomes out, one compiled plan broadcast per epoch.

Without Spark, :func:`judge_letters` says what would become of dead letters now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from bindings.kafka.codec import INTEGERS
from bindings.kafka.codec import PROTOCOL as KAFKA
from bindings.kafka.facts import SOURCE_SCHEMA, body_column
from bindings.parts import Part
from bindings.protocols import binding_of
from catalog.schemas.ids.frames import HEAD_BYTES
from router.judging.kinds import Kind
from router.judging.outputs import Decided
from router.judging.plan import TOPIC, Judge
from router.judging.worker_memory import judging, load
from router.matching.facts import NO_SOURCE, Facts
from router.matching.inbox_facts import facts_of_inbox, inbox_parts
from router.matching.index.columns import Int
from router.matching.joining import join
from router.matching.kafka_facts import HEAD, facts_of_kafka

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import Column

Judged = tuple[pa.ListArray, str | None]
"""A list for each row, of outcomes or what becomes of them, and their tally (:mod:`router.judging.tally`)."""
HEADER: Final = "headers."
SIZE: Final = "size"
"""Bytes of key and body of a Kafka row."""
INBOX_COLUMNS: Final = ("endpoint", "protocol", "received", "properties", "body", "position")


def judge_kafka(judge: Judge, rows: pa.RecordBatch) -> Decided:
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


def judge_inbox(judge: Judge, batch: pa.RecordBatch) -> Decided:
    """Judge one Arrow batch of inbox rows."""
    outcomes = judge.matcher.match(_facts_of_inbox(judge, batch))
    return judge.outputs.decide(outcomes, _arrivals(batch), _sizes(batch))


def judge_letters(judge: Judge, batch: pa.RecordBatch) -> Decided:
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


def _arrivals(batch: pa.RecordBatch) -> Int:
    """Return when rows arrived, in milliseconds; 0 for one that does not say."""
    moments = batch.column("received").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    milliseconds: Int = pc.fill_null(moments, 0).to_numpy() // 1000
    return milliseconds


def _sizes(batch: pa.RecordBatch) -> Int:
    """Return the bytes of bodies."""
    sizes: Int = pc.fill_null(pc.binary_length(batch.column("body")), 0).to_numpy().astype(np.int64)
    return sizes


def _placed(facts: Facts, numbers: Int) -> Facts:
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


def _facts_of_kafka_letters(judge: Judge, rows: Sequence[Mapping[str, Any]], numbers: Int) -> Facts:
    """Return the facts of rows of Kafka, whose places in the batch are *numbers*."""
    # The topic decides, as when the record was read. If no source reads that topic any more, the endpoint decides.
    places = judge.channels
    channels = [places.get(f"{TOPIC}{row['topic']}", places.get(row["endpoint"] or "", -1)) for row in rows]
    table = pa.RecordBatch.from_pylist([{n: row[n] for n in SOURCE_SCHEMA.names} for row in rows], SOURCE_SCHEMA)
    facts = facts_of_kafka(table, judge.matcher, judge.reader, np.array(channels, np.int64))
    return _placed(facts, numbers)


JUDGING: Final[Mapping[Kind, Callable[[Judge, pa.RecordBatch], Decided]]] = {
    "kafka": judge_kafka,
    "inbox": judge_inbox,
    "letters": judge_letters,
}
"""What judges the rows of each kind of source."""


def judge_rows(kind: Kind, judge: Judge, rows: pa.RecordBatch) -> Decided:
    """Judge one Arrow batch of a source's rows as a worker does: with the shadow catalog beside, if there is one."""
    return JUDGING[kind](judge, rows) if judge.shadow is None else judge.shadow.beside(kind, judge, rows)


class Tallies(AccumulatorParam[dict[str, str]]):
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
