"""The HTTP gateway: an HTTP/1.1 server in front of the inbox."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple

from bindings.gateways import GatewayCounters, GatewayError, RowStore
from bindings.http.binding import PROTOCOL
from bindings.http.connection import AcceptedRequest, AnswerCallback, body_too_large
from bindings.http.request import (
    Access,
    Guard,
    HttpProblem,
    HttpRoute,
    PathRoutes,
    Reply,
    RequestHead,
    RequestParts,
    RouteMatch,
    ServerLimits,
    create_server_tls,
    open_listener,
    unavailable_problem,
)
from bindings.http.server import HttpServer
from bindings.inbox.space import InboxError, InboxRowError
from bindings.parts import InboxRow
from bindings.store_and_ack import take_group

# Storing received messages: those of one turn of the event loop are one group.
#
# The store gets each group at once and commits all waiting groups together, so that many requests share one fsync.
# Everything here runs on the server's thread.

SettleCallback = Callable[[BaseException | None], None]
"""Called on the server's thread with the outcome of a message: None if it is durable, else why it is not stored."""


class _UnstoredMessage(NamedTuple):
    row: InboxRow
    settle: SettleCallback


class GroupStore:
    """Stores messages in groups, and reports the outcome of each.

    A message that can never be stored is refused alone. When a group fails for another reason, all of it is refused,
    although some may be stored: their senders repeat them.
    """

    def __init__(self, store: RowStore) -> None:
        self._store = store
        self._waiting: deque[_UnstoredMessage] = deque()
        self._due = False
        self._ended: deque[tuple[Sequence[_UnstoredMessage], Future[None]]] = deque()
        self._called = False

    def add_message(self, row: InboxRow, settle: SettleCallback) -> None:
        """Store a message, grouped with the others of this turn of the event loop."""
        self._waiting.append(_UnstoredMessage(row, settle))
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._send_waiting)

    def _send_waiting(self) -> None:
        self._due = False
        while self._waiting:
            self._send_group(take_group(self._waiting))

    def _send_group(self, group: Sequence[_UnstoredMessage]) -> None:
        loop = asyncio.get_running_loop()
        try:
            stored = self._store.append_many([each.row for each in group])
        except Exception as error:
            # Stores return a future and never raise; one that raises anyway must not leave senders waiting.
            stored = Future()
            stored.set_exception(error)

        def on_stored(done: Future[None]) -> None:
            self._ended.append((group, done))
            if not self._called:  # else a call is pending, and sees this group too
                self._called = True
                with contextlib.suppress(RuntimeError):  # The server has stopped, and nobody waits any more.
                    loop.call_soon_threadsafe(self._settle_finished)

        stored.add_done_callback(on_stored)

    def _settle_finished(self) -> None:
        """Settle all groups that the store has finished; it commits several at once."""
        self._called = False  # first, so that no group is missed
        while self._ended:
            self._settle_group(*self._ended.popleft())

    def _settle_group(self, group: Sequence[_UnstoredMessage], done: Future[None]) -> None:
        error = InboxError("the store gave up") if done.cancelled() else done.exception()
        if isinstance(error, InboxRowError) and len(group) > 1:
            for each in group:
                self._send_group([each])
        else:
            for each in group:
                self._settle_message(each, error)

    def _settle_message(self, message: _UnstoredMessage, error: BaseException | None) -> None:
        try:
            message.settle(error)
        except Exception as fault:
            # Others wait behind this one. Its sender gets no answer in time, and repeats.
            context = {"message": "an answer could not be sent", "exception": fault}
            asyncio.get_running_loop().call_exception_handler(context)


# Handling requests: each is stored as one row of the inbox before it is answered with 202.
#
# A sender may rely on this: 202 means that the message is on disk and will have an outcome. Any other response means
# that it was not accepted, with two exceptions that leave it open: a 503 after the inbox took too long, and a
# connection that broke before the response. A sender that then repeats may be counted twice (at least once).

BODY_METHODS: Final = frozenset(("POST", "PUT", "PATCH"))
"""Methods whose requests must declare the length of their body, or get 411."""
_ORIGIN: Final = b"webhook-request-origin"
_ACCEPTED: Final = Reply(HTTPStatus.ACCEPTED)
_LOG_SECONDS: Final = 10.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """Limits: ``max_body`` bytes of one message, ``max_in_flight`` messages that wait for the inbox, and
    ``retry_after`` seconds that every 503 tells a sender to wait.
    """

    max_body: int
    max_in_flight: int
    retry_after: int


