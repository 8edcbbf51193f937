"""An HTTP/1.1 server for untrusted clients, with its own thread and event loop, and limits on every resource.

Ours and not uvicorn 0.54 (``httptools``, ``uvloop``), measured as a gateway over raw ASGI in turn with this one: 59 us
of a core a durable message against 52, and 36 against 25 without storing (93 and 60 under Starlette); a registry read
2,000 per CPU second against 2,200. By its public hooks 22 of our cases are lost: it limits neither the size of a head,
nor the time of silence, heads and bodies, nor an address's connections; it reads a refused body without end, accepts
what two parsers read differently, and loses the body of a request that offers an upgrade, as Java's client does, behind
a 202.

When a request is refused while its body arrives, the response is sent at once. What follows is read and dropped for
:attr:`ServerLimits.linger` seconds, so that the sender sees the response and not a reset. Connections are accepted here
and not by the event loop's own server, which would end when descriptors run out, and could not identify a client before
the TLS handshake.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import ipaddress
import logging
import re
import resource
import socket
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from email.utils import formatdate
from enum import Enum
from functools import partial
from http import HTTPStatus
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol, cast

import httptools
import uvloop

from bindings.gateways import JOIN_SECONDS, LOG_SECONDS
from bindings.http.request import (
    HttpProblem,
    Reply,
    RequestHead,
    ServerLimits,
    body_too_large,
    open_listener,
    unavailable_problem,
)

# Strict parsing of requests: anything that two parsers could read differently is rejected.
#
# The parser (llhttp, through ``httptools``) rejects bare line feeds, folded headers, control characters, and lengths
# that are repeated or combined with a transfer coding. This module checks the rest: versions, transfer codings other
# than ``chunked``, hosts, forms of the target, and all limits.

HEAD_SLICE: Final = 4096
"""Bytes of heads parsed at a time, so that few pipelined requests are in memory as objects."""
BODY_SLICE: Final = 64 * 2**10
_HTTP_URL: Final = re.compile(rb"https?://[^/?@]+(/[^?]*)?(?:\?(.*))?", re.IGNORECASE | re.DOTALL)
_FRAMING: Final = frozenset((b"content-length", b"transfer-encoding"))
_READ: Final = _FRAMING | {b"host", b"expect"}
_CHUNK_ROOM: Final = 64 * 2**10
_CHUNK_FACTOR: Final = 16
"""Limits of chunk headers and extensions: a fixed size, and this many times the body; one-byte chunks need six."""


Event = RequestHead | bytes | None | HttpProblem
"""A parsed event: a head, then pieces of its body, then its end (None); a problem is a connection's last event."""


