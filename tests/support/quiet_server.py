"""An HTTP server of the tests that does not mind when a client leaves before its answer, as a killed router does."""

from __future__ import annotations

import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from tests.support.authority import Pair
from tests.support.ports import LOOPBACK

LEFT: Final = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)


class QuietHandler(BaseHTTPRequestHandler):
    """The library's, without a line for each request."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class QuietServer(ThreadingHTTPServer):
    """The library's, which prints a traceback for every fault of a request; this one only for those of our own.

    It serves from ``start`` to ``stop``, by TLS with a context or a certificate.
    """

    daemon_threads = True

    def __init__(
        self, handler: type[BaseHTTPRequestHandler], port: int = 0, tls: ssl.SSLContext | Pair | None = None
    ) -> None:
        super().__init__((LOOPBACK, port), handler)
        if isinstance(tls, Pair):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.certificate, tls.key)
            tls = context
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.scheme: Final = "http" if tls is None else "https"
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        """Its address."""
        return f"{self.scheme}://{LOOPBACK}:{self.server_port}"

    def start(self) -> None:
        """Serve on a thread."""
        self._thread.start()

    def stop(self) -> None:
        """End, and close the port."""
        self.shutdown()
        self._thread.join()
        self.server_close()

    def get_request(self) -> tuple[Any, Any]:
        """Return the next connection; one that does not get through its handshake is none."""
        try:
            return super().get_request()
        except ssl.SSLError as error:
            raise OSError("no handshake") from error

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print a fault, unless it is that the client has left."""
        if not isinstance(sys.exception(), LEFT):
            super().handle_error(request, client_address)
