"""What a connection of the gateway holds between arrival and disk, and how each message is settled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import proton
from proton import Delivery

from bindings.amqp.dialing import reconnecting
from bindings.amqp.inlet import Inlet
from bindings.gateways import GatewayCounters, RowStore
from bindings.handover import Handover
from bindings.parts import InboxRow

EAGER: Final = 250
"""So many messages go to the store while it has others; every group costs two changes of threads, and a frame."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message that is held, and what it came over.

    ``delivery`` is None when its sender had settled it: there is nothing to answer, and nobody sends it again.
    ``inlet`` is None for one that was offered to the store before.
    """

    row: InboxRow
    inlet: Inlet | None = None
    receiver: proton.Receiver | None = None
    delivery: Delivery | None = None

    def let_go(self, outcome: int) -> None:
        """Release the message, and tell the broker its outcome; not when its link is gone or attached anew: then the
        broker has taken the message back.
        """
        if self.inlet is None or self.receiver is None or self.inlet.receiver is not self.receiver:
            return
        self.inlet.held -= 1
        if self.delivery is not None:
            self.delivery.update(outcome)
            self.delivery.settle()


class Holding:
    """The messages held for one connection, all on its thread; see :class:`bindings.handover.Owner`.

    ``kept`` are the rows that nobody would send again; each connection leaves them to the next one.
    """

    def __init__(
        self, store: RowStore, counters: GatewayCounters, wake: Callable[[], None], kept: list[InboxRow]
    ) -> None:
        self.handover = Handover(store, self, wake, reconnecting(), eager=EAGER)
        self._counters = counters
        self._kept = kept

    def add(self, arrival: Arrival) -> None:
        """Hold a message; it goes to the store when the handover advances."""
        if arrival.inlet is not None:
            arrival.inlet.held += 1
        self.handover.add(arrival)

    def retry(self) -> None:
        """Hold the kept rows again."""
        for row in self._kept:
            self.add(Arrival(row))
        self._kept.clear()

    def release(self) -> None:
        """Give everything back to the broker, whatever the store says later."""
        self._kept += [arrival.row for arrival in self._given_back(self.handover.abandon())]

    def stored(self, messages: Sequence[Arrival]) -> None:
        for arrival in messages:
            arrival.let_go(Delivery.ACCEPTED)
            self._counters.acknowledged(arrival.row.endpoint)

    def refused(self, message: Arrival) -> None:
        """Reject it: the broker's dead letters are the place for it."""
        message.let_go(Delivery.REJECTED)

    def held_back(self, messages: Sequence[Arrival]) -> Sequence[Arrival]:
        return self._given_back(messages)

    @staticmethod
    def _given_back(messages: Iterable[Arrival]) -> list[Arrival]:
        """Release messages, and return those that nobody would send again."""
        for arrival in messages:
            arrival.let_go(Delivery.RELEASED)
        return [Arrival(arrival.row) for arrival in messages if arrival.delivery is None]