class RequestReader:
    """Parses the bytes of one connection; ``events`` are in order, and ``headers`` those of the current request."""

    def __init__(self, limits: ServerLimits, address: str) -> None:
        self._limits = limits
        self._address = address
        self.events: deque[Event] = deque()
        self.in_head = self._in_body = False
        self._parser = httptools.HttpRequestParser(self)
        self.on_message_begin()
        self.in_head = False

    def feed_slice(self, data: bytes) -> bytes:
        """Parse some of these bytes, and return the others."""
        size = BODY_SLICE if self._in_body else HEAD_SLICE
        self._feed(data[:size])
        return data[size:]

    def _feed(self, data: bytes) -> None:
        self._unparsed_bytes += len(data)
        try:
            self._parser.feed_data(data)
            self._check_buffered()
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[int(upgrade.args[0]) :])
        except (HttpProblem, httptools.HttpParserError) as error:
            # The parser's own text quotes nothing of the request.
            cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
            well_formed = f"not a well-formed HTTP/1.1 request: {error}"
            self.events.append(cause if isinstance(cause, HttpProblem) else _bad_request(well_formed))

    def on_message_begin(self) -> None:
        """Begin a request; called by the parser, as are the methods below."""
        self.in_head = True
        self._target = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self._head: RequestHead | None = None
        self._replayed = False
        self._body_bytes = self._unparsed_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Add a piece of the target."""
        self._target += url
        if len(self._target) > self._limits.max_target:
            raise HttpProblem(HTTPStatus.REQUEST_URI_TOO_LONG, f"a target has at most {self._limits.max_target} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; those after the body are dropped. Their limits are checked once a head, or once a slice."""
        if not self._in_body:
            self.headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """Add the head to the events, unless it is only replayed."""
        self.in_head = False
        self._in_body = True
        self._unparsed_bytes = 0
        if not self._replayed:
            self._head = self._build_head()
            self.events.append(self._head)
        self._replayed = False

    def on_body(self, body: bytes) -> None:
        """Add a piece of the body to the events."""
        self._body_bytes += len(body)
        self.events.append(body)

    def on_message_complete(self) -> None:
        """Add the end to the events, unless the parser only skipped the body of a request that offers an upgrade."""
        self._in_body = False
        self._unparsed_bytes = 0
        if not (self._parser.should_upgrade() and self._head is not None and self._head.has_body):
            self.events.append(None)

    def _check_buffered(self) -> None:
        """Raise if the parser buffers too much: an endless header, or endless chunk extensions."""
        if self.in_head:
            if self._unparsed_bytes > self._limits.max_header_bytes + HEAD_SLICE:
                raise self._headers_too_large()
            self._check_headers()
        elif self._in_body and self._head is not None and self._head.chunked:
            if self._unparsed_bytes > _CHUNK_ROOM + _CHUNK_FACTOR * self._body_bytes:
                raise _bad_request("the chunks of this body are nearly empty; send larger ones")

    def _check_headers(self) -> None:
        """Raise if there are too many headers, or too large ones."""
        headers = self.headers
        size = len(self._target) + sum(map(len, chain.from_iterable(headers))) + 4 * len(headers)
        if size > self._limits.max_header_bytes or len(headers) > self._limits.max_headers:
            raise self._headers_too_large()

    def _headers_too_large(self) -> HttpProblem:
        limits = self._limits
        detail = f"a request may have at most {limits.max_headers} headers and {limits.max_header_bytes} bytes of them"
        return HttpProblem(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, detail)

    def _build_head(self) -> RequestHead:
        method, version = self._parser.get_method().decode("ascii"), self._parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise _bad_request("only HTTP/1.1 and HTTP/1.0 are supported")
        self._check_headers()
        found = [each for each in self.headers if each[0] in _READ]
        named = dict(found)
        if len(named) < len(found) or (b"host" not in named and version == "1.1"):
            raise _bad_request("a request needs exactly one Host header, and only one of each that says how to read it")
        coding = named.get(b"transfer-encoding")
        if coding is not None and (coding.lower() != b"chunked" or version == "1.0"):
            raise _bad_request("the only supported transfer coding is chunked, with HTTP/1.1")
        length = named.get(b"content-length")
        path, query = _parse_target(method, self._target)
        return RequestHead(
            method,
            path,
            query,
            tuple(self.headers),
            version,
            None if length is None else int(length),
            coding is not None,
            self._parser.should_keep_alive(),
            version == "1.1" and named.get(b"expect", b"").lower() == b"100-continue",
            address=self._address,
        )

    def _ignore_upgrade(self, rest: bytes) -> None:
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
        self._feed(rest)


def _parse_target(method: str, target: bytes) -> tuple[bytes, bytes]:
    """Return the raw path and query of a target in origin, absolute or asterisk form (RFC 9112 section 3.2)."""
    if b"#" in target:
        raise _bad_request("a target must not have a fragment")
    if target.startswith(b"/") or (target == b"*" and method == "OPTIONS"):
        path, _, query = target.partition(b"?")
        return path, query
    url = _HTTP_URL.fullmatch(target)
    if url is None:
        raise _bad_request("a target must be a path or an http URL without a user")
    return url[1] or b"/", url[2] or b""


def _bad_request(detail: str) -> HttpProblem:
    return HttpProblem(HTTPStatus.BAD_REQUEST, detail)


