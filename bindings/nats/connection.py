"""One connection to a NATS server: its address, its login, and what nats-py does not do by itself.

A client lives for one connection. Reconnecting is up to its owner (:mod:`bindings.nats.gateway`), because nats-py gives
up for good on errors that an operator mends, such as a changed password.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import nkeys  # type: ignore[import-untyped]
from nats import errors
from nats.aio.client import Client, RawCredentials
from nats.aio.subscription import Subscription as ClientSubscription

from bindings.addresses import Address, addresses_of, tls_context
from bindings.gateways import BrokerLogin, Connection, GatewayError, Tls
from bindings.nats.binding import NatsDelivery, NatsSending
from catalog.parsing.regular import read_regular

CONNECT_SECONDS: Final = 5
CLOSE_SECONDS: Final = 5.0
_GIVE_UP_SECONDS: Final = 0.5
_PING_SECONDS: Final = 10
_CREDENTIALS_MARKS: Final = ("BEGIN NATS USER JWT", "BEGIN USER NKEY SEED")

Sink = Callable[[NatsDelivery], None]
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Dialling:
    """How to connect to any of a connection's servers; made and checked once, by :func:`dialling_of`."""

    addresses: tuple[Address, ...]
    login: BrokerLogin
    context: ssl.SSLContext
    name: str


def dialling_of(connection: Connection, name: str) -> Dialling:
    """Check a connection and return how to make it; *name* is what the server shows to its operators.

    Raises:
        GatewayError: a malformed address, or a certificate or credentials file that cannot be used.
    """
    if not connection.uris:
        raise GatewayError(f"{name}: there is no server to connect to; give an address such as nats://host:4222")
    addresses = addresses_of(NatsSending.form, connection)
    _credentials(connection.login)
    return Dialling(addresses, connection.login, tls_context(connection.tls or Tls()), name)


class RawClient(Client):
    """nats-py's client, with messages as the bytes they came in and commands as the bytes they go out in.

    nats-py makes headers a map and decodes subjects strictly, so that repeats are lost and one subject that is no UTF-8
    ends its reading. The methods overridden here are not public; ``test_nats_connection.py`` fails when they change.
    """

    def __init__(self, address: Address) -> None:
        super().__init__()
        self._address = address
        self._sinks: dict[int, Sink] = {}
        self._taken: dict[int, ClientSubscription] = {}
        self.ended = asyncio.Event()
        self.denied = ""
        """What the server last forbade on this connection; it does not end it."""
        self.fault = ""
        """What ended the connection, or kept it from being made."""

    async def take(self, subject: str, queue: str, sink: Sink) -> int:
        """Subscribe, and give every message to *sink*, which runs in the reading of the connection and may not wait.

        Returns the number to :meth:`untake` it with.

        Raises:
            nats.errors.Error: the connection is closed.
        """
        # subscribe() takes the next number before it first waits, so no message comes ahead of its sink.
        number = self._sid + 1
        self._sinks[number] = sink
        try:
            self._taken[number] = await self.subscribe(subject, queue=queue)
        except errors.Error:
            del self._sinks[number]
            raise
        return number

    async def untake(self, number: int) -> None:
        """End a subscription; what the server had sent by then still reaches the sink.

        Raises:
            nats.errors.Error: the connection is closed, or does not answer.
        """
        try:
            await self._taken.pop(number).unsubscribe()
            await self._flush_pending(force_flush=True)
            await self.flush()
        finally:
            self._sinks.pop(number, None)

    async def command(self, commands: bytes) -> None:
        """Send protocol commands as they are; when it returns, they are on their way, ahead of any later PING.

        A PING does not go through nats-py's buffer, so one that is sent at once would overtake them.

        Raises:
            nats.errors.Error: the connection is closed.
        """
        if not self.is_connected:
            raise errors.ConnectionClosedError
        await self._send_command(commands)
        await self._flush_pending(force_flush=True)

    async def end(self, limit: float = CLOSE_SECONDS) -> None:
        """Close the connection, within *limit* seconds."""
        with contextlib.suppress(errors.Error, OSError, TimeoutError):
            async with asyncio.timeout(limit):
                await self.close()
        self.ended.set()

    async def closed(self) -> None:
        """Take note that nats-py closed the connection."""
        self.fault = self.fault or (_reason(self.last_error) if self.last_error else "the server closed the connection")
        self.ended.set()

    async def noticed(self, error: Exception) -> None:
        """Take note of what nats-py reports."""
        text = _reason(error)
        if "permissions violation" in text.lower():
            self.denied = text
        elif not isinstance(error, errors.NoServersError):
            self.fault = text

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        sink = self._sinks.get(sid)
        if sink is not None:
            sink(NatsDelivery(subject, reply, data, headers or b""))
            return
        try:
            await super()._process_msg(sid, subject, reply, data, headers)  # type: ignore[arg-type]
        except ValueError:
            # Text that is no UTF-8 in what should be an answer of the server; raised on, it would end the reading.
            _logger.warning("%s: an answer that is no text was ignored", self._address)

    async def _read_loop(self) -> None:
        # However reading ends, no message comes any more; nats-py does not always say so.
        try:
            await super()._read_loop()
        except OSError as error:
            self.fault = self.fault or _reason(error)
        finally:
            if self.last_error is not None:
                self.fault = self.fault or _reason(self.last_error)
            self.ended.set()

    async def _process_op_err(self, e: Exception) -> None:
        # What waits to be sent can no longer be; trying it would break off nats-py's own cleaning up.
        self.fault = self.fault or _reason(e)
        self._pending.clear()
        self._pending_data_size = 0
        await super()._process_op_err(e)

    def _connect_command(self) -> bytes:
        # nats-py encrypts when the server says so, and would send credentials in the clear to one that does not.
        if self._address.tls and not self._server_info.get("tls_required"):
            raise errors.Error(
                "the server offers no TLS; enable it there, or use a nats:// address without tls settings"
            )
        return super()._connect_command()


