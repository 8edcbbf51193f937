"""Messages to the thread of a proton container: the only way in which other threads may touch what it holds."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any, Final

from proton.reactor import ApplicationEvent, Container, EventInjector

EVENT: Final = "mail"
"""The handler of the container gets ``on_mail`` when there is something to :meth:`Mailbox.take`."""


class Mailbox:
    """Of one container, for the time that it runs. What is posted after :meth:`close` is dropped.

    Many posts before the container looks cost one wake-up, so that its pipe can never fill and block the posting
    thread.
    """

    def __init__(self) -> None:
        self._injector = EventInjector()
        self._lock = threading.Lock()
        self._waiting: deque[Any] = deque()
        self._signalled = False
        self._closed = False

    def attach(self, container: Container) -> None:
        """Let *container* watch it; called once, on the container's thread."""
        container.selectable(self._injector)

    def post(self, item: Any) -> None:
        """Hand *item* to the container's thread; from any thread."""
        with self._lock:
            if self._closed:
                return
            self._waiting.append(item)
            if not self._signalled:
                self._signalled = True
                self._injector.trigger(ApplicationEvent(EVENT))

    def take(self) -> list[Any]:
        """Return what was posted since the last call, in order."""
        with self._lock:
            self._signalled = False
            items = list(self._waiting)
            self._waiting.clear()
        return items

    def close(self) -> None:
        """Drop what waits and let go of the pipe; called after the container has ended."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._waiting.clear()
                for end in self._injector.pipe:
                    os.close(end)
