"""Messages at which a target ends the connection instead of answering, and when that is the message's own fault.

A reset says nothing by itself: a target that restarts, or a proxy with nothing behind it, resets as well. So a message
is only given up when the target answers others and still ends this one, tried alone, with an answer to a bare
``OPTIONS`` request before each try. Where no other message shows that the target works, it takes many calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import httpx

ALONE: Final = 3
"""Tries of a message by itself before it is given up."""
LONELY: Final = 10
"""Calls in which a message had no answer before it is tried so with no other message to compare with."""
IN_A_ROW: Final = 8
"""Messages without an answer, one after the other, after which the target counts as down."""
ENDED: Final = (httpx.ReadError, httpx.WriteError, httpx.CloseError, httpx.RemoteProtocolError)
"""What a connection that ended in the middle of an exchange raises."""
_REMEMBERED: Final = 1000


class Unanswered:
    """What is known of messages without an answer; thread-safe. *client* sends the ``OPTIONS`` requests."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._calls: dict[int, int] = {}
        self._lock = threading.Lock()

    def may_be_at_fault(self, message: object, *, others: bool) -> bool:
        """Count a call that ended without an answer; return whether to try the message alone.

        *others* tells that the target answered other messages in this call.
        """
        with self._lock:
            if len(self._calls) >= _REMEMBERED:
                self._calls.clear()
            calls = self._calls[hash(message)] = self._calls.get(hash(message), 0) + 1
        return others or calls >= LONELY

    def settled(self, message: object) -> None:
        """Forget a message that is settled."""
        with self._lock:
            self._calls.pop(hash(message), None)

    def never_answered(self, url: str, attempt: Callable[[], bool]) -> bool | None:
        """Make the tries of a message alone; *attempt* makes one and returns whether it was answered.

        Returns whether none was answered; None when the target answers nothing else either.
        """
        for _ in range(ALONE):
            if not self._answers(url):
                return None
            if attempt():
                return False
        return True if self._answers(url) else None

    def _answers(self, url: str) -> bool:
        try:
            with self._client.stream("OPTIONS", url) as answer:
                return answer.status_code < 500
        except httpx.TransportError:
            return False
