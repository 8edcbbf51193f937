"""The judged records of an attempt as a DataFrame of Spark: every column that any step or sink takes of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from copy import copy
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa

from bindings.kafka.client import KafkaUnreachable
from bindings.kafka.ends import KafkaEnds
from router.errors import SinkError, fault_of, is_lost, is_unreadable, registry_away
from router.judging.carried import EXCHANGE
from router.judging.outputs import Tally
from router.judging.plan import Judge, Plan
from router.judging.stages import ARRIVED, HEADERS_TYPE, came_from, header, raw_records
from router.matching.facts import EVENT_MEDIA, SCHEMA_ID
from router.rendering.texts import TIME_TEXT, TYPED
from router.settings import KafkaSink, letter_sinks
from router.sinks.contract import Staged
from router.sinks.jsonlines import AMBIGUOUS, DEAD_LETTER, WIDE
from router.writing.kafka_columns import (
    event_column,
    framed_value,
    letter_headers,
    letter_value,
    native_column,
    order_key,
    sent_headers,
    sent_key,
    spilled_records,
    structured_column,
)
from router.writing.outcomes import REASON, RecordOutcome, Rejections
from router.writing.staging import BatchId, RowsForSink, SinkRows, StagedShares, StagingPass, results_of

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import Column, DataFrame

# Spark's own write to Kafka, and whose fault it is when it fails.

_ABSENT: Final = re.compile(r"Topic ([A-Za-z0-9._-]{1,249}) not present in metadata")
_DENIED: Final = "TopicAuthorizationException"


def save_to_kafka(rows: DataFrame, sink: KafkaSink, name: str, *, again: bool = False) -> None:
    """Write rows with the columns topic, key, value and headers, each acknowledged; *name* is that of the sink.

    Topics that do not exist are created where the sink says so, and all is written *again*.

    Raises:
        SinkError: the brokers did not take them all now; writing again is safe, at least once.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    options = sink.cluster().writing()
    try:
        rows.write.format("kafka").options(**options).save()
    except (PySparkException, Py4JJavaError) as error:
        if is_lost(str(error)) or is_unreadable(error) or registry_away(error) or fault_of(error) is not None:
            raise  # Not the sink's fault, and none that writing again can mend.
        told = str(error)
        if lacking := _ABSENT.search(told):
            if sink.create_topics is not None and not again:
                _create(rows, sink, name)
                return save_to_kafka(rows, sink, name, again=True)
            problem = f"Kafka at {sink.bootstrap_servers} has no topic {lacking[1]}, or shows it to no such login"
            hint = f"make topic {lacking[1]}, or grant the login Describe and Write on it; the batch is then written"
            raise SinkError(name, problem, hint=hint) from error
        problem = f"Kafka at {sink.bootstrap_servers} did not take the batch: {_cause(error)}"
        hint = "grant the login of the sink Write on it; the batch is then written" if _DENIED in told else ""
        raise SinkError(name, problem, hint=hint) from error


def _create(rows: DataFrame, sink: KafkaSink, name: str) -> None:
    """Create the topics of rows that do not exist; the rows are judged once more for it.

    Raises:
        SinkError: the brokers do not create one.
    """
    create_topics(sink, name, [each[0] for each in rows.select("topic").distinct().collect() if each[0]])


def create_topics(sink: KafkaSink, name: str, topics: Iterable[str]) -> None:
    """Create topics of a sink that do not exist, as it says.

    Raises:
        SinkError: the brokers do not answer, or do not create one.
    """
    wanted = sink.create_topics
    assert wanted is not None
    names = sorted(set(topics))
    how: dict[str, Any] = {
        "partitions": wanted.partitions,
        "replication": wanted.replication,
        "options": wanted.options,
    }
    try:
        failed = KafkaEnds(sink.cluster()).create(names, **how)
    except KafkaUnreachable as error:
        raise SinkError(name, str(error), hint="start the broker; the batch is then written") from error
    if failed:
        topic, why = next(iter(failed.items()))
        hint = f"correct create_topics of the sink, grant its login Create, or make topic {topic}"
        raise SinkError(name, f"Kafka at {sink.bootstrap_servers} does not create topic {topic}: {why}", hint=hint)


