"""Whether all that a query takes arrives: what the source says was taken, held against what sinks say they have.

Both are worked out apart from each other: the one from offsets in Spark's checkpoint, from where the last batch ended
to where this one does, so that a batch which nobody wrote is missed; the other from receipts of sinks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from bindings.inbox.errors import InboxError
from bindings.inbox.offsets import is_inbox_offset, positions_of
from bindings.inbox.view import InboxView
from bindings.kafka.client import KafkaUnreachable
from router.judging.tally import Tally
from router.logs import get_logger
from router.reading.generations import Generation
from router.reading.losses import Losses, places_of
from router.reading.planned import Spans, bounds, records_in
from router.reading.positions import cluster_of
from router.state.accounts import Accounts
from router.state.state import State

if TYPE_CHECKING:
    from router.watching.metrics import Metrics

_DOUBTFUL: Final = 1000
"""Batches, at most, that brokers are asked about once they answer again."""
_TOPICS: Final = "kafka-"
_log = get_logger()


class Accounting:
    """Keeps the account of one query; of one thread.

    Spark ends a query with ``on_data_loss: stop`` when records are gone that it was to read, so that offsets without a
    record then held none: markers of transactions, or what compaction removed. Where it goes on instead, *losses* asks
    the brokers which of them are lost at most, and says so; as long as they do not say, all are missed.
    """

    def __init__(
        self, query: str, generation: Generation, state: State, accounts: Accounts, losses: Losses | None = None
    ) -> None:
        self._query = query
        self._generation = generation
        self._losses = losses
        self._doubtful: list[tuple[Spans, int]] = []
        """Offsets of batches, and how many of them held no record, that the brokers have not yet explained."""
        self._accounts = accounts
        self._inbox = state.inbox
        self._view: InboxView | None = None
        self.account = accounts.of(query)
        if self.account.generation != generation.id and query.startswith(_TOPICS):
            self._hand_over()

    def _hand_over(self) -> None:
        """Share how far the queries of a cluster have come in topics that move between them.

        A topic that this query takes over goes on from where the other query was, and the other way round.
        """
        own, cluster = self.account, cluster_of(self._query)
        for query, other in self._accounts.known().items():
            if query == self._query or not query.startswith(_TOPICS) or cluster_of(query) != cluster:
                continue
            for topic in own.reached.keys() & other.reached.keys():
                taker, giver = (own, other) if topic in self._generation.topics else (other, own)
                taker.reached = {**taker.reached, topic: _furthest(taker.reached[topic], giver.reached[topic])}

    def add(self, batch: int, tally: Tally, metrics: Metrics) -> bool:
        """Add a batch that all sinks have, durably; False when it was added before."""
        if self.account.generation == self._generation.id and self.account.batch >= batch:
            return False
        starts, ends = self._bounds(batch)
        taken, spans = self._taken(batch, starts, ends) or (tally.rows, {})
        # Offsets that the batch was to read and that held no record. Those passed over before it are not counted here.
        empty = self._empty(spans, max(0, records_in(spans) - tally.rows)) if spans else 0
        with self._accounts.changing(self._query) as account:
            if ends is not None:
                account.reached = dict(ends)
            account.generation, account.batch = self._generation.id, batch
            account.taken += taken
            account.empty += empty
            account.judged += tally.rows
            account.missing += tally.missing
            account.count(tally)
        metrics.sinks.account(self._query, taken, empty, account.gap)
        return True

    def _empty(self, spans: Spans, holes: int) -> int:
        """Return how many offsets are known by now to have held no record: of this batch, and of those in doubt."""
        if self._losses is None:
            return holes
        if holes:
            self._doubtful.append((spans, holes))
        empty = 0
        try:
            while self._doubtful:
                asked, missed = self._doubtful[0]
                lost = self._losses(asked)
                empty += max(0, missed - records_in(lost))
                if lost:
                    _log.error("records were lost at the broker", query=self._query, places=places_of(lost))
                self._doubtful.pop(0)
        except KafkaUnreachable as error:
            # Memory is bounded, and some batches show an operator as much as all of them.
            del self._doubtful[:-_DOUBTFUL]
            _log.warning("whether records were lost is not known", query=self._query, problem=str(error))
        return empty

    def _bounds(self, batch: int) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
        try:
            return bounds(self._generation, batch)
        except (OSError, ValueError) as error:
            self._unknown(batch, error)
            return {}, None

    def _taken(self, batch: int, starts: Mapping[str, Any], ends: Mapping[str, Any] | None) -> tuple[int, Spans] | None:
        """Return how many records lie between the end of the account and that of a batch.

        With it come the offsets of those between where the batch begins and ends, none for the local inbox. None where
        the source does not say where it begins.
        """
        if not ends:
            return None
        reached = self.account.reached
        try:
            if is_inbox_offset(ends):
                return self._rows(starts, ends, reached), {}
            return _offsets(starts, ends, reached)
        except (InboxError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._unknown(batch, error)
            return None

    def _unknown(self, batch: int, error: Exception) -> None:
        _log.warning("what a batch took is not known", query=self._query, batch=batch, problem=str(error))

    def _rows(self, starts: Mapping[str, Any], ends: Mapping[str, Any], reached: Mapping[str, Any]) -> int:
        if self._view is None:
            self._view = InboxView(self._inbox)
        view = self._view
        own = view.layout.inbox
        begin = reached if reached.get("inbox") == own else starts
        if begin:
            firsts = positions_of(begin, own)
        else:
            firsts = {number: view.first(number) for number in view.partitions}
        return sum(view.count(number, firsts[number], end) for number, end in positions_of(ends, own).items())


def _furthest(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {number: max(one.get(number, at), at) for number, at in {**one, **other}.items()}


def _offsets(
    starts: Mapping[str, Any], ends: Mapping[str, Any], reached: Mapping[str, Any]
) -> tuple[int, Spans] | None:
    taken = 0
    spans: Spans = {}
    for topic, partitions in ends.items():
        for number, end in partitions.items():
            start = int(starts.get(topic, {}).get(number, -1))
            before = reached.get(topic, {}).get(number)
            # A topic that was created again is read from its first record, and those records count again.
            first = start if before is None or 0 <= start < before else before
            if first < 0 and not starts:
                return None
            # A partition that Spark meets on the way is read from the first record that it ever had.
            first = max(0, first)
            taken += max(0, end - first)
            if end > max(start, first):
                spans.setdefault(topic, {})[int(number)] = (max(start, first), end)
    return taken, spans
