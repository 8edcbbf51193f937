"""The HTTP server for those who watch: ``/metrics``, ``/healthz`` and ``/readyz`` on one port, and pages beside them.

It has no login and speaks no TLS, so it listens on loopback unless the settings say otherwise. What connections and
requests may cost is limited as at the gateway, so that nobody who reaches the port can stop the router.
"""

from __future__ import annotations

import json
import socket
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol

from bindings.http.connection import AcceptedRequest
from bindings.http.request import LIMITS, NO_STORE, Exposition, Reply, RequestHead
from bindings.http.server import HttpServer
from router.errors import ConfigError
from router.watching.metrics import StatusCollector

if TYPE_CHECKING:
    from router.watching.metrics import Metrics
    from router.watching.status import RouterStatus

_STOP_SECONDS: Final = 1.0


class ExtraPages(Protocol):
    """What is served beside metrics and health. Called on the server's thread."""

    def admit(self, head: RequestHead) -> AcceptedRequest | Reply | None:
        """Decide by the head alone; None for a path that is not of these pages."""


class MonitorServer:
    """Serves metrics and status from a thread of its own; started once, stopped once.

    ``port`` 0 takes a free one; after :meth:`start`, ``port`` is the one in use.
    """

    def __init__(
        self, host: str, port: int, metrics: Metrics, status: RouterStatus, pages: ExtraPages | None = None
    ) -> None:
        self._host = host
        self.port = port
        self._status = status
        metrics.registry.register(StatusCollector(status))
        self._pages = pages
        self._exposition = Exposition(metrics.registry)
        self._server: HttpServer | None = None

    @property
    def address(self) -> str:
        """Where the server is, as a URL without path."""
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self.port}"

    def start(self) -> None:
        """Listen; requests are answered when this returns.

        Raises:
            ConfigError: the port is taken or not allowed (``metrics.port``), or the host is unknown (``metrics.host``).
        """
        listener = _listen(self._host, self.port)
        self.port = listener.getsockname()[1]
        self._server = HttpServer(listener, self, LIMITS, name="monitor")
        self._server.start()

    def stop(self) -> None:
        """Stop listening and close all connections; does nothing when not running."""
        if self._server is not None:
            self._server.stop(_STOP_SECONDS)
            self._server = None

    def admit(self, head: RequestHead) -> AcceptedRequest | Reply:
        """Answer a request, or let the pages do it."""
        page = None if self._pages is None else self._pages.admit(head)
        if page is not None:
            return page
        if head.method not in ("GET", "HEAD"):
            return _json(HTTPStatus.METHOD_NOT_ALLOWED, {"error": "only GET and HEAD are answered"})
        if head.path == b"/metrics":
            return self._exposition.reply(head)
        if head.path in (b"/healthz", b"/readyz"):
            good, answer = self._status.healthy() if head.path == b"/healthz" else self._status.ready()
            return _json(HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE, answer)
        return _json(HTTPStatus.NOT_FOUND, {"error": "there are /metrics, /healthz, /readyz and /status.json"})


def _listen(host: str, port: int) -> socket.socket:
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


def _json(status: HTTPStatus, answer: dict[str, Any]) -> Reply:
    body = json.dumps(answer, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
    return Reply(status, ((b"content-type", b"application/json"), NO_STORE), body)