# One connection: requests are answered in order, and every wait has a limit.

REQUESTS_PER_TURN: Final = 50
"""Requests of one connection that are handled before other connections get their turn."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
AnswerCallback = Callable[[Reply], None]
"""Sends the answer; to be called once, on the server's thread."""


class AcceptedRequest(NamedTuple):
    """A request whose head was accepted; its functions are called on the server's thread.

    ``max_body`` is the maximum bytes of its body. ``handle_body`` handles it with its complete body, and may answer
    later. ``timeout_reply`` makes the response when no answer came in time; a later answer is dropped.
    """

    max_body: int
    handle_body: Callable[[bytes, AnswerCallback], None]
    timeout_reply: Callable[[], Reply]


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

    def __init__(self, server: HttpServer, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self.address = address
        self.phase = Phase.OPENING
        self.held_bytes = 0
        self.opening: asyncio.Task[None] | None = None
        self._server = server
        self._limits = server.limits
        self._loop = loop
        self.deadline = loop.time() + self._limits.header_timeout
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._reader = RequestReader(self._limits, address)
        self._unread = b""
        self._head: RequestHead | None = None
        self._request: AcceptedRequest | None = None
        self._body = bytearray()
        self._plain = self._skipping = self._pumping = self._blocked = self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._plain = transport.get_extra_info("ssl_object") is None
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
        self._server.connections.remove(self)
        self._request = self._transport = None
        self._reader.events.clear()

    def data_received(self, data: bytes) -> None:
        if self.phase not in (Phase.LINGER, Phase.CLOSED):
            self._unread = self._unread + data if self._unread else data
            self._process_input()

    def eof_received(self) -> bool:
        self._ended = True
        if self.phase is Phase.BODY:
            self._reject(_bad_request("the request ended before its body was complete"))
            return False
        # A sender may close its side after a request and still read the response.
        return self.phase is Phase.ANSWER and self._plain

    def pause_writing(self) -> None:
        self._blocked = True
        if self.phase is not Phase.ANSWER:
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
            self._reject(_bad_request(f"the body did not arrive within {self._limits.request_timeout:g} seconds"))
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
                if event is None:
                    self._handle_end()
                elif isinstance(event, bytes):
                    self._handle_piece(event)
                elif isinstance(event, HttpProblem):
                    self._reject(event)
                else:
                    self._handle_head(event)
                    left -= 1
                    if not left:
                        self._loop.call_soon(self._process_input)
                        break
            elif self._unread:
                self._unread = self._reader.feed_slice(self._unread)
            else:
                break
        self._pumping = False
        if self.phase is Phase.IDLE and self._reader.in_head:
            self._enter_phase(Phase.HEAD, self._limits.header_timeout)
        self._set_reading(bool(left) and not self._unread)

    def _set_reading(self, wanted: bool) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing() and transport.is_reading() is not wanted:
            (transport.resume_reading if wanted else transport.pause_reading)()

    def _handle_head(self, head: RequestHead) -> None:
        if self._peer:
            head = head._replace(peer=self._peer)
        self._head = head
        answer = self._server.handler.admit(head)
        if isinstance(answer, Reply):
            # A body that is already here costs nothing, and the connection can continue.
            self._skipping = None in self._reader.events
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
        held = self._server.connections.reserve_bytes(len(piece), self)
        self._body += piece
        if self.held_bytes > self._request.max_body:
            self._reject(body_too_large(self._request.max_body))
        elif not held:
            self._reject(unavailable_problem("too much is being received; retry later", 1))

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
            self._server.connections.record_accepted(self)
        self._send_reply(reply, close=False)
        if self._unread or self._reader.events or self._reader.in_head:
            # Later, since its errors are not those of others who are answered at the same time.
            self._loop.call_soon(self._process_input)

    def _reject(self, problem: HttpProblem) -> None:
        head = self._head if self._head is not None else RequestHead("", b"", b"", tuple(self._reader.headers))
        self._send_reply(self._server.finish_reply(head, problem.to_reply()), close=True)

    def _send_reply(self, reply: Reply, *, close: bool) -> None:
        """Send a response; *close* ends the connection, because the rest of the request is unwanted or unreadable."""
        head, transport = self._head, self._transport
        self._release_body()
        self._head = self._request = None
        if transport is None or transport.is_closing():
            return
        last = close or self._ended or self._server.stopping or (head is not None and not head.keep_alive)
        old = head is not None and head.version == "1.0"
        connection = b"close" if last else b"keep-alive" if old else b""
        transport.write(reply.encode(self._server.date, connection, body=head is None or head.method != "HEAD"))
        if close and not self._ended:
            self._enter_phase(Phase.LINGER, self._limits.linger)
            self._unread = b""
            self._set_reading(True)
            if self._plain:
                transport.write_eof()
        elif last:
            self._enter_phase(Phase.CLOSED, self._limits.linger)
            transport.close()
        else:
            self._enter_phase(Phase.IDLE, self._limits.idle_timeout)

    def _release_body(self) -> None:
        self._body.clear()
        self._server.connections.held_bytes -= self.held_bytes
        self.held_bytes = 0

    def _enter_phase(self, phase: Phase, seconds: float) -> None:
        self.phase = phase
        self.deadline = self._loop.time() + seconds


def _common_name(certificate: Mapping[str, Any] | None) -> str:
    """Return the verified common name of a client's certificate; empty without one."""
    pairs = chain.from_iterable((certificate or {}).get("subject", ()))
    return next((str(value) for key, value in pairs if key == "commonName"), "")


# All connections of an HTTP server: how many there may be, and which one is closed for a new one.
#
# At a limit the least important connection is closed: first the oldest whose client has never sent an accepted request,
# then the one that has been idle longest. At the limit of an address it is one of that address. So clients that only
# keep connections open do not lock out those that send. A request that waits for its answer is never cut off.


class Connections:
    """All open connections; used on one thread. ``held_bytes`` is the size of all bodies in memory."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._limit = _limit_connections(limits.max_connections)
        self._strangers: dict[HttpConnection, None] = {}
        self._known: dict[HttpConnection, None] = {}
        self._counts: Counter[str] = Counter()
        self.held_bytes = 0

    def __iter__(self) -> Iterator[HttpConnection]:
        return iter([*self._strangers, *self._known])

    @property
    def busy_count(self) -> int:
        """The number of accepted requests without an answer."""
        return sum(each.phase in (Phase.BODY, Phase.ANSWER) for each in self)

    def has_room(self, address: str) -> bool:
        """Whether an address may open one more connection; closes another one if needed."""
        if self._counts[address] >= self._limits.max_per_address:
            return self.make_room(address)
        return len(self._strangers) + len(self._known) < self._limit or self.make_room()

    def add(self, connection: HttpConnection) -> None:
        """Add a connection."""
        self._strangers[connection] = None
        self._counts[connection.address] += 1

    def remove(self, connection: HttpConnection) -> None:
        """Remove a connection; does nothing if it was removed before."""
        for group in (self._strangers, self._known):
            if connection in group:
                del group[connection]
                self._counts[connection.address] -= 1
                if not self._counts[connection.address]:
                    del self._counts[connection.address]

    def record_accepted(self, connection: HttpConnection) -> None:
        """Record an accepted request; its connection is now the last one to be closed for others."""
        self._strangers.pop(connection, None)
        self._known.pop(connection, None)
        self._known[connection] = None

    def make_room(self, address: str = "") -> bool:
        """Close the least important connection, of an address or of all; return False if all wait for answers."""
        for each in chain(self._strangers, self._known):
            if each.phase is not Phase.ANSWER and address in ("", each.address):
                self.remove(each)
                each.abort()
                return True
        return False

    def reserve_bytes(self, size: int, receiver: HttpConnection) -> bool:
        """Count bytes of the body of *receiver*; return False if there are too many.

        Connections with incomplete bodies are closed before, in the order of :meth:`make_room`, up to *receiver*.
        """
        self.held_bytes += size
        while self.held_bytes > self._limits.max_held_bytes:
            held = (each for each in chain(self._strangers, self._known) if each.held_bytes)
            connection = next((each for each in held if each.phase is Phase.BODY), None)
            if connection is None or connection is receiver:
                return False
            connection.abort()
        return True


def address_group(peer: Any) -> str:
    """Return the key under which a client is counted: its address, or its IPv6 /64 network, which one host owns."""
    address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
    return str(address)


SPARE_DESCRIPTORS: Final = 300
"""Descriptors reserved for the rest of the process."""
_SWEEP_SECONDS: Final = 0.25
_DRAIN_SECONDS: Final = 0.02
_LOW_DESCRIPTORS: Final = 1024
"""Descriptors below this are left to clients of brokers: some use ``select``, which supports no others."""
_EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

_logger = logging.getLogger(__name__)


class RequestHandler(Protocol):
    """The application of a server. Called on the server's thread."""

    def admit(self, head: RequestHead) -> AcceptedRequest | Reply:
        """Accept a request, or return the reply that refuses it; the body is not read then."""


FinishReply = Callable[[RequestHead, Reply], Reply]
"""Adds the handler's headers to a reply made without it; of the head only the headers are reliable."""


class HttpServer:
    """Serves HTTP, or only HTTPS with *tls*; started once, stopped once. ``port`` 0 uses a free one.

    *name* is in errors, and the name of the thread. *listener* is an open socket in place of *address*.
    """

    def __init__(
        self,
        name: str,
        address: tuple[str, int],
        handler: RequestHandler,
        limits: ServerLimits,
        *,
        tls: ssl.SSLContext | None = None,
        listener: socket.socket | None = None,
        finish_reply: FinishReply = lambda head, reply: reply,
    ) -> None:
        self._name = name
        self.host, self.port = address
        self.handler = handler
        self.limits = limits
        self.finish_reply = finish_reply
        self.stopping = False
        self.date = b""
        self.connections = Connections(limits)
        self._tls = tls
        self._listener = listener
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._grace = 0.0
        self._complaints: dict[str, tuple[float, int]] = {}

    @property
    def alive(self) -> bool:
        """Whether it is listening; False before the start, after the stop, and after an internal error."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start listening; on return, requests are accepted, and ``port`` is the actual one.

        Raises:
            GatewayError: the address is not available.
        """
        listener = self._listener or open_listener(self.host, self.port, self._name)
        self.port = listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, args=(listener,), name=self._name, daemon=True)
        self._thread.start()
        self._ready.wait()

    def stop(self, grace: float = 1.0) -> None:
        """Finish accepted requests within *grace* seconds, then close all connections; does nothing when not running.

        Until then other requests are answered too, and every response ends its connection.
        """
        if self._thread is None or self._loop is None:
            return
        self._grace = grace
        try:
            self._loop.call_soon_threadsafe(self._stop.set)
        except RuntimeError:
            _logger.debug("%s ended before it was stopped", self._name)
        self._thread.join(grace + JOIN_SECONDS)
        self._thread = None

    def _run(self, listener: socket.socket) -> None:
        try:
            with listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve(listener))
        except Exception:
            _logger.exception("%s ended", self._name)
        finally:
            self._ready.set()

    async def _serve(self, listener: socket.socket) -> None:
        loop = self._loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._log_loop_error)
        listener.setblocking(False)
        self._update_date()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(each) for each in (self._accept(loop, listener), self._expire_all(loop))]
                self._ready.set()
                await self._stop.wait()
                await self._drain_requests(loop)
                for task in tasks:
                    task.cancel()
        finally:
            for connection in self.connections:
                connection.abort()

    async def _drain_requests(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait until all accepted requests are answered; each connection ends with its response."""
        self.stopping = True
        for connection in self.connections:
            if connection.phase is Phase.BODY:  # the rest of a body has little time now
                connection.deadline = min(connection.deadline, loop.time() + self.limits.linger)
        deadline = loop.time() + self._grace
        while self.connections.busy_count and loop.time() < deadline:
            await asyncio.sleep(_DRAIN_SECONDS)
        if self.connections.busy_count:
            _logger.warning("requests are still in flight after %s s; their senders get no answer", self._grace)
        await asyncio.sleep(_DRAIN_SECONDS)  # until the last responses are sent

    async def _accept(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        while True:
            try:
                accepted, peer = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._log_problem(f"no more connections now: {error.strerror}; raise the limit on open files")
                    self.connections.make_room()
                    await asyncio.sleep(_SWEEP_SECONDS)
                continue
            await asyncio.sleep(0)  # an accepted socket that waits already does not: others have their turn
            address = address_group(peer)
            if self.connections.has_room(address):
                connection = HttpConnection(self, address, loop)
                self.connections.add(connection)
                connection.opening = loop.create_task(self._open(loop, connection, _move_to_high_descriptor(accepted)))
            else:
                self._refuse_connection(accepted)

    async def _open(self, loop: asyncio.AbstractEventLoop, connection: HttpConnection, plain: socket.socket) -> None:
        times: dict[str, Any] = {}
        if self._tls is not None:
            times = {"ssl_handshake_timeout": self.limits.header_timeout, "ssl_shutdown_timeout": self.limits.linger}
        try:
            plain.setblocking(False)
            await loop.connect_accepted_socket(lambda: connection, plain, ssl=self._tls, **times)
        except (OSError, asyncio.CancelledError) as error:
            # The client left, took too long, or does not speak TLS; nothing is wrong on our side.
            _logger.debug("a connection failed: %s", type(error).__name__)
            plain.close()
            self.connections.remove(connection)

    def _refuse_connection(self, accepted: socket.socket) -> None:
        """Reply that there are too many connections, if possible without waiting."""
        self._log_problem("connections were refused: too many, or too many from one address")
        with accepted:
            accepted.setblocking(False)
            if self._tls is None:
                reply = unavailable_problem("too many connections; reuse open ones", 1).to_reply()
                try:
                    accepted.send(reply.encode(self.date, b"close", body=True))
                    accepted.shutdown(socket.SHUT_WR)
                except OSError:
                    _logger.debug("a refused client had already left")

    async def _expire_all(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self._update_date()
            now = loop.time()
            for connection in self.connections:
                if now >= connection.deadline:
                    connection.end_expired_wait()

    def _update_date(self) -> None:
        self.date = formatdate(time.time(), usegmt=True).encode("ascii")

    def _log_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log the loop's unhandled error in one line, without the request's own bytes."""
        error = context.get("exception")
        self._log_problem(f"{context.get('message')}: {type(error).__name__ if error else 'no exception'}")

    def _log_problem(self, problem: str) -> None:
        """Log a problem at intervals, with its count, so that a flood of requests does not flood the log."""
        due, count = self._complaints.get(problem, (0.0, 0))
        now = time.monotonic()
        if now >= due:
            _logger.warning("%s (%d times)", problem, count + 1)
            due, count = now + LOG_SECONDS, -1
        self._complaints[problem] = (due, count + 1)


def _move_to_high_descriptor(accepted: socket.socket) -> socket.socket:
    """Move a socket to a high descriptor, if the limit allows it."""
    try:
        number = fcntl.fcntl(accepted, fcntl.F_DUPFD_CLOEXEC, _LOW_DESCRIPTORS)
    except OSError:
        return accepted
    with accepted:
        return socket.socket(accepted.family, accepted.type, accepted.proto, fileno=number)


def _limit_connections(wanted: int) -> int:
    """Return the wanted number of connections, or less if the limit on open files is too low."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    room = max(limit // 8, limit - SPARE_DESCRIPTORS)
    if limit == resource.RLIM_INFINITY or room >= wanted:
        return wanted
    _logger.warning("only %d connections instead of %d: this process may open %d files", room, wanted, limit)
    return room
