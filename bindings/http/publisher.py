"""Sending over HTTP: each message is one request, and a 2xx response confirms it (RFC 9110, CloudEvents HTTP binding).

2xx: delivered. 408, 425, 429, any 5xx, and no response: *retry*. 401, 407 and redirects: retry too, because they are
about our settings and not the message. Any other 4xx: the target will never accept the message. Redirects are not
followed, because they would carry credentials elsewhere; cookies are not stored.

A message at which the target ends the connection does not block other lanes. It is tried alone after them, and given up
if the target answers everything else.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

import httpx

from bindings.gateways import Tls
from bindings.http.binding import FIELD_NAME, FIELD_VALUE
from bindings.http.client import NotPermitted, Permissions, Version, create_client, redact_url
from bindings.sending import (
    MAX_CALLS_WITHOUT_PROOF,
    MAX_SOLO_ATTEMPTS,
    MAX_SUSPECTS_IN_A_ROW,
    MessageRefusal,
    Outbound,
    SuspectCalls,
    Unsettled,
    iter_headers,
)

# Isolating messages at which a target ends the connection instead of answering.
#
# A reset alone proves nothing: a target that restarts, or a proxy without a backend, resets as well. So a message is
# only given up when the target answers others and still ends this one, sent alone, after it answered a bare ``OPTIONS``
# request before each try. Where no other message shows that the target works, that needs many calls.

ENDED_ERRORS: Final = (httpx.ReadError, httpx.WriteError, httpx.CloseError, httpx.RemoteProtocolError)
"""Errors of a connection that ended in the middle of an exchange."""


class UnansweredMessages:
    """Messages without a response; thread-safe. *client* sends the ``OPTIONS`` requests."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._calls = SuspectCalls()

    def may_be_at_fault(self, message: object, *, others: bool) -> bool:
        """Count a send without a response; return whether to try the message alone.

        *others*: the target answered other messages of this send.
        """
        calls = self._calls.count(hash(message))
        return others or calls >= MAX_CALLS_WITHOUT_PROOF

    def forget_message(self, message: object) -> None:
        """Forget a settled message."""
        self._calls.forget(hash(message))

    def is_never_answered(self, url: str, attempt: Callable[[], bool]) -> bool | None:
        """Try a message alone, repeatedly; *attempt* makes one try and returns whether it was answered.

        Returns True if no try was answered; None if the target answers nothing else either.
        """
        for _ in range(MAX_SOLO_ATTEMPTS):
            if not self._target_answers(url):
                return None
            if attempt():
                return False
        return True if self._target_answers(url) else None

    def _target_answers(self, url: str) -> bool:
        try:
            with self._client.stream("OPTIONS", url) as answer:
                return answer.status_code < 500
        except httpx.TransportError:
            return False


RETRY_STATUSES: Final = frozenset({401, 407, 408, 425, 429})
MAX_TRIES: Final = 3
"""Requests for one message before :meth:`HttpPoster.send` gives up for now."""
FIRST_PAUSE: Final = 0.2
MAX_PAUSE: Final = 2.0
"""Maximum pause in seconds inside :meth:`HttpPoster.send`; a target that wants more ends the call."""
MAX_RETRY_AFTER: Final = 300.0
"""Maximum ``Retry-After`` that is obeyed, in seconds; a longer one counts as this."""
_MAX_DETAIL: Final = 200
_MAX_DETAIL_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class OutRequest:
    """One message. ``headers`` keep order and repeats. Requests of one ``lane`` are sent one after the other."""

    url: str
    headers: tuple[tuple[str, bytes], ...] = ()
    body: bytes | None = None
    method: str = "POST"
    lane: str = ""


def to_request(method: str, message: Outbound) -> OutRequest:
    """Convert an outbound message to a request; *method* is the default."""
    headers = tuple((name, part.value or b"") for name, part in iter_headers(message.parts))
    own = next((part.text for part in message.parts if part.key == "method"), None)
    return OutRequest(message.address, headers, message.body, own or method, message.lane)


class _EndedAtEachTry(Unsettled):
    """The target ended the connection at each try of one message."""