class ConnectFault(Exception):
    """A connection that was not made; the message names the server and the reason, without secrets."""


async def connect(dialling: Dialling, address: Address) -> RawClient:
    """Connect to one server.

    Raises:
        ConnectFault: it did not work; trying again later may.
    """
    client = RawClient(address)
    try:
        await client.connect(
            address.url,
            name=dialling.name,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=CONNECT_SECONDS,
            ping_interval=_PING_SECONDS,
            max_outstanding_pings=2,
            tls=dialling.context,
            error_cb=client.noticed,
            closed_cb=client.closed,
            **_credentials(dialling.login, address),
        )
    except (errors.Error, OSError, ValueError, TimeoutError, GatewayError) as error:
        # After a handshake that failed, nats-py waits for a close that nobody reports.
        await client.end(_GIVE_UP_SECONDS)
        reason = client.fault if isinstance(error, errors.NoServersError) and client.fault else _reason(error)
        raise ConnectFault(f"{address}: {reason}") from error
    return client


def _reason(error: BaseException) -> str:
    """Return one line about a fault of the connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the server is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = (error.strerror or "") if isinstance(error, OSError) else ""
    text = text or str(error) or type(error).__name__
    return " ".join(text.removeprefix("nats: ").split())[:300]


def _credentials(login: BrokerLogin, address: Address | None = None) -> dict[str, Any]:
    """Return the client's arguments for logging in; files are read anew, so that a renewed one counts.

    Raises:
        GatewayError: a file cannot be read, or does not hold what it should.
    """
    if login.credentials is not None:
        text = _read(login.credentials, "credentials")
        if not all(mark in text for mark in _CREDENTIALS_MARKS):
            raise GatewayError(f"{login.credentials} is no NATS credentials file; it needs a user JWT and an nkey seed")
        return {"user_credentials": RawCredentials(text)}
    if login.seed is not None:
        seed = _read(login.seed, "nkey seed").strip()
        try:
            nkeys.from_seed(bytearray(seed.encode())).wipe()
        except (nkeys.NkeysError, ValueError) as error:
            raise GatewayError(f"{login.seed} holds no nkey seed; it should be one line that begins with SU") from error
        return {"nkeys_seed_str": seed}
    if login.token is not None:
        return {"token": login.token}
    if login.username is not None:
        return {"user": login.username, "password": login.password or ""}
    if address is not None and address.username is not None:
        if not address.password:
            return {"token": address.username}
        return {"user": address.username, "password": address.password}
    return {}


def _read(path: Path, what: str) -> str:
    try:
        return read_regular(path).decode("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise GatewayError(
            f"the {what} file {path} cannot be read: {reason}; give one that this user may read"
        ) from None


# Waiting with a limit.


async def within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, but no longer than *seconds*; tell whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
