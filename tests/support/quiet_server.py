"""An HTTP server of the tests that does not mind when a client leaves before its answer, as a killed router does."""

from __future__ import annotations

import ssl
import sys
from http.server import ThreadingHTTPServer
from typing import Any, Final

LEFT: Final = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)


class QuietServer(ThreadingHTTPServer):
    """The library's, which prints a traceback for every fault of a request; this one only for those of our own."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print a fault, unless it is that the client has left."""
        if not isinstance(sys.exception(), LEFT):
            super().handle_error(request, client_address)