class HttpPoster:
    """Sends requests over kept connections, up to ``in_flight`` at a time; thread-safe.

    ``headers`` go with every request and may contain credentials; they appear in no error. ``version`` None uses HTTP/2
    where TLS offers it, else HTTP/1.1; "2" without TLS is prior knowledge. Certificates and host names are always
    verified. ``origin`` asks each target for permission first (:mod:`bindings.http.client`).

    Raises:
        OSError, ssl.SSLError: a certificate file that cannot be read.
    """

    def __init__(
        self,
        *,
        headers: Iterable[tuple[str, str]] = (),
        basic: tuple[str, str] | None = None,
        tls: Tls | None = None,
        timeout: float = 30.0,
        in_flight: int = 8,
        version: Version | None = None,
        origin: str | None = None,
    ) -> None:
        self._client = create_client(headers, basic, tls, timeout=timeout, in_flight=in_flight, version=version)
        self._pool = ThreadPoolExecutor(in_flight, thread_name_prefix="http-poster")
        self._pauses = _TargetPauses()
        self._permissions = Permissions(self._client, origin) if origin else None
        self._unanswered = UnansweredMessages(self._client)

    def send(self, messages: Sequence[OutRequest]) -> list[MessageRefusal | None]:
        """Send messages and wait for all responses; the results are in the messages' order.

        A request is sent up to three times, with growing pauses, so a target may get it more than once.

        Raises:
            Unsettled: at least one was not settled. Nothing after it in its lane was sent; ``settled`` has those that
                were.
        """
        lanes: dict[str, list[int]] = {}
        for index, message in enumerate(messages):
            lanes.setdefault(message.lane, []).append(index)
        run = _SendRun(messages)
        for done in [self._pool.submit(self._send_lane, run, indexes) for indexes in lanes.values()]:
            done.result()
        for rest, trouble in run.unanswered:
            self._settle_alone(run, rest, trouble)
        if run.trouble:
            raise Unsettled(run.trouble, run.settled)
        return [run.settled[index] for index in range(len(messages))]

    def close(self) -> None:
        """Close all connections; requests in flight are finished."""
        self._pool.shutdown()
        self._client.close()

    def _send_lane(self, run: _SendRun, indexes: list[int]) -> None:
        for at, index in enumerate(indexes):
            if run.trouble:
                return
            try:
                settled = self._send_until_settled(run, run.messages[index])
            except _EndedAtEachTry as error:
                run.postpone_lane(indexes[at:], str(error))
                return
            except Unsettled as error:
                run.record_failure(str(error))
                return
            run.record_settled(index, settled)

    def _settle_alone(self, run: _SendRun, indexes: list[int], trouble: str) -> None:
        """Settle the first of these messages with nothing else in flight, then the others of its lane."""
        message = run.messages[indexes[0]]
        others = _origin_of(message.url) in run.answering
        if run.trouble or not self._unanswered.may_be_at_fault(message, others=others):
            run.record_failure(trouble)
            return
        answers: list[MessageRefusal | None] = []

        def attempt() -> bool:
            try:
                answers.append(self._send_until_settled(run, message))
            except _EndedAtEachTry:
                return False
            return True

        try:
            given_up = self._unanswered.is_never_answered(message.url, attempt)
        except Unsettled as error:
            run.record_failure(str(error))
            return
        if given_up is None:
            run.record_failure(trouble)
            return
        reason = f"{redact_url(message.url)} ends the connection at this message without a response, and answers others"
        self._unanswered.forget_message(message)
        run.record_settled(indexes[0], MessageRefusal(reason) if given_up else answers[0])
        self._send_lane(run, indexes[1:])

    def _send_until_settled(self, run: _SendRun, message: OutRequest) -> MessageRefusal | None:
        fault = find_invalid_header(message)
        if fault:
            return MessageRefusal(fault)
        ended = True
        for attempt in range(MAX_TRIES):
            self._pauses.check_pause(redact_url(message.url))
            try:
                if self._permissions is not None:
                    self._permissions.require_permission(message.url)
                status, detail, after = self._send_once(message)
            except httpx.TransportError as error:
                trouble, after = f"{redact_url(message.url)} does not answer: {type(error).__name__}: {error}", None
                late = isinstance(error, httpx.TimeoutException)  # it used up its time, and other messages wait
                ended = ended and isinstance(error, ENDED_ERRORS)
            except httpx.InvalidURL as error:
                return MessageRefusal(f"cannot be sent: {error}")
            except NotPermitted as error:
                raise Unsettled(str(error)) from error
            else:
                if 200 <= status < 300:
                    return None
                if 400 <= status < 500 and status not in RETRY_STATUSES:
                    return MessageRefusal(f"{redact_url(message.url)} answers {status}{detail}")
                trouble, late, ended = f"{redact_url(message.url)} answers {status}{detail}", False, False
                if status in (401, 407) or status < 400:
                    raise Unsettled(f"{trouble}; correct its address or our credentials")
            if after is not None and after > MAX_PAUSE:
                self._pauses.set_pause(redact_url(message.url), after)
                break
            if attempt == MAX_TRIES - 1 or late or run.trouble:
                break
            # Jitter is for other routers' sake and changes nothing that is sent.
            time.sleep(after if after is not None else FIRST_PAUSE * 2**attempt * random.uniform(0.5, 1.0))
        raise _EndedAtEachTry(trouble) if ended and not run.trouble else Unsettled(trouble)

    def _send_once(self, message: OutRequest) -> tuple[int, str, float | None]:
        """Send a request once; return the status, the target's text about it, and its ``Retry-After`` in seconds."""
        headers = [(name.encode("ascii"), value) for name, value in message.headers]
        with self._client.stream(message.method, message.url, headers=headers, content=message.body or b"") as answer:
            text = b""
            for chunk in answer.iter_raw(_MAX_DETAIL_BYTES):
                text += chunk
                if len(text) >= _MAX_DETAIL_BYTES:
                    break  # The connection is closed: the rest of the response may never end.
            return (
                answer.status_code,
                _format_detail(answer.reason_phrase, text),
                parse_retry_after(answer.headers.get("retry-after")),
            )


