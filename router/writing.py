"""Writing one judged batch to its sinks.

When all destinations are topics of one Kafka cluster, events and dead letters leave in one pass and one write.
Otherwise the batch is kept in memory while each sink takes its share. Kafka and other message targets get a batch at
least once; tables and files exactly once, by the batch's commit. Records that a target refuses become dead letters of
the same batch (:mod:`router.refusals`). Nothing is committed to the source before every sink has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from router.clusters import sink_client
from router.errors import SinkError
from router.limits import letter_limit
from router.plan import Plan
from router.refusals import Refused
from router.render import event_column, native_column, structured_column
from router.settings import KafkaSink, MessageSink, TableSink, revealed
from router.sinks import ArrowSink, Commit, Rejected, open_sink
from router.sinks.events import MESSAGE
from router.sinks.forms import DEAD_LETTER, TIME_TEXT, WIDE
from router.stages import HEADERS_TYPE, Kind, event_headers, header, lineage_headers, partition_key

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HEADER_CAP: Final = 4_000
"""Characters of a text in a dead letter's Kafka header; the outcome itself is never cut."""
LOST: Final = ("data may have been lost", "KAFKA_DATA_LOSS", "OffsetOutOfRange")
"""What Spark says when a broker no longer has records that were to be read."""
Counted = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of one query: ``generation`` makes its commits unique, ``failed`` is when its letters were made."""

    kind: Kind
    query: str
    generation: str
    number: int
    failed: str


class BatchWriter:
    """Writes batches for one plan."""

    def __init__(self, plan: Plan, counted: Counted) -> None:
        self._plan = plan
        self._counted = counted
        self._letters = plan.settings.dead_letters.sinks
        self._arrow: dict[tuple[str, bool], ArrowSink] = {}

    @property
    def one_pass(self) -> bool:
        """Whether a batch needs a single write: one cluster, binary mode, and one destination for each record."""
        sinks = self._plan.settings.sinks
        used = {name for route in self._plan.settings.routes for name in route.to} | set(self._letters)
        kafka = [sink for sink in (sinks[name] for name in used) if isinstance(sink, KafkaSink)]
        clusters = {repr((s.bootstrap_servers, s.username, s.tls, sorted(revealed(s.options).items()))) for s in kafka}
        single = len(self._letters) == 1 and all(len(route.to) == 1 for route in self._plan.settings.routes)
        binary = all(sink.mode == "binary" for sink in kafka)
        unchecked = self._plan.settings.dead_letters.max_ratio is None and not self.may_refuse
        return unchecked and len(kafka) == len(used) and len(clusters) == 1 and single and binary

    @property
    def may_refuse(self) -> bool:
        """Whether a sink of a route may refuse single records; their rows must then have the column ``ARRIVED``."""
        sinks = (self._plan.settings.sinks[name] for route in self._plan.settings.routes for name in route.to)
        return any(isinstance(sink, MessageSink) or (isinstance(sink, KafkaSink) and sink.endpoint) for sink in sinks)

    @property
    def may_spill(self) -> bool:
        """Whether dead letters go to Kafka, which takes no record of any size."""
        return any(isinstance(self._plan.settings.sinks[name], KafkaSink) for name in self._letters)

    def write(self, rows: DataFrame, batch: Batch) -> Refused:
        """Write all outcomes of a batch, and return what single sinks refused of it; see the module for guarantees.

        Raises:
            SinkError: a sink cannot take its share now. Other sinks may have theirs; writing again is safe.
        """
        refused = Refused(self._plan.routes.letter_topics, letter_limit(self._plan.settings))
        if self.one_pass:
            self._write_once(rows, batch)
            return refused
        for name, numbers in self._routed_to().items():
            refused.add(name, self._write_events(name, rows.where(_route_in(numbers)), batch))
        dead = rows.where("m.route = -1")
        if refused:
            # One write: a table drops a second one with the batch's commit.
            dead = dead.unionByName(refused.as_letters(rows))
        for name in self._letters:
            self._write_letters(name, dead, batch)
        return refused

    def _routed_to(self) -> dict[str, list[int]]:
        """Return per sink the routes that lead there, sinks in the order of the routes."""
        found: dict[str, list[int]] = {}
        for number, route in enumerate(self._plan.settings.routes):
            for name in route.to:
                found.setdefault(name, []).append(number)
        return found

    def _write_once(self, rows: DataFrame, batch: Batch) -> None:
        from pyspark.sql import functions as F

        sinks = self._plan.settings.sinks
        letters = self._letters[0]
        topic = F.col(f"m.letters_{letters}")
        key: Column = F.col("key")
        headers = self._letter_headers(batch)
        for name, numbers in self._routed_to().items():
            sink = sinks[name]
            assert isinstance(sink, KafkaSink)
            mine = _route_in(numbers)
            topic = F.when(mine, F.col(f"m.topic_{name}")).otherwise(topic)
            key = F.when(mine, self._key(sink)).otherwise(key)
            headers = F.when(mine, self._event_headers(sink)).otherwise(headers)
        out = rows.select(topic.alias("topic"), key.alias("key"), _value().alias("value"), headers.alias("headers"))
        sink = sinks[letters]
        assert isinstance(sink, KafkaSink)
        names = [*self._routed_to(), letters]
        self._save(out, sink, ",".join(dict.fromkeys(names)), names)

    def _write_events(self, name: str, rows: DataFrame, batch: Batch) -> tuple[Rejected, ...]:
        from pyspark.sql import functions as F

        sink = self._plan.settings.sinks[name]
        if isinstance(sink, KafkaSink) and not sink.endpoint:
            structured = sink.mode == "structured"
            value = structured_column(batch.kind) if structured else F.col("body")
            headers = self._structured_headers(sink) if structured else self._event_headers(sink)
            out = rows.select(
                F.col(f"m.topic_{name}").alias("topic"), self._key(sink).alias("key"), value.alias("value"), headers
            ).toDF("topic", "key", "value", "headers")
            self._save(out, sink, name, [name])
            return ()
        rendered = rows.withColumn("e", event_column(batch.kind))
        columns: dict[str, Column] = {field: F.col(f"e.{field}") for field in (*WIDE.names, TIME_TEXT)}
        columns |= {
            "data": F.col("body"),
            "message": F.col("m.message"),
            "endpoint": F.col("m.endpoint"),
            "epoch": F.lit(self._plan.epoch),
            "position": F.col("position"),
            "protocol": F.col("protocol"),
            "context": F.col("m.context"),
            "received": F.col("received"),
        }
        # All but tables also need the time as it was written, which a table's instant cannot give back.
        schema = WIDE if isinstance(sink, TableSink) else MESSAGE
        made = rendered.select(*(columns[field].alias(field) for field in schema.names))
        return self._commit(name, made, schema, batch, letters=False)

    def _write_letters(self, name: str, rows: DataFrame, batch: Batch) -> None:
        from pyspark.sql import functions as F

        sink = self._plan.settings.sinks[name]
        if isinstance(sink, KafkaSink):
            out = rows.select(
                F.col(f"m.letters_{name}").alias("topic"),
                F.col("key"),
                _value().alias("value"),
                self._letter_headers(batch).alias("headers"),
            )
            self._save(out, sink, name, [name])
            return
        columns: dict[str, Column] = {
            **{field: F.col(f"m.{field}") for field in ("reason", "detail", "nearest", "endpoint")},
            "letter": F.col("letter"),
            "protocol": F.col("protocol"),
            "native": native_column(batch.kind),
            "body": F.col("body"),
            "epoch": F.lit(self._plan.epoch),
            "position": F.col("position"),
            "received": F.col("received"),
            "failed": F.lit(batch.failed).cast("timestamp"),
            "attempts": F.lit(1),
        }
        made = rows.select(*(columns[field].alias(field) for field in DEAD_LETTER.names))
        self._commit(name, made, DEAD_LETTER, batch, letters=True)

    def _commit(
        self, name: str, rows: DataFrame, schema: pa.Schema, batch: Batch, *, letters: bool
    ) -> tuple[Rejected, ...]:
        sink = self._arrow.get((name, letters))
        if sink is None:
            plan = self._plan
            settings = plan.settings.sinks[name]
            sink = open_sink(name, settings, "dead-letters" if letters else "events", plan.catalog)
            self._arrow[(name, letters)] = sink
        commit = Commit(f"{batch.generation}-{name}{'-letters' if letters else ''}", batch.number)
        refused = () if sink.already(commit) else sink.write(_table(rows, schema), commit).refused
        self._counted(name, "ok")
        if refused:
            self._counted(name, "rejected")
        return refused

    def _save(self, rows: DataFrame, sink: KafkaSink, name: str, names: Sequence[str]) -> None:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        options = sink_client(sink).jvm()
        try:
            rows.write.format("kafka").options(**options).save()
        except (PySparkException, Py4JJavaError) as error:
            if any(sign in str(error) for sign in LOST):
                raise  # The source's fault, and none that writing again can mend.
            raise SinkError(
                name, f"Kafka at {sink.bootstrap_servers} did not take the batch: {_cause(error)}"
            ) from error
        for each in dict.fromkeys(names):
            self._counted(each, "ok")

    def _key(self, sink: KafkaSink) -> Column:
        from pyspark.sql import functions as F

        if sink.key is None:
            return partition_key()
        return F.coalesce(partition_key(), key_template(sink.key).cast("binary"))

    def _event_headers(self, sink: KafkaSink) -> Column:
        from pyspark.sql import functions as F

        made = event_headers()
        return F.concat(made, lineage_headers(self._plan.epoch)) if sink.lineage else made

    def _structured_headers(self, sink: KafkaSink) -> Column:
        from pyspark.sql import functions as F

        # The attributes of a row that columns settled are in the body now, and only there.
        rest = F.filter("headers", lambda entry: ~(entry["key"].startswith("ce_") | (entry["key"] == "content-type")))
        made = F.concat(
            F.array(header("content-type", F.lit("application/cloudevents+json"))),
            F.coalesce(F.col("m.passed"), rest, F.array().cast(HEADERS_TYPE)),
        )
        return F.concat(made, lineage_headers(self._plan.epoch)) if sink.lineage else made

    def _letter_headers(self, batch: Batch) -> Column:
        """Return the headers of a dead letter: those it came with, then ours, texts capped."""
        from pyspark.sql import functions as F

        told: dict[str, Column] = {
            "letter": F.col("letter"),
            "reason": F.col("m.reason"),
            "detail": F.substring(F.col("m.detail"), 1, HEADER_CAP),
            "nearest": F.substring(F.col("m.nearest"), 1, HEADER_CAP),
            "endpoint": F.col("m.endpoint"),
            "protocol": F.col("protocol"),
            "epoch": F.lit(self._plan.epoch),
            "position": F.col("position"),
            "received": F.date_format("received", "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"),
            "failed": F.lit(batch.failed),
            "attempts": F.lit("1"),
        }
        if batch.kind != "kafka":
            told["native"] = native_column(batch.kind)
        told["spill"] = F.concat(F.lit("spill/"), F.col("letter"), F.lit(".json"))
        ours = F.array(*(header(f"xrouter-{name}", value) for name, value in told.items()))
        # Only a letter that was spilled says where; the others have no such header.
        ours = F.when(F.col("m.spilled"), ours).otherwise(F.slice(ours, 1, len(told) - 1))
        return F.concat(F.coalesce(F.col("m.passed"), F.col("headers"), F.array().cast(HEADERS_TYPE)), ours)


def _value() -> Column:
    """Return the value of a Kafka record: its body, or none for a letter that lies in a file."""
    from pyspark.sql import functions as F

    return F.when(F.col("m.spilled"), F.lit(None).cast("binary")).otherwise(F.col("body"))


def key_template(template: str) -> Column:
    """Return the key that a template gives; a context value that is missing makes it null, so that none is set."""
    from pyspark.sql import functions as F

    from router.names import CONTEXT_PREFIX, parse_name

    group = F.element_at(F.split("m.message", "/"), -3)
    known = {
        "message": F.col("m.message"),
        "messagegroup": group,
        "messageid": F.element_at(F.split("m.message", "/"), -1),
        "endpoint": F.col("m.endpoint"),
        "endpointid": F.element_at(F.split("m.endpoint", "/"), -1),
    }
    pieces: list[Column] = []
    for place, part in enumerate(parse_name(template).parts):
        if place % 2 == 0:
            pieces.append(F.lit(part))
        elif part.startswith(CONTEXT_PREFIX):
            pieces.append(F.col("m.context").getItem(part.removeprefix(CONTEXT_PREFIX)))
        else:
            pieces.append(known[part])
    return F.concat(*pieces)


def _route_in(numbers: Sequence[int]) -> Column:
    from pyspark.sql import functions as F

    return F.col("m.route").isin(*numbers)


def _table(rows: DataFrame, schema: pa.Schema) -> pa.Table:
    table = rows.toArrow()
    return table.select(schema.names).cast(schema)


def _cause(error: Exception) -> str:
    """Return the line of a Spark error that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "kafka" in line.lower() and "Exception" in line]
    return (told or lines or ["unknown"])[-1 if told else 0][:300]
