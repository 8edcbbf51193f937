"""Messages on their way to the inbox: those of one turn of the server, and all that come while others are stored.

Few groups are with the store at a time, and what arrives meanwhile is the next. So many requests share one fsync and
one change of threads. Everything here happens on the server's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple

from bindings.gateways import RowStore
from bindings.inbox.errors import InboxError, InboxRowError
from bindings.parts import InboxRow

GROUP_ROWS: Final = 5_000
GROUP_BYTES: Final = 8 * 2**20
"""Most rows, and most bytes of bodies, of one group; a single larger message is a group of its own."""
MOST: Final = 2
"""Groups that are with the store at a time: one that takes long does not hold up all others."""
Settle = Callable[[BaseException | None], None]
"""Is told, on the server's thread, what became of a message: None when it is durable, else why it is not stored."""


class _Waiting(NamedTuple):
    row: InboxRow
    settle: Settle


class GroupStore:
    """Stores messages in groups; each is settled when it is durable or refused.

    A message that can never be stored is refused alone. When a group fails for another reason, all of it is refused,
    though some may be stored: their senders repeat them.
    """

    def __init__(self, store: RowStore) -> None:
        self._store = store
        self._waiting: list[_Waiting] = []
        self._due = False
        self._under_way = 0

    def add(self, row: InboxRow, settle: Settle) -> None:
        """Store a message, with the others of this turn of the running event loop."""
        self._waiting.append(_Waiting(row, settle))
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._advance)

    def _advance(self) -> None:
        self._due = False
        while self._waiting and self._under_way < MOST:
            self._send(self._next())

    def _send(self, group: Sequence[_Waiting]) -> None:
        self._under_way += 1
        loop = asyncio.get_running_loop()
        try:
            stored = self._store.append_many([each.row for each in group])
        except Exception as error:
            # Stores promise a future and no error; one that breaks the promise must not leave senders waiting.
            stored = Future()
            stored.set_exception(error)

        def ended(done: Future[None]) -> None:
            with contextlib.suppress(RuntimeError):  # The server has ended, and nobody waits any more.
                loop.call_soon_threadsafe(self._settle, group, done)

        stored.add_done_callback(ended)

    def _next(self) -> list[_Waiting]:
        count, size = 0, 0
        for each in self._waiting[:GROUP_ROWS]:
            size += len(each.row.body or b"")
            if count and size > GROUP_BYTES:
                break
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group

    def _settle(self, group: Sequence[_Waiting], done: Future[None]) -> None:
        self._under_way -= 1
        error = InboxError("it gave up") if done.cancelled() else done.exception()
        if isinstance(error, InboxRowError) and len(group) > 1:
            for each in group:
                self._send([each])
        else:
            for each in group:
                each.settle(error)
        self._advance()
