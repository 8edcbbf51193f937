"""TLS of one connection: whom to trust, and what we show; files are read anew when they change."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from catalog.errors import DocumentError


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: authorities to trust instead of the system's, our own certificate, and its private key."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def context(self, origin: str) -> ssl.SSLContext:
        """Return the context of connections to *origin*; servers are always verified.

        Raises:
            DocumentError: a file cannot be used.
        """
        try:
            stamps = tuple(os.stat(path).st_mtime_ns for path in (self.ca, self.certificate, self.key) if path)
            return _context(self, stamps)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            named = ", ".join(str(path) for path in (self.ca, self.certificate, self.key) if path)
            hint = "give PEM files, the key without a password"
            text = f"the certificates for {origin} cannot be used: {reason} ({named})"
            raise DocumentError(text, file=origin, hint=hint) from error


@lru_cache(maxsize=16)
def _context(files: Certificates, stamps: tuple[int, ...]) -> ssl.SSLContext:
    """Make a context; reading certificates costs more than a fetch, so once for each state of the files is enough."""
    import httpx  # only who reads from the network pays for it

    context = ssl.create_default_context(cafile=str(files.ca)) if files.ca else httpx.create_ssl_context()
    if files.certificate is not None:
        # An empty password: a key that is encrypted fails here, instead of asking on the terminal.
        context.load_cert_chain(files.certificate, files.key, password="")
    return context
