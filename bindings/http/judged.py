"""Connections of an HTTP client to judged addresses only, for URLs that strangers name.

A host is looked up for each request and all its addresses are judged; the connection goes to one of those, so that no
second look-up can give others. A name that has one address beyond reach has none.
"""

from __future__ import annotations

import socket

import httpx

from catalog.documents.reach import Reach


class OutOfReach(Exception):
    """A host that may not be connected to; the message names it, and not what its address is."""


class JudgedTransport(httpx.BaseTransport):
    """Sends by *inner* to what *reach* admits."""

    def __init__(self, inner: httpx.BaseTransport, reach: Reach) -> None:
        self._inner = inner
        self._reach = reach

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request to the first address that can be connected to.

        Raises:
            OutOfReach: the host may not be connected to.
            httpx.TransportError: no answer came.
        """
        url = request.url
        host = url.raw_host.decode("ascii")
        addresses = admitted(host, url.port, self._reach)
        for number, address in enumerate(addresses, 1):
            # The header Host was made of the name, and so is what the certificate is checked for.
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


def admitted(host: str, port: int | None, reach: Reach) -> list[str]:
    """Return the addresses of a host, all of which are within reach.

    Raises:
        OutOfReach: one of them is not.
        httpx.ConnectError: it has none.
    """
    addresses = addresses_of(host, port)
    if not all(reach.admits(host, address) for address in addresses):
        raise OutOfReach(f"{host} is no public host, and not among those that are allowed")
    return addresses


def addresses_of(host: str, port: int | None) -> list[str]:
    """Return the addresses of a host.

    Raises:
        httpx.ConnectError: it has none.
    """
    try:
        infos = socket.getaddrinfo(host.strip("[]"), port or 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise httpx.ConnectError(f"{host} has no address: {error}") from error
    return list(dict.fromkeys(str(info[4][0]) for info in infos))
