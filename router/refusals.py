"""Records that a sink turned down at write time, after they had been judged as routed (semantics.md section 7).

A refused record ends as one dead letter, ``sink-rejected``, whatever the number of its sinks: those that took it keep
it, and the letter says which did not and why. Letters are written after all sinks of events and before the batch
commits, so a crash in between repeats the batch and loses none. In the tally the record moves from routed to
dead-letter, as if the matcher had said so; the circuit breaker looks before the first write and does not see it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from bindings.events import decode_batch
from router.facts import EVENT_MEDIA
from router.names import NameTemplate, dead_letter_values
from router.sinks.contract import Rejected
from router.stages import ARRIVED, HEADERS_TYPE, header

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REASON: Final = "sink-rejected"
_TOLD: Final = "told"
_PLACE: Final = "#"


class Refused:
    """What the sinks of one batch refused. ``topics`` are those of dead letters in Kafka, by sink."""

    def __init__(self, topics: Mapping[str, NameTemplate], limit: int) -> None:
        self._topics = topics
        self._limit = limit
        self._records: dict[str, Rejected] = {}
        self._details: dict[str, list[str]] = {}
        self.letters: DataFrame | None = None

    def __bool__(self) -> bool:
        """Whether anything was refused."""
        return bool(self._records)

    @property
    def counts(self) -> Counter[tuple[str, str]]:
        """Refused records by endpoint and definition, each once."""
        return Counter((record.endpoint, record.message) for record in self._records.values())

    def add(self, sink: str, rejected: Iterable[Rejected]) -> None:
        """Take what one sink refused."""
        for record in rejected:
            self._records[record.position] = record
            self._details.setdefault(record.position, []).append(f"sink {sink}: {record.reason}")

    def as_letters(self, rows: DataFrame) -> DataFrame:
        """Return the dead letters of what was refused, with the columns of the batch's other dead letters.

        *rows* are all outcomes of the batch, with the column ``ARRIVED``: a letter has the record as it came, whole.
        """
        from pyspark.sql import functions as F

        told = rows.sparkSession.createDataFrame(self._table()).alias(_TOLD)
        found = rows.join(F.broadcast(told), rows["position"] == F.col(f"{_TOLD}.at"))
        arrived = F.when(F.col("m.replaced"), F.col(ARRIVED)).otherwise(F.col("body"))
        if any(_PLACE in position for position in self._records):
            arrived = _item(arrived, F.col("m.place"))
        found = found.withColumn("body", arrived)
        match = F.col("m").withField("reason", F.lit(REASON)).withField("detail", F.col(f"{_TOLD}.detail"))
        match = match.withField("passed", _passed()).withField("route", F.lit(-1))
        size = F.coalesce(F.length("body"), F.lit(0)) + F.coalesce(F.length("key"), F.lit(0))
        match = match.withField("spilled", size > F.lit(self._limit))
        for name in self._topics:
            match = match.withField(f"letters_{name}", F.col(f"{_TOLD}.letters_{name}"))
        self.letters = found.withColumn("m", match).select(*rows.columns)
        return self.letters

    def _table(self) -> pa.Table:
        records = list(self._records.values())
        columns: dict[str, list[str]] = {
            "at": [record.position for record in records],
            "detail": ["; ".join(self._details[record.position]) for record in records],
        }
        for name, template in self._topics.items():
            columns[f"letters_{name}"] = [
                template.expand(dead_letter_values(record.endpoint, REASON), escape="_") for record in records
            ]
        return pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})


def _passed() -> Column:
    """Return the headers of a letter: all it came with, and for an event out of a batch its own media type."""
    from pyspark.sql import functions as F

    came = F.coalesce(F.col("headers"), F.col("m.passed"), F.array().cast(HEADERS_TYPE))
    rest = F.filter(came, lambda entry: F.lower(entry["key"]) != "content-type")
    single = F.concat(rest, F.array(header("content-type", F.lit(EVENT_MEDIA.decode()))))
    # Without a place, null: then the headers as they came are taken.
    return F.when(F.col("m.place").isNotNull(), single)


def _item(body: Column, place: Column) -> Column:
    """Return the one event of a batch that a row stands for; the body itself where it is no batch."""
    from pyspark.sql.pandas.functions import arrow_udf

    def cut(bodies: pa.Array, places: pa.Array) -> pa.Array:
        pairs = zip(bodies.to_pylist(), places.to_pylist(), strict=True)
        return pa.array([body if at is None else decode_batch(body)[at] for body, at in pairs], pa.binary())

    cut.__annotations__ = dict.fromkeys(cut.__annotations__, pa.Array)
    return cast("Column", cast(Any, arrow_udf)(cut, returnType="binary")(body, place))
