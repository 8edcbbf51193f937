"""What an HTTP server knows of requests: their head, their limits, problems as answers, and metrics as one."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from prometheus_client import CollectorRegistry, make_wsgi_app

from bindings.gateways import GatewayError
from bindings.parts import Part
from catalog.protocols.properties import REQUEST_CREDENTIALS, TOKEN_PARAMETER

# The head of a request, and from it the properties of a native record (JUDGING.md#records).

TOKEN: Final = TOKEN_PARAMETER.encode()
"""The query parameter that is never part of a record."""
_MOST_NAMES: Final = 1_000
_MOST_BYTES: Final = 64


class RequestHead(NamedTuple):
    """Request line and headers: ``path`` and ``query`` raw, header names in lower case, in the order they came.

    ``length`` is what Content-Length says, None without one. ``keep_alive`` tells whether the client would send more
    requests on this connection, ``expects_continue`` whether it waits for 100 before it sends the body. ``peer`` is the
    common name of the client's certificate, '' without one; ``address`` is the address or network under which it is
    counted.
    """

    method: str
    path: bytes
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    version: str = "1.1"
    length: int | None = None
    chunked: bool = False
    keep_alive: bool = True
    expects_continue: bool = False
    peer: str = ""
    address: str = ""

    @property
    def has_body(self) -> bool:
        """Whether bytes of a body follow."""
        return self.chunked or bool(self.length)

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header; *name* in lower case."""
        return next((value for each, value in self.headers if each == name), None)


class RequestParts:
    """Makes records of requests. *secret* are more headers that hold credentials, in lower case."""

    def __init__(self, secret: frozenset[str] = frozenset()) -> None:
        self._left_out = REQUEST_CREDENTIALS | secret
        self._keys: dict[bytes, str | None] = {}

    def of(self, head: RequestHead) -> list[Part]:
        """Return ``method``, ``path`` (raw), ``query.*`` and ``headers.*``, each in order, without credentials.

        Values are byte for byte those of the request.
        """
        make = tuple.__new__  # A Part made by its own name costs three times as much, and here are most of all parts.
        parts = [Part("method", head.method.encode("ascii")), Part("path", head.path)]
        if head.query:
            parts.extend(query_parts(head.query))
        keys = self._keys
        for name, value in head.headers:
            key = keys[name] if name in keys else self._key(name)
            if key is not None:
                parts.append(make(Part, (key, value, None)))
        return parts

    def _key(self, name: bytes) -> str | None:
        """Return the key of a header, None when it is left out. Keys are kept, though not all that strangers send."""
        text = name.decode("latin-1")
        key = None if text in self._left_out else f"headers.{text}"
        if len(self._keys) < _MOST_NAMES and len(name) <= _MOST_BYTES:
            self._keys[name] = key
        return key


def query_parts(query: bytes) -> Iterator[Part]:
    """Yield query parameters in order, form-decoded (``+`` is a space); the access token is left out.

    A malformed percent sequence stays as written, and so does a name whose bytes are no UTF-8: a key is text.
    """
    for pair in query.split(b"&"):
        if not pair:
            continue
        raw_name, _, raw_value = pair.partition(b"=")
        name = _form_decoded(raw_name)
        if name == TOKEN:
            continue
        try:
            key = name.decode("utf-8")
        except UnicodeDecodeError:
            key = raw_name.decode("utf-8", "backslashreplace")
        yield Part(f"query.{key}", _form_decoded(raw_value))


def token_of(query: bytes) -> bytes | None:
    """Return the access token of a query (RFC 6750 section 2.3)."""
    pairs = (pair.partition(b"=") for pair in query.split(b"&"))
    return next((_form_decoded(value) for name, _, value in pairs if _form_decoded(name) == TOKEN), None)


def _form_decoded(text: bytes) -> bytes:
    return unquote_to_bytes(text.replace(b"+", b" "))


# Short answers, and refusals as ``application/problem+json`` (RFC 9457) with a fixed title for each status.

_LINES: Final = {int(status): f"HTTP/1.1 {int(status)} {status.phrase}\r\n".encode("ascii") for status in HTTPStatus}
_BARE: Final = {status: line + b"date: %b\r\ncontent-length: 0\r\n\r\n" for status, line in _LINES.items()}


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer, complete; its length is added when it is sent."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""

    def encoded(self, date: bytes, connection: bytes, *, body: bool) -> bytes:
        """Return it as HTTP/1.1, without its *body* for HEAD; *connection* is the value of that header, if any."""
        if not (self.headers or self.body or connection):
            return _BARE[self.status] % date
        lines = [_LINES[self.status], b"date: ", date, b"\r\ncontent-length: %d\r\n" % len(self.body)]
        lines += [b"%s: %s\r\n" % header for header in self.headers]
        if connection:
            lines.append(b"connection: %s\r\n" % connection)
        lines.append(b"\r\n")
        if body:
            lines.append(self.body)
        return b"".join(lines)


