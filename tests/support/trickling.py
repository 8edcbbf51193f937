"""A server that is slow beyond measure: its answers come drop by drop, or not at all."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def trickling(head: bytes, drop: bytes = b" ") -> Iterator[tuple[str, Callable[[], int]]]:
    """Serve answers that begin with *head* and go on with one *drop* after the other, or never come without a head.

    Gives the URL, and what tells how many were asked for.
    """
    ended, asked = threading.Event(), list[bytes]()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            asked.append(self.request.recv(65536))
            with suppress(OSError):
                self.request.sendall(head)
                while not ended.wait(0.1):
                    self.request.sendall(drop if head else b"")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", lambda: len(asked)
        finally:
            ended.set()
            server.shutdown()
            thread.join()
