"""A real nats-server for tests, in a process of its own on loopback: never a mock, and never a skip."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, TypeVar

import nats
import nkeys  # type: ignore[import-untyped]
from nats.aio.client import Client

from bindings.gateways import Connection, EndpointSubscription, GatewayConfig, GatewayLimits, RowStore
from bindings.inbox import InboxFull
from bindings.nats.binding import build
from bindings.nats.gateway import NatsGateway
from bindings.parts import InboxRow
from tests.support import deployed
from tests.support.ports import LOOPBACK, free_ports
from tests.support.processes import BrokerFailed, BrokerProcess
from tests.support.shop import Counts
from tests.support.waiting import wait_until

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


# What tests of the NATS gateway share: stores and counters that tell, a short way to run it, JetStream's own view.

SECONDS = 120
STREAM, DURABLE = "S", "taker"
T = TypeVar("T")


class Kept:
    """A store in memory that can be told to be full."""

    def __init__(self) -> None:
        self.rows: list[InboxRow] = []
        self.appends = 0
        self.full = False

    def append_many(self, rows: Sequence[InboxRow]) -> Future[None]:
        """Keep rows at once, or none."""
        self.appends += 1
        done: Future[None] = Future()
        if self.full:
            done.set_exception(InboxFull("the disk is full; free some space"))
        else:
            self.rows += rows
            done.set_result(None)
        return done


class Held(Kept):
    """A store that resolves when told to, as a slow disk would."""

    def __init__(self) -> None:
        super().__init__()
        self.futures: list[Future[None]] = []

    def append_many(self, rows: Sequence[InboxRow]) -> Future[None]:
        """Keep rows, and the promise open."""
        self.rows += rows
        self.futures.append(Future())
        return self.futures[-1]

    def release(self) -> None:
        """Keep all promises made so far: keeping one may bring the next, in the gateway's thread."""
        for future in list(self.futures):
            if not future.done():
                future.set_result(None)


def core(subject: str, **options: Any) -> EndpointSubscription:
    """Take a subject of core NATS."""
    return EndpointSubscription("/endpoints/core", subject, options)


def stream(subject: str = "js.>", **options: Any) -> EndpointSubscription:
    """Take a subject of the stream that :func:`make_stream` makes."""
    return EndpointSubscription("/endpoints/stream", subject, {"stream": STREAM, "durable": DURABLE, **options})


def natives(rows: Sequence[InboxRow]) -> list[dict[str, Any]]:
    """Return the native form of rows."""
    return [build(list(row.properties)) for row in rows]


def made(
    server: NatsServer | Connection,
    store: RowStore,
    *subscriptions: EndpointSubscription,
    counts: Counts,
    limits: GatewayLimits,
) -> NatsGateway:
    """Return a gateway that is not yet started."""
    connection = server if isinstance(server, Connection) else Connection((server.uri,))
    return NatsGateway(GatewayConfig(connection, subscriptions, store, "test", limits, counts))


@contextmanager
def running(
    server: NatsServer | Connection,
    store: RowStore,
    *subscriptions: EndpointSubscription,
    counts: Counts | None = None,
    limits: GatewayLimits | None = None,
) -> Iterator[NatsGateway]:
    """Run a gateway that is connected, and stop it."""
    gateway = made(server, store, *subscriptions, counts=counts or Counts(), limits=limits or GatewayLimits())
    gateway.start()
    try:
        wait_until(lambda: gateway.connected, SECONDS, lambda: f"a connection: {gateway.trouble}")
        yield gateway
    finally:
        gateway.stop(1.0)


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


@dataclass(frozen=True, slots=True)
class Certificates:
    """A CA, and a certificate of its own making for a server at 127.0.0.1 and for a client."""

    ca: Path
    certificate: Path
    key: Path


def certificates(folder: Path, name: str = "127.0.0.1") -> Certificates:
    """Make them with openssl; *name* is the address that the certificate is for."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Certificates(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    authority = ["-x509", "-subj", "/CN=test CA", "-keyout", str(folder / "ca.key"), "-out", str(made.ca)]
    kind = "IP" if name[0].isdigit() else "DNS"
    leaf = ["-x509", "-subj", "/CN=leaf", "-keyout", str(made.key), "-out", str(made.certificate)]
    leaf += ["-CA", str(made.ca), "-CAkey", str(folder / "ca.key"), "-addext", f"subjectAltName={kind}:{name}"]
    leaf += ["-addext", "basicConstraints=critical,CA:FALSE"]
    for arguments in (authority, leaf):
        subprocess.run(["openssl", "req", *curve, *arguments], check=True, capture_output=True, timeout=60)
    return made