def _cause(error: Exception) -> str:
    """Return the line of a Spark error that says what happened."""
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    exceptions = [line for line in lines if "kafka" in line.lower() and "Exception" in line]
    return (exceptions or lines or ["unknown"])[-1 if exceptions else 0][:300]


AT_A_TIME: Final = 1000
"""Records that are Python objects of the driver at a time, of those that it pairs."""
_AMONG: Final = "among"
_TOPIC: Final = "sent_to"


class SparkOutcomes:
    """The :class:`~router.writing.outcomes.Outcomes` of rows as :func:`router.judging.stages.unified` gives them.

    *rows* gives these rows, when something asks for them. *tally* gives their counts once they were evaluated. *bare*
    is the source's row of a record whose dead letter leaves out what Python would have to render. *outgoing* are the
    records for one write to all sinks (:func:`router.writing.kafka_columns.OutgoingColumns`). With *staging* the
    outcomes are evaluated by one pass that stages all that sinks get, and are not kept: its shares, and the results.
    *judge* is the plan as workers have it, where they are to write.
    """

    def __init__(
        self,
        rows: Callable[[], DataFrame],
        batch: BatchId,
        plan: Plan,
        tally: Callable[[], Tally],
        *,
        bare: DataFrame | None = None,
        outgoing: DataFrame | None = None,
        staging: tuple[Sequence[RowsForSink], DataFrame] | None = None,
        judge: Broadcast[Judge] | None = None,
        may_reject: bool = False,
    ) -> None:
        self.may_reject = may_reject
        self._make = rows
        self._frame: DataFrame | None = None
        self._outgoing = outgoing
        self._staging = staging
        self._staged = StagedShares(plan.judge.matcher.targets)
        self._judge = judge
        self._batch = batch
        self._plan = plan
        self._tally = tally
        self._bare = bare

    def evaluate(self) -> Tally:
        if self._staging is not None:
            shares, results = self._staging
            return self._staged.add(shares, results_of(results))
        self._rows.persist().count()
        return self._tally()

    def tally(self) -> Tally:
        return self._tally()

    def release(self) -> None:
        self._staged.discard()
        if self._staging is None:
            self._rows.unpersist()

    def on_routes(self, routes: Sequence[int]) -> Self:
        return self._of(lambda: self._rows.where(_on_routes(routes)))

    def without(self, letters: Collection[str]) -> Self:
        return self._of(lambda: self._among("letter", letters, "left_anti")) if letters else self

    def letters(self, rejections: Rejections | None = None) -> Self:
        def dead() -> DataFrame:
            letters = self._rows.where("m.route < 0")
            # One write: a table drops a second one with the batch's commit.
            return letters.unionByName(self._rejected(rejections)) if rejections else letters

        return self._of(dead)

    def staged(self, share: RowsForSink) -> Staged:
        known = self._staged.get(share)
        if known is not None:
            return known
        if self._judge is None:
            raise ValueError("these outcomes have no plan in the workers, who are to write them")
        staging = StagingPass(SinkRows.of(self._batch, self._plan), (share,))
        self._staged.add([share], results_of(staging.of_outcomes(self._rows, self._judge)))
        staged = self._staged.get(share)
        assert staged is not None
        return staged

    def decisions(self) -> list[RecordOutcome]:
        return [_decision(row) for row in self._decided(self._rows).toArrow().to_pylist()]

    def keyed(self, keys: Collection[str] | None = None) -> list[RecordOutcome]:
        from pyspark.sql import functions as F

        keyed = self._of(
            lambda: self._decided(self._rows, order_key(self._batch.kind).alias("key")).where(F.col("key").isNotNull())
        )
        chosen = keyed._rows if keys is None else keyed._among("key", keys, "left_semi")
        return [_decision(row) for row in chosen.toArrow().to_pylist()]

    def exchanges(self) -> Iterator[dict[str, Any]]:
        from pyspark.sql import functions as F

        members = (F.col(f"m.{name}").alias(name) for name in ("message", "relation", EXCHANGE))
        related = self._rows.where(F.col(f"m.{EXCHANGE}").isNotNull())
        table = related.select("position", "received", *members).toArrow()
        for batch in table.to_batches(max_chunksize=AT_A_TIME):
            yield from batch.to_pylist()

    def topics(self, sink: str) -> list[str]:
        from pyspark.sql import functions as F

        distinct = self._rows.select(F.col(f"m.topic_{sink}").alias(_TOPIC)).distinct()
        names: list[str] = distinct.toArrow()[_TOPIC].to_pylist()
        return names

    def to_topics(self, sink: str, topics: Collection[str]) -> list[tuple[str, RecordOutcome]]:
        from pyspark.sql import functions as F

        sent = self._decided(self._rows, F.col(f"m.topic_{sink}").alias(_TOPIC))
        share = self._of(lambda: sent)._among(_TOPIC, topics, "left_semi").toArrow().to_pylist()
        return [(row.pop(_TOPIC), _decision(row)) for row in share]

    def events(self, schema: pa.Schema) -> pa.Table:
        from pyspark.sql import functions as F

        columns: dict[str, Column] = {field: F.col(f"e.{field}") for field in (*WIDE.names, TIME_TEXT)}
        columns |= {
            "data": F.col("body"),
            "message": F.col("m.message"),
            "endpoint": F.col("m.endpoint"),
            "position": F.col("position"),
            "protocol": F.col("protocol"),
            "context": F.col("m.context"),
            "received": F.col("received"),
            **{name: F.col(f"m.{name}") for name in (TYPED, AMBIGUOUS, *self._plan.rare)},
        }
        rows = self._rows.withColumn("e", event_column(self._batch.kind))
        return _table(rows, columns, schema, epoch=self._plan.epoch)

    def dead_letters(self) -> pa.Table:
        from pyspark.sql import functions as F

        columns: dict[str, Column] = {
            **{field: F.col(f"m.{field}") for field in ("reason", "detail", "nearest")},
            "endpoint": came_from(self._batch.kind),
            "letter": F.col("letter"),
            "protocol": F.col("protocol"),
            "native": native_column(self._batch.kind),
            "body": F.col("body"),
            "position": F.col("position"),
            "received": F.col("received"),
        }
        failed = datetime.fromisoformat(self._batch.failed)
        return _table(self._rows, columns, DEAD_LETTER, epoch=self._plan.epoch, failed=failed, attempts=1)

    def publish_events(self, sink: str) -> None:
        from pyspark.sql import functions as F

        settings = self._kafka(sink)
        frames = self._plan.written_frames(sink)
        value = structured_column(self._batch.kind) if settings.mode == "structured" else F.col("body")
        if frames:
            value = framed_value(value, frames, identified=SCHEMA_ID in self._plan.rare)
        headers = sent_headers(settings, self._plan.epoch, self._plan.rare)
        self._publish(sink, F.col(f"m.topic_{sink}"), sent_key(settings), value, headers)

    def publish_letters(self, sink: str) -> None:
        from pyspark.sql import functions as F

        self._publish(sink, F.col(f"m.letters_{sink}"), F.col("key"), letter_value(), self._letter_headers())

    def publish_all(self, sinks: Sequence[str]) -> None:
        if self._outgoing is None:
            raise ValueError("these outcomes have no records for one write to all sinks")
        self._save(self._outgoing, self._kafka(letter_sinks(self._plan.settings)[0]), ",".join(sinks))

    def spilled(self) -> Iterator[tuple[str, bytes]]:
        return spilled_records(self._rows, self._batch.kind)

    def left_out(self) -> Iterator[tuple[str, bytes]]:
        if self._bare is not None:
            yield from raw_records(self._bare, self._batch.kind, self._batch.first_query)

    @property
    def _rows(self) -> DataFrame:
        if self._frame is None:
            self._frame = self._make()
        return self._frame

    def _of(self, rows: Callable[[], DataFrame]) -> Self:
        share = copy(self)
        share._make, share._frame = rows, None
        return share

    def _among(self, column: str, values: Collection[str], how: str) -> DataFrame:
        """Return the rows that have (``left_semi``) or have not (``left_anti``) one of these values, in their order."""
        from pyspark.sql import functions as F

        table = pa.table({_AMONG: pa.array(sorted(values), pa.string())})
        among = F.broadcast(self._rows.sparkSession.createDataFrame(table))
        return self._rows.join(among, self._rows[column] == F.col(_AMONG), how)

    def _decided(self, rows: DataFrame, *more: Column) -> DataFrame:
        members = ("m.route", "m.endpoint", "m.message", "m.reason", "m.detail")
        return rows.select("position", "letter", *members, *more)

    def _rejected(self, rejections: Rejections) -> DataFrame:
        """Return the dead letters of rejected records, with the columns of the others."""
        from pyspark.sql import functions as F

        rows = self._rows
        table = rows.sparkSession.createDataFrame(rejections.table()).alias("rejection")
        letters = rows.join(F.broadcast(table), rows["position"] == F.col("rejection.at"))
        letters = letters.withColumn("body", F.when(F.col("m.replaced"), F.col(ARRIVED)).otherwise(F.col("body")))
        match = F.col("m").withField("reason", F.lit(REASON)).withField("detail", F.col("rejection.detail"))
        match = match.withField("passed", _headers_as_they_came()).withField("route", F.col("rejection.route"))
        size = F.coalesce(F.length("body"), F.lit(0)) + F.coalesce(F.length("key"), F.lit(0))
        match = match.withField("spilled", size > F.col("rejection.limit"))
        for name in self._plan.routes.letter_topics:
            match = match.withField(f"letters_{name}", F.col(f"rejection.letters_{name}"))
        return letters.withColumn("m", match).select(*rows.columns)

    def _letter_headers(self) -> Column:
        return letter_headers(self._batch.kind, self._plan.epoch, self._batch.failed)

    def _kafka(self, sink: str) -> KafkaSink:
        settings = self._plan.settings.sinks[sink].topics
        assert settings is not None
        return settings

    def _publish(self, sink: str, topic: Column, key: Column, value: Column, headers: Column) -> None:
        columns = {"topic": topic, "key": key, "value": value, "headers": headers}
        rows = self._rows.select(*(column.alias(name) for name, column in columns.items()))
        self._save(rows, self._kafka(sink), sink)

    def _save(self, rows: DataFrame, sink: KafkaSink, name: str) -> None:
        save_to_kafka(rows, sink, name)


