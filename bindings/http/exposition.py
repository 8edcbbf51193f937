"""Metrics as an answer of HTTP: in the form that the client prefers (``Accept``), compressed if it accepts that."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from prometheus_client import CollectorRegistry, make_wsgi_app

from bindings.http.limits import ServerLimits
from bindings.http.problems import Reply
from bindings.http.request import Head

LIMITS: Final = ServerLimits(
    max_header_bytes=16 * 2**10,
    max_headers=100,
    max_connections=100,
    max_per_address=50,
    header_timeout=10.0,
    request_timeout=10.0,
)
"""Few clients ask for metrics, and their requests are small."""
NO_STORE: Final = (b"cache-control", b"no-store")


class Exposition:
    """Gives the metrics of a registry of collectors, as they are when they are asked for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._application = make_wsgi_app(registry)

    def reply(self, head: Head) -> Reply:
        """Answer a GET or HEAD."""
        started: list[tuple[str, list[tuple[str, str]]]] = []
        environ = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": "/metrics",
            "QUERY_STRING": head.query.decode("latin-1"),
            "HTTP_ACCEPT": (head.header(b"accept") or b"").decode("latin-1"),
            "HTTP_ACCEPT_ENCODING": (head.header(b"accept-encoding") or b"").decode("latin-1"),
        }
        body = b"".join(self._application(environ, lambda status, headers: started.append((status, headers))))
        status, headers = started[0]
        encoded = [(name.lower().encode("ascii"), value.encode("ascii")) for name, value in headers]
        kept = tuple(each for each in encoded if each[0] != b"content-length")
        return Reply(HTTPStatus(int(status.split()[0])), (*kept, NO_STORE), body)
