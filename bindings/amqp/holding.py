"""What a connection of the gateway holds between arrival and disk, and how each message is settled."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

import proton
from proton import Delivery

from bindings.amqp.inlet import Inlet
from bindings.gateways import GatewayCounters, RowStore
from bindings.inbox import InboxError, InboxRow, InboxRowError

GROUP: Final = 250
"""So many messages go to the store even while it has a batch to answer; fewer wait for its answer, and go together."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message that is held, and what it came over.

    ``delivery`` is None when its sender had settled it: there is nothing to answer, and nobody sends it again.
    ``inlet`` is None for one that an earlier connection left behind.
    """

    row: InboxRow
    inlet: Inlet | None = None
    receiver: proton.Receiver | None = None
    delivery: Delivery | None = None

    @property
    def is_live(self) -> bool:
        """Whether the link that it came over is still there; a link attached anew is another one."""
        return self.inlet is not None and self.receiver is not None and self.inlet.receiver is self.receiver

    def settle(self, outcome: int) -> None:
        """Tell the broker, unless the link is gone: then the broker has taken the message back."""
        if self.is_live and self.delivery is not None:
            self.delivery.update(outcome)
            self.delivery.settle()


@dataclass(frozen=True, slots=True)
class Stored:
    """The store's answer about a batch."""

    batch: int
    error: BaseException | None


class Holding:
    """The messages held for one connection, all on its thread.

    ``post`` takes a :class:`Stored` from whatever thread the store answers on, and brings it to :meth:`answered`.
    ``kept`` collects the rows that the store refused and nobody would send again.
    """

    def __init__(
        self, store: RowStore, counters: GatewayCounters, post: Callable[[Stored], None], kept: list[InboxRow]
    ) -> None:
        self._store = store
        self._counters = counters
        self._post = post
        self._kept = kept
        self._arrived: list[Arrival] = []
        self._batches: dict[int, Sequence[Arrival]] = {}
        self._numbers = itertools.count()

    @property
    def idle(self) -> bool:
        """Whether nothing is held."""
        return not self._arrived and not self._batches

    def add(self, arrival: Arrival) -> None:
        """Hold a message; it goes to the store with the next :meth:`flush`."""
        if arrival.inlet is not None:
            arrival.inlet.held += 1
        self._arrived.append(arrival)

    def flush(self) -> None:
        """Give what was added to the store, as one batch; to be called again after each :meth:`answered`.

        While an earlier batch is with the store a small one stays here: it would wait for the same write to end, and
        every batch costs two changes of threads, and its dispositions a frame.
        """
        if self._arrived and (not self._batches or len(self._arrived) >= GROUP):
            arrived, self._arrived = self._arrived, []
            self._submit(arrived)

    def retry(self) -> None:
        """Give the kept rows to the store again."""
        rows = list(self._kept)
        self._kept.clear()
        if rows:
            self._submit([Arrival(row) for row in rows])

    def answered(self, stored: Stored) -> BaseException | None:
        """Settle a batch: accepted, or released when the store refused it; return why it did.

        A row that no store could take is tried alone, and rejected: the broker's dead letters are the place for it.
        """
        batch, error = self._batches.pop(stored.batch, ()), stored.error
        if isinstance(error, InboxRowError) and len(batch) > 1:
            for each in batch:
                self._submit([each])
            return None
        for each in batch:
            if each.is_live and each.inlet is not None:
                each.inlet.held -= 1
        if error is None:
            for each in batch:
                each.settle(Delivery.ACCEPTED)
                self._counters.acknowledged(each.row.endpoint)
            return None
        if isinstance(error, InboxRowError):
            for each in batch:
                _logger.error("a message of %s cannot be stored and is rejected: %s", each.row.endpoint, error)
                each.settle(Delivery.REJECTED)
            return None
        self._give_back(batch)
        return error

    def release(self) -> None:
        """Give everything back to the broker, whatever the store says later."""
        batches, self._batches = self._batches, {}
        for batch in (*batches.values(), self._arrived):
            for each in batch:
                if each.is_live and each.inlet is not None:
                    each.inlet.held -= 1
            self._give_back(batch)
        self._arrived = []

    def _give_back(self, batch: Sequence[Arrival]) -> None:
        for each in batch:
            if each.delivery is None:
                self._kept.append(each.row)
            else:
                each.settle(Delivery.RELEASED)

    def _submit(self, batch: Sequence[Arrival]) -> None:
        number = next(self._numbers)
        self._batches[number] = batch
        post = self._post

        def answered(future: Future[None]) -> None:
            # Only the number leaves our thread: the last reference to a delivery has to be dropped on it.
            post(Stored(number, future.exception()))

        try:
            self._store.append_many([each.row for each in batch]).add_done_callback(answered)
        except InboxError as error:
            post(Stored(number, error))
