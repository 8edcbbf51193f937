"""The server for those who watch a registry: ``/metrics``, in the form of Prometheus or of OpenMetrics, ``/healthz``
(does the process answer) and ``/readyz`` (does it take requests).

It has no login and speaks no TLS, so it listens on loopback unless the settings say otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from bindings.http.exposition import LIMITS, NO_STORE, Exposition
from bindings.http.listening import listen
from bindings.http.problems import HttpProblem, Reply
from bindings.http.request import Head
from bindings.http.server import HttpServer

_STOP_SECONDS: Final = 1.0


class MetricsServer:
    """Serves metrics from a thread of its own; started once, stopped once. ``port`` is the one in use once started.

    *ready* says whether the registry takes requests. It is ready even while the store is away: another process over the
    same store would do no better, and its answers say what is wrong.
    """

    def __init__(self, host: str, port: int, collectors: Iterable[Collector], ready: Callable[[], bool]) -> None:
        self._host = host
        self.port = port
        self._ready = ready
        registry = CollectorRegistry(auto_describe=True)  # so that watchers can ask for some by name
        for each in collectors:
            registry.register(each)
        self._exposition = Exposition(registry)
        self._server: HttpServer | None = None

    def start(self) -> None:
        """Listen.

        Raises:
            GatewayError: the address is taken.
        """
        listener = listen(self._host, self.port, "the registry's metrics")
        self.port = listener.getsockname()[1]
        self._server = HttpServer(listener, self, LIMITS, name="registry-metrics")
        self._server.start()

    def stop(self) -> None:
        """Stop listening; does nothing when not running."""
        if self._server is not None:
            self._server.stop(_STOP_SECONDS)
            self._server = None

    def admit(self, head: Head) -> Reply:
        """Answer a request."""
        if head.method not in ("GET", "HEAD"):
            return HttpProblem(HTTPStatus.METHOD_NOT_ALLOWED, "GET it", (b"Allow", b"GET, HEAD")).reply()
        if head.path == b"/metrics":
            return self._exposition.reply(head)
        if head.path == b"/healthz":
            return _status(good=True)
        if head.path == b"/readyz":
            return _status(good=self._ready())
        return HttpProblem(HTTPStatus.NOT_FOUND, "there are /metrics, /healthz and /readyz").reply()


def _status(*, good: bool) -> Reply:
    status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
    body = json.dumps({"status": "ok" if good else "not serving"}).encode("ascii") + b"\n"
    return Reply(status, ((b"content-type", b"application/json"), NO_STORE), body)
