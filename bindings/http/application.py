"""The gateway's ASGI application: one request in, one row in the inbox, and only then the 202.

What a sender may rely on: 202 means that the message is on disk and will have an outcome. Any other answer means
that it was not taken, save one: a 503 after the inbox took too long, and a connection that broke before the answer,
leave it open, and a sender that repeats may be counted twice (at least once).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import Future
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Protocol

from bindings.http.access import Guard
from bindings.http.codec import PROTOCOL
from bindings.http.problems import Refusal, Reply, unavailable
from bindings.http.request import header, parts_of_request
from bindings.http.routing import Found, Routes
from bindings.inbox import InboxError, InboxRow, InboxRowError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

BODY_METHODS: Final = frozenset(("POST", "PUT", "PATCH"))
"""Methods whose requests say how long their body is, or are answered 411."""
_COMPLAIN_SECONDS: Final = 10.0
_MAX_DRAIN: Final = 16 * 2**20
"""Bytes of a refused body that are read and dropped, so that the sender sees the answer and not a reset."""

_logger = logging.getLogger(__name__)


class RowStore(Protocol):
    """Where rows go: the inbox, or anything else that makes them durable."""

    def append(self, row: InboxRow) -> Future[None]:
        """Store a row; see :meth:`bindings.inbox.Inbox.append`."""


class GatewayCounters(Protocol):
    """What the gateway counts, by endpoint; called on the gateway's thread."""

    def received(self, endpoint: str) -> None:
        """Count a request that a route takes."""

    def acknowledged(self, endpoint: str) -> None:
        """Count a request that was stored and is being answered 202."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one request, and all of them together, may cost.

    ``max_body_bytes`` of one message; ``timeout`` seconds for a body to arrive, and again for the inbox;
    ``max_in_flight`` requests held at once; ``retry_after`` seconds that a sender is asked to wait.
    """

    max_body_bytes: int
    timeout: float
    max_in_flight: int
    retry_after: int


