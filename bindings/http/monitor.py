"""The HTTP server of metrics and health: ``/metrics`` (Prometheus or OpenMetrics), ``/healthz`` and ``/readyz``.

It has neither login nor TLS, so it listens on loopback by default. Connections and requests are limited as at the
gateway, so that no client can overload the process.
"""

# Small: what the router and the registry serve alike.

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

from prometheus_client import CollectorRegistry, make_wsgi_app

from bindings.http.request import HttpProblem, Reply, RequestHead, ServerLimits
from bindings.http.server import AcceptedRequest, HttpServer

METRICS_LIMITS: Final = ServerLimits(max_connections=100, max_per_address=50)
"""Few clients request metrics."""
_NO_STORE: Final = (b"cache-control", b"no-store")
HealthCheck = Callable[[], tuple[bool, Mapping[str, Any]]]
"""Returns whether all is well, and the document that says so."""


class MetricsServer(HttpServer):
    """Serves the metrics of a registry of collectors, and the health *checks* by their paths; started once."""

    def __init__(
        self, name: str, address: tuple[str, int], registry: CollectorRegistry, checks: Mapping[bytes, HealthCheck]
    ) -> None:
        super().__init__(name, address, self, METRICS_LIMITS)
        self._metrics = make_wsgi_app(registry)
        self._checks = checks

    def admit(self, head: RequestHead) -> AcceptedRequest | Reply:
        """Answer a request."""
        if head.method not in ("GET", "HEAD"):
            allow = (b"allow", b"GET, HEAD")
            return HttpProblem(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are allowed", allow).to_reply()
        if head.path == b"/metrics":
            return self._metrics_reply(head)
        if head.path in self._checks:
            good, answer = self._checks[head.path]()
            status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
            body = json.dumps(answer, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
            return Reply(status, ((b"content-type", b"application/json"), _NO_STORE), body)
        return HttpProblem(HTTPStatus.NOT_FOUND, "available are /metrics, /healthz and /readyz").to_reply()

    def _metrics_reply(self, head: RequestHead) -> Reply:
        """Return the current metrics, in the format and compression that the client prefers."""
        started: list[tuple[str, list[tuple[str, str]]]] = []
        environ = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": "/metrics",
            "QUERY_STRING": head.query.decode("latin-1"),
            "HTTP_ACCEPT": (head.header(b"accept") or b"").decode("latin-1"),
            "HTTP_ACCEPT_ENCODING": (head.header(b"accept-encoding") or b"").decode("latin-1"),
        }
        body = b"".join(self._metrics(environ, lambda status, headers: started.append((status, headers))))
        [(status, headers)] = started
        encoded = ((name.lower().encode("ascii"), value.encode("ascii")) for name, value in headers)
        kept = (each for each in encoded if each[0] != b"content-length")
        return Reply(HTTPStatus(int(status.split()[0])), (*kept, _NO_STORE), body)
