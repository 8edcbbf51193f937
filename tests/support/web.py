"""A real HTTP server on a port of its own, which serves what a test puts into it and misbehaves when it is told to."""

from __future__ import annotations

import hashlib
import json
import socket
import socketserver
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import httpx
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded

from bindings.parts import Part
from bindings.protocols import BINDINGS
from tests.support.ports import LOOPBACK, Pair

# An HTTP server of the tests that does not mind when a client leaves before its answer, as a killed router does.

LEFT: Final = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)


class QuietHandler(BaseHTTPRequestHandler):
    """The library's, without a line for each request."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def read_body(self) -> bytes:
        """Return the body, as long as the request says."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def reply(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Answer."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class QuietServer(ThreadingHTTPServer):
    """The library's, which prints a traceback for every fault of a request; this one only for those of our own.

    It serves from ``start`` to ``stop``, by TLS with a context or a certificate.
    """

    daemon_threads = True

    def __init__(
        self, handler: type[BaseHTTPRequestHandler], port: int = 0, tls: ssl.SSLContext | Pair | None = None
    ) -> None:
        super().__init__((LOOPBACK, port), handler)
        if isinstance(tls, Pair):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.certificate, tls.key)
            tls = context
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.scheme: Final = "http" if tls is None else "https"
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        """Its address."""
        return f"{self.scheme}://{LOOPBACK}:{self.server_port}"

    def start(self) -> None:
        """Serve on a thread."""
        self._thread.start()

    def stop(self) -> None:
        """End, and close the port."""
        self.shutdown()
        self._thread.join()
        self.server_close()

    def get_request(self) -> tuple[Any, Any]:
        """Return the next connection; one that does not get through its handshake is none."""
        try:
            return super().get_request()
        except ssl.SSLError as error:
            raise OSError("no handshake") from error

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print a fault, unless it is that the client has left."""
        if not isinstance(sys.exception(), LEFT):
            super().handle_error(request, client_address)


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
def serving(tls: ssl.SSLContext | Pair | None = None) -> Iterator[Web]:
    """Serve until the end of the block, by TLS if asked for; whatever still writes is told to stop."""

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            headers, body = {name.lower(): value for name, value in self.headers.items()}, self.read_body()
            try:
                found = web.answer(Request(self.path, headers, self.connection, web.stopping, self.command, body))
                if found is None:
                    self.close_connection = True
                    return
                self.reply(found.status, found.headers, found.data)
            except OSError:
                self.close_connection = True  # the client has gone, as it does when it has had enough

        do_GET = do_POST

    server = QuietServer(Handler, tls=tls)
    web = Web(server.url)
    server.start()
    try:
        yield web
    finally:
        web.stopping.set()
        server.stop()


# A real webhook: an HTTP server that takes messages, answers what a test says, and can be away for a while.


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
        return BINDINGS["HTTP"].read_envelope(parts, self.body, lambda: False)


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

    def __exit__(self, *_: object) -> None:
        self.close()


def _handler(hook: Webhook) -> type[BaseHTTPRequestHandler]:
    class Handler(QuietHandler):
        def do_POST(self) -> None:
            request = Taken(self.command, self.path, tuple(self.headers.items()), self.read_body())
            answer = hook.answer(request)
            with hook.lock:
                hook.seen.append(request)
                if 200 <= answer.status < 300 and self.command != "OPTIONS":
                    hook.taken.append(request)
            self.reply(answer.status, answer.headers, answer.body)

        do_GET = do_PUT = do_DELETE = do_OPTIONS = do_POST

    return Handler


# A target that speaks HTTP/2 and nothing else, over TLS, for the sink's ``version: "2"``; our gateway speaks 1.1.

IDLE_SECONDS = 60.0


@dataclass(slots=True)
class Http2Request:
    """One request, answered 202."""

    headers: dict[str, str]
    body: bytearray = field(default_factory=bytearray)


class Http2Target:
    """Takes every request, from the time it is entered until it is left; one thread for each connection."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self.taken: list[Http2Request] = []
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._context.set_alpn_protocols(["h2"])
        self._listener = socket.create_server(("localhost", 0))
        self.port: int = self._listener.getsockname()[1]
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            plain.settimeout(IDLE_SECONDS)
            try:
                connection = self._context.wrap_socket(plain, server_side=True)
            except OSError:  # A client that does not trust us.
                plain.close()
                continue
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        protocol = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        protocol.initiate_connection()
        requests: dict[int, Http2Request] = {}
        try:
            connection.sendall(protocol.data_to_send())
            while data := connection.recv(65_536):
                for event in protocol.receive_data(data):
                    if isinstance(event, RequestReceived):
                        requests[event.stream_id] = Http2Request(
                            {str(name): str(value) for name, value in event.headers}
                        )
                    elif isinstance(event, DataReceived):
                        requests[event.stream_id].body += event.data
                        protocol.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    elif isinstance(event, StreamEnded):
                        self.taken.append(requests.pop(event.stream_id))
                        protocol.send_headers(event.stream_id, [(":status", "202")], end_stream=True)
                connection.sendall(protocol.data_to_send())
        except OSError:
            return  # The client or the test has ended.


# A reverse proxy before a real server, as deployments have one: it asks for a login and speaks TLS; it has moods.

FrontAnswer = tuple[int, bytes]


class Front:
    """Serves what *behind* serves to requests whose Authorization header is *authorization*, if any is wanted.

    ``seen`` has method and path of each request, ``mood`` may answer one in the server's place.
    """

    def __init__(self, behind: str, *, authorization: str = "", tls: ssl.SSLContext | None = None) -> None:
        front = self
        self.seen: list[str] = []
        self.mood: Callable[[str], FrontAnswer | None] = lambda path: None
        self.authorization = authorization
        self._behind = behind

        class Handler(QuietHandler):
            def do_POST(self) -> None:
                front._serve(self)

            do_GET = do_POST

        self._server = QuietServer(Handler, tls=tls)
        self._prefix = urlsplit(behind).path
        self.url = f"{self._server.scheme}://localhost:{self._server.server_port}{self._prefix}"

    def __enter__(self) -> Front:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def _serve(self, handler: QuietHandler) -> None:
        body = handler.read_body()
        path = handler.path.removeprefix(self._prefix)
        self.seen.append(f"{handler.command} {path}")
        if self.authorization and handler.headers.get("Authorization") != self.authorization:
            status, data = 401, b'{"error_code": 40101, "message": "who are you?"}'
        else:
            mood = self.mood(path)
            if mood is None:
                asked = {"Content-Type": handler.headers.get("Content-Type") or "application/json"}
                answer = httpx.request(
                    handler.command, self._behind + path, content=body or None, headers=asked, timeout=60
                )
                mood = answer.status_code, answer.content
            status, data = mood
        handler.reply(status, {"Content-Type": "application/json"}, data)


# A server that is slow beyond measure: its answers come drop by drop, or not at all.


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
