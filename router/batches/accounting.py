"""Whether all that a query takes arrives: what the source says was taken, held against what sinks say they have.

Both are worked out apart from each other: the one from offsets in Spark's checkpoint, from where the last batch ended
to where this one does, so that a batch which nobody wrote is missed; the other from receipts of sinks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bindings.inbox.errors import InboxError
from bindings.inbox.offsets import is_inbox_offset, positions_of
from bindings.inbox.view import InboxView
from router.judging.tally import Tally
from router.logs import get_logger
from router.reading.generations import Generation
from router.reading.planned import bounds
from router.state.accounts import Account, Accounts
from router.state.state import State

if TYPE_CHECKING:
    from router.watching.metrics import Metrics

_log = get_logger()


class Accounting:
    """Keeps the account of one query; of one thread.

    Spark ends a query with ``on_data_loss: stop`` when records are gone that it was to read, so that offsets without a
    record then held none: markers of transactions, or what compaction removed. Else nobody can tell: they are missed.
    """

    def __init__(
        self, query: str, generation: Generation, state: State, accounts: Accounts, *, stops_on_loss: bool
    ) -> None:
        self._query = query
        self._generation = generation
        self._stops_on_loss = stops_on_loss
        self._accounts = accounts
        self._inbox = state.inbox
        self._view: InboxView | None = None
        self.account = accounts.of(query)

    def add(self, batch: int, tally: Tally, metrics: Metrics) -> bool:
        """Add a batch that all sinks have, durably; False when it was added before."""
        if self.account.generation == self._generation.id and self.account.batch >= batch:
            return False
        with self._accounts.changing(self._query) as account:
            taken, empty = self._add(account, batch, tally)
        metrics.sinks.account(self._query, taken, empty, account.gap)
        return True

    def _add(self, account: Account, batch: int, tally: Tally) -> tuple[int, int]:
        """Add a batch, and return how many records it took, and offsets without one."""
        taken, planned = self._taken(batch) or (tally.rows, tally.rows)
        # What the batch was to read, and had no record: what was passed over before it is another matter.
        empty = max(0, planned - tally.rows) if self._stops_on_loss and not is_inbox_offset(account.reached) else 0
        account.generation, account.batch = self._generation.id, batch
        account.taken += taken
        account.empty += empty
        account.judged += tally.rows
        account.missing += tally.missing
        account.count(tally)
        return taken, empty

    def _taken(self, batch: int) -> tuple[int, int] | None:
        """Return how many records lie between the end of the account and that of a batch, and move it there.

        The second number is of those between where the batch begins and ends. None where the source does not say where
        it begins.
        """
        try:
            starts, ends = bounds(self._generation, batch)
            reached, self.account.reached = self.account.reached, dict(ends)
            if not ends:
                return None
            return self._rows(starts, ends, reached) if is_inbox_offset(ends) else _offsets(starts, ends, reached)
        except (InboxError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning("what a batch took is not known", query=self._query, batch=batch, problem=str(error))
            return None

    def _rows(self, starts: Mapping[str, Any], ends: Mapping[str, Any], reached: Mapping[str, Any]) -> tuple[int, int]:
        if self._view is None:
            self._view = InboxView(self._inbox)
        view = self._view
        own = view.layout.inbox
        begin = reached if reached.get("inbox") == own else starts
        if begin:
            firsts = positions_of(begin, own)
        else:
            firsts = {number: view.first(number) for number in view.partitions}
        taken = sum(view.count(number, firsts[number], end) for number, end in positions_of(ends, own).items())
        return taken, taken


def _offsets(starts: Mapping[str, Any], ends: Mapping[str, Any], reached: Mapping[str, Any]) -> tuple[int, int] | None:
    taken = planned = 0
    for topic, partitions in ends.items():
        for number, end in partitions.items():
            start = int(starts.get(topic, {}).get(number, -1))
            before = reached.get(topic, {}).get(number)
            # A topic that was made anew is read from its first record: what is read again is taken again.
            first = start if before is None or 0 <= start < before else before
            if first < 0 and not starts:
                return None
            # A partition that Spark meets on the way is read from the first record that it ever had.
            first = max(0, first)
            taken += max(0, end - first)
            planned += max(0, end - max(start, first))
    return taken, planned
