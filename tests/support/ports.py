"""Loopback ports for servers that have to come back on the port they had."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LOOPBACK: Final = "127.0.0.1"
LOWEST: Final = 15000
FALLBACK_CEILING: Final = 32768
ATTEMPTS: Final = 500
_CLAIMED: Final[dict[int, int]] = {}


def free_ports(count: int) -> tuple[int, ...]:
    """Return *count* different ports of the loopback address that nothing listens on.

    They lie below the range the kernel takes outgoing ports from. While a killed broker is down, its clients keep
    connecting to its port; if that were in the range, one of them would sooner or later get it as its own port,
    be connected to itself, and keep the broker from coming back.

    Each is given to one process of tests until that ends, and to it once: between here and the server that takes the
    port, and while a server is down, nobody else gets it.
    """
    ceiling = _ephemeral_floor()
    with ExitStack() as held:
        ports: list[int] = []
        for _ in range(ATTEMPTS):
            if len(ports) == count:
                return tuple(ports)
            candidate = random.randrange(LOWEST, ceiling)
            if candidate not in ports and _bind(candidate, held) and _claim(candidate):
                ports.append(candidate)
    raise OSError(f"found no {count} free ports between {LOWEST} and {ceiling} on {LOOPBACK}")


def _bind(port: int, held: ExitStack) -> bool:
    server = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    try:
        server.bind((LOOPBACK, port))
    except OSError:
        return False
    return True


def _claim(port: int) -> bool:
    """Lock the port's file until this process ends; False when another process of tests, or we ourselves, did."""
    if port in _CLAIMED:
        return False
    folder = Path(tempfile.gettempdir()) / "xrouter-test-ports"
    folder.mkdir(exist_ok=True)
    descriptor = os.open(folder / str(port), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    _CLAIMED[port] = descriptor
    return True


def _ephemeral_floor() -> int:
    """Return the first port the kernel gives to outgoing connections, where it says so."""
    told = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if not told.exists():
        return FALLBACK_CEILING
    floor = int(told.read_text().split()[0])
    return floor if floor > LOWEST + ATTEMPTS else FALLBACK_CEILING


# A certificate authority of a test's own, made with the ``openssl`` command.

LIMIT_SECONDS: Final = 60
RSA: Final = ("-newkey", "rsa:2048", "-nodes")
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

    def sign(self, name: str, *, alternatives: str = "", days: int = 2, key: Sequence[str] = _KEY) -> Pair:
        """Return a certificate for *name*; *alternatives* such as ``DNS:localhost,IP:127.0.0.1``."""
        pair = Pair(self._folder / f"{self._name}-{name}.pem", self._folder / f"{self._name}-{name}.key")
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extensions.write_text(
            "authorityKeyIdentifier=keyid\n" + (f"subjectAltName={alternatives}\n" * bool(alternatives))
        )
        _openssl("req", *key, "-keyout", str(pair.key), "-out", str(request), "-subj", f"/CN={name}")
        by = ("-CA", str(self.certificate), "-CAkey", str(self._key), "-CAcreateserial", "-days", str(days))
        made = ("-out", str(pair.certificate), "-extfile", str(extensions))
        _openssl("x509", "-req", "-in", str(request), *by, *made)
        return pair


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_SECONDS)
    if done.returncode != 0:
        raise RuntimeError(f"openssl {arguments[0]} failed:\n{done.stderr.decode('utf-8', 'replace')}")