@dataclass(slots=True)
class _SendRun:
    """One call of ``send``, shared by its lanes.

    ``answering`` are the origins that answered a message; ``unanswered`` are the remaining messages of blocked lanes.
    """

    messages: Sequence[OutRequest]
    settled: dict[int, MessageRefusal | None] = field(default_factory=dict)
    trouble: str = ""
    answering: set[str] = field(default_factory=set)
    unanswered: list[tuple[list[int], str]] = field(default_factory=list)
    in_a_row: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def record_settled(self, index: int, settled: MessageRefusal | None) -> None:
        with self._lock:
            self.settled[index] = settled
            self.answering.add(_origin_of(self.messages[index].url))
            self.in_a_row = 0

    def postpone_lane(self, indexes: list[int], trouble: str) -> None:
        """Postpone the rest of a lane, because its first message got no response."""
        with self._lock:
            self.unanswered.append((indexes, trouble))
            self.in_a_row += 1
            if self.in_a_row >= MAX_SUSPECTS_IN_A_ROW:
                self.trouble = self.trouble or trouble

    def record_failure(self, trouble: str) -> None:
        with self._lock:
            self.trouble = self.trouble or trouble


class _TargetPauses:
    """The pauses that targets asked for; thread-safe."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._lock = threading.Lock()

    def set_pause(self, target: str, seconds: float | None) -> None:
        if seconds is not None:
            with self._lock:
                self._until[target] = time.monotonic() + min(seconds, MAX_RETRY_AFTER)

    def check_pause(self, target: str) -> None:
        left = self._until.get(target, 0.0) - time.monotonic()
        if left > 0:
            raise Unsettled(f"{target} told us to wait {left:.0f} s more")


def find_invalid_header(message: OutRequest) -> str:
    """Return why HTTP cannot carry a message (RFC 9110 section 5); empty if it can."""
    for name, value in message.headers:
        if not FIELD_NAME.fullmatch(name):
            return f"{name[:40]!r} is not a valid HTTP header name"
        if not FIELD_VALUE.fullmatch(value):
            return f"the value of header {name} has characters that are not allowed in HTTP headers"
    return ""


def parse_retry_after(value: str | None) -> float | None:
    """Return the seconds of a ``Retry-After`` header (RFC 9110 section 10.2.3); None if it is malformed."""
    if value is None:
        return None
    if value.strip().isdecimal() and len(value) < 12:
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return max(0.0, (moment - datetime.now(UTC)).total_seconds())
    except (ValueError, OverflowError):
        return None


def _origin_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _format_detail(phrase: str, body: bytes) -> str:
    text = " ".join(body.decode("utf-8", "replace").split())[:_MAX_DETAIL]
    shown = "".join(char if char.isprintable() else "?" for char in text)
    return f"{' ' if phrase else ''}{phrase}{': ' if shown else ''}{shown}"
