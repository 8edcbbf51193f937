"""From messages that arrived to rows on disk, many at a time and in order.

One group is with the store at a time, and all that arrives meanwhile is the next: so many messages share one fsync, and
a group that the store refuses for now is offered again ahead of what came later.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Protocol

from bindings.backoff import Backoff
from bindings.gateways import RowStore
from bindings.inbox.errors import InboxError, InboxRowError
from bindings.inbox.frames import InboxRow

GROUP_ROWS: Final = 5000
_LOWEST_SECONDS: Final = 0.1
_HIGHEST_SECONDS: Final = 2.0

_logger = logging.getLogger(__name__)


class Owner(Protocol):
    """Who is told what became of a message; called on the event loop."""

    def stored(self, items: Sequence[Item]) -> None:
        """These survive a crash from now on."""

    def refused(self, items: Sequence[Item]) -> None:
        """These can never be stored."""


@dataclass(slots=True, eq=False)
class Item:
    """One message between arrival and disk; ``reply`` is where it is acknowledged, ``since`` when that was put off."""

    row: InboxRow
    owner: Owner
    reply: bytes = b""
    since: float = 0.0


class Storing:
    """Hands messages to the store; used on one event loop only."""

    def __init__(self, store: RowStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._waiting: deque[Item] = deque()
        self._singly = 0  # so many of those waiting go one by one, to find the one that cannot be stored
        self._writing = False
        self._backoff = Backoff(_LOWEST_SECONDS, _HIGHEST_SECONDS)
        self._idle = asyncio.Event()
        self._idle.set()
        self.trouble = ""
        """Why the store takes nothing at present; empty when it does."""

    def add(self, item: Item) -> None:
        """Store a message soon, together with others that are there by then; its owner hears of it."""
        self._waiting.append(item)
        if not self._writing:
            self._writing = True
            self._idle.clear()
            self._loop.call_soon(self._next)

    async def settled(self) -> None:
        """Wait until nothing is on its way to the disk."""
        await self._idle.wait()

    def _next(self) -> None:
        if not self._waiting:
            self._writing = False
            self._idle.set()
            return
        count = 1 if self._singly else min(len(self._waiting), GROUP_ROWS)
        group = [self._waiting.popleft() for _ in range(count)]
        self._singly = max(0, self._singly - 1)
        try:
            done = self._store.append_many([item.row for item in group])
        except Exception as error:
            # Stores promise a future and no error; one that breaks the promise must not leave messages behind.
            done = Future()
            done.set_exception(error)
        done.add_done_callback(lambda done: self._report(group, done))  # on a thread of the store

    def _report(self, group: list[Item], done: Future[None]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._settle, group, done)
        except RuntimeError:
            _logger.debug("%s messages were settled after the gateway had ended", len(group))

    def _settle(self, group: list[Item], done: Future[None]) -> None:
        error = InboxError("it gave up") if done.cancelled() else done.exception()
        if error is None:
            self.trouble = ""
            self._backoff.reset()
            for owner, items in _by_owner(group):
                owner.stored(items)
        elif isinstance(error, InboxRowError):
            self._sort_out(group, error)
        else:
            self._hold(group, error)
            return
        self._next()

    def _hold(self, group: list[Item], error: BaseException) -> None:
        """Offer the group again after a while."""
        if isinstance(error, InboxError):
            self.trouble = f"messages are held, the inbox takes none: {error}"
        else:
            self.trouble = f"messages are held, the store failed: {error!r}"
            _logger.error("the store failed, and is tried again", exc_info=error)
        self._waiting.extendleft(reversed(group))
        self._loop.call_later(self._backoff.pause(), self._next)

    def _sort_out(self, group: list[Item], error: InboxRowError) -> None:
        """Find the row that cannot be stored, so that its neighbours are."""
        if len(group) > 1:
            self._waiting.extendleft(reversed(group))
            self._singly = len(group)
            return
        _logger.error("a message for %s cannot be stored: %s", group[0].row.endpoint, error)
        group[0].owner.refused(group)


def _by_owner(group: Sequence[Item]) -> list[tuple[Owner, list[Item]]]:
    shares: dict[int, tuple[Owner, list[Item]]] = {}
    for item in group:
        shares.setdefault(id(item.owner), (item.owner, []))[1].append(item)
    return list(shares.values())
