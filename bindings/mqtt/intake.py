"""Between arrival and disk: what is held, stored in groups, and acknowledged when that is done.

One group is on its way to the store at a time, and what arrives meanwhile is the next one. So order is kept, also when
a group fails and is stored again, and groups grow with the time that a commit takes.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from bindings.backoff import Backoff
from bindings.gateways import GatewayCounters, RowStore
from bindings.inbox import InboxRow, InboxRowError
from bindings.mqtt.link import Link

GROUP_ROWS: Final = 2_000
GROUP_BYTES: Final = 8 * 2**20
"""Most rows, and most bytes of bodies, of one group; a single larger message is a group of its own."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Held:
    """One message that is not stored yet. ``mid`` is 0 when it wants no acknowledgement."""

    row: InboxRow
    link: Link
    mid: int


class Intake:
    """Holds messages until they are stored. All methods are called from the gateway's thread.

    What the store refuses for now stays held and is offered again, with backoff. ``wake`` is called from other threads,
    when :meth:`advance` has something to do.
    """

    def __init__(self, store: RowStore, counters: GatewayCounters, wake: Callable[[], None]) -> None:
        self._store = store
        self._counters = counters
        self._wake = wake
        self._waiting: deque[Held] = deque()
        self._group: list[Held] = []
        self._done: Future[None] | None = None
        self._singly = 0  # groups of one that are still to come, to find the row that cannot be stored
        self._most = GROUP_ROWS
        self._backoff = Backoff(0.1, 10.0)
        self._retry_at = 0.0
        self.trouble = ""

    @property
    def held(self) -> int:
        """How many messages are held."""
        return len(self._waiting) + len(self._group)

    def add(self, held: Held) -> None:
        """Take a message."""
        self._waiting.append(held)

    def patience(self, most: float) -> float:
        """Return the seconds, up to *most*, after which :meth:`advance` is due though nobody woke anybody."""
        if self._done is None and self._waiting:
            return min(most, max(0.0, self._retry_at - time.monotonic()))
        return most

    def advance(self) -> None:
        """Acknowledge what is stored, and send the next group to the store."""
        if self._done is not None and self._done.done():
            self._settle(self._done)
        if self._done is None and self._waiting and time.monotonic() >= self._retry_at:
            self._submit()

    def forget_unacknowledged(self) -> None:
        """Let go of messages whose link has ended and that are not on their way: the broker delivers them again."""
        kept = [held for held in self._waiting if held.mid == 0 or held.link.alive]
        self._waiting = deque(kept)

    def _submit(self) -> None:
        size = 0
        most = 1 if self._singly else self._most
        while self._waiting and len(self._group) < most:
            body = len(self._waiting[0].row.body or b"")
            if self._group and size + body > GROUP_BYTES:
                break
            size += body
            self._group.append(self._waiting.popleft())
        self._done = self._store.append_many([held.row for held in self._group])
        self._done.add_done_callback(lambda _done: self._wake())

    def _settle(self, done: Future[None]) -> None:
        group, self._group, self._done = self._group, [], None
        error = done.exception()
        self._singly = max(0, self._singly - 1)
        if error is None:
            self.trouble = ""
            self._backoff.reset()
            self._most = min(self._most * 2, GROUP_ROWS)
            self._acknowledge(group)
        elif isinstance(error, InboxRowError):
            self._isolate(group, error)
        else:
            self._keep(group, error)

    def _acknowledge(self, group: list[Held]) -> None:
        for held in group:
            if held.mid == 0 or held.link.acknowledge(held.mid):
                self._counters.acknowledged(held.row.endpoint)

    def _keep(self, group: list[Held], error: BaseException) -> None:
        """Offer a group again later, in its old place: before what arrived after it. In parts, since there may be room
        for a few where there is none for all.
        """
        self._waiting.extendleft(reversed(group))
        self.forget_unacknowledged()
        self._most = max(1, len(group) // 2)
        pause = self._backoff.pause()
        self._retry_at = time.monotonic() + pause
        if not self.trouble:
            _logger.warning("messages are held and not acknowledged: %s", error)
        self.trouble = f"messages are held, since they cannot be stored: {error}"

    def _isolate(self, group: list[Held], error: InboxRowError) -> None:
        """Store the rows of a group one by one; a row that cannot be stored even so is never acknowledged."""
        if len(group) > 1:
            self._waiting.extendleft(reversed(group))
            self._singly = len(group)
            return
        held = group[0]
        _logger.error("a message for %s cannot be stored and is not acknowledged: %s", held.row.endpoint, error)
