"""Sending over HTTP: each message is one request, and a 2xx response confirms it (RFC 9110, CloudEvents HTTP binding).

2xx: delivered. 408, 425, 429, any 5xx, and no response: *retry*. 401, 407 and redirects: retry too, because they are
about our settings and not the message. Any other 4xx: the target will never accept the message. Redirects are not
followed, because they would carry credentials elsewhere; cookies are not stored.

A message at which the target ends the connection does not block other lanes. It is tried alone after them, and given up
if the target answers everything else (:class:`bindings.sending.PoisonIsolator`).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import httpx

from bindings.gateways import Tls, to_line
from bindings.http.binding import FIELD_NAME, FIELD_VALUE
from bindings.http.client import (
    MAX_RETRY_SECONDS,
    NotPermitted,
    Permissions,
    Version,
    create_client,
    parse_retry_after,
    redact_url,
)
from bindings.sending import Hangup, MessageRefusal, Outbound, PoisonIsolator, Settled, Unsettled, iter_headers

ENDED_ERRORS: Final = (httpx.ReadError, httpx.WriteError, httpx.CloseError, httpx.RemoteProtocolError)
"""Errors of a connection that ended in the middle of an exchange."""
RETRY_STATUSES: Final = frozenset({401, 407, 408, 425, 429})
MAX_TRIES: Final = 3
"""Requests for one message before :meth:`HttpPoster.send` gives up for now."""
FIRST_PAUSE: Final = 0.2
MAX_PAUSE: Final = 2.0
"""Maximum pause in seconds inside :meth:`HttpPoster.send`; a target that wants more ends the call."""
_DETAIL_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class OutRequest:
    """One message as HTTP has it. ``headers`` keep order and repeats."""

    url: str
    headers: tuple[tuple[str, bytes], ...] = ()
    body: bytes | None = None
    method: str = "POST"


def to_request(method: str, message: Outbound) -> OutRequest:
    """Convert an outbound message to a request; *method* is the default."""
    headers = tuple((name, part.value or b"") for name, part in iter_headers(message.parts))
    own = next((part.text for part in message.parts if part.key == "method"), None)
    return OutRequest(message.address, headers, message.body, own or method)


class HttpPoster:
    """Implements :class:`~bindings.sending.Publisher` over kept connections, up to ``in_flight`` requests at a time.

    ``method`` is for messages that name none. ``headers`` go with every request and may contain credentials; they
    appear in no error. ``version`` None uses HTTP/2 where TLS offers it, else HTTP/1.1; "2" without TLS is prior
    knowledge. Certificates and host names are always verified. ``origin`` asks each target for permission first
    (:mod:`bindings.http.client`).

    Raises:
        GatewayError: a certificate or key cannot be used; the text names the file.
    """

    def __init__(
        self,
        *,
        method: str = "POST",
        headers: Iterable[tuple[str, str]] = (),
        basic: tuple[str, str] | None = None,
        tls: Tls | None = None,
        timeout: float = 30.0,
        in_flight: int = 8,
        version: Version | None = None,
        origin: str | None = None,
    ) -> None:
        self._method = method
        self._client = create_client(headers, basic, tls, timeout=timeout, in_flight=in_flight, version=version)
        self._pool = ThreadPoolExecutor(in_flight, thread_name_prefix="http-poster")
        self._pauses: dict[str, float] = {}
        self._permissions = Permissions(self._client, origin) if origin else None
        self._isolator = PoisonIsolator(peer="the target")

    def send(self, messages: Sequence[Outbound]) -> list[MessageRefusal | None]:
        """Send messages and wait for all responses; the results are in the messages' order.

        A request may be sent several times, with growing pauses, so a target may get it more than once.

        Raises:
            Unsettled: at least one was not settled. Nothing after it in its lane was sent; ``settled`` has those that
                were.
        """
        return self._isolator.send(messages, self._exchange)

    def close(self) -> None:
        """Close all connections; requests in flight are finished."""
        self._pool.shutdown()
        self._client.close()

    def _exchange(self, messages: Mapping[int, Outbound], settled: Settled) -> None:
        """Send messages, the lanes side by side.

        Raises:
            Unsettled: the target or our settings are at fault; nothing more was sent.
            Hangup: the connection ended at a message, and other lanes were sent. Of a single message that says more: a
                reset alone proves nothing, as a target that restarts resets as well, so it must answer ``OPTIONS``.
        """
        lanes: dict[str, list[int]] = {}
        for index, message in messages.items():
            lanes.setdefault(message.lane, []).append(index)
        failed = threading.Event()

        def send_lane(lane: Sequence[int]) -> Hangup | Unsettled | None:
            for index in lane:
                if failed.is_set():
                    break
                try:
                    settled[index] = self._send_until_settled(to_request(self._method, messages[index]), failed)
                except Unsettled as error:
                    failed.set()
                    return error
                except Hangup as error:
                    return error
            return None

        errors = [error for error in self._pool.map(send_lane, lanes.values()) if error is not None]
        if errors:
            first = next((each for each in errors if isinstance(each, Unsettled)), errors[0])
            unproven = isinstance(first, Hangup) and len(messages) == 1
            if unproven and not self._target_answers(next(iter(messages.values())).address):
                raise Unsettled(str(first))
            raise first

    def _target_answers(self, url: str) -> bool:
        try:
            with self._client.stream("OPTIONS", url) as answer:
                return answer.status_code < 500
        except httpx.TransportError:
            return False

    def _send_until_settled(self, message: OutRequest, failed: threading.Event) -> MessageRefusal | None:
        """Send a message up to three times, or less once *failed* is set.

        Raises:
            Unsettled, Hangup: as :meth:`_exchange`.
        """
        fault = find_invalid_member(message)
        if fault:
            return MessageRefusal(fault)
        target = redact_url(message.url)
        for attempt in range(MAX_TRIES):
            left = self._pauses.get(target, 0.0) - time.monotonic()
            if left > 0:
                raise Unsettled(f"{target} told us to wait {left:.0f} s more")
            try:
                if self._permissions is not None:
                    self._permissions.require_permission(message.url)
                status, detail, after = self._send_once(message)
            except httpx.TransportError as error:
                trouble, after = f"{target} does not answer: {type(error).__name__}: {error}", None
                if isinstance(error, ENDED_ERRORS):
                    raise Hangup(trouble) from error
                if isinstance(error, httpx.TimeoutException):  # it used up its time, and other messages wait
                    break
            except httpx.InvalidURL as error:
                return MessageRefusal(f"cannot be sent: {error}")
            except NotPermitted as error:
                raise Unsettled(str(error)) from error
            else:
                if 200 <= status < 300:
                    return None
                trouble = f"{target} answers {status}{detail}"
                if 400 <= status < 500 and status not in RETRY_STATUSES:
                    return MessageRefusal(trouble)
                if status in (401, 407) or status < 400:
                    raise Unsettled(f"{trouble}; correct its address or our credentials")
            if after is not None and after > MAX_PAUSE:
                self._pauses[target] = time.monotonic() + min(after, MAX_RETRY_SECONDS)
                break
            if attempt == MAX_TRIES - 1 or failed.is_set():
                break
            # Jitter is for other routers' sake and changes nothing that is sent.
            time.sleep(after if after is not None else FIRST_PAUSE * 2**attempt * random.uniform(0.5, 1.0))
        raise Unsettled(trouble)

    def _send_once(self, message: OutRequest) -> tuple[int, str, float | None]:
        """Send a request once; return the status, the target's text about it, and its ``Retry-After`` in seconds."""
        headers = [(name.encode("ascii"), value) for name, value in message.headers]
        with self._client.stream(message.method, message.url, headers=headers, content=message.body or b"") as answer:
            text = b""
            for chunk in answer.iter_raw(_DETAIL_BYTES):
                text += chunk
                if len(text) >= _DETAIL_BYTES:
                    break  # The connection is closed: the rest of the response may never end.
            return (
                answer.status_code,
                _format_detail(answer.reason_phrase, text),
                parse_retry_after(answer.headers.get("retry-after")),
            )


def find_invalid_member(message: OutRequest) -> str:
    """Return why HTTP cannot carry a message (RFC 9110 sections 5 and 9.1); empty if it can."""
    if not FIELD_NAME.fullmatch(message.method):
        return f"{message.method[:40]!r} is not a valid HTTP method"
    for name, value in message.headers:
        if not FIELD_NAME.fullmatch(name):
            return f"{name[:40]!r} is not a valid HTTP header name"
        if not FIELD_VALUE.fullmatch(value):
            return f"the value of header {name} has characters that are not allowed in HTTP headers"
    return ""


def _format_detail(phrase: str, body: bytes) -> str:
    shown = "".join(char if char.isprintable() else "?" for char in to_line(body.decode("utf-8", "replace")))
    return f"{' ' if phrase else ''}{phrase}{': ' if shown else ''}{shown}"
