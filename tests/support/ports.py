"""Loopback ports for servers that have to come back on the port they had."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from contextlib import ExitStack
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
