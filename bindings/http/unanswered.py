"""Messages at which a target ends the connection instead of answering, and when that is the message's own fault.

A reset says nothing by itself: a target that restarts, or a proxy with nothing behind it, resets as well. So a message
is only given up when the target answers others and still ends this one, tried alone, with an answer to a bare
``OPTIONS`` request before each try. Where no other message shows that the target works, it takes many calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import httpx

from bindings.suspects import ALONE, LONELY, Calls

ENDED: Final = (httpx.ReadError, httpx.WriteError, httpx.CloseError, httpx.RemoteProtocolError)
"""What a connection that ended in the middle of an exchange raises."""


class Unanswered:
    """What is known of messages without an answer; thread-safe. *client* sends the ``OPTIONS`` requests."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._calls = Calls()

    def may_be_at_fault(self, message: object, *, others: bool) -> bool:
        """Count a call that ended without an answer; return whether to try the message alone.

        *others* tells that the target answered other messages in this call.
        """
        calls = self._calls.count(hash(message))
        return others or calls >= LONELY

    def settled(self, message: object) -> None:
        """Forget a message that is settled."""
        self._calls.forget(hash(message))

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