class HttpProblem(Exception):
    """A request that is answered with a problem: nothing of it was stored, unless ``detail`` says otherwise."""

    def __init__(self, status: HTTPStatus, detail: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers

    def reply(self) -> Reply:
        """Return the answer that the sender gets."""
        problem = {"type": "about:blank", "title": self.status.phrase, "status": self.status, "detail": self.detail}
        content = (b"content-type", b"application/problem+json")
        return Reply(self.status, (content, *self.headers), json.dumps(problem).encode("ascii"))


def unavailable(detail: str, retry_after: int) -> HttpProblem:
    """Return the problem for a gateway that cannot take anything now; ``retry_after`` in seconds."""
    return HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, detail, (b"retry-after", b"%d" % retry_after))


# The limits of one HTTP server: for each request, and for all connections together.


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Sizes in bytes, times in seconds.

    ``max_target`` bounds path and query (414), ``max_header_bytes`` the request line with all headers and
    ``max_headers`` their number (431). ``max_connections`` of all clients and ``max_per_address`` of one address are
    open at a time. ``max_held_bytes`` bounds the bodies that are held at a time.

    ``header_timeout`` is what a client has from its first byte to the end of the headers, for the TLS handshake, and to
    take an answer; ``request_timeout`` what a body has to arrive, and then again what its answer has; ``idle_timeout``
    what lies between two requests; ``linger`` how long the rest of a refused body is read and dropped.
    """

    max_target: int = 8 * 2**10
    max_header_bytes: int = 64 * 2**10
    max_headers: int = 200
    max_connections: int = 1000
    max_per_address: int = 256
    max_held_bytes: int = 256 * 2**20
    header_timeout: float = 10.0
    request_timeout: float = 30.0
    idle_timeout: float = 30.0
    linger: float = 2.0


# Metrics as an answer of HTTP: in the form that the client prefers (``Accept``), compressed if it accepts that.

LIMITS: Final = ServerLimits(
    max_header_bytes=16 * 2**10,
    max_headers=100,
    max_connections=100,
    max_per_address=50,
    header_timeout=10.0,
    request_timeout=10.0,
)
"""Few clients ask for metrics, and their requests are small."""
NO_STORE: Final = (b"cache-control", b"no-store")


class Exposition:
    """Gives the metrics of a registry of collectors, as they are when they are asked for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._application = make_wsgi_app(registry)

    def reply(self, head: RequestHead) -> Reply:
        """Answer a GET or HEAD."""
        started: list[tuple[str, list[tuple[str, str]]]] = []
        environ = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": "/metrics",
            "QUERY_STRING": head.query.decode("latin-1"),
            "HTTP_ACCEPT": (head.header(b"accept") or b"").decode("latin-1"),
            "HTTP_ACCEPT_ENCODING": (head.header(b"accept-encoding") or b"").decode("latin-1"),
        }
        body = b"".join(self._application(environ, lambda status, headers: started.append((status, headers))))
        status, headers = started[0]
        encoded = [(name.lower().encode("ascii"), value.encode("ascii")) for name, value in headers]
        kept = tuple(each for each in encoded if each[0] != b"content-length")
        return Reply(HTTPStatus(int(status.split()[0])), (*kept, NO_STORE), body)


# What servers of HTTP have in common: the socket that they listen at, and their certificates.


def listen(host: str, port: int, who: str) -> socket.socket:
    """Return a listening socket; *who* is named in errors.

    Raises:
        GatewayError: the address is not available.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        remedy = "choose another port, or stop what uses it"
        raise GatewayError(f"{who} cannot listen on {host}:{port}: {error.strerror or error}; {remedy}") from error


def server_tls(certificate: Path | None, key: Path | None, clients: Path | None) -> ssl.SSLContext | None:
    """Return the TLS context of a server; None when it serves without TLS.

    *certificate* and *key* are PEM files; with *clients*, certificates of authorities, a client needs one of theirs.

    Raises:
        GatewayError: one is missing, or cannot be used.
    """
    if certificate is None and key is None and clients is None:
        return None
    if certificate is None or key is None:
        raise GatewayError("TLS needs both a certificate and a key; give tls_certificate and tls_key, or neither")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key)
        if clients is not None:
            context.load_verify_locations(clients)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        names = f"certificate {certificate} with key {key}" + (f" and authorities {clients}" if clients else "")
        raise GatewayError(f"{names} cannot be used: {error}") from error
    return context
