"""Webhooks as targets: the validation handshake, the rate that it allows, and what answers mean for an event.

By the CloudEvents webhook specification. Of the answers to an event, 2xx takes it and 410 ends the subscription. Some
concern the target or how it is addressed, and not this event: no answer, redirects, 401, 403, 404, 405, 407, 415 and
429. All others concern the event. Whatever is not taken is sent again; a ``Retry-After`` is waited for.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import httpx

from bindings.gateways import Tls
from bindings.http.client import Version, client
from bindings.http.handshake import ALLOWED, ASK
from bindings.http.judged import OutOfReach
from bindings.http.poster import OutRequest, fault_of, request_of, retry_after
from bindings.sending import Outbound
from catalog.documents.reach import Reach
from registry.delivery.calls import within
from registry.delivery.sending import DELIVERED, Verdict

CALLBACK: Final = "WebHook-Request-Callback"
RATE: Final = "WebHook-Allowed-Rate"
MOST_RATE: Final = 60_000
"""Requests in a minute; a target that allows more is not sent more, as far as it matters."""
_MINUTE: Final = 60.0
_IN_FLIGHT: Final = 4
_LONGEST_PAUSE: Final = 86_400.0
"""The longest ``Retry-After`` that is obeyed, in seconds."""
_TIMEOUTS: Final = 3.0
"""How many timeouts a request may take as a whole: one until its answer begins, and two to read a slow one."""
_ANSWER_BYTES: Final = 64 * 2**10
# The last two come from reading from a connection that was closed meanwhile.
_FAILURES: Final = (httpx.HTTPError, httpx.InvalidURL, OutOfReach, RuntimeError, ValueError)
_OF_TARGET: Final = frozenset((401, 403, 404, 405, 407, 415, 429))


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where a webhook is, and how it is asked; secrets are in ``headers`` and ``basic`` alone.

    ``timeout`` (seconds) is for each step of a request, which may take three of them as a whole. ``origin`` is our name
    in the handshake, '' sends none; ``callback`` is a URL at which the target may allow us later. ``permitted`` says
    that it has done so, and ``rate`` at which rate. ``reach`` None lets it be anywhere.
    """

    headers: tuple[tuple[str, str], ...] = ()
    basic: tuple[str, str] | None = None
    tls: Tls | None = None
    timeout: float = 10.0
    version: Version | None = None
    method: str = "POST"
    origin: str = ""
    callback: str = ""
    permitted: bool = False
    rate: int | None = None
    reach: Reach | None = None


