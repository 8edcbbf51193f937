"""A certificate authority of a test's own, made with the ``openssl`` command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LIMIT_SECONDS: Final = 60
_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates; ``certificate`` is what others have to trust."""

    def __init__(self, folder: Path, name: str = "tests") -> None:
        self._folder = folder
        self._name = name
        self.certificate, self._key = folder / f"{name}-ca.pem", folder / f"{name}-ca.key"
        folder.mkdir(parents=True, exist_ok=True)
        made = ("-keyout", str(self._key), "-out", str(self.certificate))
        usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
        _openssl("req", "-x509", *_KEY, *made, "-days", "2", "-subj", f"/CN={name} authority", *usage)

    def sign(self, name: str, *, alternatives: str = "", days: int = 2) -> Pair:
        """Return a certificate for *name*; *alternatives* such as ``DNS:localhost,IP:127.0.0.1``."""
        pair = Pair(self._folder / f"{self._name}-{name}.pem", self._folder / f"{self._name}-{name}.key")
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extensions.write_text(
            "authorityKeyIdentifier=keyid\n" + (f"subjectAltName={alternatives}\n" * bool(alternatives))
        )
        _openssl("req", *_KEY, "-keyout", str(pair.key), "-out", str(request), "-subj", f"/CN={name}")
        by = ("-CA", str(self.certificate), "-CAkey", str(self._key), "-CAcreateserial", "-days", str(days))
        made = ("-out", str(pair.certificate), "-extfile", str(extensions))
        _openssl("x509", "-req", "-in", str(request), *by, *made)
        return pair


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_SECONDS)
    if done.returncode != 0:
        raise RuntimeError(f"openssl {arguments[0]} failed:\n{done.stderr.decode('utf-8', 'replace')}")
