"""The HTTP client of sinks and subscriptions: checked addresses, webhook handshake, and Subscriptions API."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote, urljoin, urlsplit

import httpx
import msgspec

from bindings.certificates import create_tls_context
from bindings.gateways import Tls, to_line
from catalog.documents.connecting import ConnectionPolicy, origin_of

# The HTTP client that sends messages: it keeps connections open, but stores no state of targets, such as cookies.

# Connections to checked addresses only, for URLs of untrusted origin.
#
# A host is resolved for each request and all its addresses are checked; the connection goes to one of them, so that a
# second look-up cannot give others. A host with one forbidden address is forbidden.


class ForbiddenHost(Exception):
    """A host that must not be connected to; the message names the host, but not its address."""


class CheckedTransport(httpx.BaseTransport):
    """A transport that connects only to addresses that *reach* allows."""

    def __init__(self, inner: httpx.BaseTransport, reach: ConnectionPolicy) -> None:
        self._inner = inner
        self._reach = reach

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request to the first address that accepts a connection.

        Raises:
            ForbiddenHost: the host must not be connected to.
            httpx.TransportError: no response.
        """
        url = request.url
        host = url.raw_host.decode("ascii")
        addresses = resolve_allowed(host, url.port, self._reach)
        for number, address in enumerate(addresses, 1):
            # The header Host comes from the name, and the certificate is verified for the name.
            judged = httpx.Request(
                request.method,
                url.copy_with(host=address),
                headers=request.headers,
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": host},
            )
            try:
                return self._inner.handle_request(judged)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if number == len(addresses):
                    raise
        raise AssertionError("a host that is admitted has an address")

    def close(self) -> None:
        """Close all connections."""
        self._inner.close()


