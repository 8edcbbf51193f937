"""The HTTP server for those who watch: ``/metrics``, ``/healthz`` and ``/readyz`` on one port.

It has no login and speaks no TLS, so it listens on loopback unless the settings say otherwise.
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app

from router.errors import ConfigError
from router.logs import get_logger

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

    from router.metrics import Metrics
    from router.status import Status

REQUEST_SECONDS: Final = 10.0
"""How long a watcher may take to say what it wants."""
_POLL_SECONDS: Final = 0.1
_log = get_logger()


class MonitorServer:
    """Serves metrics and status from threads of its own; started once, stopped once.

    ``port`` 0 takes a free one; after :meth:`start`, ``port`` is the one in use.
    """

    def __init__(self, host: str, port: int, metrics: Metrics, status: Status) -> None:
        self._host = host
        self.port = port
        self._status = status
        self._metrics_app = make_wsgi_app(metrics.registry)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """Where the server is, as a URL without path."""
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self.port}"

    def start(self) -> None:
        """Listen; requests are answered when this returns.

        Raises:
            ConfigError: the port is taken or not allowed (``metrics.port``), or the host is unknown (``metrics.host``).
        """
        self._server = _listen(self._host, self.port)
        self._server.set_app(self._answer)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), name="monitor", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop listening. Requests being answered end by themselves; does nothing when not running."""
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._server = self._thread = None

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        method = environ.get("REQUEST_METHOD")
        if method == "HEAD":
            list(self._answer({**environ, "REQUEST_METHOD": "GET"}, start_response))
            return []
        if method != "GET":
            return _json(start_response, HTTPStatus.METHOD_NOT_ALLOWED, {"error": "only GET and HEAD are answered"})
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            body: Iterable[bytes] = self._metrics_app(environ, start_response)
            return body
        if path in ("/healthz", "/readyz"):
            good, answer = self._status.healthy() if path == "/healthz" else self._status.ready()
            return _json(start_response, HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE, answer)
        return _json(start_response, HTTPStatus.NOT_FOUND, {"error": "there are /metrics, /healthz and /readyz"})


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    # Two routers must not share a port and answer by turns.
    allow_reuse_port = False

    def server_bind(self) -> None:
        """Bind, without the look-up of our own name that the library does and that can take many seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Note a connection that broke; the library would write a traceback to standard error."""
        _log.debug("a watcher's connection broke", client=str(client_address[0]), exc_info=True)


class _ServerV6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_SECONDS

    def log_message(self, format: str, *args: object) -> None:
        """Write no line for each request: probes and scrapes come every few seconds."""


def _listen(host: str, port: int) -> _Server:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(
            f"the metrics server cannot listen: {host} is no address ({error.strerror})",
            key="metrics.host",
            hint="set metrics.host to an address of this machine, such as 127.0.0.1",
        ) from error
    kind = _ServerV6 if family == socket.AF_INET6 else _Server
    try:
        return kind((str(address[0]), port), _Handler)
    except OSError as error:
        raise ConfigError(
            f"the metrics server cannot listen on {host}:{port}: {error.strerror or error}",
            key="metrics.port",
            hint="set metrics.port to another port, or to 0 for a free one, or stop what uses it",
        ) from error


def _json(start_response: StartResponse, status: HTTPStatus, answer: dict[str, Any]) -> list[bytes]:
    body = json.dumps(answer, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
    headers = [
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
    ]
    start_response(f"{status.value} {status.phrase}", headers)
    return [body]
