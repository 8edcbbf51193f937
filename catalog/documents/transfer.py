"""One GET over HTTP(S) with hard limits: the clock, the size and the redirects of a stranger's server are bounded.

The clock holds for the whole exchange, headers and redirects included, so that a server which sends a byte now and then
keeps nobody. That needs a loop of its own: :func:`get` must not be called where an event loop is running.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin, urlsplit

from catalog.documents.connecting import Asking, asked, origin_of
from catalog.documents.logins import Credentials
from catalog.documents.reach import Reach
from catalog.errors import DocumentError

if TYPE_CHECKING:
    import httpx

MAX_REDIRECTS: Final = 5
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_NOT_NOW: Final = frozenset({408, 425, 429})
_NOT_MODIFIED: Final = 304
_UNAUTHORIZED: Final = 401


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server gave. ``url`` is where it was found, redirects followed; ``fresh`` is False for a 304 without data.

    ``link`` is the Link header, ``etag`` and ``modified`` what a later request may ask with.
    """

    url: str
    data: bytes = b""
    fresh: bool = True
    link: str = ""
    etag: str = ""
    modified: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes that one document may have, and seconds that it may take."""

    document_bytes: int
    seconds: float


def get(url: str, credentials: Credentials, limits: Limits, reach: Reach, known: Answer | None = None) -> Answer:
    """Fetch *url*; when *known* is what it gave before, only if it changed since.

    Each origin on the way is shown its own *credentials* and no others; a token that it refuses is replaced once.
    *reach* judges the addresses of each host on the way, and only those that it was shown are connected to.

    Raises:
        DocumentError: beyond *reach*; or transient when the server cannot be reached, is too slow or answers 408, 425,
            429 or 5xx.
    """
    import httpx  # only who reads from the network pays for it

    try:
        return asyncio.run(_within(url, credentials, limits, reach, known))
    except TimeoutError as error:
        message = f"{url} took longer than {limits.seconds:g} s"
        raise DocumentError(message, file=url, hint="try again", transient=True) from error
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, ValueError) as error:
        lasting = not isinstance(error, httpx.TransportError) or isinstance(error, httpx.UnsupportedProtocol)
        message = f"{url} cannot be fetched: {_reason(error)}"
        hint = "check the address" if lasting else "check the address and the network, and try again"
        raise DocumentError(message, file=url, hint=hint, transient=not lasting) from error


def redirected(url: str, current: str, target: str) -> str:
    """Return where the server at *current* sends who asked for *url*.

    Raises:
        DocumentError: it leads from https to http, or elsewhere than to HTTP(S).
    """
    following = urljoin(current, target)
    parts = urlsplit(following)
    if parts.scheme not in ("http", "https") or (parts.scheme == "http" and urlsplit(current).scheme == "https"):
        hint = "give the address of the document itself"
        shown = f"{parts.scheme}://{parts.hostname}"
        raise DocumentError(f"{url} is redirected to {shown}, which is not followed", file=url, hint=hint)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


async def _within(url: str, credentials: Credentials, limits: Limits, reach: Reach, known: Answer | None) -> Answer:
    async with asyncio.timeout(limits.seconds):
        return await _followed(url, credentials, limits, reach, known)


async def _followed(url: str, credentials: Credentials, limits: Limits, reach: Reach, known: Answer | None) -> Answer:
    """Follow redirects, each to HTTP(S) and never from https to http."""
    headers = {"Accept": "application/json, application/yaml, */*;q=0.5", "Accept-Encoding": "gzip"}
    if known is not None and known.etag:
        headers["If-None-Match"] = known.etag
    if known is not None and known.modified:
        headers["If-Modified-Since"] = known.modified
    current, refused, redirects = url, "", 0
    while redirects <= MAX_REDIRECTS:
        origin = origin_of(current)
        shown = await credentials.authorization(origin, limits.seconds, refused)
        sent = {**headers, "Authorization": shown} if shown else headers
        context = credentials.logins.context(origin)
        async with asked(Asking(current, sent, context, limits.seconds), reach) as response:
            target = response.headers.get("location")
            if response.status_code in _REDIRECTS and target:
                current, redirects = redirected(url, current, target), redirects + 1
                continue
            if response.status_code == _UNAUTHORIZED and shown and not refused:
                refused = shown
                if await credentials.authorization(origin, limits.seconds, refused) != refused:
                    continue
            return await _answer(response, url, current, limits, known)
    hint = "give the address that it leads to"
    raise DocumentError(f"{url} is redirected more than {MAX_REDIRECTS} times", file=url, hint=hint)


async def _answer(response: httpx.Response, url: str, current: str, limits: Limits, known: Answer | None) -> Answer:
    if response.status_code == _NOT_MODIFIED and known is not None:
        return Answer(known.url, known.data, False, known.link, known.etag, known.modified)
    if not response.is_success:
        status = response.status_code
        transient = status in _NOT_NOW or response.is_server_error
        hint = "try again later" if transient else "check the address, and whether it needs a login (catalog.logins)"
        message = f"{url} cannot be fetched: the server answers {status} {response.reason_phrase}".rstrip()
        raise DocumentError(message, file=url, hint=hint, transient=transient)
    data = bytearray()
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > limits.document_bytes:
            message = f"{url} is larger than {limits.document_bytes} bytes"
            raise DocumentError(message, file=url, hint="split the document")
    link, etag, modified = (response.headers.get(name, "") for name in ("link", "etag", "last-modified"))
    sendable = etag.isascii() and modified.isascii()
    return Answer(current, bytes(data), True, link, etag if sendable else "", modified if sendable else "")
