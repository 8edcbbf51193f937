"""One connection of an HTTP server: requests are answered in order, and every wait has a limit.

When a request is refused while its body arrives, the response is sent at once. What follows is read and dropped for
:attr:`ServerLimits.linger` seconds, so that the sender sees the response and not a reset.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Protocol, cast

import httptools

from bindings.http.request import HttpProblem, Reply, RequestHead, ServerLimits

# Strict parsing of requests: anything that two parsers could read differently is rejected.
#
# The parser (llhttp, through ``httptools``) rejects bare line feeds, folded headers, control characters, and lengths
# that are repeated or combined with a transfer coding. This module checks the rest: versions, transfer codings other
# than ``chunked``, hosts, forms of the target, and all limits.

HEAD_SLICE: Final = 4096
"""Bytes of heads parsed at a time, so that few pipelined requests are in memory as objects."""
BODY_SLICE: Final = 64 * 2**10
_FRAMING: Final = frozenset((b"content-length", b"transfer-encoding"))
_READ: Final = _FRAMING | {b"host", b"upgrade", b"expect"}
_CHUNK_ROOM: Final = 64 * 2**10
_CHUNK_FACTOR: Final = 16
"""Limits of chunk headers and extensions: a fixed size, and this many times the body; one-byte chunks need six."""
_SCHEMES: Final = (b"http://", b"https://")


class BodyEnd(Enum):
    """The end of a request's body."""

    END = "end"


Event = RequestHead | bytes | BodyEnd | HttpProblem
"""A parsed event: a head, then pieces of its body, then its end; a problem is a connection's last event."""


