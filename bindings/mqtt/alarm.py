"""Waking a thread that waits for a socket: by another socket, which other threads write to."""

from __future__ import annotations

import contextlib
import socket


class Alarm:
    """One waiter, any number of ringers. Rings add up to one, and one before :meth:`open` or after :meth:`close` is
    lost: then nobody waits.
    """

    def __init__(self) -> None:
        self._rung: socket.socket | None = None
        self._heard: socket.socket | None = None

    def open(self) -> None:
        """Make it work.

        Raises:
            OSError: the process has too many files open.
        """
        self._rung, self._heard = socket.socketpair()
        self._rung.setblocking(False)
        self._heard.setblocking(False)

    def close(self) -> None:
        """Release both sockets; the waiter must be gone."""
        for each in (self._rung, self._heard):
            if each is not None:
                each.close()

    @property
    def ear(self) -> socket.socket | None:
        """What the waiter polls for reading, along with what else it waits for."""
        return self._heard

    def ring(self) -> None:
        """Wake the waiter, from any thread."""
        # A full buffer wakes as well, and a closed one has nobody left to wake.
        if self._rung is not None:
            with contextlib.suppress(OSError):
                self._rung.send(b"\0")

    def quiet(self) -> None:
        """Forget what rang."""
        if self._heard is not None:
            with contextlib.suppress(BlockingIOError):
                self._heard.recv(4096)

    def wait(self, seconds: float) -> None:
        """Return after *seconds*, or as soon as it rings."""
        if self._heard is not None:
            self._heard.settimeout(max(seconds, 0.001))
            with contextlib.suppress(TimeoutError):
                self._heard.recv(4096)
            self._heard.setblocking(False)
