"""The HTTP gateway: an HTTP/1.1 server in front of the inbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bindings.gateways import GatewayCounters, GatewayError, RowStore
from bindings.http.access import Access, Guard
from bindings.http.application import GatewayApplication, MessageLimits
from bindings.http.limits import ServerLimits
from bindings.http.listening import listen, server_tls
from bindings.http.routing import HttpRoute, PathRoutes
from bindings.http.server import HttpServer


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How to listen, and which limits hold.

    ``port`` 0 takes a free one. ``max_body_bytes`` bounds one message, ``max_in_flight`` how many wait for the inbox at
    once; ``limits`` are for requests and connections of every kind. ``retry_after`` (seconds) goes with every 503.
    ``tls_certificate`` and ``tls_key`` are PEM files, both or none; with ``tls_clients``, certificates of authorities,
    a client needs a certificate of theirs (mutual TLS). ``access`` says who may send; None is everybody.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    max_body_bytes: int = 2**20
    max_in_flight: int = 1000
    limits: ServerLimits = field(default_factory=ServerLimits)
    retry_after: int = 5
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_clients: Path | None = None
    access: Access | None = None


class NoCounters:
    """Counts nothing."""

    def received(self, endpoint: str) -> None:
        """Ignore it."""

    def acknowledged(self, endpoint: str) -> None:
        """Ignore it."""


class HttpGateway:
    """Hosts the HTTP endpoints of a router; started once, stopped once."""

    def __init__(
        self,
        routes: Sequence[HttpRoute],
        inbox: RowStore,
        settings: HttpSettings | None = None,
        *,
        counters: GatewayCounters | None = None,
    ) -> None:
        self._routes = PathRoutes(routes)
        self._settings = settings or HttpSettings()
        chosen = self._settings
        limits = MessageLimits(chosen.max_body_bytes, chosen.max_in_flight, chosen.retry_after)
        guard = Guard(chosen.access)
        self._application = GatewayApplication(self._routes, inbox, limits, counters or NoCounters(), guard)
        self._server: HttpServer | None = None
        self.port = chosen.port

    def start(self) -> None:
        """Listen; when this returns, requests are taken, and ``port`` is the one in use.

        Raises:
            GatewayError: the address is taken, or the certificate or key cannot be used.
        """
        chosen = self._settings
        tls = server_tls(chosen.tls_certificate, chosen.tls_key, chosen.tls_clients)
        listener = listen(chosen.host, chosen.port, "the HTTP gateway")
        self.port = listener.getsockname()[1]
        self._server = HttpServer(listener, self._application, chosen.limits, name="http-gateway", tls=tls)
        try:
            self._server.start()
        except OSError as error:
            raise GatewayError(str(error)) from error

    @property
    def alive(self) -> bool:
        """Whether it is listening; False before the start, after the stop, and when it ended by itself."""
        return self._server is not None and self._server.alive

    def replace(self, routes: Sequence[HttpRoute]) -> None:
        """Listen at these routes from the next request on; what is in flight finishes under the old ones."""
        self._routes.replace(routes)

    def stop(self, grace: float = 10.0) -> None:
        """Refuse new messages (503), finish those in flight for up to *grace* seconds, then close all connections.

        What is in flight after that gets no answer: its sender repeats it. Does nothing when not running.
        """
        self._application.stopping = True
        if self._server is not None:
            self._server.stop(grace)
