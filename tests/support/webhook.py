"""A real webhook: an HTTP server that takes messages, answers what a test says, and can be away for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Any

from bindings.parts import Part
from bindings.protocols import BINDINGS
from tests.support.authority import Pair
from tests.support.quiet_server import QuietHandler, QuietServer


@dataclass(frozen=True, slots=True)
class Taken:
    """One request: ``headers`` in order, names as they came."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return the first header of that name, in any letter case."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def attributes(self) -> dict[str, str]:
        """Return the attributes of the event it carries, as our own codec reads them."""
        return dict(self.envelope().attributes)

    def envelope(self) -> Any:
        """Return the envelope, as our own codec reads it."""
        parts = [Part(f"headers.{name.lower()}", value.encode("latin-1")) for name, value in self.headers]
        return BINDINGS["HTTP"].envelope(parts, self.body, lambda: False)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the webhook says."""

    status: int = 202
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class Webhook:
    """``answer`` decides about each request; ``taken`` are those answered 2xx, ``seen`` all. It keeps its port.

    With a *certificate* it speaks HTTPS. It serves from the start of the block, or of ``open``, until ``close`` or the
    end of the block.
    """

    def __init__(
        self, answer: Callable[[Taken], Answer] = lambda request: Answer(), certificate: Pair | None = None
    ) -> None:
        self.answer = answer
        self._certificate = certificate
        self.seen: list[Taken] = []
        self.taken: list[Taken] = []
        self.lock = threading.Lock()
        self._server: QuietServer | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Its address."""
        return f"{'https' if self._certificate else 'http'}://127.0.0.1:{self.port}"

    def open(self) -> None:
        """Begin to serve, on the same port as before."""
        self._server = QuietServer(_handler(self), self.port, self._certificate)
        self.port = self._server.server_port
        self._server.start()

    def close(self) -> None:
        """Be away: connections are refused."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def __enter__(self) -> Webhook:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _handler(hook: Webhook) -> type[BaseHTTPRequestHandler]:
    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Taken(self.command, self.path, tuple(self.headers.items()), body)
            answer = hook.answer(request)
            with hook.lock:
                hook.seen.append(request)
                if 200 <= answer.status < 300 and self.command != "OPTIONS":
                    hook.taken.append(request)
            self.send_response(answer.status)
            for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        do_GET = do_PUT = do_DELETE = do_OPTIONS = do_POST

    return Handler
