"""Store received messages in groups, and acknowledge each only after it is stored.

One group is with the store at a time; what arrives meanwhile is the next. So many messages share one fsync, groups grow
with the duration of a commit, and order is kept, also when a group fails and is retried. To find a message that can
never be stored, its group is stored one by one; that message alone is refused.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, Generic, Protocol, TypeVar

from bindings.background import Backoff
from bindings.gateways import RowStore
from bindings.inbox.space import InboxError, InboxRowError
from bindings.parts import InboxRow

# How waiting messages are grouped: one append, one commit, one fsync per group.

GROUP_ROWS: Final = 5_000
GROUP_BYTES: Final = 8 * 2**20
"""Maximum rows, and maximum bytes of bodies, of one group; a single larger message is a group of its own."""


class UnstoredRow(Protocol):
    """A waiting message: a row, and whatever its owner needs to answer the sender."""

    @property
    def row(self) -> InboxRow:
        """The row to store."""
        ...


M = TypeVar("M", bound=UnstoredRow)


def next_group(waiting: deque[M], most: int = GROUP_ROWS) -> list[M]:
    """Remove and return the next group of waiting messages, in order: at least one, at most *most*."""
    group: list[M] = []
    size = 0
    while waiting and len(group) < most:
        size += len(waiting[0].row.body or b"")
        if group and size > GROUP_BYTES:
            break
        group.append(waiting.popleft())
    return group


_logger = logging.getLogger(__name__)


class AckHandler(Protocol[M]):
    """The owner of messages, which answers their senders; called within :meth:`AckAfterStore.advance`."""

    def stored(self, messages: Sequence[M]) -> None:
        """Acknowledge these messages, which are durable now."""

    def refused(self, message: M) -> None:
        """Refuse this message, which can never be stored. The log says why."""

    def held_back(self, messages: Sequence[M]) -> Sequence[M]:
        """Return which of these messages to retry while the store accepts none."""
        ...


class AckAfterStore(Generic[M]):
    """Holds an owner's messages until they are stored. All methods are called from the owner's thread.

    ``wake`` is called from any thread when :meth:`advance` has something to do. With ``eager``, another group goes to
    the store before the previous one is stored, once that many messages wait; order is then not kept when a group
    fails.
    """

    def __init__(
        self,
        store: RowStore,
        owner: AckHandler[M],
        wake: Callable[[], None],
        backoff: Backoff,
        *,
        eager: float = math.inf,
    ) -> None:
        self._store = store
        self._owner = owner
        self._wake = wake
        self._backoff = backoff
        self._eager = eager
        self._waiting: deque[M] = deque()
        self._sent: list[tuple[list[M], Future[None]]] = []
        self._under_way = 0  # messages
        self._singly = 0  # groups of one still to come, to find the message that cannot be stored
        self._most = GROUP_ROWS
        self._retry_at = 0.0
        self.trouble = ""
        """Why the store accepts nothing at present; empty if it does."""

    @property
    def held(self) -> int:
        """The number of messages not stored yet."""
        return len(self._waiting) + self._under_way

    def add(self, message: M) -> None:
        """Add a message; the next :meth:`advance` passes it to the store."""
        self._waiting.append(message)

    def patience(self, most: float) -> float:
        """Return the seconds, up to *most*, after which :meth:`advance` is due even without ``wake``."""
        if self._waiting and not self._sent:
            return min(most, self.pause)
        return most

    @property
    def pause(self) -> float:
        """Seconds until the store is tried again after a failure."""
        return max(0.0, self._retry_at - time.monotonic())

    def advance(self) -> None:
        """Let the owner answer what the store has finished, and send the store the next group."""
        sent, self._sent = self._sent, []
        for group, done in sent:
            if done.done():
                self._under_way -= len(group)
                self._settle(group, done)
            else:
                self._sent.append((group, done))
        while self._waiting and not self.pause and (not self._sent or len(self._waiting) >= self._eager):
            self._send()

    def drop(self, unwanted: Callable[[M], bool]) -> None:
        """Drop waiting messages; those with the store stay."""
        self._waiting = deque(message for message in self._waiting if not unwanted(message))

    def abandon(self) -> list[M]:
        """Stop holding messages, whatever the store says later, and return those that were held."""
        held = [message for group, _ in self._sent for message in group] + list(self._waiting)
        self._sent.clear()
        self._waiting.clear()
        self._under_way = self._singly = 0
        return held

    def _send(self) -> None:
        group = next_group(self._waiting, 1 if self._singly else self._most)
        self._singly = max(0, self._singly - 1)
        try:
            done = self._store.append_many([message.row for message in group])
        except Exception as error:
            # Stores return a future and never raise; one that raises anyway must not lose messages.
            done = Future()
            done.set_exception(error)
        self._sent.append((group, done))
        self._under_way += len(group)
        wake = self._wake  # no reference to messages: the owner may have to drop them on its own thread
        done.add_done_callback(lambda _done: wake())

    def _settle(self, group: list[M], done: Future[None]) -> None:
        error = InboxError("the store gave up") if done.cancelled() else done.exception()
        if error is None:
            self.trouble = ""
            self._backoff.reset()
            self._most = min(self._most * 2, GROUP_ROWS)
            self._owner.stored(group)
        elif not isinstance(error, InboxRowError):
            self._hold_back(group, error)
        elif len(group) > 1:
            self._waiting.extendleft(reversed(group))
            self._singly += len(group)
        else:
            _logger.error("a message for %s cannot be stored and is rejected: %s", group[0].row.endpoint, error)
            self._owner.refused(group[0])

    def _hold_back(self, group: list[M], error: BaseException) -> None:
        """Retry a group later, before what arrived after it; in smaller groups, since a few messages may fit where all
        of them do not.
        """
        self._waiting.extendleft(reversed(self._owner.held_back(group)))
        self._most = max(1, len(group) // 2)
        if not self.pause:
            self._retry_at = time.monotonic() + self._backoff.pause()
        if not isinstance(error, InboxError):
            _logger.error("the store failed; retrying", exc_info=error)
        elif not self.trouble:
            _logger.warning("the inbox accepts no messages, and none is acknowledged: %s", error)
        expected = isinstance(error, InboxError)
        self.trouble = f"the inbox accepts no messages: {error}" if expected else f"the store failed: {error!r}"
