"""A real nats-server for tests, in a process of its own on loopback: never a mock, and never a skip."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import nats
import nkeys  # type: ignore[import-untyped]
from nats.aio.client import Client

from bindings.gateways import EndpointSubscription
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

    def __exit__(self, *_: object) -> None:
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


# Subscriptions of tests, and JetStream's own view.

STREAM, DURABLE = "S", "taker"
T = TypeVar("T")


def core(subject: str, **options: Any) -> EndpointSubscription:
    """Take a subject of core NATS."""
    return EndpointSubscription("/endpoints/core", subject, options)


def stream(subject: str = "js.>", **options: Any) -> EndpointSubscription:
    """Take a subject of the stream that :func:`make_stream` makes."""
    return EndpointSubscription("/endpoints/stream", subject, {"stream": STREAM, "durable": DURABLE, **options})


def with_client(server: NatsServer, work: Callable[[Client], Awaitable[T]]) -> T:
    """Do something with nats-py's own client."""

    async def done() -> T:
        client = await nats.connect(server.uri)
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(done())


def make_stream(server: NatsServer, subjects: Sequence[str] = ("js.>",), **settings: Any) -> None:
    """Make the stream that :func:`stream` takes."""

    async def make(client: Client) -> None:
        await client.jetstream().add_stream(name=STREAM, subjects=list(subjects), **settings)

    with_client(server, make)


def consumer(server: NatsServer, durable: str = DURABLE) -> Any:
    """Return what JetStream knows of the consumer."""
    return with_client(server, lambda client: client.jetstream().consumer_info(STREAM, durable))


# What NATS servers and clients in tests prove who they are with: certificates, nkeys, accounts with their users.

PREFIXES: Final = {
    "operator": nkeys.PREFIX_BYTE_OPERATOR,
    "account": nkeys.PREFIX_BYTE_ACCOUNT,
    "user": nkeys.PREFIX_BYTE_USER,
}


@dataclass(frozen=True, slots=True)
class Key:
    """An nkey: what is kept, and what is shown."""

    seed: str
    public: str


@dataclass(frozen=True, slots=True)
class Accounts:
    """An operator's server settings, and a credentials file of one user of its one account."""

    settings: dict[str, Any]
    credentials: Path


def key(kind: str = "user") -> Key:
    """Make an nkey."""
    seed = nkeys.encode_seed(os.urandom(32), PREFIXES[kind])
    return Key(bytes(seed).decode(), nkeys.from_seed(bytearray(seed)).public_key.decode())


def accounts(folder: Path) -> Accounts:
    """Make an operator, an account with JetStream's limits open, and the credentials file of a user."""
    operator, account, user = key("operator"), key("account"), key("user")
    limits = {"subs": -1, "conn": -1, "leaf": -1, "imports": -1, "exports": -1, "data": -1, "payload": -1}
    held = {"mem_storage": 2**26, "disk_storage": 2**28, "streams": -1, "consumer": -1}
    account_jwt = _jwt(operator, account.public, {"type": "account", "limits": {**limits, **held}})
    user_jwt = _jwt(account, user.public, {"type": "user", "subs": -1, "data": -1, "payload": -1})
    credentials = folder / "user.creds"
    credentials.write_text(
        f"-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    )
    operator_jwt = folder / "operator.jwt"
    operator_jwt.write_text(_jwt(operator, operator.public, {"type": "operator"}))
    settings = {
        "operator": str(operator_jwt),
        "resolver": "MEMORY",
        "resolver_preload": {account.public: account_jwt},
    }
    return Accounts(settings, credentials)


def _jwt(issuer: Key, subject: str, claims: dict[str, Any]) -> str:
    header = _encoded({"typ": "JWT", "alg": "ed25519-nkey"})
    body = {"jti": "T", "iat": 1, "iss": issuer.public, "name": "test", "sub": subject}
    payload = _encoded({**body, "nats": {**claims, "version": 2}})
    signed = f"{header}.{payload}"
    signature = nkeys.from_seed(bytearray(issuer.seed.encode())).sign(signed.encode())
    return f"{signed}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def _encoded(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()