class RequestReader:
    """Parses the bytes of one connection; the resulting ``events`` are in order."""

    def __init__(self, limits: ServerLimits, address: str = "") -> None:
        self._limits = limits
        self._address = address
        self._max_bytes, self._max_headers = limits.max_header_bytes, limits.max_headers
        self.events: deque[Event] = deque()
        self.failed = False
        self.in_head = False
        self._in_body = False
        self._replayed = False
        self._head: RequestHead | None = None
        self._reset_request()
        self._parser = httptools.HttpRequestParser(self)

    @property
    def slice_bytes(self) -> int:
        """The maximum bytes of one call of :meth:`feed`."""
        return BODY_SLICE if self._in_body else HEAD_SLICE

    @property
    def partial_head(self) -> RequestHead:
        """The head of an incomplete request, with the headers read so far only."""
        return RequestHead("", b"", b"", tuple(self._headers))

    def feed(self, data: bytes | memoryview) -> None:
        """Parse more bytes; does nothing after a problem."""
        if self.failed:
            return
        self._unparsed_bytes += len(data)
        try:
            self._parser.feed_data(data)
            self._check_buffered()
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data, int(upgrade.args[0]))
        except httptools.HttpParserCallbackError as error:
            self._add_failure(error.__context__)
        except httptools.HttpParserError as error:
            # The text is one of the parser's own, and quotes nothing of the request.
            self._add_failure(HttpProblem(HTTPStatus.BAD_REQUEST, f"not a well-formed HTTP/1.1 request: {error}"))
        except HttpProblem as problem:
            self._add_failure(problem)

    def on_message_begin(self) -> None:
        """Begin a request; called by the parser, as are the methods below."""
        self._reset_request()
        self.in_head = True

    def on_url(self, url: bytes) -> None:
        """Add a piece of the target."""
        self._target.append(url)
        self._head_bytes += len(url)
        if self._head_bytes > self._limits.max_target:
            raise HttpProblem(HTTPStatus.REQUEST_URI_TOO_LONG, f"a target has at most {self._limits.max_target} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; those after the body are dropped."""
        if self._in_body:
            return
        headers = self._headers
        headers.append((name.lower(), value.rstrip(b" \t")))
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._max_bytes or len(headers) > self._max_headers:
            raise self._headers_too_large()

    def on_headers_complete(self) -> None:
        """Add the head to the events."""
        self.in_head = False
        self._in_body = True
        self._unparsed_bytes = 0
        if self._replayed:
            self._replayed = False
            return
        self._head = self._build_head()
        self.events.append(self._head)

    def on_body(self, body: bytes) -> None:
        """Add a piece of the body to the events."""
        self._body_bytes += len(body)
        self.events.append(body)

    def on_message_complete(self) -> None:
        """Add the end to the events, unless the parser only skipped the body of a request that offers an upgrade."""
        self._in_body = False
        self._unparsed_bytes = 0
        if not (self._parser.should_upgrade() and self._head is not None and self._head.has_body):
            self.events.append(BodyEnd.END)

    def _reset_request(self) -> None:
        self._target: list[bytes] = []
        self._headers: list[tuple[bytes, bytes]] = []
        self._head = None
        self._replayed = False
        self._head_bytes = self._body_bytes = self._unparsed_bytes = 0

    def _add_failure(self, error: BaseException | None) -> None:
        self.failed = True
        fault = (
            error if isinstance(error, HttpProblem) else HttpProblem(HTTPStatus.BAD_REQUEST, "not an HTTP/1.1 request")
        )
        self.events.append(fault)

    def _check_buffered(self) -> None:
        """Raise if the parser buffers too much: an endless header, or endless chunk extensions."""
        if self.in_head:
            if self._unparsed_bytes > self._limits.max_header_bytes + HEAD_SLICE:
                raise self._headers_too_large()
        elif self._in_body and self._head is not None and self._head.chunked:
            if self._unparsed_bytes > _CHUNK_ROOM + _CHUNK_FACTOR * self._body_bytes:
                raise HttpProblem(HTTPStatus.BAD_REQUEST, "the chunks of this body are nearly empty; send larger ones")

    def _headers_too_large(self) -> HttpProblem:
        limits = self._limits
        detail = f"a request may have at most {limits.max_headers} headers and {limits.max_header_bytes} bytes of them"
        return HttpProblem(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, detail)

    def _build_head(self) -> RequestHead:
        version = self._parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise _bad_request("only HTTP/1.1 and HTTP/1.0 are supported")
        method = self._parser.get_method().decode("ascii")
        named: dict[bytes, list[bytes]] = {}
        for name, value in self._headers:
            if name in _READ:
                named.setdefault(name, []).append(value)
        hosts = named.get(b"host", ())
        if len(hosts) > 1 or (not hosts and version == "1.1"):
            raise _bad_request("a request needs exactly one Host header")
        path, query = _parse_target(method, b"".join(self._target))
        if self._parser.should_upgrade():
            _check_upgrade(method, named.get(b"upgrade", []))
        length = named.get(b"content-length")
        return RequestHead(
            method,
            path,
            query,
            tuple(self._headers),
            version,
            int(length[0]) if length else None,
            _is_chunked(named.get(b"transfer-encoding", []), version),
            self._parser.should_keep_alive(),
            version == "1.1" and [value.lower() for value in named.get(b"expect", ())] == [b"100-continue"],
            address=self._address,
        )

    def _ignore_upgrade(self, data: bytes | memoryview, rest: int) -> None:
        """Parse on as if no upgrade were offered, as every server may (RFC 9110 section 7.8).

        The parser skips the body in that case, so a second parser reads it, from a head that has only the body's
        length.
        """
        head = self._head
        assert head is not None
        self._parser = httptools.HttpRequestParser(self)
        if head.has_body:
            framing = [b"%s: %s\r\n" % header for header in head.headers if header[0] in _FRAMING]
            connection = b"" if head.keep_alive else b"connection: close\r\n"
            self._parser.feed_data(b"POST / HTTP/1.1\r\nhost: -\r\n" + connection)
            self._replayed = True
            self._parser.feed_data(b"".join(framing) + b"\r\n")
            self._head = head
        self.feed(data[rest:])


def _parse_target(method: str, target: bytes) -> tuple[bytes, bytes]:
    """Return the raw path and query of a target in origin, absolute or asterisk form (RFC 9112 section 3.2)."""
    if b"#" in target:
        raise _bad_request("a target must not have a fragment")
    if not target.startswith(b"/") and not (target == b"*" and method == "OPTIONS"):
        scheme = next((each for each in _SCHEMES if target[: len(each)].lower() == each), None)
        if scheme is None:
            raise _bad_request("a target must be a path or an http URL")
        rest = target[len(scheme) :]
        ends = [place for place in (rest.find(b"/"), rest.find(b"?")) if place >= 0]
        start = min(ends, default=len(rest))
        if not start or b"@" in rest[:start]:
            raise _bad_request("a target's URL needs a host and must not have a user")
        target = rest[start:] if rest[start : start + 1] == b"/" else b"/" + rest[start:]
    path, _, query = target.partition(b"?")
    return path, query


def _is_chunked(codings: list[bytes], version: str) -> bool:
    if not codings:
        return False
    if version == "1.0":
        raise _bad_request("HTTP/1.0 has no Transfer-Encoding")
    if len(codings) > 1 or codings[0].lower() != b"chunked":
        raise _bad_request("the only supported transfer coding is chunked")
    return True


def _check_upgrade(method: str, tokens: list[bytes]) -> None:
    if method == "CONNECT":
        raise _bad_request("this server is not a proxy")
    if any(b"websocket" in token.lower() for token in tokens):
        raise _bad_request("WebSocket is not supported; send each message as a request")


def _bad_request(detail: str) -> HttpProblem:
    return HttpProblem(HTTPStatus.BAD_REQUEST, detail)


MAX_DROPPED_BYTES: Final = 16 * 2**20
"""Maximum bytes of a refused body that are read and dropped."""
REQUESTS_PER_TURN: Final = 50
"""Requests of one connection that are handled before other connections get their turn."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
AnswerCallback = Callable[[Reply], None]
"""Sends the answer; to be called once, on the server's thread."""


class AcceptedRequest(Protocol):
    """A request whose head was accepted. Called on the server's thread."""

    @property
    def max_body(self) -> int:
        """The maximum bytes of its body."""

    def handle_body(self, body: bytes, answer: AnswerCallback) -> None:
        """Handle the request with its complete body; *answer* may be called later."""

    def timeout_reply(self) -> Reply:
        """Return the response when no answer came in time; a later answer is dropped."""


class RequestHandler(Protocol):
    """The application of a server. Called on the server's thread."""

    def admit(self, head: RequestHead) -> AcceptedRequest | Reply:
        """Accept a request, or return the reply that refuses it; the body is not read then."""


class ConnectionPool(Protocol):
    """State that all connections share."""

    limits: ServerLimits
    handler: RequestHandler
    stopping: bool
    date: bytes

    def reserve_bytes(self, size: int) -> bool:
        """Count bytes of bodies in memory (negative to release them); return False if there are too many."""

    def record_accepted(self, connection: HttpConnection) -> None:
        """Record that a request of a connection was accepted."""

    def remove_connection(self, connection: HttpConnection) -> None:
        """Remove a connection."""

    def finish_reply(self, head: RequestHead, reply: Reply) -> Reply:
        """Add the handler's headers to a reply made without it; of *head* only the headers are reliable."""


class Phase(Enum):
    """What a connection waits for."""

    OPENING = "opening"
    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    ANSWER = "answer"
    LINGER = "linger"
    CLOSED = "closed"


_UNREADY: Final = (Phase.ANSWER, Phase.LINGER, Phase.CLOSED)


class HttpConnection(asyncio.Protocol):
    """A connection.

    ``address`` is the address or network under which its client is counted; :meth:`end_expired_wait` is due at
    ``deadline`` (loop time).
    """

    def __init__(self, ledger: ConnectionPool, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self.address = address
        self.phase = Phase.OPENING
        self.held_bytes = 0
        self.opening: asyncio.Task[None] | None = None
        self._pool = ledger
        self._limits = ledger.limits
        self._loop = loop
        self.deadline = loop.time() + self._limits.header_timeout
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._reader = RequestReader(self._limits, address)
        self._unread = b""
        self._head: RequestHead | None = None
        self._request: AcceptedRequest | None = None
        self._body = bytearray()
        self._dropped = 0
        self._skipping = self._pumping = self._paused = self._blocked = self._ended = False

    @property
    def is_waiting(self) -> bool:
        """Whether it has a complete request that is not yet answered."""
        return self.phase is Phase.ANSWER

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._peer = _common_name(transport.get_extra_info("peercert"))
        self.opening = None
        if self.phase is Phase.CLOSED:
            self._transport.abort()
        else:
            # The first byte may take as long as the rest of a head; then the time starts anew.
            self._enter_phase(Phase.IDLE, self._limits.header_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self._release_body()
        self.phase = Phase.CLOSED
        self._pool.remove_connection(self)
        self._request = self._transport = None
        self._reader.events.clear()

    def data_received(self, data: bytes) -> None:
        if self.phase is Phase.LINGER:
            self._dropped += len(data)
            if self._dropped > MAX_DROPPED_BYTES:
                self.abort()
        elif self.phase is not Phase.CLOSED:
            self._unread = self._unread + data if self._unread else data
            self._process_input()

    def eof_received(self) -> bool:
        self._ended = True
        if self.phase is Phase.BODY:
            self._reject(HttpProblem(HTTPStatus.BAD_REQUEST, "the request ended before its body was complete"))
            return False
        # A sender may close its side after a request and still read the response.
        return self.is_waiting and self._is_plain

    def pause_writing(self) -> None:
        self._blocked = True
        if not self.is_waiting:
            self.deadline = self._loop.time() + self._limits.header_timeout

    def resume_writing(self) -> None:
        self._blocked = False
        if self.phase is Phase.IDLE:
            self._enter_phase(Phase.IDLE, self._limits.idle_timeout)
        self._process_input()

    def end_expired_wait(self) -> None:
        """Reply or close, because a wait took too long."""
        phase = self.phase
        if phase is Phase.ANSWER and self._request is not None:
            self._send_answer(self._request, self._request.timeout_reply())
        elif phase is Phase.BODY and not self._blocked:
            timeout = self._limits.request_timeout
            self._reject(HttpProblem(HTTPStatus.BAD_REQUEST, f"the body did not arrive within {timeout:g} seconds"))
        elif phase is Phase.HEAD and not self._blocked:
            self._reject(HttpProblem(HTTPStatus.REQUEST_TIMEOUT, "the request did not arrive in time"))
        else:
            self.abort()

    def abort(self) -> None:
        """Close immediately, without a reply."""
        self.phase = Phase.CLOSED
        self._release_body()
        if self.opening is not None:
            self.opening.cancel()
        if self._transport is not None:
            self._transport.abort()

    def shorten_deadline(self) -> None:
        """Limit the wait for the rest of a body to :attr:`ServerLimits.linger` seconds."""
        if self.phase is Phase.BODY:
            self.deadline = min(self.deadline, self._loop.time() + self._limits.linger)

    @property
    def _is_plain(self) -> bool:
        return self._transport is not None and self._transport.get_extra_info("ssl_object") is None

    def _process_input(self) -> None:
        """Handle received bytes, until a request waits for its answer."""
        if self._pumping:
            return
        self._pumping = True
        events = self._reader.events
        left = REQUESTS_PER_TURN
        while not self._blocked and self.phase not in _UNREADY:
            if events:
                event = events.popleft()
                self._handle_event(event)
                left -= isinstance(event, RequestHead)
                if not left:
                    self._loop.call_soon(self._process_input)
                    break
            elif self._unread:
                size = self._reader.slice_bytes
                if len(self._unread) <= size:
                    data, self._unread = self._unread, b""
                else:
                    data, self._unread = self._unread[:size], self._unread[size:]
                self._reader.feed(data)
            else:
                break
        self._pumping = False
        if self.phase is Phase.IDLE and self._reader.in_head:
            self._enter_phase(Phase.HEAD, self._limits.header_timeout)
        self._set_reading(bool(left) and not self._unread)

    def _set_reading(self, wanted: bool) -> None:
        if wanted is self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = not wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _handle_event(self, event: RequestHead | bytes | BodyEnd | HttpProblem) -> None:
        if isinstance(event, bytes):
            self._handle_piece(event)
        elif isinstance(event, RequestHead):
            self._handle_head(event)
        elif isinstance(event, BodyEnd):
            self._handle_end()
        else:
            self._reject(event)

    def _handle_head(self, head: RequestHead) -> None:
        if self._peer:
            head = head._replace(peer=self._peer)
        self._head = head
        answer = self._pool.handler.admit(head)
        if isinstance(answer, Reply):
            # A body that is already here costs nothing, and the connection can continue.
            self._skipping = BodyEnd.END in self._reader.events
            self._send_reply(answer, close=not self._skipping)
            return
        self._request = answer
        self._enter_phase(Phase.BODY, self._limits.request_timeout)
        if head.expects_continue and head.has_body and not self._reader.events and self._transport is not None:
            self._transport.write(_CONTINUE)

    def _handle_piece(self, piece: bytes) -> None:
        if self._skipping or self._request is None:
            return
        self.held_bytes += len(piece)
        held = self._pool.reserve_bytes(len(piece))
        if self.phase is not Phase.BODY:
            return  # freeing memory has ended this connection
        self._body += piece
        if self.held_bytes > self._request.max_body:
            self._reject(body_too_large(self._request.max_body))
        elif not held:
            self._reject(HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, "too much is being received; retry later"))

    def _handle_end(self) -> None:
        request = self._request
        if self._skipping or request is None:
            self._skipping = False
            return
        self._enter_phase(Phase.ANSWER, self._limits.request_timeout)
        body = bytes(self._body)
        self._body.clear()
        request.handle_body(body, partial(self._send_answer, request))

    def _send_answer(self, request: AcceptedRequest, reply: Reply) -> None:
        """Send the answer to a request, unless it was already answered."""
        if self.phase is not Phase.ANSWER or request is not self._request:
            return
        if reply.status == HTTPStatus.ACCEPTED:
            self._pool.record_accepted(self)
        self._send_reply(reply, close=False)
        self._process_input()

    def _reject(self, problem: HttpProblem) -> None:
        head = self._head if self._head is not None else self._reader.partial_head
        self._send_reply(self._pool.finish_reply(head, problem.to_reply()), close=True)

    def _send_reply(self, reply: Reply, *, close: bool) -> None:
        """Send a response; *close* ends the connection, because the rest of the request is unwanted or unreadable."""
        head, transport = self._head, self._transport
        self._release_body()
        self._head = self._request = None
        if transport is None or transport.is_closing():
            return
        last = close or self._ended or self._pool.stopping or (head is not None and not head.keep_alive)
        old = head is not None and head.version == "1.0"
        connection = b"close" if last else b"keep-alive" if old else b""
        transport.write(reply.encode(self._pool.date, connection, body=head is None or head.method != "HEAD"))
        if close and not self._ended:
            self._enter_phase(Phase.LINGER, self._limits.linger)
            self._unread = b""
            self._set_reading(True)
            if self._is_plain:
                transport.write_eof()
        elif last:
            self._enter_phase(Phase.CLOSED, self._limits.linger)
            transport.close()
        else:
            self._enter_phase(Phase.IDLE, self._limits.idle_timeout)

    def _release_body(self) -> None:
        self._body.clear()
        if self.held_bytes:
            self._pool.reserve_bytes(-self.held_bytes)
            self.held_bytes = 0

    def _enter_phase(self, phase: Phase, seconds: float) -> None:
        self.phase = phase
        self.deadline = self._loop.time() + seconds


def _common_name(certificate: Mapping[str, Any] | None) -> str:
    """Return the verified common name of a client's certificate; empty without one."""
    for part in (certificate or {}).get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    return ""


def body_too_large(limit: int) -> HttpProblem:
    """Return the problem for a body of more than *limit* bytes."""
    return HttpProblem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a message may have at most {limit} bytes; send less, or a reference"
    )