class GatewayApplication:
    """Handles the requests for these routes, with the guarantee above. Used on the server's thread.

    The sender is checked before anything else, so that strangers learn nothing of paths and cost next to nothing.
    ``stopping`` refuses new messages.
    """

    def __init__(
        self, routes: PathRoutes, store: RowStore, limits: MessageLimits, counters: GatewayCounters, guard: Guard
    ) -> None:
        self._routes = routes
        self._guard = guard
        self._parts = RequestParts(guard.secret_headers)
        self._store = GroupStore(store)
        self._limits = limits
        self._counters = counters
        self._in_flight = 0
        self._refused = 0
        self._complain_at = 0.0
        self.stopping = False

    def admit(self, head: RequestHead) -> AcceptedRequest | Reply:
        """Return the accepted request, or the reply that refuses it."""
        try:
            return self._admit_message(head)
        except HttpProblem as problem:
            return problem.to_reply()

    def store_message(self, endpoint: str, head: RequestHead, body: bytes, answer: AnswerCallback) -> None:
        """Store a message in the inbox, and answer once it is durable or refused."""
        if self._in_flight >= self._limits.max_in_flight:
            problem = unavailable_problem("too many requests are in flight; retry later", self._limits.retry_after)
            answer(problem.to_reply())
            return
        received = time.time_ns() // 1000
        self._in_flight += 1
        row = InboxRow(endpoint, PROTOCOL, received, self._parts.parts_of_head(head), body or None)
        self._store.add_message(row, lambda error: answer(self._reply_to_outcome(endpoint, error)))

    def timeout_reply(self) -> Reply:
        """Return the response to a message that the inbox did not store in time."""
        detail = "the inbox took too long; the message may have been stored"
        return unavailable_problem(detail, self._limits.retry_after).to_reply()

    def _admit_message(self, head: RequestHead) -> AcceptedRequest | Reply:
        try:
            sender = self._guard.authenticate(head)
        except HttpProblem:
            if head.method == "OPTIONS" and (origin := head.header(_ORIGIN)) is not None:
                # The validation handshake of webhooks needs no credentials. Every path gets the same response.
                return Reply(HTTPStatus.OK, _permission_headers(origin))
            raise
        match = self._routes.find_route(head.method, head.path.decode("latin-1"))
        if head.method == "OPTIONS" and match.allowed and match.endpoint is None:
            return _answer_options(head, match)
        endpoint = _find_endpoint(head, match)
        self._guard.check_allowed(sender, match.users)
        self._counters.received(endpoint)
        if self.stopping:
            raise unavailable_problem("the router is stopping; retry later", self._limits.retry_after)
        _check_length(head, self._limits.max_body)
        return _AcceptedMessage(self, endpoint, head, self._limits.max_body)

    def _reply_to_outcome(self, endpoint: str, error: BaseException | None) -> Reply:
        self._in_flight -= 1
        if error is None:
            self._counters.acknowledged(endpoint)
            return _ACCEPTED
        if isinstance(error, InboxRowError):
            return HttpProblem(HTTPStatus.BAD_REQUEST, str(error)).to_reply()
        # The text may name files of this machine: it is for the log, not for senders.
        self._log_refusal(endpoint, error)
        if isinstance(error, InboxError):
            problem = unavailable_problem("the inbox is full; retry later", self._limits.retry_after)
            return problem.to_reply()
        return HttpProblem(HTTPStatus.INTERNAL_SERVER_ERROR, "the message was not stored").to_reply()

    def _log_refusal(self, endpoint: str, error: BaseException) -> None:
        """Log at intervals why messages are refused: senders may repeat thousands of times a second."""
        self._refused += 1
        now = time.monotonic()
        if now >= self._complain_at:
            _logger.warning("%d messages refused, the last for %s: %s", self._refused, endpoint, error)
            self._refused, self._complain_at = 0, now + _LOG_SECONDS


class _AcceptedMessage(NamedTuple):
    """An accepted request whose body has not arrived yet."""

    application: GatewayApplication
    endpoint: str
    head: RequestHead
    max_body: int

    def handle_body(self, body: bytes, answer: AnswerCallback) -> None:
        """Store the message."""
        self.application.store_message(self.endpoint, self.head, body, answer)

    def timeout_reply(self) -> Reply:
        """Return the response that says that the message may have been stored."""
        return self.application.timeout_reply()


