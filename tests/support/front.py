"""A reverse proxy before a real server, as deployments have one: it asks for a login and speaks TLS; it has moods."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.support.ports import LOOPBACK

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

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                front._serve(self, None)

            def do_POST(self) -> None:
                front._serve(self, self.rfile.read(int(self.headers["Content-Length"])))

            def log_message(self, *args: object) -> None:
                """Keep the output of tests clean."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def get_request(self) -> tuple[Any, Any]:
                try:
                    return super().get_request()
                except ssl.SSLError as error:
                    raise OSError("no handshake") from error

        self._server = Server((LOOPBACK, 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        path = urlsplit(behind).path
        self.url = f"{scheme}://localhost:{self._server.server_port}{path}"
        self._prefix = path
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Front:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

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
