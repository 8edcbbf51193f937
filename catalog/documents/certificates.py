"""TLS of one connection: whom to trust, and what we show; files are read anew when they change."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from catalog.errors import DocumentError
from catalog.parsing.regular import read_regular


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: authorities to trust instead of the system's, our own certificate, and its private key.

    ``texts`` are their contents where they travel to machines that have no such files; see :meth:`as_texts`.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    texts: tuple[str, str, str] | None = field(default=None, repr=False)

    def as_texts(self) -> Certificates:
        """Return these certificates with the contents that the files have now, for another machine.

        Raises:
            DocumentError: a file cannot be read.
        """
        try:
            ca, certificate, key = ("" if path is None else read_regular(path).decode() for path in self._files)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            named = ", ".join(str(path) for path in self._files if path)
            raise DocumentError(f"certificates cannot be read: {reason} ({named})", hint="check the paths") from error
        return replace(self, texts=(ca, certificate, key))

    @property
    def _files(self) -> tuple[Path | None, Path | None, Path | None]:
        return self.ca, self.certificate, self.key

    def context(self, origin: str) -> ssl.SSLContext:
        """Return the context of connections to *origin*; servers are always verified.

        Raises:
            DocumentError: a file cannot be used.
        """
        try:
            held = self._files if self.texts is None else ()
            stamps = tuple(os.stat(path).st_mtime_ns for path in held if path)
            return _context(self, stamps)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            named = ", ".join(str(path) for path in self._files if path)
            hint = "give PEM files, the key without a password"
            text = f"the certificates for {origin} cannot be used: {reason} ({named})"
            raise DocumentError(text, file=origin, hint=hint) from error


@lru_cache(maxsize=16)
def _context(files: Certificates, stamps: tuple[int, ...]) -> ssl.SSLContext:
    """Make a context; reading certificates costs more than a fetch, so once for each state of the files is enough."""
    import httpx  # only who reads from the network pays for it

    if files.texts is not None:
        return _context_of_texts(*files.texts)
    context = ssl.create_default_context(cafile=str(files.ca)) if files.ca else httpx.create_ssl_context()
    if files.certificate is not None:
        # An empty password: a key that is encrypted fails here, instead of asking on the terminal.
        context.load_cert_chain(files.certificate, files.key, password="")
    return context


def _context_of_texts(ca: str, certificate: str, key: str) -> ssl.SSLContext:
    import httpx

    context = ssl.create_default_context(cadata=ca) if ca else httpx.create_ssl_context()
    if certificate:
        # OpenSSL reads a private key from files alone; this folder is its owner's, and gone after the call.
        with TemporaryDirectory() as folder:
            chain = Path(folder) / "own.pem"
            chain.write_text(f"{certificate}\n{key}")
            context.load_cert_chain(chain, password="")
    return context
