"""One GET over HTTP(S) with hard limits: the clock, the size and the redirects of a stranger's server are bounded.

The clock holds for the whole exchange, headers and redirects included, so that a server which sends a byte now and then
keeps nobody. That needs a loop of its own: :func:`get` must not be called where an event loop is running.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from catalog.documents.reach import Reach
from catalog.errors import DocumentError

if TYPE_CHECKING:
    import httpx

MAX_REDIRECTS: Final = 5
CONNECT_SECONDS: Final = 10.0
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_NOT_NOW: Final = frozenset({408, 425, 429})
_NOT_MODIFIED: Final = 304


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


def get(url: str, credentials: Mapping[str, str], limits: Limits, reach: Reach, known: Answer | None = None) -> Answer:
    """Fetch *url*; when *known* is what it gave before, only if it changed since.

    *credentials* are ``user:password`` by origin (:func:`origin_of`); they are sent to that origin only. *reach* judges
    the addresses of each host on the way, and only those that it was shown are connected to.

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


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL, without user and password; the default port is left out.

    Raises:
        ValueError: the URL has a port that is no number.
    """
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    default = {"http": 80, "https": 443}.get(parts.scheme)
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port not in (None, default) else "")


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


async def _within(
    url: str, credentials: Mapping[str, str], limits: Limits, reach: Reach, known: Answer | None
) -> Answer:
    async with asyncio.timeout(limits.seconds):
        return await _followed(url, credentials, limits, reach, known)


async def _followed(
    url: str, credentials: Mapping[str, str], limits: Limits, reach: Reach, known: Answer | None
) -> Answer:
    """Follow redirects, each to HTTP(S) and never from https to http."""
    current = url
    for _ in range(MAX_REDIRECTS + 1):
        headers = {"Accept": "application/json, application/yaml, */*;q=0.5", "Accept-Encoding": "gzip"}
        if known is not None and known.etag:
            headers["If-None-Match"] = known.etag
        if known is not None and known.modified:
            headers["If-Modified-Since"] = known.modified
        async with _asked(current, headers, _auth(current, credentials), limits, reach) as response:
            target = response.headers.get("location")
            if response.status_code in _REDIRECTS and target:
                current = redirected(url, current, target)
                continue
            return await _answer(response, url, current, limits, known)
    hint = "give the address that it leads to"
    raise DocumentError(f"{url} is redirected more than {MAX_REDIRECTS} times", file=url, hint=hint)


@asynccontextmanager
async def _asked(
    url: str, headers: dict[str, str], auth: httpx.BasicAuth | None, limits: Limits, reach: Reach
) -> AsyncIterator[httpx.Response]:
    """Ask for *url* at the addresses of its host that were judged, so that no second look-up can give others."""
    import httpx

    asked = httpx.URL(url).copy_with(userinfo=b"")
    host = asked.raw_host.decode("ascii")
    proxied = _by_proxy(asked.scheme, host)
    addresses = await _judged(url, host, asked.port, reach, proxied=proxied)
    timeout = httpx.Timeout(limits.seconds, connect=min(CONNECT_SECONDS, limits.seconds))
    async with httpx.AsyncClient(timeout=timeout, verify=_certificates(), trust_env=proxied) as client:
        for number, address in enumerate(addresses, 1):
            named = {**headers, "Host": asked.netloc.decode("ascii")}
            request = client.build_request(
                "GET", asked.copy_with(host=address), headers=named, extensions={"sni_hostname": host}
            )
            try:
                response = await client.send(request, auth=auth, stream=True)
            except httpx.ConnectError:
                if number == len(addresses):
                    raise
                continue
            try:
                yield response
            finally:
                await response.aclose()
            return


def _by_proxy(scheme: str, host: str) -> bool:
    """Tell whether the environment has a proxy for a host; it looks names up then, and we judge what is no name."""
    proxies = getproxies()
    return (scheme in proxies or "all" in proxies) and not proxy_bypass(host)


async def _judged(url: str, host: str, port: int | None, reach: Reach, *, proxied: bool) -> list[str]:
    """Return the addresses of a host that may be connected to; the host itself if a proxy is to connect.

    Raises:
        DocumentError: one of them may not.
        httpx.ConnectError: the host has none.
    """
    import httpx

    origin = origin_of(url)
    if proxied and not _is_address(host) and host != "localhost" and not host.endswith(".localhost"):
        return [host]
    try:
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM)
    except OSError as error:
        raise httpx.ConnectError(f"{host} has no address: {error.strerror or error}") from error
    found = list(dict.fromkeys(str(info[4][0]) for info in infos))
    for address in found:
        reach.check(url, origin, host, address)
    return found


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _auth(url: str, credentials: Mapping[str, str]) -> httpx.BasicAuth | None:
    import httpx

    userinfo = credentials.get(origin_of(url))
    if userinfo is None:
        return None
    user, _, password = userinfo.partition(":")
    return httpx.BasicAuth(unquote(user), unquote(password))


async def _answer(response: httpx.Response, url: str, current: str, limits: Limits, known: Answer | None) -> Answer:
    if response.status_code == _NOT_MODIFIED and known is not None:
        return Answer(known.url, known.data, False, known.link, known.etag, known.modified)
    if not response.is_success:
        status = response.status_code
        transient = status in _NOT_NOW or response.is_server_error
        hint = "try again later" if transient else "check the address, and whether it needs a login"
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


@lru_cache(maxsize=1)
def _certificates() -> ssl.SSLContext:
    """Return the trusted roots; reading them costs more than a fetch, so once is enough."""
    import httpx

    return httpx.create_ssl_context()
