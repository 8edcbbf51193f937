"""Records that a sink turned down at write time, after they had been judged as routed (semantics.md section 7).

A refused record ends as one dead letter, ``sink-rejected``, whatever the number of its sinks: those that took it keep
it, and the letter says which did not and why. Letters are written after all sinks of events and before the batch
commits, so a crash in between repeats the batch and loses none. In the tally the record moves from routed to
dead-letter, as if the matcher had said so; the circuit breaker looks before the first write and does not see it.

The same letters are made of a whole batch that an operator sets aside. Their detail is ``sink NAME: why; sink OTHER:
why`` and names exactly the sinks that do not have the record, so that a replay sends it to those alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from router.judging.stages import ARRIVED, HEADERS_TYPE, header
from router.matching.facts import EVENT_MEDIA
from router.routing.limits import LetterLimits
from router.routing.routes import Routes
from router.settings.names import dead_letter_values
from router.sinks.contract import Rejected

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REASON: Final = "sink-rejected"
DETAIL_CAP: Final = 3_900
"""Characters of a detail: below what a Kafka header keeps of it, lest a sink's name be cut off."""
_TOLD: Final = "told"
_NAMED: Final = re.compile(r"(?:^|; )sink ([^:;]+): ")
_MARKS: Final = {"%": "%25", ":": "%3A", ";": "%3B"}
"""Characters that a sink's name may have and that our form needs for itself, the escape first."""


def detail_of(reasons: Mapping[str, str]) -> str:
    """Return the detail of a letter that these sinks do not have, each with why; all names are in it, in full."""
    # What a sink says must not read as if it named another one.
    told = {_escaped(name): why.replace("; sink ", ", sink ") for name, why in reasons.items()}
    share = max(0, DETAIL_CAP // max(1, len(told)) - max(map(len, told), default=0) - len("; sink : "))
    return "; ".join(f"sink {name}: {why[:share]}" for name, why in told.items())


def sinks_of(detail: str) -> tuple[str, ...]:
    """Return the sinks that a letter's detail names, the inverse of :func:`detail_of`; () when it names none."""
    if not detail.startswith("sink "):
        return ()
    return tuple(dict.fromkeys(_plain(name) for name in _NAMED.findall(detail)))


def _escaped(name: str) -> str:
    for mark, code in _MARKS.items():
        name = name.replace(mark, code)
    return name


def _plain(name: str) -> str:
    for mark, code in reversed(_MARKS.items()):
        name = name.replace(code, mark)
    return name


class Refused:
    """What the sinks of one batch refused; *routes* say where its dead letters go, *limits* which are spilled."""

    def __init__(self, routes: Routes, limits: LetterLimits) -> None:
        self._routes = routes
        self._limits = limits
        self._records: dict[str, Rejected] = {}
        self._details: dict[str, dict[str, str]] = {}
        self.letters: DataFrame | None = None

    def __bool__(self) -> bool:
        """Whether anything was refused."""
        return bool(self._records)

    @property
    def counts(self) -> Counter[tuple[str, str]]:
        """Refused records by endpoint and definition, each once."""
        return Counter((record.endpoint, record.message) for record in self._records.values())

    @property
    def details(self) -> dict[str, str]:
        """The detail of each refused record's letter, by position."""
        return {position: detail_of(reasons) for position, reasons in self._details.items()}

    def add(self, sink: str, rejected: Iterable[Rejected]) -> None:
        """Take what one sink refused."""
        for record in rejected:
            self._records[record.position] = record
            self._details.setdefault(record.position, {})[sink] = record.reason

    def as_letters(self, rows: DataFrame) -> DataFrame:
        """Return the dead letters of what was refused, with the columns of the batch's other dead letters.

        *rows* are all outcomes of the batch, with the column ``ARRIVED``: a letter has the record as it came, whole.
        """
        from pyspark.sql import functions as F

        told = rows.sparkSession.createDataFrame(self._table()).alias(_TOLD)
        found = rows.join(F.broadcast(told), rows["position"] == F.col(f"{_TOLD}.at"))
        arrived = F.when(F.col("m.replaced"), F.col(ARRIVED)).otherwise(F.col("body"))
        found = found.withColumn("body", arrived)
        match = F.col("m").withField("reason", F.lit(REASON)).withField("detail", F.col(f"{_TOLD}.detail"))
        match = match.withField("passed", _passed()).withField("route", F.col(f"{_TOLD}.route"))
        size = F.coalesce(F.length("body"), F.lit(0)) + F.coalesce(F.length("key"), F.lit(0))
        match = match.withField("spilled", size > F.col(f"{_TOLD}.limit"))
        for name in self._routes.letter_topics:
            match = match.withField(f"letters_{name}", F.col(f"{_TOLD}.letters_{name}"))
        self.letters = found.withColumn("m", match).select(*rows.columns)
        return self.letters

    def _table(self) -> pa.Table:
        records = list(self._records.values())
        taking = [self._routes.letters(record.endpoint, REASON) for record in records]
        columns: dict[str, list[str]] = {
            "at": [record.position for record in records],
            "detail": [detail_of(self._details[record.position]) for record in records],
        }
        for name, template in self._routes.letter_topics.items():
            columns[f"letters_{name}"] = [
                template.expand(dead_letter_values(record.endpoint, REASON), escape="_") for record in records
            ]
        numbers = {
            "route": pa.array(taking, pa.int32()),
            "limit": pa.array([self._limits.of(route) for route in taking], pa.int64()),
        }
        return pa.table({**{name: pa.array(values, pa.string()) for name, values in columns.items()}, **numbers})


def _passed() -> Column:
    """Return the headers of a letter: all it came with, and for an event out of a batch its own media type."""
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
