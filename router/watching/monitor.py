"""The router's monitoring server: metrics, health, and the status page on one port."""

# Small: what the router adds to the server that it shares with the registry.

from __future__ import annotations

import socket
from typing import Protocol

from bindings.gateways import GatewayError
from bindings.http.monitor import MetricsServer
from bindings.http.request import Reply, RequestHead
from bindings.http.server import AcceptedRequest
from router.errors import ConfigError
from router.watching.metrics import Metrics, StatusCollector
from router.watching.status import RouterStatus


class ExtraPages(Protocol):
    """Pages beside metrics and health. Called on the server's thread."""

    def admit(self, head: RequestHead) -> AcceptedRequest | Reply | None:
        """Answer or accept a request by its head; return None if the path is not one of these pages."""


class MonitorServer(MetricsServer):
    """Serves metrics, status and pages in a separate thread; can be started and stopped once.

    ``port`` 0 selects a free port; after :meth:`start`, ``port`` is the one in use.
    """

    def __init__(
        self, host: str, port: int, metrics: Metrics, status: RouterStatus, pages: ExtraPages | None = None
    ) -> None:
        metrics.registry.register(StatusCollector(status))
        checks = {b"/healthz": status.check_health, b"/readyz": status.check_readiness}
        super().__init__("metrics server", (host, port), metrics.registry, checks)
        self._pages = pages

    @property
    def base_url(self) -> str:
        """The URL of the server, without path."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def start(self) -> None:
        """Listen; requests are answered when this returns.

        Raises:
            ConfigError: the port is taken or not allowed (``metrics.port``), or the host is unknown (``metrics.host``).
        """
        try:
            super().start()
        except GatewayError as error:
            if isinstance(error.__cause__, socket.gaierror):
                hint = "set metrics.host to an address of this machine, such as 127.0.0.1"
                raise ConfigError(str(error), key="metrics.host", hint=hint) from error
            hint = "set metrics.port to another port, or to 0 for a free one, or stop what uses it"
            raise ConfigError(str(error), key="metrics.port", hint=hint) from error

    def admit(self, head: RequestHead) -> AcceptedRequest | Reply:
        """Answer a request, or pass it to the pages."""
        page = None if self._pages is None else self._pages.admit(head)
        return super().admit(head) if page is None else page