def resolve_allowed(host: str, port: int | None, reach: ConnectionPolicy) -> list[str]:
    """Resolve a host, all of whose addresses must be allowed.

    Raises:
        ForbiddenHost: one of them is not.
        httpx.ConnectError: it has none.
    """
    try:
        infos = socket.getaddrinfo(host.strip("[]"), port or 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise httpx.ConnectError(f"{host} has no address: {error}") from error
    addresses = list(dict.fromkeys(str(info[4][0]) for info in infos))
    if not all(reach.can_connect(host, address) for address in addresses):
        raise ForbiddenHost(f"{host} is not a public host, and not in the list of allowed hosts")
    return addresses


Version = Literal["1.1", "2"]


class _NoCookies(httpx.Cookies):
    """Stores no cookies: a target could set any number, and looking them up costs the square of the headers."""

    def extract_cookies(self, response: httpx.Response) -> None:
        """Ignore the cookies of a response."""


class _CookielessClient(httpx.Client):
    @property  # type: ignore[misc]  # nobody sets them
    def cookies(self) -> httpx.Cookies:
        return _NoCookies()


def create_client(
    headers: Iterable[tuple[str, str]],
    basic: tuple[str, str] | None,
    tls: Tls | None,
    *,
    timeout: float,
    in_flight: int,
    version: Version | None,
    reach: ConnectionPolicy | None = None,
) -> httpx.Client:
    """Return a client that verifies certificates, follows no redirects, and reads no proxy from the environment.

    With *reach* it connects to allowed addresses only; other requests fail with :class:`ForbiddenHost`.

    Raises:
        GatewayError: a certificate or key cannot be used; the text names the file.
    """
    transport = httpx.HTTPTransport(
        verify=create_tls_context(tls or Tls()),
        http1=version != "2",
        http2=version != "1.1",
        limits=httpx.Limits(max_connections=in_flight, max_keepalive_connections=in_flight),
        trust_env=False,
    )
    return _CookielessClient(
        headers=[("user-agent", "xrouter"), *headers],
        auth=basic,
        timeout=timeout,
        transport=transport if reach is None else CheckedTransport(transport, reach),
        follow_redirects=False,
        trust_env=False,
    )


# Calls with a deadline. A thread cannot be killed, and no client timeout ends a request whose response trickles in. So
# the caller continues at the deadline; the daemon thread ends when its call does, at the latest when the client closes.

T = TypeVar("T")
_logger = logging.getLogger(__name__)


def call_concurrently(seconds: float, calls: Sequence[Callable[[], T]]) -> list[T | None]:
    """Make calls, each on a thread, and return their results; None for one that lasts longer, or raises."""
    results: list[T | None] = [None] * len(calls)

    def run(place: int, call: Callable[[], T]) -> None:
        try:
            results[place] = call()
        except Exception:
            _logger.exception("a call failed")

    threads = [threading.Thread(target=run, args=each, name="http-call", daemon=True) for each in enumerate(calls)]
    for each in threads:
        each.start()
    deadline = time.monotonic() + seconds
    for each in threads:
        each.join(max(deadline - time.monotonic(), 0.0))
    return results.copy()


# The webhook validation handshake (CloudEvents webhook specification, section 4), our side: an ``OPTIONS`` request
# names us, and the response allows us by name or with ``*``.

ORIGIN_HEADER: Final = "WebHook-Request-Origin"
_ALLOWED_HEADER: Final = "WebHook-Allowed-Origin"
_CALLBACK_HEADER: Final = "WebHook-Request-Callback"


def ask_permission(client: httpx.Client, url: str, origin: str, callback: str = "") -> tuple[bool, httpx.Response]:
    """Return whether a target allows us to send, and its response; *callback* is a URL where it may do so later."""
    headers = {ORIGIN_HEADER: origin, **({_CALLBACK_HEADER: callback} if callback else {})}
    with client.stream("OPTIONS", url, headers=headers) as answer:
        allowed = [name.strip() for name in answer.headers.get(_ALLOWED_HEADER, "").split(",")]
        return not {"*", origin}.isdisjoint(allowed), answer


class NotPermitted(Exception):
    """The target has not allowed us to send; the message names it and says how to fix it."""


class Permissions:
    """The targets that have allowed us, each asked once; thread-safe. A rate that a target names is ignored."""

    def __init__(self, client: httpx.Client, origin: str) -> None:
        self._client = client
        self._origin = origin
        self._granted: set[str] = set()
        self._lock = threading.Lock()

    def require_permission(self, url: str) -> None:
        """Raise unless the target of *url* allows us to send; its query is ignored.

        Raises:
            NotPermitted: it does not, or does not support the handshake.
            httpx.TransportError: it does not respond.
        """
        parts = urlsplit(url)
        target = f"{parts.scheme}://{parts.netloc}{parts.path}"
        with self._lock:
            if target in self._granted:
                return
            allowed, answer = ask_permission(self._client, url, self._origin)
            if not answer.is_success or not allowed:
                raise NotPermitted(
                    f"{redact_url(url)} responded {answer.status_code} to the webhook handshake and does not allow "
                    f"{self._origin}; allow it there, or remove webhook_origin"
                )
            self._granted.add(target)


# A client of the CloudEvents Subscriptions API: create, renew, find, and delete subscriptions.
#
# ``POST`` to the manager's address creates one, and the response has its id or ``Location``; ``PUT`` there replaces and
# thereby renews it; ``GET`` of the manager's address lists those that we may see; ``DELETE`` ends one.

MEDIA: Final = "application/cloudevents-subscription+json"
MAX_ANSWER_BYTES: Final = 1 << 20
MAX_RETRY_SECONDS: Final = 3600.0
"""Maximum ``Retry-After`` that is obeyed; a longer one counts as this."""
_GONE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.GONE})
_NO_LIST: Final = _GONE | {HTTPStatus.FORBIDDEN, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}


class SubscriptionFailed(Exception):
    """A failed request; the message names the request and the response, without secrets.

    ``gone``: the manager does not have the subscription. ``login``: it does not allow us this request. ``after``: the
    seconds that it tells us to wait.
    """

    def __init__(self, message: str, *, gone: bool = False, login: bool = False, after: float = 0.0) -> None:
        super().__init__(message)
        self.gone = gone
        self.login = login
        self.after = after


@dataclass(frozen=True, slots=True)
class ManagedSubscription:
    """A subscription at the manager: its URL, and the manager's document."""

    url: str
    document: Mapping[str, Any]


