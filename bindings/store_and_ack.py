"""Store received messages in groups, and acknowledge each only after it is stored.

One group is stored at a time; messages that arrive meanwhile are the next group. So many messages share one fsync, and
order is kept, even if a group fails and is retried. To find a message that can
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
from bindings.gateways import LOG_SECONDS, RowStore
from bindings.inbox.space import InboxError, InboxRowError
from bindings.parts import InboxRow

# Groups of waiting messages: one append, one commit, one fsync per group.

GROUP_ROWS: Final = 5_000
GROUP_BYTES: Final = 8 * 2**20
"""Maximum rows, and maximum bytes of bodies, of one group; a single larger message is a group of its own."""


class UnstoredRow(Protocol):
    """A waiting message: its row, and what its owner needs to answer the sender."""

    @property
    def row(self) -> InboxRow:
        """The row to store."""
        ...


M = TypeVar("M", bound=UnstoredRow)


def take_group(waiting: deque[M], limit: int = GROUP_ROWS) -> list[M]:
    """Remove and return the next group of waiting messages, in order: at least one, at most *limit*."""
    group: list[M] = []
    size = 0
    while waiting and len(group) < limit:
        size += len(waiting[0].row.body or b"")
        if group and size > GROUP_BYTES:
            break
        group.append(waiting.popleft())
    return group


_logger = logging.getLogger(__name__)


class AckHandler(Protocol[M]):
    """Answers the senders of messages; called within :meth:`AckAfterStore.advance`."""

    def on_stored(self, messages: Sequence[M]) -> None:
        """Acknowledge these messages, which are now durable."""

    def on_refused(self, message: M) -> None:
        """Refuse this message, which can never be stored. The log says why."""

    def select_retries(self, messages: Sequence[M]) -> Sequence[M]:
        """Return which of these messages to retry while the store accepts none."""
        ...


class AckAfterStore(Generic[M]):
    """Queues messages until they are stored, and has their owner acknowledge them. Used on the owner's thread.

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
        self._sent_count = 0  # messages
        self._single_groups = 0  # groups of one still to come, to find the message that cannot be stored
        self._max_rows = GROUP_ROWS
        self._retry_at = 0.0
        self._log_at = 0.0
        self.trouble = ""
        """Why the store currently accepts nothing; empty if it does."""

    @property
    def unstored_count(self) -> int:
        """The number of messages not stored yet."""
        return len(self._waiting) + self._sent_count

    def add(self, message: M) -> None:
        """Add a message; the next :meth:`advance` passes it to the store."""
        self._waiting.append(message)

    def seconds_until_due(self, limit: float) -> float:
        """Return the seconds, up to *limit*, after which :meth:`advance` is due even without ``wake``."""
        if self._waiting and not self._sent:
            return min(limit, self.retry_delay)
        return limit

    @property
    def retry_delay(self) -> float:
        """Seconds until the store is tried again after a failure."""
        return max(0.0, self._retry_at - time.monotonic())

    def advance(self) -> None:
        """Report finished groups to the owner, and send the next group to the store."""
        sent, self._sent = self._sent, []
        for group, done in sent:
            if done.done():
                self._sent_count -= len(group)
                self._settle_group(group, done)
            else:
                self._sent.append((group, done))
        while self._waiting and not self.retry_delay and (not self._sent or len(self._waiting) >= self._eager):
            self._send_group()

    def drop_waiting(self, unwanted: Callable[[M], bool]) -> None:
        """Drop unwanted messages, except those being stored."""
        self._waiting = deque(message for message in self._waiting if not unwanted(message))

    def abandon(self) -> list[M]:
        """Forget all messages, even those being stored, and return them."""
        held = [message for group, _ in self._sent for message in group] + list(self._waiting)
        self._sent.clear()
        self._waiting.clear()
        self._sent_count = self._single_groups = 0
        return held

    def _send_group(self) -> None:
        group = take_group(self._waiting, 1 if self._single_groups else self._max_rows)
        self._single_groups = max(0, self._single_groups - 1)
        try:
            done = self._store.append_many([message.row for message in group])
        except Exception as error:
            # Stores return a future and never raise; one that raises anyway must not lose messages.
            done = Future()
            done.set_exception(error)
        self._sent.append((group, done))
        self._sent_count += len(group)
        wake = self._wake  # no reference to messages: the owner may have to drop them on its own thread
        done.add_done_callback(lambda _done: wake())

    def _settle_group(self, group: list[M], done: Future[None]) -> None:
        error = done.exception()
        if error is None:
            self.trouble = ""
            self._backoff.reset()
            self._max_rows = min(self._max_rows * 2, GROUP_ROWS)
            self._owner.on_stored(group)
        elif not isinstance(error, InboxRowError):
            self._hold_back(group, error)
        elif len(group) > 1:
            self._waiting.extendleft(reversed(group))
            self._single_groups += len(group)
        else:
            _logger.error("a message for %s cannot be stored and is rejected: %s", group[0].row.endpoint, error)
            self._owner.on_refused(group[0])

    def _hold_back(self, group: list[M], error: BaseException) -> None:
        """Retry a group later, before messages that arrived after it, and in smaller groups, since a few messages may
        fit where all do not.
        """
        self._waiting.extendleft(reversed(self._owner.select_retries(group)))
        self._max_rows = max(1, len(group) // 2)
        if not self.retry_delay:
            self._retry_at = time.monotonic() + self._backoff.next_pause()
        expected = isinstance(error, InboxError)
        if not self.trouble and time.monotonic() >= self._log_at:
            self._log_at = time.monotonic() + LOG_SECONDS
            _logger.warning("messages are not acknowledged: %s", error, exc_info=None if expected else error)
        self.trouble = f"the inbox accepts no messages: {error}" if expected else f"the store failed: {error!r}"
