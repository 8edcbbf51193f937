"""The HTTP client that messages are sent with: it keeps connections, and nothing that a target says."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Literal

import httpx

from bindings.gateways import Tls
from bindings.http.judged import JudgedTransport
from catalog.documents.reach import Reach

Version = Literal["1.1", "2"]


class _NoCookies(httpx.Cookies):
    """Keeps no cookies: a target could make us keep any number, and looking them up costs the square of the headers."""

    def extract_cookies(self, response: httpx.Response) -> None:
        """Ignore the cookies of an answer."""


class _Client(httpx.Client):
    @property
    def cookies(self) -> httpx.Cookies:
        return _NoCookies()

    @cookies.setter
    def cookies(self, cookies: object) -> None:
        raise AttributeError("this client keeps no cookies")


def client(
    headers: Iterable[tuple[str, str]],
    basic: tuple[str, str] | None,
    tls: Tls | None,
    *,
    timeout: float,
    in_flight: int,
    version: Version | None,
    reach: Reach | None = None,
) -> httpx.Client:
    """Return a client that checks certificates, follows no redirects, and reads no proxy from the environment.

    With *reach* it connects to no address beyond that: such a request fails with :class:`OutOfReach`.

    Raises:
        OSError, ssl.SSLError: a certificate file that cannot be read.
    """
    transport = httpx.HTTPTransport(
        verify=_context(tls),
        http1=version != "2",
        http2=version != "1.1",
        limits=httpx.Limits(max_connections=in_flight, max_keepalive_connections=in_flight),
        trust_env=False,
    )
    return _Client(
        headers=[("user-agent", "xrouter"), *headers],
        auth=basic,
        timeout=timeout,
        transport=transport if reach is None else JudgedTransport(transport, reach),
        follow_redirects=False,
        trust_env=False,
    )


def _context(tls: Tls | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(tls.ca) if tls and tls.ca else None)
    if tls and tls.certificate:
        context.load_cert_chain(tls.certificate, tls.key)
    return context
