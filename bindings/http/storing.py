"""Messages on their way to the inbox: those of one turn of the server are one group.

The store gets each group at once and commits all that it has together. So it never waits for the server while requests
wait for it, and many of them share one fsync. Everything here happens on the server's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from bindings.gateways import RowStore
from bindings.grouping import next_group
from bindings.inbox.errors import InboxError, InboxRowError
from bindings.parts import InboxRow

Settle = Callable[[BaseException | None], None]
"""Called on the server's thread with the outcome of a message: None when it is durable, else why it is not stored."""


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
        self._waiting: deque[_Waiting] = deque()
        self._due = False
        self._ended: deque[tuple[Sequence[_Waiting], Future[None]]] = deque()
        self._called = False

    def add(self, row: InboxRow, settle: Settle) -> None:
        """Store a message, with the others of this turn of the running event loop."""
        self._waiting.append(_Waiting(row, settle))
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._advance)

    def _advance(self) -> None:
        self._due = False
        while self._waiting:
            self._send(next_group(self._waiting))

    def _send(self, group: Sequence[_Waiting]) -> None:
        loop = asyncio.get_running_loop()
        try:
            stored = self._store.append_many([each.row for each in group])
        except Exception as error:
            # Stores promise a future and no error; one that breaks the promise must not leave senders waiting.
            stored = Future()
            stored.set_exception(error)

        def ended(done: Future[None]) -> None:
            self._ended.append((group, done))
            if not self._called:  # else a call is on its way, and sees this group too
                self._called = True
                with contextlib.suppress(RuntimeError):  # The server has ended, and nobody waits any more.
                    loop.call_soon_threadsafe(self._settle_ended)

        stored.add_done_callback(ended)

    def _settle_ended(self) -> None:
        """Answer all groups that the store is done with: it commits several at once."""
        self._called = False  # before the look at what ended, so that none is overlooked
        while self._ended:
            self._settle(*self._ended.popleft())

    def _settle(self, group: Sequence[_Waiting], done: Future[None]) -> None:
        error = InboxError("it gave up") if done.cancelled() else done.exception()
        if isinstance(error, InboxRowError) and len(group) > 1:
            for each in group:
                self._send([each])
        else:
            for each in group:
                self._answer(each, error)

    def _answer(self, message: _Waiting, error: BaseException | None) -> None:
        try:
            message.settle(error)
        except Exception as fault:
            # Others wait behind this one. Its sender gets no answer in time, and repeats.
            context = {"message": "an answer could not be sent", "exception": fault}
            asyncio.get_running_loop().call_exception_handler(context)
