"""One request over HTTP(S) to an address of its host that was judged, so that no second look-up can give others."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from catalog.documents.reach import Reach

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Asking:
    """What is asked of a server, and how: a GET, or the POST of a form or a body. ``seconds`` bound each step of it."""

    url: str
    headers: Mapping[str, str]
    context: ssl.SSLContext
    seconds: float
    form: Mapping[str, str] | None = None
    body: bytes | None = None


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL, without user and password; the default port is left out.

    Raises:
        ValueError: the URL has a port that is no number.
    """
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    default = {"http": 80, "https": 443}.get(parts.scheme)
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port not in (None, default) else "")


@asynccontextmanager
async def asked(asking: Asking, reach: Reach) -> AsyncIterator[httpx.Response]:
    """Give the answer to one request, its body unread; redirects are answers too.

    Raises:
        DocumentError: an address of the host is beyond *reach*.
        httpx.HTTPError: no answer came.
    """
    import httpx

    url = httpx.URL(asking.url).copy_with(userinfo=b"")
    host = url.raw_host.decode("ascii")
    proxied = _by_proxy(url.scheme, host)
    addresses = await _judged(asking.url, host, url.port, reach, proxied=proxied)
    timeout = httpx.Timeout(asking.seconds, connect=min(CONNECT_SECONDS, asking.seconds))
    named = {**asking.headers, "Host": url.netloc.decode("ascii")}
    method = "GET" if asking.form is None and asking.body is None else "POST"
    async with httpx.AsyncClient(timeout=timeout, verify=asking.context, trust_env=proxied) as client:
        for number, address in enumerate(addresses, 1):
            request = client.build_request(
                method,
                url.copy_with(host=address),
                headers=named,
                data=asking.form,
                content=asking.body,
                extensions={"sni_hostname": host},
            )
            try:
                response = await client.send(request, auth=None, stream=True)
            except httpx.ConnectError:
                if number == len(addresses):
                    raise
                continue
            except ssl.SSLError as error:
                raise _refused(error) from error
            try:
                yield response
            except ssl.SSLError as error:
                raise _refused(error) from error
            finally:
                await response.aclose()
            return


def _refused(error: ssl.SSLError) -> httpx.ReadError:
    """Return an error that httpx lets through as one of httpx: with TLS 1.3 it comes after the handshake."""
    import httpx

    return httpx.ReadError(str(error))


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
    addresses = list(dict.fromkeys(str(info[4][0]) for info in infos))
    for address in addresses:
        reach.check(url, origin, host, address)
    return addresses


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