class WebhookSender:
    """Keeps :class:`~registry.delivery.sending.Sender`; messages of one call are sent several at a time.

    Raises:
        OSError, ssl.SSLError: a certificate file that cannot be read.
    """

    def __init__(self, target: Webhook) -> None:
        self._target = target
        self._client = self._connected()
        self._permitted = target.permitted or not target.origin
        self._rate = Rate(target.rate)

    def room(self) -> tuple[int, float]:
        """Return how many messages the rate leaves room for, a few at a time."""
        left, pause = self._rate.room()
        return min(left, _IN_FLIGHT * 4), pause

    def send(self, messages: Sequence[Outbound]) -> list[Verdict]:
        """Ask for permission if there is none yet, and send."""
        requests = [request_of(self._target.method, each) for each in messages]
        if not self._permitted:
            (verdict,) = self._within([partial(self._ask, self._client, requests[0].url)], requests[:1])
            if verdict.kind != "delivered":
                return [verdict] * len(messages)
            self._permitted = True
            left, pause = self._rate.room()
            late = [Verdict("away", "", pause)] * len(requests[left:])
            return [*self._posted(requests[:left]), *late]
        return self._posted(requests)

    def close(self) -> None:
        """Close all connections; a request that is under way fails."""
        self._client.close()

    def _connected(self) -> httpx.Client:
        target = self._target
        return client(
            target.headers,
            target.basic,
            target.tls,
            timeout=target.timeout,
            in_flight=_IN_FLIGHT,
            version=target.version,
            reach=target.reach,
        )

    def _posted(self, requests: Sequence[OutRequest]) -> list[Verdict]:
        return self._within([partial(self._post, self._client, each) for each in requests], requests)

    def _within(self, calls: Sequence[Callable[[], Verdict]], requests: Sequence[OutRequest]) -> list[Verdict]:
        """Make calls; when one takes too long, close the client that makes them, which ends them."""
        seconds = _TIMEOUTS * self._target.timeout
        verdicts = within(seconds, calls, _IN_FLIGHT)
        if None in verdicts:
            self._client.close()
            self._client = self._connected()
        return [
            verdict or Verdict("away", f"{_shown(request.url)} does not answer in {seconds:g} s")
            for verdict, request in zip(verdicts, requests, strict=True)
        ]

    def _ask(self, client: httpx.Client, url: str) -> Verdict:
        """Ask a target for permission (section 4); the verdict is on the question itself."""
        target = self._target
        headers = {ASK: target.origin, **({CALLBACK: target.callback} if target.callback else {})}
        try:
            with client.stream("OPTIONS", url, headers=headers) as answer:
                answered = answer.headers
                status = answer.status_code
        except _FAILURES as error:
            return Verdict("away", _trouble(url, error))
        allowed = {name.strip() for name in answered.get(ALLOWED, "").split(",")}
        rate = rate_of(answered.get(RATE, "*"))
        if status == httpx.codes.GONE:
            return Verdict("gone", f"{_shown(url)} answers 410 to our handshake")
        if not {"*", target.origin} & allowed or rate is None:
            reason = f"{_shown(url)} answers {status} to our handshake and does not allow {target.origin}"
            return Verdict("away", reason, _asked(answered))
        self._rate = Rate(rate or None)
        return DELIVERED

    def _post(self, client: httpx.Client, request: OutRequest) -> Verdict:
        fault = fault_of(request)
        if fault:
            return Verdict("held", fault)
        headers = [(name.encode("ascii"), value) for name, value in request.headers]
        if self._target.origin:
            headers.append((ASK.encode("ascii"), self._target.origin.encode("ascii")))
        self._rate.take()
        try:
            content = request.body or b""
            with client.stream(request.method, request.url, headers=headers, content=content) as answer:
                _drain(answer.iter_raw(), time.monotonic() + self._target.timeout)
                return _verdict(answer, request.url)
        except _FAILURES as error:
            return Verdict("away", _trouble(request.url, error))


class Rate:
    """Counts requests of the last minute against how many there may be; None is any number. Any thread may count."""

    def __init__(self, a_minute: int | None) -> None:
        self._most = None if a_minute is None else min(a_minute, MOST_RATE)
        self._sent: deque[float] = deque()

    def room(self) -> tuple[int, float]:
        """Return how many requests there may be now and, if none, in how many seconds one may be made."""
        if self._most is None:
            return MOST_RATE, 0.0
        now = time.monotonic()
        while self._sent and self._sent[0] <= now - _MINUTE:
            self._sent.popleft()
        left = self._most - len(self._sent)
        return max(left, 0), 0.0 if left > 0 else self._sent[0] + _MINUTE - now

    def take(self) -> None:
        """Count a request."""
        if self._most is not None:
            self._sent.append(time.monotonic())


def rate_of(text: str) -> int | None:
    """Read an allowed rate in requests a minute: 0 for any, None for a text that is no rate."""
    value = text.strip()
    if value == "*":
        return 0
    if not (value.isascii() and value.isdecimal() and len(value) < 12):
        return None
    return int(value) or None


def _verdict(answer: httpx.Response, url: str) -> Verdict:
    status = answer.status_code
    if answer.is_success:
        return DELIVERED
    reason = f"{_shown(url)} answers {status}"
    if status == httpx.codes.GONE:
        return Verdict("gone", reason)
    pause = _asked(answer.headers)
    of_target = status in _OF_TARGET or status < 400 or pause > 0
    return Verdict("away" if of_target else "held", reason, pause)


def _asked(headers: httpx.Headers) -> float:
    """Return the seconds that an answer asks us to wait."""
    return min(retry_after(headers.get("retry-after")) or 0.0, _LONGEST_PAUSE)


def _drain(chunks: Iterable[bytes], deadline: float) -> None:
    """Read a short answer to its end, which keeps the connection; the rest of a long or slow one is not read."""
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > _ANSWER_BYTES or time.monotonic() > deadline:
            return


def _trouble(url: str, error: Exception) -> str:
    reason = str(error) if isinstance(error, OutOfReach) else f"{type(error).__name__}: {error}"
    return f"{_shown(url)} does not answer: {reason}"


def _shown(url: str) -> str:
    """Return a URL without what may be secret: user and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