class GatewayApplication:
    """Takes requests for the given routes; see the module for its promise."""

    def __init__(
        self, routes: Routes, store: RowStore, limits: RequestLimits, counters: GatewayCounters, guard: Guard
    ) -> None:
        self._routes = routes
        self._guard = guard
        self._store = store
        self._limits = limits
        self._counters = counters
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._refused = 0
        self._complain_at = 0.0
        self.started = asyncio.Event()
        self.stopping = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection scope."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._request(scope, receive, send)
        else:
            await _refuse_websocket(send)

    async def drained(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        self.started.set()
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = _Body(receive)
        self._in_flight += 1
        self._idle.clear()
        try:
            reply = await self._reply(scope, body)
            if not body.complete and not body.late:
                await body.drain(self._limits.timeout)
            if not body.broken:
                await _answer(send, reply, close=self.stopping or not body.complete, version=scope["http_version"])
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._idle.set()

    async def _reply(self, scope: Scope, body: _Body) -> Reply:
        try:
            found = self._routes.find(scope["method"], scope["raw_path"].decode("latin-1"))
            if scope["method"] == "OPTIONS" and found.allowed and found.endpoint is None:
                return _handshake(scope, found)
            # Before anything is told about paths and methods, and before the body is asked for.
            sender = self._guard.admit(scope)
            endpoint = _endpoint(scope, found)
            self._guard.allow(sender, found.users)
            return await self._take(scope, body, endpoint)
        except Refusal as refusal:
            return refusal.reply()

    async def _take(self, scope: Scope, body: _Body, endpoint: str) -> Reply:
        self._counters.received(endpoint)
        if self.stopping:
            raise unavailable("the router is stopping; send again", self._limits.retry_after)
        if self._in_flight > self._limits.max_in_flight:
            raise unavailable("too many requests are in flight; send again", self._limits.retry_after)
        _check_length(scope, self._limits.max_body_bytes)
        received = time.time_ns() // 1000
        content = await body.read(self._limits.max_body_bytes, self._limits.timeout)
        row = InboxRow(
            endpoint, PROTOCOL, received, parts_of_request(scope, self._guard.secret_headers), content or None
        )
        await self._append(row)
        self._counters.acknowledged(endpoint)
        return Reply(HTTPStatus.ACCEPTED, ((b"content-length", b"0"),))

    async def _append(self, row: InboxRow) -> None:
        try:
            async with asyncio.timeout(self._limits.timeout):
                await asyncio.wrap_future(self._store.append(row))
        except TimeoutError:
            detail = "the inbox took too long; the message may have been stored"
            raise unavailable(detail, self._limits.retry_after) from None
        except InboxRowError as error:
            raise Refusal(HTTPStatus.BAD_REQUEST, str(error)) from error
        except InboxError as error:
            # The text names files of this machine, which is for the log and not for senders.
            self._complain(row.endpoint, error)
            raise unavailable("the inbox takes nothing at present; send again", self._limits.retry_after) from error

    def _complain(self, endpoint: str, error: InboxError) -> None:
        """Log why messages are refused, now and then: impatient senders make thousands of them a second."""
        self._refused += 1
        now = time.monotonic()
        if now >= self._complain_at:
            _logger.warning("%d messages refused, the last for %s: %s", self._refused, endpoint, error)
            self._refused, self._complain_at = 0, now + _COMPLAIN_SECONDS


class _Body:
    """The body of one request, read at most once.

    ``broken``: the sender went away, so nobody waits for an answer. ``late``: it is not worth waiting for more.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.complete = False
        self.broken = False
        self.late = False

    async def read(self, limit: int, timeout: float) -> bytes:
        """Return the body.

        Raises:
            Refusal: it is larger than *limit* bytes, did not arrive within *timeout* seconds, or ended early.
        """
        content = bytearray()
        try:
            async with asyncio.timeout(timeout):
                while not self.complete:
                    content += await self._next()
                    if len(content) > limit:
                        raise _too_large(limit)
        except TimeoutError:
            self.late = True
            raise Refusal(HTTPStatus.BAD_REQUEST, f"the body did not arrive within {timeout:g} seconds") from None
        return bytes(content)

    async def drain(self, timeout: float) -> None:
        """Read and drop what is left, within reason."""
        dropped = 0
        try:
            async with asyncio.timeout(timeout):
                while not self.complete and not self.broken and dropped < _MAX_DRAIN:
                    dropped += len(await self._next())
        except (TimeoutError, Refusal):
            return

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.broken = True
            raise Refusal(HTTPStatus.BAD_REQUEST, "the request ended before its body")
        self.complete = not message.get("more_body", False)
        return bytes(message.get("body", b""))


def _endpoint(scope: Scope, found: Found) -> str:
    if found.endpoint is not None:
        return found.endpoint
    if not found.allowed:
        raise Refusal(HTTPStatus.NOT_FOUND, "no endpoint takes this path; see the catalog for those that exist")
    allowed = ", ".join(found.allowed)
    detail = f"this path takes {allowed}, not {scope['method']}"
    raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, detail, (b"allow", allowed.encode("ascii")))


def _check_length(scope: Scope, limit: int) -> None:
    length = header(scope, b"content-length")
    if length is not None:
        if not length.isdigit():
            raise Refusal(HTTPStatus.BAD_REQUEST, "Content-Length is not a whole number")
        if int(length) > limit:
            raise _too_large(limit)
    elif (
        scope["method"] in BODY_METHODS
        and scope["http_version"].startswith("1")  # HTTP/2 marks the end of a body by itself
        and header(scope, b"transfer-encoding") is None
    ):
        raise Refusal(HTTPStatus.LENGTH_REQUIRED, "send Content-Length (0 for no body) or a chunked body")


def _too_large(limit: int) -> Refusal:
    return Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a message may have {limit} bytes; send less, or a reference")


def _handshake(scope: Scope, found: Found) -> Reply:
    """Answer OPTIONS; with an origin it is the validation of CloudEvents webhooks, and permission is granted."""
    allow = ", ".join(dict.fromkeys((*found.allowed, "OPTIONS"))).encode("ascii")
    headers = [(b"allow", allow), (b"content-length", b"0")]
    origin = header(scope, b"webhook-request-origin")
    if origin is not None:
        headers += [(b"webhook-allowed-origin", origin), (b"webhook-allowed-rate", b"*")]
    return Reply(HTTPStatus.OK, tuple(headers))


async def _refuse_websocket(send: Send) -> None:
    """Answer the upgrade as the request that it still is; a plain close would be a 403 without a word."""
    reply = Refusal(HTTPStatus.BAD_REQUEST, "WebSocket is not spoken here; send each message as a request").reply()
    headers = list(reply.headers)
    await send({"type": "websocket.http.response.start", "status": int(reply.status), "headers": headers})
    await send({"type": "websocket.http.response.body", "body": reply.body})


async def _answer(send: Send, reply: Reply, *, close: bool, version: str) -> None:
    headers = list(reply.headers)
    if close and version.startswith("1"):
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": int(reply.status), "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