def _find_endpoint(head: RequestHead, match: RouteMatch) -> str:
    if match.endpoint is not None:
        return match.endpoint
    if not match.allowed:
        raise HttpProblem(HTTPStatus.NOT_FOUND, "no endpoint has this path; see the catalog for endpoints")
    allowed = ", ".join(match.allowed)
    detail = f"this path accepts {allowed}, not {head.method}"
    raise HttpProblem(HTTPStatus.METHOD_NOT_ALLOWED, detail, (b"allow", allowed.encode("ascii")))


def _check_length(head: RequestHead, limit: int) -> None:
    if head.length is not None and head.length > limit:
        raise body_too_large(limit)
    if head.length is None and not head.chunked and head.method in BODY_METHODS:
        raise HttpProblem(HTTPStatus.LENGTH_REQUIRED, "send Content-Length (0 for no body) or a chunked body")


def _answer_options(head: RequestHead, match: RouteMatch) -> Reply:
    """Answer OPTIONS; a request with an origin is a CloudEvents webhook validation, which is granted."""
    allow = ", ".join(dict.fromkeys((*match.allowed, "OPTIONS"))).encode("ascii")
    origin = head.header(_ORIGIN)
    return Reply(HTTPStatus.OK, ((b"allow", allow), *(_permission_headers(origin) if origin is not None else ())))


def _permission_headers(origin: bytes) -> tuple[tuple[bytes, bytes], ...]:
    return (b"webhook-allowed-origin", origin), (b"webhook-allowed-rate", b"*")


@dataclass(frozen=True, slots=True)
class HttpGatewayConfig:
    """Address, limits, TLS and access of the HTTP gateway.

    ``port`` 0 uses a free one. ``max_body_bytes`` limits one message, ``max_in_flight`` how many wait for the inbox at
    once; ``limits`` are for requests and connections of every kind. ``retry_after`` (seconds) goes with every 503.
    ``tls_certificate`` and ``tls_key`` are PEM files, both or none; with ``tls_clients``, a file of certificate
    authorities, clients need a certificate from one of them (mutual TLS). ``access`` says who may send; None is
    everybody.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    max_body_bytes: int = 2**20
    max_in_flight: int = 1000
    limits: ServerLimits = field(default_factory=ServerLimits)
    retry_after: int = 5
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_clients: Path | None = None
    access: Access | None = None


class NoCounters:
    """Counts nothing."""

    def received(self, endpoint: str) -> None:
        """Ignore it."""

    def acknowledged(self, endpoint: str) -> None:
        """Ignore it."""


class HttpGateway:
    """Hosts the HTTP endpoints of a router; started once, stopped once."""

    def __init__(
        self,
        routes: Sequence[HttpRoute],
        inbox: RowStore,
        settings: HttpGatewayConfig | None = None,
        *,
        counters: GatewayCounters | None = None,
    ) -> None:
        self._routes = PathRoutes(routes)
        self._settings = settings or HttpGatewayConfig()
        chosen = self._settings
        limits = MessageLimits(chosen.max_body_bytes, chosen.max_in_flight, chosen.retry_after)
        guard = Guard(chosen.access)
        self._application = GatewayApplication(self._routes, inbox, limits, counters or NoCounters(), guard)
        self._server: HttpServer | None = None
        self.port = chosen.port

    def start(self) -> None:
        """Start listening; on return, requests are accepted, and ``port`` is the actual one.

        Raises:
            GatewayError: the address is in use, or the certificate or key cannot be used.
        """
        chosen = self._settings
        tls = create_server_tls(chosen.tls_certificate, chosen.tls_key, chosen.tls_clients)
        listener = open_listener(chosen.host, chosen.port, "the HTTP gateway")
        self.port = listener.getsockname()[1]
        self._server = HttpServer(listener, self._application, chosen.limits, name="http-gateway", tls=tls)
        try:
            self._server.start()
        except OSError as error:
            raise GatewayError(str(error)) from error

    @property
    def alive(self) -> bool:
        """Whether it is listening; False before start, after stop, and after an internal error."""
        return self._server is not None and self._server.alive

    def replace_routes(self, routes: Sequence[HttpRoute]) -> None:
        """Switch to these routes for later requests; requests in flight finish with the old ones."""
        self._routes.replace_routes(routes)

    def stop(self, grace: float = 10.0) -> None:
        """Refuse new messages (503), finish those in flight within *grace* seconds, then close all connections.

        Later ones get no answer, so their senders repeat them. Does nothing when not running.
        """
        self._application.stopping = True
        if self._server is not None:
            self._server.stop(grace)
