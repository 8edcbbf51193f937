"""The outcomes of a batch for the steps that write them: in Spark, one by one on the driver, and rejected by sinks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa

from bindings.kafka.client import KafkaUnreachable
from bindings.kafka.offsets import KafkaOffsets
from router.errors import SinkError, find_batch_fault, find_lost_registry, is_data_loss, is_timestamp_overflow
from router.evaluation.evaluator import Kind
from router.evaluation.forwarding import EXCHANGE
from router.evaluation.outcome_rows import (
    HEADERS_TYPE,
    ORIGINAL_BODY,
    OUTCOME_COLUMNS,
    header_column,
    iter_source_rows,
    source_column,
)
from router.evaluation.outputs import Tally
from router.evaluation.plan import Evaluator, Plan
from router.matching.record_columns import EVENT_MEDIA
from router.routing import Routes, SizeLimits
from router.settings import KafkaSink, dead_letter_sinks
from router.settings.routes import make_dead_letter_values
from router.sinks.contract import RejectedRow, StagedCommit, WriteResult
from router.writing.kafka_records import KafkaRecords, iter_spilled_records, order_key_column
from router.writing.staging import BatchId, RowsForSink, SinkRows, StagedFiles, collect_results

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True, slots=True)
class RecordOutcome:
    """The outcome of one record, without the record: ``letter`` is the id of its actual or possible dead letter.

    ``route`` is negative for a dead letter. ``key`` is the ordering key, if requested.
    """

    position: str
    letter: str
    route: int
    endpoint: str = ""
    message: str = ""
    reason: str = ""
    detail: str = ""
    key: str = ""


HeldBack = Mapping[RecordOutcome, str]
"""The routed records that go to no sink, each with the id of the dead letter of its key that it waits for."""

# Routed records that a sink rejected (MATCHING.md#sink-rejected).
#
# A rejected record becomes one dead letter, ``sink-rejected``, even if several sinks rejected it: the dead letter names
# the sinks and their reasons. Dead letters are written after all events and before the batch is committed: a crash
# between them repeats the batch and loses none. In the tally the record moves from routed to dead-letter. The circuit
# breaker does not count it, since it acts before the first write.
#
# A batch that an operator moves to dead letters is handled alike. The detail ``sink NAME: why; sink OTHER: why`` names
# exactly the sinks that lack the record, so a replay sends it only to those.

SINK_REJECTED: Final = "sink-rejected"
MAX_DETAIL_CHARS: Final = 3_900
"""Maximum characters of a detail; the limit for Kafka headers is higher, so no sink's name is truncated."""
_SINK_NAMES: Final = re.compile(r"(?:^|; )sink ([^:;]+): ")
_NAME_ESCAPES: Final = {"%": "%25", ":": "%3A", ";": "%3B"}
"""Characters of sink names that must be escaped, the escape character first."""


