"""The HTTP gateway: an HTTP/1.1 server in front of the inbox."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Final, NamedTuple

from bindings.background import Backoff
from bindings.gateways import GatewayCounters, RowStore, Tls
from bindings.http.binding import PROTOCOL
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
    body_too_large,
    create_server_tls,
    unavailable_problem,
)
from bindings.http.server import AcceptedRequest, AnswerCallback, HttpServer
from bindings.parts import InboxRow
from bindings.store_and_ack import AckAfterStore

# Handling requests: each is stored as one row of the inbox before it is answered with 202.
#
# A sender may rely on this: 202 means that the message is on disk and will have an outcome. Any other response means
# that it was not accepted, with two exceptions that leave it open: a 503 after the inbox took too long, and a
# connection that broke before the response. A sender that then repeats may be counted twice (at least once).

BODY_METHODS: Final = frozenset(("POST", "PUT", "PATCH"))
"""Methods whose requests must declare the length of their body, or get 411."""
_ORIGIN: Final = b"webhook-request-origin"
_ACCEPTED: Final = Reply(HTTPStatus.ACCEPTED)


@dataclass(frozen=True, slots=True)
class HttpGatewayConfig:
    """Address, limits, TLS and access of the HTTP gateway.

    ``port`` 0 uses a free one. ``max_body_bytes`` limits one message, ``max_in_flight`` how many wait for the inbox at
    once; ``limits`` are for requests and connections of every kind. ``retry_after`` (seconds) goes with every 503.
    With ``ca`` of ``tls``, clients need a certificate from one of these authorities (mutual TLS). ``access`` says who
    may send; None is everybody.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    max_body_bytes: int = 2**20
    max_in_flight: int = 1000
    limits: ServerLimits = field(default_factory=ServerLimits)
    retry_after: int = 5
    tls: Tls | None = None
    access: Access | None = None


class _UnstoredMessage(NamedTuple):
    row: InboxRow
    answer: AnswerCallback


class HttpGateway(HttpServer):
    """Hosts the HTTP endpoints of a router; started once, stopped once.

    The sender is checked before anything else, so that strangers learn nothing of paths and cost next to nothing. The
    messages of one turn of the event loop are one group for the store, which commits all its groups together, so that
    many requests share one fsync. While it stops, new messages are refused (503); those that come later get no answer,
    so their senders repeat them.

    Raises:
        GatewayError: the certificate or key cannot be used.
    """

    def __init__(
        self,
        routes: Sequence[HttpRoute],
        inbox: RowStore,
        settings: HttpGatewayConfig,
        *,
        counters: GatewayCounters,
    ) -> None:
        chosen = self._settings = settings
        tls = create_server_tls(chosen.tls)
        super().__init__("HTTP gateway", (chosen.host, chosen.port), self, chosen.limits, tls=tls)
        self._routes = PathRoutes(routes)
        self._guard = Guard(chosen.access)
        self._parts = RequestParts(self._guard.secret_headers)
        self._counters = counters
        # Without pauses and in groups of any size: senders wait for an answer, and repeat what is refused.
        self._ack_queue = AckAfterStore(inbox, self, self._wake, Backoff(0.0, 0.0), eager=1)
        self._advance_due = self._woken = False

    def replace_routes(self, routes: Sequence[HttpRoute]) -> None:
        """Switch to these routes for later requests; requests in flight finish with the old ones."""
        self._routes = PathRoutes(routes)

    def admit(self, head: RequestHead) -> AcceptedRequest | Reply:
        """Return the accepted request, or the reply that refuses it."""
        try:
            return self._admit_message(head)
        except HttpProblem as problem:
            return problem.to_reply()

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
            raise self._unavailable("the router is stopping; retry later")
        _check_length(head, self._settings.max_body_bytes)
        store = partial(self._store_message, endpoint, head)
        return AcceptedRequest(self._settings.max_body_bytes, store, self._timeout_reply)

    def _store_message(self, endpoint: str, head: RequestHead, body: bytes, answer: AnswerCallback) -> None:
        """Store a message in the inbox, and answer once it is durable or refused."""
        if self._ack_queue.unstored_count >= self._settings.max_in_flight:
            answer(self._unavailable("too many requests are in flight; retry later").to_reply())
            return
        row = InboxRow(endpoint, PROTOCOL, time.time_ns() // 1000, self._parts.parts_of_head(head), body or None)
        self._ack_queue.add(_UnstoredMessage(row, answer))
        if not self._advance_due:
            self._advance_due = True
            asyncio.get_running_loop().call_soon(self._advance)

    def _wake(self) -> None:
        """Have the server's thread look at the store; further calls until then add nothing."""
        if not self._woken and self._loop is not None:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # The server has stopped, and nobody waits any more.
                self._loop.call_soon_threadsafe(self._advance)

    def _advance(self) -> None:
        self._advance_due = self._woken = False  # first, so that no group is missed
        self._ack_queue.advance()

    def on_stored(self, messages: Sequence[_UnstoredMessage]) -> None:
        """Answer 202 to messages that are durable."""
        for message in messages:
            self._counters.acknowledged(message.row.endpoint)
            message.answer(_ACCEPTED)

    def on_refused(self, message: _UnstoredMessage) -> None:
        """Answer 400 to a message that can never be stored."""
        detail = "the inbox can never store this message, most likely for its size; the router's log says why"
        message.answer(HttpProblem(HTTPStatus.BAD_REQUEST, detail).to_reply())

    def select_retries(self, messages: Sequence[_UnstoredMessage]) -> Sequence[_UnstoredMessage]:
        """Answer 503 to messages that the store does not accept now, although some may be stored; keep none."""
        # Why is in the log and not here, since it may name files of this machine.
        reply = self._unavailable("the inbox accepts no messages now; retry later").to_reply()
        for message in messages:
            message.answer(reply)
        return ()

    def _timeout_reply(self) -> Reply:
        return self._unavailable("the inbox took too long; the message may have been stored").to_reply()

    def _unavailable(self, detail: str) -> HttpProblem:
        return unavailable_problem(detail, self._settings.retry_after)


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
