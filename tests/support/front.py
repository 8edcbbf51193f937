"""A reverse proxy before a real server, as deployments have one: it asks for a login and speaks TLS; it has moods."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from urllib.parse import urlsplit

import httpx

from tests.support.quiet_server import QuietHandler, QuietServer

Answer = tuple[int, bytes]


class Front:
    """Serves what *behind* serves to requests whose Authorization header is *authorization*, if any is wanted.

    ``seen`` has method and path of each request, ``mood`` may answer one in the server's place.
    """

    def __init__(self, behind: str, *, authorization: str = "", tls: ssl.SSLContext | None = None) -> None:
        front = self
        self.seen: list[str] = []
        self.mood: Callable[[str], Answer | None] = lambda path: None
        self.authorization = authorization
        self._behind = behind

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                front._serve(self, None)

            def do_POST(self) -> None:
                front._serve(self, self.rfile.read(int(self.headers["Content-Length"])))

        self._server = QuietServer(Handler, tls=tls)
        self._prefix = urlsplit(behind).path
        self.url = f"{self._server.scheme}://localhost:{self._server.server_port}{self._prefix}"

    def __enter__(self) -> Front:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()

    def _serve(self, handler: BaseHTTPRequestHandler, body: bytes | None) -> None:
        path = handler.path.removeprefix(self._prefix)
        self.seen.append(f"{handler.command} {path}")
        if self.authorization and handler.headers.get("Authorization") != self.authorization:
            status, data = 401, b'{"error_code": 40101, "message": "who are you?"}'
        else:
            mood = self.mood(path)
            if mood is None:
                asked = {"Content-Type": handler.headers.get("Content-Type") or "application/json"}
                answer = httpx.request(handler.command, self._behind + path, content=body, headers=asked, timeout=60)
                mood = answer.status_code, answer.content
            status, data = mood
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)