def format_detail(reasons: Mapping[str, str]) -> str:
    """Format the reasons by sink as the detail of a dead letter, with all sink names in full."""
    # A reason must not look like the name of another sink.
    escaped = {_escape_name(name): why.replace("; sink ", ", sink ") for name, why in reasons.items()}
    share = max(0, MAX_DETAIL_CHARS // max(1, len(escaped)) - max(map(len, escaped), default=0) - len("; sink : "))
    return "; ".join(f"sink {name}: {why[:share]}" for name, why in escaped.items())


def parse_sinks(detail: str) -> tuple[str, ...]:
    """Return the sinks in the detail of a dead letter (:func:`format_detail`); () if none."""
    if not detail.startswith("sink "):
        return ()
    return tuple(dict.fromkeys(_unescape_name(name) for name in _SINK_NAMES.findall(detail)))


def _escape_name(name: str) -> str:
    for mark, code in _NAME_ESCAPES.items():
        name = name.replace(mark, code)
    return name


def _unescape_name(name: str) -> str:
    for mark, code in reversed(_NAME_ESCAPES.items()):
        name = name.replace(code, mark)
    return name


class Rejections:
    """What sinks said of one attempt: the records that they rejected, and how many rows they have.

    *routes* and *limits* are those of the dead letters. A sink that said nothing counts as complete: Spark's write to
    Kafka fails unless every record was acknowledged, and earlier attempts checked what sinks said. A repeated commit is
    complete too: the sink only knows that it has the commit, and reports the rows of this attempt.
    """

    def __init__(self, routes: Routes, limits: SizeLimits) -> None:
        self._routes = routes
        self._limits = limits
        self._reported_rows: dict[tuple[str, bool], int] = {}
        self._records: dict[str, RejectedRow] = {}
        self._details: dict[str, dict[str, str]] = {}

    def __bool__(self) -> bool:
        """Whether anything was rejected."""
        return bool(self._records)

    @property
    def counts(self) -> Counter[tuple[str, str]]:
        """The number of rejected records by endpoint and definition."""
        return Counter((record.endpoint, record.message) for record in self._records.values())

    def count_of_sink(self, sink: str) -> Counter[str]:
        """Return the number of records that one sink rejected, by endpoint."""
        rejected = (self._records[position] for position, sinks in self._details.items() if sink in sinks)
        return Counter(record.endpoint for record in rejected)

    @property
    def dead_letter_routes(self) -> frozenset[int]:
        """The routes of the rejected records' dead letters."""
        return frozenset(map(self._route_of, self._records.values()))

    def count_dead_letters(self, routes: Collection[int]) -> Counter[str]:
        """Count the rejected records whose dead letters have one of these routes, by endpoint."""
        records = self._records.values()
        return Counter(record.endpoint for record in records if self._route_of(record) in routes)

    def _route_of(self, record: RejectedRow) -> int:
        return self._routes.dead_letter_route(record.endpoint, SINK_REJECTED)

    @property
    def details(self) -> dict[str, str]:
        """The detail of each rejected record's dead letter, by position."""
        return {position: format_detail(reasons) for position, reasons in self._details.items()}

    def add(self, sink: str, rejected: Iterable[RejectedRow]) -> None:
        """Add the rejections of one sink."""
        for record in rejected:
            self._records[record.position] = record
            self._details.setdefault(record.position, {})[sink] = record.reason

    def to_table(self) -> pa.Table:
        """Return the columns of each rejected record's dead letter, by position (``at``).

        The columns are the detail, the route and topics, and the bytes above which it is spilled (``limit``).
        """
        records = list(self._records.values())
        routes = [self._route_of(record) for record in records]
        columns: dict[str, list[str]] = {
            "at": [record.position for record in records],
            "detail": [format_detail(self._details[record.position]) for record in records],
        }
        for name, template in self._routes.dead_letter_topics.items():
            values = (make_dead_letter_values(record.endpoint, SINK_REJECTED) for record in records)
            columns[f"letters_{name}"] = [template.expand(each, escape="_") for each in values]
        numbers = {
            "route": pa.array(routes, pa.int32()),
            "limit": pa.array([self._limits.max_bytes(route) for route in routes], pa.int64()),
        }
        return pa.table({**{name: pa.array(values, pa.string()) for name, values in columns.items()}, **numbers})

    def report_rows(self, sink: str, result: WriteResult, *, letters: bool = False) -> None:
        """Note the rows that a sink has of the events or dead letters."""
        self._reported_rows[sink, letters] = result.rows + result.before

    def ignore_rows(self, sink: str) -> None:
        """Ignore what a sink said of its events: it already has the batch that contains this part."""
        self._reported_rows.pop((sink, False), None)

    def count_deliveries(self, tally: Tally) -> None:
        """Add to the tally of the evaluation what each sink has received, and what it should have and has not."""
        for letters, sinks in ((False, self._routes.event_sinks), (True, self._routes.dead_letter_sinks)):
            for name, numbers in sinks.items():
                due, size = Counter[str](), Counter[str]()
                for (endpoint, route), (count, bytes_) in tally.routes.items():
                    if route in numbers:
                        due[endpoint] += count
                        size[endpoint] += bytes_
                if letters:
                    due += self.count_dead_letters(numbers)
                else:
                    due -= self.count_of_sink(name)
                rows = self._reported_rows.get((name, letters))
                tally.missing += 0 if rows is None else max(0, due.total() - rows)
                for endpoint, count in due.items():
                    tally.delivered[name, endpoint] += count
                    tally.delivered_bytes[name, endpoint] += size[endpoint]


# Spark's write to Kafka, and the cause when it fails.

_ABSENT_TOPIC: Final = re.compile(r"Topic ([A-Za-z0-9._-]{1,249}) not present in metadata")
_DENIED: Final = "TopicAuthorizationException"


def save_to_kafka(rows: DataFrame, sink: KafkaSink, name: str, *, again: bool = False) -> None:
    """Write rows with the columns topic, key, value and headers, each acknowledged, to the sink *name*.

    Missing topics are created if the sink is configured to, and all rows are written *again*.

    Raises:
        SinkError: the brokers did not accept all of them; repeating is safe (at least once).
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    options = sink.cluster().sink_options()
    try:
        rows.write.format("kafka").options(**options).save()
    except (PySparkException, Py4JJavaError) as error:
        message, fault = str(error), find_lost_registry(error) or find_batch_fault(error)
        if fault or is_data_loss(message) or is_timestamp_overflow(error):
            raise  # Not the sink's fault, and a retry would not help.
        if absent := _ABSENT_TOPIC.search(message):
            if sink.create_topics is not None and not again:
                # This evaluates the rows once more.
                create_topics(sink, name, [each[0] for each in rows.select("topic").distinct().collect() if each[0]])
                return save_to_kafka(rows, sink, name, again=True)
            problem = f"Kafka at {sink.bootstrap_servers} has no topic {absent[1]}, or hides it from this login"
            hint = f"create topic {absent[1]}, or grant the login Describe and Write on it; the batch is then written"
            raise SinkError(name, problem, hint=hint) from error
        problem = f"Kafka at {sink.bootstrap_servers} did not accept the batch: {_find_cause(error)}"
        hint = "grant the login of the sink Write on it; the batch is then written" if _DENIED in message else ""
        raise SinkError(name, problem, hint=hint) from error


def create_topics(sink: KafkaSink, name: str, topics: Iterable[str]) -> None:
    """Create missing topics of a sink as its settings say.

    Raises:
        SinkError: the brokers do not respond, or did not create a topic.
    """
    settings = sink.create_topics
    assert settings is not None
    names = sorted(set(topics))
    how: dict[str, Any] = {"partitions": settings.partitions, "replication": settings.replication}
    try:
        failed = KafkaOffsets(sink.cluster()).create_topics(names, **how, options=settings.options)
    except KafkaUnreachable as error:
        raise SinkError(name, str(error), hint="start the broker; the batch is then written") from error
    if failed:
        topic, why = next(iter(failed.items()))
        hint = f"correct create_topics of the sink, grant its login Create, or create topic {topic}"
        raise SinkError(name, f"Kafka at {sink.bootstrap_servers} did not create topic {topic}: {why}", hint=hint)


def _find_cause(error: Exception) -> str:
    """Find the relevant line of a Spark error."""
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    exceptions = [line for line in lines if "kafka" in line.lower() and "Exception" in line]
    return (exceptions or lines or ["unknown"])[-1 if exceptions else 0][:300]


# The outcomes of an attempt as a Spark DataFrame.

PAIRING_CHUNK: Final = 1000
"""Maximum number of records to pair that are Python objects at once."""
_VALUE_COLUMN: Final = "among"
_TOPIC_COLUMN: Final = "sent_to"


class Outcomes:
    """The outcomes of one attempt, or a selection of them. A repeated call has the same result.

    Rows stay in the workers, with the columns of :func:`router.evaluation.outcome_rows`: each method says what it
    returns to the driver. With ``may_reject`` a sink may still reject records; the original records are then kept for
    dead letters.

    *rows* returns the rows, *tally* their tally after evaluation. *bare* is the source row of a record with a bare dead
    letter. *outgoing* has the Kafka records for a single write (:mod:`router.writing.kafka_records`). *staging* has the
    shares and results of a pass that evaluates and stages everything, so that outcomes are not cached. *judge* is the
    broadcast plan, needed to stage files.
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
        judge: Broadcast[Evaluator] | None = None,
        may_reject: bool = False,
    ) -> None:
        self.may_reject = may_reject
        self._create_rows = rows
        self._frame: DataFrame | None = None
        self._outgoing = outgoing
        self.at_once = outgoing is not None
        """Whether one write evaluates the records and serves all sinks."""
        self._staging = staging
        self._staged = StagedFiles(plan.evaluator.matcher.targets)
        self._judge = judge
        self._batch = batch
        self._plan = plan
        self._tally = tally
        self._bare = bare

    def evaluate(self) -> Tally:
        """Evaluate all records and keep the outcomes until :meth:`release`; return their counts."""
        if self._staging is not None:
            shares, results = self._staging
            return self._staged.add(shares, collect_results(results))
        self._rows.persist().count()
        return self._tally()

    def tally(self) -> Tally:
        """Return the counts, after a write has evaluated the records."""
        return self._tally()

    def release(self) -> None:
        """Free the outcomes."""
        self._staged.discard()
        if self._staging is None:
            self._rows.unpersist()

    def select_routes(self, routes: Sequence[int]) -> Self:
        """Select the outcomes on these routes."""
        from pyspark.sql import functions as F

        return self._with_rows(lambda: self._rows.where(F.col("m.route").isin(*routes)))

    def exclude(self, letters: Collection[str]) -> Self:
        """Select the outcomes except those with these dead letter ids, in order."""
        return self._with_rows(lambda: self._join_on_values("letter", letters, "left_anti")) if letters else self

    def select_dead_letters(self, rejections: Rejections | None = None) -> Self:
        """Select the dead letters, plus one with the complete original record for each rejection.

        Rejections need the original records (:attr:`router.writing.writer.BatchWriter.may_reject`).
        """

        def dead() -> DataFrame:
            letters = self._rows.where("m.route < 0")
            # One write: a table drops a second one with the batch's commit.
            return letters.unionByName(self._rejected_rows(rejections)) if rejections else letters

        return self._with_rows(dead)

    def stage(self, share: RowsForSink) -> StagedCommit:
        """Return the names of the files staged for a sink; stage them now if ``evaluate`` did not.

        :meth:`release` removes files that were not passed to a sink.
        """
        known = self._staged.get(share)
        if known is not None:
            return known
        assert self._judge is not None
        staging = SinkRows.for_batch(self._batch, self._plan, share)
        self._staged.add([share], collect_results(staging.stage_outcomes(self._rows, self._judge)))
        staged = self._staged.get(share)
        assert staged is not None
        return staged

    def list_decisions(self) -> list[RecordOutcome]:
        """Return the outcome of each record."""
        return [_to_outcome(row) for row in self._select_decisions(self._rows).toArrow().to_pylist()]

    def list_keyed(self, keys: Collection[str] | None = None) -> list[RecordOutcome]:
        """Return the outcomes of records with one of these *keys*; None for all records with a key."""
        from pyspark.sql import functions as F

        key = order_key_column(self._batch.kind).alias("key")
        keyed = self._with_rows(lambda: self._select_decisions(self._rows, key).where(F.col("key").isNotNull()))
        chosen = keyed._rows if keys is None else keyed._join_on_values("key", keys, "left_semi")
        return [_to_outcome(row) for row in chosen.toArrow().to_pylist()]

    def iter_exchanges(self) -> Iterator[dict[str, Any]]:
        """Yield the columns for pairing: position, time of arrival, message, relation and exchange.

        Only with a plan that pairs; the columns (:mod:`router.evaluation.forwarding`) have a bounded length.
        """
        from pyspark.sql import functions as F

        members = (F.col(f"m.{name}").alias(name) for name in ("message", "relation", EXCHANGE))
        related = self._rows.where(F.col(f"m.{EXCHANGE}").isNotNull())
        table = related.select("position", "received", *members).toArrow()
        for batch in table.to_batches(max_chunksize=PAIRING_CHUNK):
            yield from batch.to_pylist()

    def list_topics(self, sink: str) -> list[str]:
        """Return the distinct topics of these events at a Kafka sink."""
        from pyspark.sql import functions as F

        distinct = self._rows.select(F.col(f"m.topic_{sink}").alias(_TOPIC_COLUMN)).distinct()
        names: list[str] = distinct.toArrow()[_TOPIC_COLUMN].to_pylist()
        return names

    def list_sent_to(self, sink: str, topics: Collection[str]) -> list[tuple[str, RecordOutcome]]:
        """Return the outcomes of events for these topics of a Kafka sink, each with its topic."""
        from pyspark.sql import functions as F

        sent = self._select_decisions(self._rows, F.col(f"m.topic_{sink}").alias(_TOPIC_COLUMN))
        share = self._with_rows(lambda: sent)._join_on_values(_TOPIC_COLUMN, topics, "left_semi").toArrow().to_pylist()
        return [(row.pop(_TOPIC_COLUMN), _to_outcome(row)) for row in share]

    def events_table(self, schema: pa.Schema) -> pa.Table:
        """Return the events, with bodies, as a table of that schema."""
        return SinkRows.for_batch(self._batch, self._plan).collect_events(self._rows, schema)

    def dead_letters_table(self) -> pa.Table:
        """Return the dead letters, with bodies, as a table."""
        return SinkRows.for_batch(self._batch, self._plan).collect_dead_letters(self._rows)

    def publish(self, sink: str, *, letters: bool) -> None:
        """Have Spark write the events or dead letters to a Kafka sink, each acknowledged; at least once.

        Raises:
            SinkError: the brokers did not accept all of them.
        """
        batch, settings = self._batch, self._plan.settings.sinks[sink].topics
        assert settings is not None
        records = KafkaRecords.for_sink(self._plan, batch.kind, batch.first_query, batch.failed, sink, letters=letters)
        self._save(records.render_in_spark(self._rows.select(*OUTCOME_COLUMNS, "letter")), settings, sink)

    def publish_all(self, sinks: Sequence[str]) -> None:
        """Have Spark write events and dead letters to Kafka sinks of one cluster, as :meth:`publish`."""
        settings = self._plan.settings.sinks[dead_letter_sinks(self._plan.settings)[0]].topics
        assert self._outgoing is not None and settings is not None
        self._save(self._outgoing, settings, ",".join(sinks))

    def _save(self, rows: DataFrame, sink: KafkaSink, name: str) -> None:
        save_to_kafka(rows, sink, name)

    def iter_spilled(self) -> Iterator[tuple[str, bytes]]:
        """Yield id and native record, as JSON, of each dead letter that is too large for its topic."""
        return iter_spilled_records(self._rows, self._batch.kind)

    def iter_bare_records(self) -> Iterator[tuple[str, bytes]]:
        """Yield dead letter id and complete source row, as JSON, of each record with a bare dead letter."""
        if self._bare is not None:
            yield from iter_source_rows(self._bare, self._batch.kind, self._batch.first_query)

    @property
    def _rows(self) -> DataFrame:
        if self._frame is None:
            self._frame = self._create_rows()
        return self._frame

    def _with_rows(self, rows: Callable[[], DataFrame]) -> Self:
        share = copy(self)
        share._create_rows, share._frame = rows, None
        return share

    def _join_on_values(self, column: str, values: Collection[str], how: str) -> DataFrame:
        """Return the rows with (``left_semi``) or without (``left_anti``) one of these values, in order."""
        from pyspark.sql import functions as F

        table = pa.table({_VALUE_COLUMN: pa.array(sorted(values), pa.string())})
        among = F.broadcast(self._rows.sparkSession.createDataFrame(table))
        return self._rows.join(among, self._rows[column] == F.col(_VALUE_COLUMN), how)

    def _select_decisions(self, rows: DataFrame, *more: Column) -> DataFrame:
        members = ("m.route", "m.endpoint", "m.message", "m.reason", "m.detail")
        return rows.select("position", "letter", *members, *more)

    def _rejected_rows(self, rejections: Rejections) -> DataFrame:
        """Return the dead letters of rejected records, with the columns of the rows."""
        from pyspark.sql import functions as F

        rows, kind = self._rows, self._batch.kind
        table = rows.sparkSession.createDataFrame(rejections.to_table()).alias("rejection")
        letters = rows.join(F.broadcast(table), rows["position"] == F.col("rejection.at"))
        letters = letters.withColumn("body", F.when(F.col("m.replaced"), F.col(ORIGINAL_BODY)).otherwise(F.col("body")))
        match = F.col("m").withField("reason", F.lit(SINK_REJECTED)).withField("detail", F.col("rejection.detail"))
        match = match.withField("forwarded", _original_headers(kind)).withField("route", F.col("rejection.route"))
        size = F.coalesce(F.length("body"), F.lit(0)) + F.coalesce(F.length(source_column(kind, "key")), F.lit(0))
        match = match.withField("spilled", size > F.col("rejection.limit"))
        for name in self._plan.routes.dead_letter_topics:
            match = match.withField(f"letters_{name}", F.col(f"rejection.letters_{name}"))
        return letters.withColumn("m", match).select(*rows.columns)


def _to_outcome(row: dict[str, Any]) -> RecordOutcome:
    return RecordOutcome(**{name: value for name, value in row.items() if value is not None})


def _original_headers(kind: Kind) -> Column:
    """Return the headers of a rejected record's dead letter; an event of a batch has its own media type."""
    from pyspark.sql import functions as F

    headers = F.coalesce(source_column(kind, "headers"), F.col("m.forwarded"), F.array().cast(HEADERS_TYPE))
    media = F.lit(EVENT_MEDIA.decode())

    def with_event_media(entry: Column) -> Column:
        replaced = F.struct(entry["key"].alias("key"), media.cast("binary").alias("value"))
        return F.when(F.lower(entry["key"]) == "content-type", replaced).otherwise(entry)

    named = F.exists(headers, lambda entry: F.lower(entry["key"]) == "content-type")
    added = F.concat(headers, F.array(header_column("content-type", media)))
    single = F.when(named, F.transform(headers, with_event_media)).otherwise(added)
    # Null outside of a batch of events: then the headers are those of the source record.
    return F.when(F.col("m.position_in_batch").isNotNull(), single)