class SubscriptionManager:
    """A subscription manager. *authorization* returns our credentials' header, empty for none; *context* its TLS
    context.

    A request may last *seconds* in total, including *authorization*, which is not interrupted. Not for concurrent use.
    """

    def __init__(
        self, url: str, authorization: Callable[[], str], context: Callable[[], ssl.SSLContext], *, seconds: float
    ) -> None:
        self.url = url
        self._authorization = authorization
        self._context = context
        self._seconds = seconds

    def create(self, document: Mapping[str, Any]) -> ManagedSubscription:
        """Create a subscription.

        Raises:
            SubscriptionFailed: there is none, or it may exist and the manager did not say so in time.
        """
        answer = self._send_request("POST", self.url, document)
        created = _read_document(answer)
        return ManagedSubscription(self._subscription_url(answer.headers.get("location", ""), created), created)

    def renew(self, url: str, document: Mapping[str, Any]) -> ManagedSubscription:
        """Replace a subscription, which restarts its lifetime.

        Raises:
            SubscriptionFailed: it is unchanged, or ``gone``.
        """
        return ManagedSubscription(url, _read_document(self._send_request("PUT", url, document)))

    def delete(self, url: str) -> None:
        """Delete a subscription; a missing one counts as deleted.

        Raises:
            SubscriptionFailed: it may still exist.
        """
        try:
            self._send_request("DELETE", url)
        except SubscriptionFailed as error:
            if not error.gone:
                raise

    def list_delivering_to(self, sink: str) -> list[ManagedSubscription]:
        """Return the subscriptions that deliver to a sink; empty if the manager lists none.

        Raises:
            SubscriptionFailed: the manager cannot be asked now.
        """
        answer = self._send_request("GET", self.url, also=_NO_LIST)
        listed = _decode_json(answer) if answer.is_success else []
        subscriptions = listed.get("subscriptions", list(listed.values())) if isinstance(listed, dict) else listed
        each = (one for one in subscriptions if isinstance(one, dict)) if isinstance(subscriptions, list) else ()
        return [
            ManagedSubscription(self._subscription_url("", one), one)
            for one in each
            if one.get("sink") == sink and one.get("id")
        ]

    def _subscription_url(self, location: str, document: Mapping[str, Any]) -> str:
        """Return a subscription's URL: the location if it is on the manager's server, else manager and id."""
        try:
            url = urljoin(self.url, location)
            if location and origin_of(url) == origin_of(self.url):
                return url
        except ValueError:
            pass
        name = document.get("id")
        if not isinstance(name, str) or not name:
            raise SubscriptionFailed(f"{redact_url(self.url)} did not say which subscription it created")
        return f"{self.url.partition('?')[0].rstrip('/')}/{quote(name, safe='')}"

    def _send_request(
        self, method: str, url: str, document: Mapping[str, Any] | None = None, *, also: frozenset[int] = frozenset()
    ) -> httpx.Response:
        headers = {"accept": "application/json", "user-agent": "xrouter"}
        if document is not None:
            headers["content-type"] = MEDIA
        deadline = time.monotonic() + self._seconds
        if authorization := self._authorization():
            headers["authorization"] = authorization
        content = None if document is None else msgspec.json.encode(document)
        try:
            with httpx.Client(verify=self._context(), timeout=self._seconds, trust_env=False) as client:
                exchange = partial(_exchange, client, method, url, headers, content)
                left = deadline - time.monotonic()
                answer = call_concurrently(left, [exchange])[0] if left > 0 else None
        except ssl.SSLError as error:
            answer = error
        if answer is None:
            raise SubscriptionFailed(f"{method} {redact_url(url)}: the response takes too long")
        if isinstance(answer, Exception):
            text = to_line(str(answer)) or type(answer).__name__
            raise SubscriptionFailed(f"{method} {redact_url(url)}: {text}") from answer
        if answer.is_success or answer.status_code in also:
            return answer
        raise SubscriptionFailed(
            f"{method} {redact_url(url)} returned {answer.status_code}{_error_text(answer)}",
            gone=method != "POST" and answer.status_code in _GONE,
            login=answer.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN),
            after=min(parse_retry_after(answer.headers.get("retry-after")) or 0.0, MAX_RETRY_SECONDS),
        )


def _exchange(
    client: httpx.Client, method: str, url: str, headers: Mapping[str, str], content: bytes | None
) -> httpx.Response | Exception:
    """Send a request, and return its response with at most ``MAX_ANSWER_BYTES``, or why there is none."""
    body = bytearray()
    try:
        with client.stream(method, url, headers=headers, content=content) as answer:
            for chunk in answer.iter_bytes():
                body += chunk
                if len(body) > MAX_ANSWER_BYTES:
                    return ValueError("the response is too long")
    except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, ValueError, RuntimeError) as error:
        return error
    kept = {name: text for name in ("location", "retry-after") if (text := answer.headers.get(name))}
    return httpx.Response(answer.status_code, headers=kept, content=bytes(body))


def redact_url(url: str) -> str:
    """Return a URL without user and query, since both may contain secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


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


def _read_document(answer: httpx.Response) -> dict[str, Any]:
    document = _decode_json(answer)
    return document if isinstance(document, dict) else {}


def _decode_json(answer: httpx.Response) -> Any:
    try:
        return msgspec.json.decode(answer.content) if answer.content else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _error_text(answer: httpx.Response) -> str:
    """Return the text of an error response, as one line of limited length."""
    document = _read_document(answer)
    text = next((document[name] for name in ("detail", "title", "error") if isinstance(document.get(name), str)), "")
    line = to_line("".join(each if each.isprintable() else " " for each in text))
    return f": {line}" if line else ""
