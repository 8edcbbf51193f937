"""A real nats-server for tests, in a process of its own on loopback: never a mock, and never a skip."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final

from tests.support import deployed
from tests.support.ports import LOOPBACK, free_ports
from tests.support.processes import BrokerFailed, BrokerProcess

GIVEN_VARIABLE: Final = "XROUTER_TEST_NATS"
DEBIAN: Final = "/usr/sbin/nats-server"
READY_SECONDS: Final = 120.0


def nats_server() -> str:
    """Return the program: the one that is given, else the one on the path, else Debian's.

    Raises:
        BrokerFailed: there is none.
    """
    found = os.environ.get(GIVEN_VARIABLE) or shutil.which("nats-server") or DEBIAN
    if not os.access(found, os.X_OK):
        raise BrokerFailed(f"{found} cannot be run: install the package nats-server, or set {GIVEN_VARIABLE}")
    return found


class NatsServer(BrokerProcess):
    """A server that keeps its port and its JetStream data through :meth:`kill` and :meth:`start`.

    *settings* are added to the file of docker-compose.yml, in JSON: ``authorization``, ``tls``, ``max_payload`` …
    Should the process of the tests die, even by SIGKILL, a guard kills the server.
    """

    stop_seconds = 10.0
    base: ClassVar[Path] = deployed.NATS

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder)
        (self.port,) = free_ports(1)
        folder.mkdir(parents=True, exist_ok=True)
        self.configure(**settings)

    @property
    def uri(self) -> str:
        """Where it listens; the same for the life of this object."""
        return f"nats://{LOOPBACK}:{self.port}"

    def configure(self, **settings: Any) -> None:
        """Write other settings, which count from the next start; they are added to those of docker-compose.yml."""
        lines = [f'include "{os.path.relpath(self.base, self._folder)}"']
        lines += [f"{name}: {json.dumps(value)}" for name, value in settings.items()]
        (self._folder / "server.conf").write_text("\n".join(lines) + "\n")

    def start(self) -> NatsServer:
        """Start it, and return when it answers.

        Raises:
            BrokerFailed: it ended, or does not answer within the limit.
        """
        self.launch()
        return self

    @property
    def title(self) -> str:
        return f"nats-server on {self.uri}"

    def _command(self) -> list[str]:
        place = ["-a", LOOPBACK, "-p", str(self.port), "-sd", str(self._folder / "jetstream")]
        return [nats_server(), "-c", str(self._folder / "server.conf"), *place]

    def _ready(self) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=1) as connection:
                return connection.recv(4) == b"INFO"
        except OSError:
            return False

    def __enter__(self) -> NatsServer:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()


class RawSender:
    """A connection that speaks the protocol by itself, so that no client library comes between test and server."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((LOOPBACK, port), timeout=READY_SECONDS)
        self._file = self._socket.makefile("rb")
        assert self._file.readline().startswith(b"INFO")
        self.send(b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"lang":"test","version":"1"}\r\n')

    def send(self, commands: bytes) -> None:
        """Send protocol commands, and return when the server has taken them."""
        self._socket.sendall(commands + b"PING\r\n")
        while (line := self._file.readline()) == b"PING\r\n":
            self._socket.sendall(b"PONG\r\n")
        assert line == b"PONG\r\n", line

    def publish(self, subject: bytes, data: bytes, headers: bytes = b"", reply: bytes = b"") -> None:
        """Publish a message; *headers* is the whole block, or empty."""
        address = b" ".join(filter(None, (subject, reply)))
        if headers:
            command = b"HPUB %s %d %d\r\n%s%s\r\n" % (address, len(headers), len(headers) + len(data), headers, data)
        else:
            command = b"PUB %s %d\r\n%s\r\n" % (address, len(data), data)
        self.send(command)

    def close(self) -> None:
        """Disconnect."""
        self._file.close()
        self._socket.close()