def _decision(row: dict[str, Any]) -> RecordOutcome:
    return RecordOutcome(**{name: value for name, value in row.items() if value is not None})


def _on_routes(numbers: Sequence[int]) -> Column:
    from pyspark.sql import functions as F

    return F.col("m.route").isin(*numbers)


def _table(rows: DataFrame, columns: dict[str, Column], schema: pa.Schema, **same: Any) -> pa.Table:
    """Return the columns as a table; *same* are the values of columns that are the same in every row."""
    # They stay out of the plan: Spark writes an instant into generated code, and would compile each batch anew.
    table = rows.select(*(columns[name].alias(name) for name in schema.names if name not in same)).toArrow()
    for name, value in same.items():
        table = table.append_column(name, pa.repeat(pa.scalar(value, schema.field(name).type), table.num_rows))
    return table.select(schema.names).cast(schema)


def _headers_as_they_came() -> Column:
    """Return the headers of a rejected record's letter; for an event out of a batch with its own media type."""
    from pyspark.sql import functions as F

    came = F.coalesce(F.col("headers"), F.col("m.passed"), F.array().cast(HEADERS_TYPE))
    media = F.lit(EVENT_MEDIA.decode())

    def of_one(entry: Column) -> Column:
        replaced = F.struct(entry["key"].alias("key"), media.cast("binary").alias("value"))
        return F.when(F.lower(entry["key"]) == "content-type", replaced).otherwise(entry)

    named = F.exists(came, lambda entry: F.lower(entry["key"]) == "content-type")
    single = F.when(named, F.transform(came, of_one)).otherwise(F.concat(came, F.array(header("content-type", media))))
    # Without a place, null: then the headers as they came are taken.
    return F.when(F.col("m.place").isNotNull(), single)
