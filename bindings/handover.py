"""Between arrival and disk: messages are held, stored in groups, and only then acknowledged.

One group is with the store at a time, and what arrives meanwhile is the next. So many messages share one fsync, groups
grow with the time that a commit takes, and order is kept, also when a group fails and is offered again. A message that
can never be stored is looked for by storing its group one by one, and refused alone.
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

# How messages that wait for the store are grouped: one append, one commit, one fsync for each group.

GROUP_ROWS: Final = 5_000
GROUP_BYTES: Final = 8 * 2**20
"""Most rows, and most bytes of bodies, of one group; a single larger message is a group of its own."""


class Message(Protocol):
    """What waits: a row, and whatever its owner needs to answer its sender."""

    @property
    def row(self) -> InboxRow:
        """What is stored."""
        ...


M = TypeVar("M", bound=Message)


def next_group(waiting: deque[M], most: int = GROUP_ROWS) -> list[M]:
    """Take the next group out of those that wait, in their order: up to *most* messages, at least one."""
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
    """The owner of messages, which answers their senders; called within :meth:`Handover.advance`."""

    def stored(self, messages: Sequence[M]) -> None:
        """Acknowledge these: they survive a crash from now on."""

    def refused(self, message: M) -> None:
        """Refuse this one, which can never be stored. Why is in the log."""

    def held_back(self, messages: Sequence[M]) -> Sequence[M]:
        """Return which of these to offer again, now that the store takes none for a while."""
        ...


class Handover(Generic[M]):
    """Holds the messages of one owner until they are stored. All methods are called from the owner's thread.

    ``wake`` is called from any thread when :meth:`advance` has something to do. With ``eager``, a further group goes to
    the store while others are there once so many messages wait, and order is not kept when a group fails.
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
        self._singly = 0  # groups of one that are still to come, to find the message that cannot be stored
        self._most = GROUP_ROWS
        self._retry_at = 0.0
        self.trouble = ""
        """Why the store takes nothing at present; empty when it does."""

    @property
    def held(self) -> int:
        """How many messages are held."""
        return len(self._waiting) + self._under_way

    def add(self, message: M) -> None:
        """Hold a message; it goes to the store with an :meth:`advance`."""
        self._waiting.append(message)

    def patience(self, most: float) -> float:
        """Return the seconds, up to *most*, after which :meth:`advance` is due though nobody called ``wake``."""
        if self._waiting and not self._sent:
            return min(most, self.pause)
        return most

    @property
    def pause(self) -> float:
        """Seconds for which nothing is sent to the store, since it failed."""
        return max(0.0, self._retry_at - time.monotonic())

    def advance(self) -> None:
        """Let the owner answer what the store is done with, and send it the next group."""
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
        """Let go of messages that wait; those that are with the store stay."""
        self._waiting = deque(message for message in self._waiting if not unwanted(message))

    def abandon(self) -> list[M]:
        """Hold nothing any more, whatever the store still says, and return what was held."""
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
            # Stores promise a future and no error; one that breaks the promise must not leave messages behind.
            done = Future()
            done.set_exception(error)
        self._sent.append((group, done))
        self._under_way += len(group)
        wake = self._wake  # and nothing that is held: the owner may have to drop messages on its own thread
        done.add_done_callback(lambda _done: wake())

    def _settle(self, group: list[M], done: Future[None]) -> None:
        error = InboxError("it gave up") if done.cancelled() else done.exception()
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
            _logger.error("a message for %s cannot be stored and is refused: %s", group[0].row.endpoint, error)
            self._owner.refused(group[0])

    def _hold_back(self, group: list[M], error: BaseException) -> None:
        """Offer a group again later, in its old place: before what arrived after it. In parts, since there may be room
        for a few where there is none for all.
        """
        self._waiting.extendleft(reversed(self._owner.held_back(group)))
        self._most = max(1, len(group) // 2)
        if not self.pause:
            self._retry_at = time.monotonic() + self._backoff.pause()
        if not isinstance(error, InboxError):
            _logger.error("the store failed, and is tried again", exc_info=error)
        elif not self.trouble:
            _logger.warning("the inbox takes no messages, and none is acknowledged: %s", error)
        expected = isinstance(error, InboxError)
        self.trouble = f"the inbox takes no messages: {error}" if expected else f"the store failed: {error!r}"
