"""What the gateway does with requests: one request in, one row in the inbox, and only then the 202.

What a sender may rely on: 202 means that the message is on disk and will have an outcome. Any other answer means
that it was not taken, save one: a 503 after the inbox took too long, and a connection that broke before the answer,
leave it open, and a sender that repeats may be counted twice (at least once).
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, NamedTuple

from bindings.gateways import GatewayCounters, RowStore
from bindings.http.access import Guard
from bindings.http.codec import PROTOCOL
from bindings.http.connection import AcceptedRequest, Answer, too_large
from bindings.http.problems import HttpProblem, Reply, unavailable
from bindings.http.request import Head, RequestParts
from bindings.http.routing import PathRoutes, RouteMatch
from bindings.http.storing import GroupStore
from bindings.inbox import InboxError, InboxRowError
from bindings.parts import InboxRow

BODY_METHODS: Final = frozenset(("POST", "PUT", "PATCH"))
"""Methods whose requests say how long their body is, or are answered 411."""
_ORIGIN: Final = b"webhook-request-origin"
_TAKEN: Final = Reply(HTTPStatus.ACCEPTED)
_COMPLAIN_SECONDS: Final = 10.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """``max_body`` bytes of one message; ``max_in_flight`` messages wait for the inbox at a time; ``retry_after``
    seconds that a sender is asked to wait with every 503.
    """

    max_body: int
    max_in_flight: int
    retry_after: int


class GatewayApplication:
    """Takes requests for the given routes; see the module for its promise. Used on the server's thread.

    Who sends is checked before anything else, so that strangers learn nothing of paths, and cost next to nothing.
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

    def admit(self, head: Head) -> AcceptedRequest | Reply:
        """Return the message to come, or the reply that refuses it."""
        try:
            return self._admitted(head)
        except HttpProblem as problem:
            return problem.reply()

    def store(self, endpoint: str, head: Head, body: bytes, answer: Answer) -> None:
        """Append a message to the inbox, and answer when it is durable or refused."""
        if self._in_flight >= self._limits.max_in_flight:
            problem = unavailable("too many requests are in flight; send again", self._limits.retry_after)
            answer(problem.reply())
            return
        received = time.time_ns() // 1000
        self._in_flight += 1
        row = InboxRow(endpoint, PROTOCOL, received, self._parts.of(head), body or None)
        self._store.add(row, lambda error: answer(self._settled(endpoint, error)))

    def late(self) -> Reply:
        """Return the answer to a message that the inbox has had for too long."""
        detail = "the inbox took too long; the message may have been stored"
        return unavailable(detail, self._limits.retry_after).reply()

    def _admitted(self, head: Head) -> AcceptedRequest | Reply:
        try:
            sender = self._guard.admit(head)
        except HttpProblem:
            if head.method == "OPTIONS" and (origin := head.header(_ORIGIN)) is not None:
                # The validation handshake of webhooks needs no credentials. It is answered alike for every path.
                return Reply(HTTPStatus.OK, _permission(origin))
            raise
        match = self._routes.find(head.method, head.path.decode("latin-1"))
        if head.method == "OPTIONS" and match.allowed and match.endpoint is None:
            return _handshake(head, match)
        endpoint = _endpoint(head, match)
        self._guard.allow(sender, match.users)
        self._counters.received(endpoint)
        if self.stopping:
            raise unavailable("the router is stopping; send again", self._limits.retry_after)
        _check_length(head, self._limits.max_body)
        return _Message(self, endpoint, head, self._limits.max_body)

    def _settled(self, endpoint: str, error: BaseException | None) -> Reply:
        self._in_flight -= 1
        if error is None:
            self._counters.acknowledged(endpoint)
            return _TAKEN
        if isinstance(error, InboxRowError):
            return HttpProblem(HTTPStatus.BAD_REQUEST, str(error)).reply()
        # The text may name files of this machine, which is for the log and not for senders.
        self._complain(endpoint, error)
        if isinstance(error, InboxError):
            problem = unavailable("the inbox takes nothing at present; send again", self._limits.retry_after)
            return problem.reply()
        return HttpProblem(HTTPStatus.INTERNAL_SERVER_ERROR, "the message was not stored").reply()

    def _complain(self, endpoint: str, error: BaseException) -> None:
        """Log why messages are refused, now and then: impatient senders make thousands of them a second."""
        self._refused += 1
        now = time.monotonic()
        if now >= self._complain_at:
            _logger.warning("%d messages refused, the last for %s: %s", self._refused, endpoint, error)
            self._refused, self._complain_at = 0, now + _COMPLAIN_SECONDS


class _Message(NamedTuple):
    """A message whose body is still to come."""

    application: GatewayApplication
    endpoint: str
    head: Head
    max_body: int

    def take(self, body: bytes, answer: Answer) -> None:
        """Store it."""
        self.application.store(self.endpoint, self.head, body, answer)

    def late(self) -> Reply:
        """Tell the sender that it is not known whether it was stored."""
        return self.application.late()


def _endpoint(head: Head, match: RouteMatch) -> str:
    if match.endpoint is not None:
        return match.endpoint
    if not match.allowed:
        raise HttpProblem(HTTPStatus.NOT_FOUND, "no endpoint takes this path; see the catalog for those that exist")
    allowed = ", ".join(match.allowed)
    detail = f"this path takes {allowed}, not {head.method}"
    raise HttpProblem(HTTPStatus.METHOD_NOT_ALLOWED, detail, (b"allow", allowed.encode("ascii")))


def _check_length(head: Head, limit: int) -> None:
    if head.length is not None and head.length > limit:
        raise too_large(limit)
    if head.length is None and not head.chunked and head.method in BODY_METHODS:
        raise HttpProblem(HTTPStatus.LENGTH_REQUIRED, "send Content-Length (0 for no body) or a chunked body")


def _handshake(head: Head, match: RouteMatch) -> Reply:
    """Answer OPTIONS; with an origin it is the validation of CloudEvents webhooks, and permission is granted."""
    allow = ", ".join(dict.fromkeys((*match.allowed, "OPTIONS"))).encode("ascii")
    origin = head.header(_ORIGIN)
    return Reply(HTTPStatus.OK, ((b"allow", allow), *(_permission(origin) if origin is not None else ())))


def _permission(origin: bytes) -> tuple[tuple[bytes, bytes], ...]:
    return (b"webhook-allowed-origin", origin), (b"webhook-allowed-rate", b"*")
