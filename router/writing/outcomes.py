"""What the steps of a batch ask of its judged records, wherever those are: the contract of :class:`Outcomes`.

Spark's are in :mod:`router.writing.spark_outcomes`; tests of the steps have some in a list. Rows stay where they were
judged: each method says what it brings to the driver.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from router.judging.tally import Tally

if TYPE_CHECKING:
    from router.sinks.contract import Staged
    from router.writing.rejections import Rejections
    from router.writing.staging import Share


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of one record, without the record: ``letter`` is the id of the dead letter it is or would be.

    ``route`` is below zero for a dead letter. ``key`` is what the record's order is kept by, where that was asked for.
    """

    position: str
    letter: str
    route: int
    endpoint: str = ""
    message: str = ""
    reason: str = ""
    detail: str = ""
    key: str = ""


class Outcomes(Protocol):
    """The outcomes of one attempt, or those of them that one sink gets. Asking again gives the same.

    With ``may_reject`` a sink may still reject each: they know how records arrived, for a letter, or nobody makes one.
    """

    may_reject: bool

    def evaluate(self) -> Tally:
        """Judge every record and keep the outcomes until :meth:`release`; return their counts."""

    def tally(self) -> Tally:
        """Return the counts, once a write has evaluated what was not kept."""

    def release(self) -> None:
        """Keep nothing any more."""

    def on_routes(self, routes: Sequence[int]) -> Outcomes:
        """Return those that one of these routes takes."""

    def without(self, letters: Collection[str]) -> Outcomes:
        """Return all but those with these letters' ids, in their order."""

    def letters(self, rejections: Rejections | None = None) -> Outcomes:
        """Return the dead letters, and one more for each rejected record, which holds the whole record as it arrived.

        These outcomes must still know how records arrived (:attr:`router.writing.writer.BatchWriter.may_reject`).
        """

    def decisions(self) -> list[Decision]:
        """Return all decisions."""

    def keyed(self, keys: Collection[str] | None = None) -> list[Decision]:
        """Return the decisions on records that have a key, with it; *keys* are the only ones wanted, None for all."""

    def exchanges(self) -> Iterator[dict[str, Any]]:
        """Yield what pairs records with others: position, time of arrival, message, relation and exchange.

        Only of plans that pair; the columns are those of :mod:`router.judging.relating`, whose length is bounded.
        """

    def topics(self, sink: str) -> list[str]:
        """Return the topics of a Kafka sink that these events go to, each once."""

    def to_topics(self, sink: str, topics: Collection[str]) -> list[tuple[str, Decision]]:
        """Return the decisions on events for these topics of a Kafka sink, each with its topic."""

    def events(self, schema: pa.Schema) -> pa.Table:
        """Return the events, with bodies, as a sink of that schema takes them."""

    def dead_letters(self) -> pa.Table:
        """Return the dead letters, with bodies, as sinks take them."""

    def staged(self, share: Share) -> Staged:
        """Return what workers wrote of these outcomes for a sink that takes files: names of files, and no rows.

        What was not written when the outcomes were evaluated is written now. Files that no sink took over are removed
        by :meth:`release`.
        """

    def publish_events(self, sink: str) -> None:
        """Have Spark write the events to a Kafka sink, each acknowledged; at least once.

        Raises:
            SinkError: the brokers did not take them all now.
        """

    def publish_letters(self, sink: str) -> None:
        """Have Spark write the dead letters to a Kafka sink, as :meth:`publish_events`."""

    def publish_all(self, sinks: Sequence[str]) -> None:
        """Have Spark write events and dead letters to Kafka sinks of one cluster in one pass, as the others."""

    def spilled(self) -> Iterator[tuple[str, bytes]]:
        """Yield id and native record, as JSON, of each dead letter that no topic takes."""

    def left_out(self) -> Iterator[tuple[str, bytes]]:
        """Yield a name and what the source gave, as JSON, of each record whose dead letter has only its place."""
