"""The monitoring HTTP server: ``/metrics``, ``/healthz`` and ``/readyz`` on one port, and the status page.

It has neither login nor TLS, so it listens on loopback by default. Connections and requests are limited as at the
gateway, so that no client can overload the router.
"""

from __future__ import annotations

import json
import socket
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol

from bindings.http.connection import AcceptedRequest
from bindings.http.request import METRICS_LIMITS, NO_STORE, MetricsExposition, Reply, RequestHead
from bindings.http.server import HttpServer
from router.errors import ConfigError
from router.watching.metrics import StatusCollector

if TYPE_CHECKING:
    from router.watching.metrics import Metrics
    from router.watching.status import RouterStatus

_STOP_SECONDS: Final = 1.0


class ExtraPages(Protocol):
    """Pages beside metrics and health. Called on the server's thread."""

    def admit(self, head: RequestHead) -> AcceptedRequest | Reply | None:
        """Answer or accept a request by its head; return None if the path is not one of these pages."""


class MonitorServer:
    """Serves metrics and status in a separate thread; can be started and stopped once.

    ``port`` 0 selects a free port; after :meth:`start`, ``port`` is the one in use.
    """

    def __init__(
        self, host: str, port: int, metrics: Metrics, status: RouterStatus, pages: ExtraPages | None = None
    ) -> None:
        self._host = host
        self.port = port
        self._status = status
        metrics.registry.register(StatusCollector(status))
        self._pages = pages
        self._exposition = MetricsExposition(metrics.registry)
        self._server: HttpServer | None = None

    @property
    def base_url(self) -> str:
        """The URL of the server, without path."""
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self.port}"

    def start(self) -> None:
        """Listen; requests are answered when this returns.

        Raises:
            ConfigError: the port is taken or not allowed (``metrics.port``), or the host is unknown (``metrics.host``).
        """
        listener = _open_socket(self._host, self.port)
        self.port = listener.getsockname()[1]
        self._server = HttpServer(listener, self, METRICS_LIMITS, name="monitor")
        self._server.start()

    def stop(self) -> None:
        """Stop listening and close all connections; does nothing when not running."""
        if self._server is not None:
            self._server.stop(_STOP_SECONDS)
            self._server = None

    def admit(self, head: RequestHead) -> AcceptedRequest | Reply:
        """Answer a request, or pass it to the pages."""
        page = None if self._pages is None else self._pages.admit(head)
        if page is not None:
            return page
        if head.method not in ("GET", "HEAD"):
            return _json_reply(HTTPStatus.METHOD_NOT_ALLOWED, {"error": "only GET and HEAD are answered"})
        if head.path == b"/metrics":
            return self._exposition.reply(head)
        if head.path in (b"/healthz", b"/readyz"):
            good, answer = self._status.check_health() if head.path == b"/healthz" else self._status.check_readiness()
            return _json_reply(HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE, answer)
        return _json_reply(HTTPStatus.NOT_FOUND, {"error": "there are /metrics, /healthz, /readyz and /status.json"})


def _open_socket(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(
            f"the metrics server cannot listen: {host} is no address ({error.strerror})",
            key="metrics.host",
            hint="set metrics.host to an address of this machine, such as 127.0.0.1",
        ) from error
    try:
        return socket.create_server((str(address[0]), port), family=family, backlog=128)
    except OSError as error:
        raise ConfigError(
            f"the metrics server cannot listen on {host}:{port}: {error.strerror or error}",
            key="metrics.port",
            hint="set metrics.port to another port, or to 0 for a free one, or stop what uses it",
        ) from error


def _json_reply(status: HTTPStatus, answer: dict[str, Any]) -> Reply:
    body = json.dumps(answer, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
    return Reply(status, ((b"content-type", b"application/json"), NO_STORE), body)
