"""Waking a thread that waits for a socket: other threads write to a second socket, which it polls as well."""

from __future__ import annotations

import contextlib
import socket


class Wakeup:
    """One thread waits, any number of threads wake it. Several calls of :meth:`wake` wake it once.

    A call before :meth:`open` or after :meth:`close` is lost: then nobody waits.
    """

    def __init__(self) -> None:
        self._sender: socket.socket | None = None
        self._receiver: socket.socket | None = None

    def open(self) -> None:
        """Make the sockets.

        Raises:
            OSError: the process has too many files open.
        """
        self._sender, self._receiver = socket.socketpair()
        self._sender.setblocking(False)
        self._receiver.setblocking(False)

    def close(self) -> None:
        """Release both sockets; no thread may wait for them any more."""
        for each in (self._sender, self._receiver):
            if each is not None:
                each.close()

    @property
    def receiver(self) -> socket.socket | None:
        """The socket that the waiting thread polls for reading, beside its other sockets."""
        return self._receiver

    def wake(self) -> None:
        """Wake the waiting thread, from any thread."""
        # A full buffer wakes it as well, and behind a closed socket nobody waits.
        if self._sender is not None:
            with contextlib.suppress(OSError):
                self._sender.send(b"\0")

    def clear(self) -> None:
        """Forget all calls of :meth:`wake` until now."""
        if self._receiver is not None:
            with contextlib.suppress(BlockingIOError):
                self._receiver.recv(4096)

    def wait(self, seconds: float) -> None:
        """Return after *seconds*, or as soon as another thread wakes this one."""
        if self._receiver is not None:
            self._receiver.settimeout(max(seconds, 0.001))
            with contextlib.suppress(TimeoutError):
                self._receiver.recv(4096)
            self._receiver.setblocking(False)
