"""Writing one judged batch to its sinks.

When all destinations are topics of one Kafka cluster, events and dead letters leave in one pass and one write.
Otherwise the batch is kept in memory while each sink takes its share. Kafka and other message targets get a batch at
least once; tables and files exactly once, by the batch's commit. Records that a target refuses become dead letters of
the same batch (:mod:`router.writing.refusals`). Nothing is committed to the source before every sink has it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from router.errors import SinkError
from router.judging.plan import Plan
from router.judging.stages import came_from
from router.routing.limits import LetterLimits
from router.settings import KafkaSink, event_sinks, letter_sinks, revealed
from router.sinks import ArrowSink, Rejected, open_sink
from router.sinks.forms import AMBIGUOUS, DEAD_LETTER, DECIDED, TIME_TEXT, WIDE
from router.sinks.messages.events import MESSAGE
from router.watching.batches import writing
from router.writing.commits import Batch, commit_of
from router.writing.kafka_columns import letter_headers, letter_value, sent_headers, sent_key
from router.writing.kafka_writing import save_to_kafka
from router.writing.ordering import NOTHING, HeldBack
from router.writing.refusals import Refused
from router.writing.render import event_column, native_column, structured_column
from router.writing.topic_cap import capped_topics, within

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Counted = Callable[[str, str], None]


class BatchWriter:
    """Writes batches for one plan."""

    def __init__(self, plan: Plan, counted: Counted) -> None:
        self._plan = plan
        self._counted = counted
        self._letters = letter_sinks(plan.settings)
        self._arrow: dict[tuple[str, bool], ArrowSink] = {}
        self._capped = capped_topics(plan.settings, plan.routes.topics, plan.catalog)
        self._taken: dict[str, tuple[int, set[tuple[tuple[int, ...], str]]]] = {}

    @property
    def one_pass(self) -> bool:
        """Whether a batch needs a single write: one cluster, binary mode, and one destination for each record."""
        sinks = self._plan.settings.sinks
        used = {*event_sinks(self._plan.settings), *self._letters}
        kafka = [sink for name in used if (sink := sinks[name].topics) is not None]
        clusters = {repr((s.bootstrap_servers, s.username, s.tls, sorted(revealed(s.options).items()))) for s in kafka}
        lists = [self._plan.settings.dead_letters.sinks, *(route.to for route in self._plan.settings.routes)]
        single = all(len(names) == 1 for names in lists)
        binary = all(sink.mode == "binary" for sink in kafka)
        unchecked = self._plan.settings.dead_letters.max_ratio is None and not self.may_refuse
        return unchecked and len(kafka) == len(used) and len(clusters) == 1 and single and binary

    @property
    def may_refuse(self) -> bool:
        """Whether routed records may become dead letters after all; rows must then have the column ``ARRIVED``."""
        if self._plan.settings.dead_letters.order == "park":
            return True
        sinks = (self._plan.settings.sinks[name] for route in self._plan.settings.routes for name in route.to)
        return bool(self._capped) or any(sink.sends_messages for sink in sinks)

    @property
    def may_spill(self) -> bool:
        """Whether dead letters go to Kafka, which takes no record of any size."""
        return any(self._plan.settings.sinks[name].topics is not None for name in self._letters)

    def write(self, rows: DataFrame, batch: Batch, held: HeldBack = NOTHING) -> Refused:
        """Write all outcomes of a batch, and return what single sinks refused of it; see the module for guarantees.

        Events that are *held* back go to no sink, and count as refused by all of theirs.

        Raises:
            SinkError: a sink cannot take its share now. Other sinks may have theirs; writing again is safe.
        """
        if self.one_pass:
            self._write_once(rows, batch)
            return self._nothing_refused()
        refused = self.write_routed(held.left(rows), batch)
        self._refuse(held, refused, batch)
        return self._write_dead(rows, batch, refused)

    def write_routed(self, rows: DataFrame, batch: Batch, only: Container[str] | None = None) -> Refused:
        """Write the events of a batch and no dead letters; *only* are the sinks that get any, None for all.

        Raises:
            SinkError: as :meth:`write`.
        """
        refused = self._nothing_refused()
        for name, numbers in self._routed_to().items():
            # One that has taken its share is not asked again while another holds the batch: Kafka would double it.
            if (only is None or name in only) and name not in self._noted(batch):
                turned_down = self._write_events(name, rows.where(_route_in(numbers)), batch)
                refused.add(name, turned_down)
                if not turned_down:
                    # One that refused some does not have all, and must be asked again for which.
                    self._note_taken(name, batch)
        return refused

    def has_letters(self, batch: Batch) -> bool:
        """Whether a sink of dead letters is known to have those of the batch: then all sinks have its events.

        Raises:
            SinkError: a sink cannot be read.
        """
        tables = (name for name in self._letters if self._plan.settings.sinks[name].topics is None)
        return any(self._sink(name, letters=True).already(commit_of(name, batch, letters=True)) for name in tables)

    def taken(self, batch: Batch) -> frozenset[str]:
        """Return the sinks known to have their events of the batch: by its commit, or since they took it just now."""
        known = set(self._noted(batch))
        for name in self._routed_to():
            if name in known or self._plan.settings.sinks[name].topics is not None:
                continue
            try:
                if self._sink(name).already(commit_of(name, batch)):
                    known.add(name)
            except SinkError:
                continue  # One that cannot be read may be the one that is in the way: it counts as not having it.
        return frozenset(known)

    def lacking(self, taken: Container[str]) -> list[str]:
        """Return the sinks of routes that are not among *taken*."""
        return [name for name in self._routed_to() if name not in taken]

    def set_aside(self, rows: DataFrame, batch: Batch, reasons: Mapping[str, str], held: HeldBack = NOTHING) -> Refused:
        """Make dead letters of the events that the sinks in *reasons* lack, and write all dead letters of the batch.

        No sink gets events; those that were *held* back lack everywhere. *rows* have the column ``ARRIVED``. Repeating
        is safe, as with :meth:`write`.

        Raises:
            SinkError: a sink of dead letters cannot take them now.
        """
        refused = self._nothing_refused()
        sent = held.left(rows)
        for name, numbers in self._routed_to().items():
            if name in reasons:
                share = sent.where(_route_in(numbers)).select("position", "m.endpoint", "m.message").toArrow()
                told = (
                    Rejected(row["position"], reasons[name], row["endpoint"] or "", row["message"])
                    for row in share.to_pylist()
                )
                by_spark = self._plan.settings.sinks[name].topics is not None
                refused.add(name, told if by_spark else self._sink(name).lacking(commit_of(name, batch), told))
        self._refuse(held, refused, batch)
        return self._write_dead(rows, batch, refused)

    def _refuse(self, held: HeldBack, refused: Refused, batch: Batch) -> None:
        # What has all that this is a part of has the records as well, from before one of their keys was blocked.
        having = self.taken(replace(batch, part=batch.part[:-1])) if batch.part and held.records else frozenset()
        for name, numbers in self._routed_to().items():
            if name not in having:
                refused.add(name, held.share(numbers))

    def _nothing_refused(self) -> Refused:
        return Refused(self._plan.routes, LetterLimits(self._plan.settings))

    def _write_dead(self, rows: DataFrame, batch: Batch, refused: Refused) -> Refused:
        dead = rows.where("m.route < 0")
        if refused:
            # One write: a table drops a second one with the batch's commit.
            dead = dead.unionByName(refused.as_letters(rows))
        for name, numbers in self._plan.routes.letter_sinks.items():
            self._write_letters(name, dead.where(_route_in(numbers)), batch)
        return refused

    def _note_taken(self, name: str, batch: Batch) -> None:
        number, taken = self._taken.get(batch.generation, (-1, set()))
        before = taken if number == batch.number else set()
        self._taken[batch.generation] = (batch.number, {*before, (batch.part, name)})

    def _noted(self, batch: Batch) -> set[str]:
        """Return the sinks that took their share of the batch, or of what it is a part of, since this process began."""
        number, taken = self._taken.get(batch.generation, (-1, set()))
        if number != batch.number:
            return set()
        return {name for part, name in taken if batch.part[: len(part)] == part}

    def _routed_to(self) -> Mapping[str, Sequence[int]]:
        """Return per sink the routes that lead there, sinks in the order of the routes."""
        return self._plan.routes.event_sinks

    def _write_once(self, rows: DataFrame, batch: Batch) -> None:
        from pyspark.sql import functions as F

        sinks = self._plan.settings.sinks
        topic: Column = F.lit(None).cast("string")
        for name, taken in self._plan.routes.letter_sinks.items():
            topic = F.when(_route_in(taken), F.col(f"m.letters_{name}")).otherwise(topic)
        key: Column = F.col("key")
        headers = letter_headers(batch.kind, self._plan.epoch, batch.failed)
        for name, numbers in self._routed_to().items():
            sink = sinks[name].topics
            assert sink is not None
            mine = _route_in(numbers)
            topic = F.when(mine, F.col(f"m.topic_{name}")).otherwise(topic)
            key = F.when(mine, sent_key(sink)).otherwise(key)
            headers = F.when(mine, sent_headers(sink, self._plan.epoch)).otherwise(headers)
        out = rows.select(
            topic.alias("topic"), key.alias("key"), letter_value().alias("value"), headers.alias("headers")
        )
        sink = sinks[self._letters[0]].topics
        assert sink is not None
        names = [*self._routed_to(), *self._letters]
        self._save(out, sink, ",".join(dict.fromkeys(names)), names)

    def _write_events(self, name: str, rows: DataFrame, batch: Batch) -> tuple[Rejected, ...]:
        from pyspark.sql import functions as F

        settings = self._plan.settings.sinks[name]
        if (sink := settings.topics) is not None:
            rejected: tuple[Rejected, ...] = ()
            if name in self._capped:
                rows, rejected = within(rows, f"topic_{name}", self._capped[name])
            structured = sink.mode == "structured"
            value = structured_column(batch.kind) if structured else F.col("body")
            headers = sent_headers(sink, self._plan.epoch)
            out = rows.select(
                F.col(f"m.topic_{name}").alias("topic"), sent_key(sink).alias("key"), value.alias("value"), headers
            ).toDF("topic", "key", "value", "headers")
            self._save(out, sink, name, [name])
            if rejected:
                self._counted(name, "rejected")
            return rejected
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
            AMBIGUOUS: F.col("m.ambiguous"),
        }
        # All but tables also need the time as it was written, which a table's instant cannot give back.
        tables = DECIDED if self._plan.settings.match.ambiguous != "dead-letter" else WIDE
        schema = tables if settings.tabular else MESSAGE
        made = rendered.select(*(columns[field].alias(field) for field in schema.names))
        return self._commit(name, made, schema, batch, letters=False)

    def _write_letters(self, name: str, rows: DataFrame, batch: Batch) -> None:
        from pyspark.sql import functions as F

        sink = self._plan.settings.sinks[name].topics
        if sink is not None:
            out = rows.select(
                F.col(f"m.letters_{name}").alias("topic"),
                F.col("key"),
                letter_value().alias("value"),
                letter_headers(batch.kind, self._plan.epoch, batch.failed).alias("headers"),
            )
            self._save(out, sink, name, [name])
            return
        columns: dict[str, Column] = {
            **{field: F.col(f"m.{field}") for field in ("reason", "detail", "nearest")},
            "endpoint": came_from(batch.kind),
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
        sink = self._sink(name, letters=letters)
        commit = commit_of(name, batch, letters=letters)
        # No look whether it has the batch already: a sink that is down must not hold one that has nothing for it.
        table = _table(rows, schema)
        with writing(name):
            refused = sink.write(table, commit).refused
        self._counted(name, "ok")
        if refused:
            self._counted(name, "rejected")
        return refused

    def _sink(self, name: str, *, letters: bool = False) -> ArrowSink:
        sink = self._arrow.get((name, letters))
        if sink is None:
            plan = self._plan
            settings = plan.settings.sinks[name]
            sink = open_sink(
                name, settings, "dead-letters" if letters else "events", plan.catalog, plan.settings.framings
            )
            self._arrow[(name, letters)] = sink
        return sink

    def _save(self, rows: DataFrame, sink: KafkaSink, name: str, names: Sequence[str]) -> None:
        with writing(name, by_spark=True):
            save_to_kafka(rows, sink, name)
        for each in dict.fromkeys(names):
            self._counted(each, "ok")


def _route_in(numbers: Sequence[int]) -> Column:
    from pyspark.sql import functions as F

    return F.col("m.route").isin(*numbers)


def _table(rows: DataFrame, schema: pa.Schema) -> pa.Table:
    table = rows.toArrow()
    return table.select(schema.names).cast(schema)
