"""The client side of the CloudEvents Subscriptions API: a subscription is created, renewed, looked for, and deleted.

``POST`` to the manager's address creates one, and the answer says its id or ``Location``; ``PUT`` there replaces it,
and so renews it; ``GET`` of the manager's address lists those that we may see; ``DELETE`` ends one.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urljoin, urlsplit

import httpx
import msgspec

from catalog.documents.connecting import origin_of

MEDIA: Final = "application/cloudevents-subscription+json"
MAX_ANSWER_BYTES: Final = 1 << 20
_GONE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.GONE})
_NO_LIST: Final = _GONE | {HTTPStatus.FORBIDDEN, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}
_SHOWN: Final = 200
_LATER: Final = 3600.0


class SubscriptionFailed(Exception):
    """A request that did not do what it was for; the message says what was asked and answered, and no secret.

    ``gone`` tells that the manager knows no such subscription, ``login`` that it does not let us do this, ``after``
    the seconds that it asks us to wait.
    """

    def __init__(self, message: str, *, gone: bool = False, login: bool = False, after: float = 0.0) -> None:
        super().__init__(message)
        self.gone = gone
        self.login = login
        self.after = after


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A subscription that the manager has: where it is, and what it says of it."""

    url: str
    document: Mapping[str, Any]


class SubscriptionManager:
    """One manager. *authorization* gives the header that proves who we are, empty for none; *context* its TLS.

    A request may take *seconds* as a whole, with what *authorization* takes, which nobody interrupts. Not for
    concurrent use, nor for a thread with an event loop.
    """

    def __init__(
        self, url: str, authorization: Callable[[], str], context: Callable[[], ssl.SSLContext], *, seconds: float
    ) -> None:
        self.url = url
        self._authorization = authorization
        self._context = context
        self._seconds = seconds

    def create(self, document: Mapping[str, Any]) -> Subscribed:
        """Make a subscription.

        Raises:
            SubscriptionFailed: there is none, or it may be there and the manager did not say so in time.
        """
        answer = self._asked("POST", self.url, document)
        created = _document(answer)
        return Subscribed(self._place(answer.headers.get("location", ""), created), created)

    def renew(self, url: str, document: Mapping[str, Any]) -> Subscribed:
        """Replace a subscription, which lasts anew from now on.

        Raises:
            SubscriptionFailed: it is as it was, or ``gone``.
        """
        return Subscribed(url, _document(self._asked("PUT", url, document)))

    def delete(self, url: str) -> None:
        """End a subscription; one that is gone already has ended.

        Raises:
            SubscriptionFailed: it may still be there.
        """
        try:
            self._asked("DELETE", url)
        except SubscriptionFailed as error:
            if not error.gone:
                raise

    def delivering(self, sink: str) -> list[Subscribed]:
        """Return the subscriptions that deliver to a sink; none where the manager lists nothing.

        Raises:
            SubscriptionFailed: it cannot be asked now.
        """
        answer = self._asked("GET", self.url, also=_NO_LIST)
        listed = _decoded(answer) if answer.is_success else []
        subscriptions = listed.get("subscriptions", list(listed.values())) if isinstance(listed, dict) else listed
        each = (one for one in subscriptions if isinstance(one, dict)) if isinstance(subscriptions, list) else ()
        return [Subscribed(self._place("", one), one) for one in each if one.get("sink") == sink and one.get("id")]

    def _place(self, location: str, document: Mapping[str, Any]) -> str:
        """Return where a subscription is: the location, if it is the manager's own, else its id below the manager."""
        try:
            url = urljoin(self.url, location)
            if location and origin_of(url) == origin_of(self.url):
                return url
        except ValueError:
            pass
        name = document.get("id")
        if not isinstance(name, str) or not name:
            raise SubscriptionFailed(f"{self._shown(self.url)} does not say which subscription it made")
        return f"{self.url.partition('?')[0].rstrip('/')}/{quote(name, safe='')}"

    def _asked(
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
            with asyncio.Runner() as runner:
                runner.get_loop().set_default_executor(_Resolver(1))
                answer = runner.run(self._answer(method, url, headers, content, deadline))
        except TimeoutError as error:
            raise SubscriptionFailed(f"{method} {self._shown(url)}: the answer takes too long") from error
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, ValueError) as error:
            text = " ".join(str(error).split())[:_SHOWN] or type(error).__name__
            raise SubscriptionFailed(f"{method} {self._shown(url)}: {text}") from error
        if answer.is_success or answer.status_code in also:
            return answer
        raise SubscriptionFailed(
            f"{method} {self._shown(url)} is answered {answer.status_code}{_said(answer)}",
            gone=method != "POST" and answer.status_code in _GONE,
            login=answer.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN),
            after=_after(answer),
        )

    async def _answer(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None, deadline: float
    ) -> httpx.Response:
        """Send a request, and read no more of the answer than a subscription may be.

        Raises:
            TimeoutError: the whole of it, its head too, which may come byte by byte, took too long.
        """
        options: dict[str, Any] = {"timeout": self._seconds, "follow_redirects": False, "trust_env": False}
        body = bytearray()
        async with (
            asyncio.timeout(deadline - time.monotonic()),
            httpx.AsyncClient(verify=self._context(), **options) as client,
            client.stream(method, url, headers=headers, content=content) as answer,
        ):
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > MAX_ANSWER_BYTES:
                    raise ValueError("the answer is too long")
        return httpx.Response(answer.status_code, headers=_plain(answer.headers), content=bytes(body))

    @staticmethod
    def _shown(url: str) -> str:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class _Resolver(ThreadPoolExecutor):
    """Resolves names for an event loop, which does not wait at its end for one that takes too long."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End without waiting."""
        super().shutdown(wait=False, cancel_futures=True)


def _plain(headers: httpx.Headers) -> list[tuple[str, str]]:
    """Return the headers of a body that is decoded."""
    return [(name, value) for name, value in headers.multi_items() if name.lower() not in _OF_BODIES]


_OF_BODIES: Final = frozenset({"content-encoding", "content-length", "transfer-encoding"})


def _document(answer: httpx.Response) -> dict[str, Any]:
    document = _decoded(answer)
    return document if isinstance(document, dict) else {}


def _decoded(answer: httpx.Response) -> Any:
    try:
        return msgspec.json.decode(answer.content) if answer.content else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _said(answer: httpx.Response) -> str:
    """Return what an answer says of a refusal, in one line of bounded length."""
    document = _document(answer)
    text = next((document[name] for name in ("detail", "title", "error") if isinstance(document.get(name), str)), "")
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())[:_SHOWN]
    return f": {line}" if line else ""


def _after(answer: httpx.Response) -> float:
    """Return the seconds that an answer asks to wait; 0 for what is no number of them."""
    text = answer.headers.get("retry-after", "")
    return min(float(text), _LATER) if text.isascii() and text.isdecimal() and len(text) < 10 else 0.0
