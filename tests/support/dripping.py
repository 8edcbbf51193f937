"""A target whose answer never ends: it sends a little now and then, within every timeout of a client."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType

HINTS = b"HTTP/1.1 103 Early Hints\r\n\r\n"
"""An interim answer, of which there may be any number."""
HEADER = b"HTTP/1.1 204 No Content\r\nX-Long: "


class Dripping:
    """Answers each connection with *first*, and then with *drop* again and again until the block ends."""

    def __init__(self, first: bytes, drop: bytes, seconds: float = 0.05) -> None:
        self._first, self._drop, self._seconds = first, drop, seconds
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ending = threading.Event()
        self.left = 0
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/hook"

    def __enter__(self) -> Dripping:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(self._first)
            while not self._ending.wait(self._seconds):
                connection.sendall(self._drop)
        self.left += 1
