"""The HTTP gateway: a server with its own thread and event loop, for HTTP/1.1 and HTTP/2, in front of the inbox."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from hypercorn.asyncio import serve
from hypercorn.config import Config
from hypercorn.typing import Framework

from bindings.http.access import Access, Guard
from bindings.http.application import GatewayApplication, GatewayCounters, RequestLimits, RowStore
from bindings.http.routing import HttpRoute, Routes

_START_SECONDS = 30.0
_CLOSE_SECONDS = 5.0

_logger = logging.getLogger(__name__)


class GatewayError(Exception):
    """The gateway cannot start: the address is taken, or a certificate cannot be used."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How to listen, and what to bear.

    ``port`` 0 takes a free one. ``max_body_bytes`` and ``max_header_bytes`` bound one request, ``request_timeout``
    (seconds) its body's arrival and then its way into the inbox, ``max_in_flight`` how many are held at once.
    ``retry_after`` (seconds) goes with every 503. ``tls_certificate`` and ``tls_key`` are PEM files, both or none; with
    ``tls_clients``, certificates of authorities, a client needs a certificate of theirs (mutual TLS). ``access`` says
    who may send; None is everybody.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    max_body_bytes: int = 2**20
    max_header_bytes: int = 64 * 2**10
    request_timeout: float = 30.0
    max_in_flight: int = 1000
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
        self._routes = Routes(routes)
        self._inbox = inbox
        self._settings = settings or HttpSettings()
        self._counters = counters or NoCounters()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._grace = 0.0
        self.port = self._settings.port

    def start(self) -> None:
        """Listen; when this returns, requests are taken, and ``port`` is the one in use.

        Raises:
            GatewayError: the address is taken, or the certificate or key cannot be used.
        """
        listener = self._listen()
        self.port = listener.getsockname()[1]
        try:
            config = self._config(listener)
        except GatewayError:
            listener.close()
            raise
        self._thread = threading.Thread(target=self._run, args=(config,), name="http-gateway", daemon=True)
        self._thread.start()
        if not self._ready.wait(_START_SECONDS) or self._failure is not None:
            raise GatewayError(f"the HTTP gateway did not start: {self._failure or 'no answer'}") from self._failure

    @property
    def alive(self) -> bool:
        """Whether it is listening; False before the start, after the stop, and when it ended by itself."""
        return self._thread is not None and self._thread.is_alive() and self._failure is None

    def replace(self, routes: Sequence[HttpRoute]) -> None:
        """Listen at these routes from the next request on; what is in flight finishes under the old ones."""
        self._routes.replace(routes)

    def stop(self, grace: float = 10.0) -> None:
        """Refuse new messages (503), finish those in flight for up to *grace* seconds, then close all connections.

        What is in flight after that gets no answer: its sender repeats it. Does nothing when not running.
        """
        if self._thread is None or self._loop is None or self._stop is None:
            return
        self._grace = grace
        try:
            self._loop.call_soon_threadsafe(self._stop.set)
        except RuntimeError:
            _logger.debug("the gateway had ended before it was stopped")
        self._thread.join(grace + 2 * _CLOSE_SECONDS)
        self._thread = None

    def _run(self, config: Config) -> None:
        try:
            asyncio.run(self._serve(config))
        except Exception as error:
            # Handed to start() while that waits; afterwards the log is all there is.
            self._failure = error
            _logger.exception("the HTTP gateway ended")
        finally:
            self._ready.set()

    async def _serve(self, config: Config) -> None:
        limits = RequestLimits(
            max_body_bytes=self._settings.max_body_bytes,
            timeout=self._settings.request_timeout,
            max_in_flight=self._settings.max_in_flight,
            retry_after=self._settings.retry_after,
        )
        application = GatewayApplication(
            self._routes, self._inbox, limits, self._counters, Guard(self._settings.access)
        )
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        close = asyncio.Event()
        server = asyncio.create_task(
            serve(cast(Framework, application), config, shutdown_trigger=close.wait, mode="asgi")
        )
        started = asyncio.create_task(application.started.wait())
        await asyncio.wait((server, started), return_when=asyncio.FIRST_COMPLETED)
        if not server.done():
            self._ready.set()
            stop = asyncio.create_task(self._stop.wait())
            await asyncio.wait((server, stop), return_when=asyncio.FIRST_COMPLETED)
            await self._close(application, close, server)
        if server.done() and not server.cancelled():
            server.result()

    async def _close(self, application: GatewayApplication, close: asyncio.Event, server: asyncio.Task[None]) -> None:
        application.stopping = True
        try:
            async with asyncio.timeout(self._grace):
                await application.drained()
        except TimeoutError:
            _logger.warning("requests are still in flight after %s s; their senders get no answer", self._grace)
        close.set()
        await asyncio.wait((server,), timeout=_CLOSE_SECONDS)
        server.cancel()
        await asyncio.wait((server,), timeout=_CLOSE_SECONDS)

    def _listen(self) -> socket.socket:
        host, port = self._settings.host, self._settings.port
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((host, port), family=family, backlog=1024)
        except OSError as error:
            raise GatewayError(
                f"the HTTP gateway cannot listen on {host}:{port}: {error.strerror or error}; choose another port, or "
                f"stop what uses it"
            ) from error

    def _config(self, listener: socket.socket) -> Config:
        settings = self._settings
        config = Config()
        config.errorlog = logging.getLogger("bindings.http.server")
        config.include_server_header = False
        config.h11_max_incomplete_size = settings.max_header_bytes
        config.h2_max_header_list_size = settings.max_header_bytes
        config.keep_alive_timeout = settings.request_timeout
        config.keep_alive_max_requests = 1_000_000
        config.graceful_timeout = 0.1  # by then nothing is in flight, or its grace is over
        if settings.tls_certificate or settings.tls_key or settings.tls_clients:
            self._use_tls(config)
        # The server owns the socket from here on.
        config.bind = [f"fd://{listener.detach()}"]
        return config

    def _use_tls(self, config: Config) -> None:
        certificate, key = self._settings.tls_certificate, self._settings.tls_key
        if certificate is None or key is None:
            raise GatewayError("TLS needs both a certificate and a key; give tls_certificate and tls_key, or neither")
        config.certfile, config.keyfile = str(certificate), str(key)
        clients = self._settings.tls_clients
        if clients is not None:
            config.ca_certs, config.verify_mode = str(clients), ssl.CERT_REQUIRED
        try:
            config.create_ssl_context()
        except (OSError, ssl.SSLError) as error:
            names = f"certificate {certificate} with key {key}" + (f" and authorities {clients}" if clients else "")
            raise GatewayError(f"{names} cannot be used: {error}") from error
