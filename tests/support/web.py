"""A real HTTP server on a port of its own, which serves what a test puts into it and misbehaves when it is told to."""

from __future__ import annotations

import hashlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.quiet_server import QuietHandler, QuietServer


@dataclass(slots=True)
class Reply:
    """One answer; a *body* that is no bytes or text is sent as JSON. ``etag`` "auto" is a hash of the body."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    etag: str = ""

    @property
    def data(self) -> bytes:
        """The body as it is sent."""
        if isinstance(self.body, bytes):
            return self.body
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()


Route = Reply | Callable[["Request"], Reply | None]
"""What a path answers; a function that answers None has written to the socket itself."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came, and the socket it came by."""

    target: str
    headers: dict[str, str]
    connection: socket.socket
    stopping: threading.Event
    method: str = "GET"
    body: bytes = b""


class Web:
    """The server; ``routes`` go by target, with the query or else without. ``asked`` are target and status of all."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.routes: dict[str, Route] = {}
        self.asked: list[tuple[str, int]] = []
        self.headers: list[dict[str, str]] = []
        self.stopping = threading.Event()

    def statuses(self) -> list[int]:
        """Return the statuses of all answers so far, and forget them."""
        found = [status for _, status in self.asked]
        self.asked.clear()
        return found

    def answer(self, request: Request) -> Reply | None:
        """Answer one request."""
        route = self.routes.get(request.target) or self.routes.get(request.target.partition("?")[0])
        reply = route(request) if callable(route) else route if route is not None else Reply("none", 404)
        if reply is not None and reply.etag:
            tag = f'"{hashlib.sha256(reply.data).hexdigest()[:12]}"' if reply.etag == "auto" else reply.etag
            matched = request.headers.get("if-none-match") == tag
            reply = Reply(
                b"" if matched else reply.data, 304 if matched else reply.status, {**reply.headers, "ETag": tag}
            )
        self.headers.append(request.headers)
        self.asked.append((request.target, reply.status if reply is not None else 0))
        return reply


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Web]:
    """Serve until the end of the block, by TLS if asked for; whatever still writes is told to stop."""

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            self.do_GET(self.rfile.read(int(self.headers.get("Content-Length", "0"))))

        def do_GET(self, body: bytes = b"") -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                reply = web.answer(Request(self.path, headers, self.connection, web.stopping, self.command, body))
                if reply is None:
                    self.close_connection = True
                    return
                self.send_response(reply.status)
                for name, value in {"Content-Length": str(len(reply.data)), **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.data)
            except OSError:
                self.close_connection = True  # the client has gone, as it does when it has had enough

    server = QuietServer(Handler, tls=tls)
    web = Web(server.url)
    server.start()
    try:
        yield web
    finally:
        web.stopping.set()
        server.stop()
