"""Send to NATS for sinks: every message is confirmed, permanently refused, or must be retried.

A server ends the connection if it considers a message a violation of its protocol. Such a message is found and given up
(:mod:`bindings.sending`); the others are sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import logging
import ssl
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import nkeys  # type: ignore[import-untyped]
from nats import errors
from nats.aio.client import Client, RawCredentials
from nats.aio.subscription import Subscription as ClientSubscription

from bindings.certificates import Address, create_tls_context, parse_addresses
from bindings.gateways import CLOSE_SECONDS, CONNECT_SECONDS, BrokerLogin, Connection, GatewayError, Tls, to_line
from bindings.nats.binding import NatsDelivery, NatsSending, build_header_block, is_subject, parse_status
from bindings.sending import Hangup, MessageRefusal, Outbound, PoisonIsolator, Settled, Unsettled, iter_headers
from catalog.parsing.regular import read_regular

# One connection to a NATS server: address, login, and workarounds for nats-py.
#
# A client lives for one connection. Its owner reconnects (:mod:`bindings.nats.gateway`), because nats-py gives up
# permanently on errors that an operator can fix, such as a changed password.

_CREDENTIALS_MARKS: Final = ("BEGIN NATS USER JWT", "BEGIN USER NKEY SEED")

Sink = Callable[[NatsDelivery], None]
_logger = logging.getLogger(__name__)


class RawClient(Client):
    """nats-py's client, with received messages and sent commands as bytes.

    nats-py makes headers a map and decodes subjects strictly, so that repeats are lost and one subject that is not
    UTF-8 ends its reading. The overridden methods are not public; ``test_nats_connection.py`` fails when they change.
    """

    def __init__(self, address: Address) -> None:
        super().__init__()
        self._address = address
        self._sinks: dict[int, Sink] = {}
        self._subscriptions: dict[int, ClientSubscription] = {}
        self.ended = asyncio.Event()
        self.denied = ""
        """What the server last denied on this connection, without ending it."""
        self.fault = ""
        """Why the connection ended, or could not be made."""

    async def subscribe_raw(self, subject: str, queue: str, sink: Sink) -> int:
        """Subscribe, and pass every message to *sink*, which runs in the connection's reader and must not wait.

        Returns the number for :meth:`unsubscribe_raw`.

        Raises:
            nats.errors.Error: the connection is closed.
        """
        # subscribe() takes the next number before it first waits, so no message comes ahead of its sink.
        number = self._sid + 1
        self._sinks[number] = sink
        try:
            self._subscriptions[number] = await self.subscribe(subject, queue=queue)
        except errors.Error:
            del self._sinks[number]
            raise
        return number

    async def unsubscribe_raw(self, number: int) -> None:
        """Unsubscribe; messages that the server has already sent still reach the sink.

        Raises:
            nats.errors.Error: the connection is closed, or does not answer.
        """
        try:
            await self._subscriptions.pop(number).unsubscribe()
            await self._flush_pending(force_flush=True)
            await self.flush()
        finally:
            self._sinks.pop(number, None)

    async def send_commands(self, commands: bytes) -> None:
        """Send protocol commands unchanged, before any later PING.

        A PING does not go through nats-py's buffer, so one that is sent at once would overtake them.

        Raises:
            nats.errors.Error: the connection is closed.
        """
        if not self.is_connected:
            raise errors.ConnectionClosedError
        await self._send_command(commands)
        await self._flush_pending(force_flush=True)

    async def end_connection(self, limit: float = CLOSE_SECONDS) -> None:
        """Close the connection, within *limit* seconds."""
        with contextlib.suppress(errors.Error, OSError, TimeoutError):
            async with asyncio.timeout(limit):
                await self.close()
        self.ended.set()

    async def on_closed(self) -> None:
        """Record that nats-py closed the connection."""
        self.fault = self.fault or _describe(self.last_error) if self.last_error else "the server closed the connection"
        self.ended.set()

    async def on_error(self, error: Exception) -> None:
        """Record an error that nats-py reports."""
        text = _describe(error)
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
            # Text that is not UTF-8 in a server's answer; if raised, it would end the reading.
            _logger.warning("%s: an answer that is not text was ignored", self._address)

    async def _read_loop(self) -> None:
        # However reading ends, no more messages arrive; nats-py does not always say so.
        try:
            await super()._read_loop()
        except OSError as error:
            self.fault = self.fault or _describe(error)
        finally:
            if self.last_error is not None:
                self.fault = self.fault or _describe(self.last_error)
            self.ended.set()

    async def _process_op_err(self, e: Exception) -> None:
        # Queued data can no longer be sent; trying would break off nats-py's own cleanup.
        self.fault = self.fault or _describe(e)
        self._pending.clear()
        self._pending_data_size = 0
        await super()._process_op_err(e)

    def _connect_command(self) -> bytes:
        # nats-py encrypts when the server says so, and would send credentials in the clear to one that does not.
        if self._address.tls and not self._server_info.get("tls_required"):
            raise errors.Error(
                "the server does not offer TLS; enable it there, or use a nats:// address without tls settings"
            )
        return super()._connect_command()


class ConnectFault(Exception):
    """A failed connection; the message names the server and the reason, without secrets."""


class NatsDialer:
    """Connects to any server of a connection; *name* is our client name on the server.

    Raises:
        GatewayError: a malformed address, or a certificate or credentials file that cannot be used.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        if not connection.uris:
            raise GatewayError(f"{name}: it has no server to connect to; set an address such as nats://host:4222")
        self.addresses = parse_addresses(NatsSending.address_form, connection)
        self.login = connection.login
        _login_arguments(connection.login)
        self._context = create_tls_context(connection.tls or Tls())
        self._name = name

    async def connect(self, address: Address) -> RawClient:
        """Connect to one of the servers.

        Raises:
            ConnectFault: it failed; a later retry may work.
        """
        client = RawClient(address)
        try:
            await client.connect(
                address.url,
                name=self._name,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=5,
                ping_interval=10,
                max_outstanding_pings=2,
                tls=self._context,
                error_cb=client.on_error,
                closed_cb=client.on_closed,
                **_login_arguments(self.login, address),
            )
        except (errors.Error, OSError, ValueError, TimeoutError, GatewayError) as error:
            # After a handshake that failed, nats-py waits for a close that nobody reports.
            await client.end_connection(0.5)
            reason = client.fault if isinstance(error, errors.NoServersError) and client.fault else _describe(error)
            raise ConnectFault(f"{address}: {reason}") from error
        return client


def _describe(error: BaseException) -> str:
    """Describe an error of the connection in one line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the server is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = (error.strerror or "") if isinstance(error, OSError) else ""
    text = text or str(error) or type(error).__name__
    return to_line(text.removeprefix("nats: "))


def _login_arguments(login: BrokerLogin, address: Address | None = None) -> dict[str, Any]:
    """Return the client's login arguments; files are read again, so that a renewed one is used.

    Raises:
        GatewayError: a file cannot be read, or does not contain what it should.
    """
    if login.credentials is not None:
        text = _read_file(login.credentials, "credentials")
        if not all(mark in text for mark in _CREDENTIALS_MARKS):
            raise GatewayError(f"{login.credentials} is not a NATS credentials file; it needs a JWT and an nkey seed")
        return {"user_credentials": RawCredentials(text)}
    if login.seed is not None:
        seed = _read_file(login.seed, "nkey seed").strip()
        try:
            nkeys.from_seed(bytearray(seed.encode())).wipe()
        except (nkeys.NkeysError, ValueError) as error:
            raise GatewayError(f"{login.seed} has no nkey seed; it must be one line that begins with SU") from error
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


def _read_file(path: Path, what: str) -> str:
    try:
        return read_regular(path).decode("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise GatewayError(
            f"the {what} file {path} cannot be read: {reason}; use one that this user may read"
        ) from None


# Waiting.


async def run_until_first(*works: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Run coroutines until one ends, cancel the others, and return the tasks of all, which have ended."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_tasks(tasks)
    return tasks


async def cancel_tasks(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def wait_for_event(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event for at most *seconds*; return whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


MESSAGE_ID: Final = "Nats-Msg-Id"
"""The header by which JetStream recognises a repeat, within the duplicate window of the stream."""
CHUNK_BYTES: Final = 4 * 2**20
"""Maximum bytes of bodies sent before their confirmations are awaited."""
_PERMANENT_ERRORS: Final = frozenset((10054, 10097))
"""JetStream's errors that a retry does not fix: message or headers larger than the stream accepts."""
_NO_RESPONDERS: Final = 503
MAX_IDLE_SECONDS: Final = 60.0
"""Seconds between two sends after which the connection is replaced: only a send serves it."""

T = TypeVar("T")


class NatsPublisher:
    """Sends over one connection, which is opened when first needed and again after it broke.

    Used from one thread at a time, which serves the connection; *timeout* seconds limit each chunk of messages. *sink*
    is part of our name at the server, and of the ids by which JetStream recognises repeats. With *stream* a message
    counts as sent when JetStream acknowledged that it stored it, which replaces the message's ``reply-to``; without,
    when the server has it, which is all that core NATS can confirm: whether anybody received it stays unknown.
    """

    def __init__(self, connection: Connection, *, sink: str, timeout: float, stream: bool) -> None:
        self._connection = connection
        self._sink = sink
        self._name = f"xrouter-{sink}"
        self._timeout = timeout
        self._stream = stream
        self._dialer: NatsDialer | None = None
        self._runner: asyncio.Runner | None = None
        self._used_at = 0.0
        self._client: RawClient | None = None
        self._inbox = ""
        self._numbers = itertools.count()
        self._waiting: dict[bytes, asyncio.Future[MessageRefusal | None]] = {}
        self._isolator = PoisonIsolator()

    def send(self, messages: Sequence[Outbound]) -> list[MessageRefusal | None]:
        """Send messages in order and wait until each is confirmed; return a refusal, or None, for each.

        Raises:
            Unsettled: the server is unreachable, no stream has a subject, or a confirmation is late. Some messages may
                have been stored; sent again with the same ids, JetStream drops the repeats.
            GatewayError: an address, certificate or credentials file has a fault that waiting does not fix.
        """
        return self._isolator.send(messages, lambda part, settled: self._run_in_loop(self._exchange(part, settled)))

    def close(self) -> None:
        """Disconnect; a later send reconnects."""
        runner, self._runner = self._runner, None
        if runner is not None:
            with runner:
                runner.run(self._disconnect())

    def _run_in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        self._runner = self._runner or asyncio.Runner()
        return self._runner.run(work)

    async def _exchange(self, messages: Mapping[int, Outbound], settled: Settled) -> None:
        try:
            client = await self._connect()
        except ConnectFault as error:
            raise Unsettled(str(error)) from error
        try:
            for chunk in _split_into_chunks(messages):
                async with asyncio.timeout(self._timeout):
                    await _unless_ended(client, self._send_chunk(client, chunk, settled))
        except (errors.Error, OSError, TimeoutError) as error:
            ended, fault = client.ended.is_set(), client.fault
            await self._disconnect()  # a late answer must not be attributed to the next attempt
            text = f"{self._name}: {fault or str(error) or 'no confirmation in time'}"
            raise (Hangup(text) if ended else Unsettled(text)) from error

    async def _send_chunk(self, client: RawClient, chunk: Mapping[int, Outbound], settled: Settled) -> None:
        commands: list[bytes] = []
        answers: dict[int, asyncio.Future[MessageRefusal | None] | None] = {}
        for index, message in chunk.items():
            headers = [(name, part.value or b"") for name, part in iter_headers(message.parts)]
            if self._stream:
                reply = f"{self._inbox}.{next(self._numbers)}"
                if all(name != MESSAGE_ID for name, _ in headers):
                    headers.append((MESSAGE_ID, self._message_id(message)))
            else:
                reply = next((part.text for part in message.parts if part.key == "reply-to"), None) or ""
            try:
                commands.append(_publish_command(message, reply, headers, client.max_payload))
            except ValueError as error:
                settled[index] = MessageRefusal(f"{message.address[:200]}: {error}")
            else:
                answers[index] = self._expect_reply(reply) if self._stream else None
        client.denied = ""
        try:
            await client.send_commands(b"".join(commands))
            await client.flush()  # after this, the server has reported whatever it denies
            if client.denied:
                raise Unsettled(f"{self._name}: {client.denied}; permit it on the server")
            for index, answer in answers.items():
                settled[index] = None if answer is None else await answer
        finally:
            self._forget_replies()

    def _message_id(self, message: Outbound) -> bytes:
        """Return the same id for every attempt. It depends on sink and subject, since several may share a stream."""
        text = "\n".join((self._sink, message.address, message.id))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32].encode()

    def _expect_reply(self, reply: str) -> asyncio.Future[MessageRefusal | None]:
        future = asyncio.get_running_loop().create_future()
        self._waiting[reply.encode()] = future
        return future

    def _forget_replies(self) -> None:
        for future in self._waiting.values():
            if future.done() and not future.cancelled():
                future.exception()  # read, so that asyncio does not complain that nobody did
            future.cancel()
        self._waiting.clear()

    def _handle_reply(self, arrival: NatsDelivery) -> None:
        future = self._waiting.get(arrival.subject)
        if future is None or future.done():
            return
        try:
            future.set_result(_read_reply(arrival))
        except Unsettled as error:
            future.set_exception(error)

    async def _connect(self) -> RawClient:
        idle, self._used_at = time.monotonic() - self._used_at, time.monotonic()
        if idle > MAX_IDLE_SECONDS:
            await self._disconnect()  # nobody answered the server meanwhile
        if self._client is not None and not self._client.ended.is_set():
            return self._client
        if self._dialer is None:
            self._dialer = NatsDialer(self._connection, self._name)
        for last, address in enumerate(self._dialer.addresses, 1 - len(self._dialer.addresses)):
            try:
                async with asyncio.timeout(max(self._timeout, CONNECT_SECONDS)):
                    client = await self._dialer.connect(address)
                break
            except (ConnectFault, TimeoutError) as error:
                if last == 0:
                    raise ConnectFault(str(error) or f"{address}: no answer in time") from error
        self._client = client
        self._inbox = client.new_inbox()
        if self._stream:
            await client.subscribe_raw(f"{self._inbox}.*", "", self._handle_reply)
        return client

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.end_connection()


async def _unless_ended(client: RawClient, work: Coroutine[Any, Any, None]) -> None:
    """Wait for *work* until the connection ends; nats-py would wait for its PONG even then.

    Raises:
        nats.errors.Error: the connection has ended.
    """
    working, _ = await run_until_first(work, client.ended.wait())
    if working.cancelled():
        raise errors.ConnectionClosedError
    working.result()


def _split_into_chunks(messages: Mapping[int, Outbound]) -> list[dict[int, Outbound]]:
    chunks: list[dict[int, Outbound]] = []
    size = 0
    for index, message in messages.items():
        size += len(message.body or b"")
        if not chunks or size > CHUNK_BYTES:
            chunks.append({})
            size = len(message.body or b"")
        chunks[-1][index] = message
    return chunks


def _publish_command(message: Outbound, reply: str, headers: Sequence[tuple[str, bytes]], max_payload: int) -> bytes:
    """Return the command that publishes a message.

    Raises:
        ValueError: no server accepts it; the text says why.
    """
    if not is_subject(message.address, wildcards=False):
        raise ValueError("not a subject to publish to: it must be tokens between dots, without blanks or wildcards")
    if reply and not is_subject(reply, wildcards=False):
        raise ValueError(f"{reply[:200]!r} is not a subject to reply to")
    block, data = build_header_block(headers) if headers else b"", message.body or b""
    size = len(block) + len(data)
    if size > max_payload:
        raise ValueError(f"{size} bytes with headers exceed the server's maximum ({max_payload})")
    address = " ".join(filter(None, (message.address, reply)))
    line = f"HPUB {address} {len(block)} {size}" if block else f"PUB {address} {size}"
    return b"".join((line.encode(), b"\r\n", block, data, b"\r\n"))


def _read_reply(arrival: NatsDelivery) -> MessageRefusal | None:
    """Read JetStream's answer to a message; None if it was stored.

    Raises:
        Unsettled: it was not stored, but may be later.
    """
    status = parse_status(arrival.headers) if arrival.headers else None
    if status is not None and status.code == _NO_RESPONDERS:
        raise Unsettled("no stream has the subject; create one, or correct the subject")
    try:
        answer = json.loads(arrival.data)
        error = answer.get("error")
        if error is None:
            if "stream" in answer and "seq" in answer:
                return None
            raise Unsettled("a subscriber answered on the subject, not a stream; add the subject to a stream")
        description, code = to_line(str(error.get("description"))), error.get("err_code")
    except (ValueError, AttributeError) as fault:
        raise Unsettled("a subscriber answered on the subject, not a stream; add the subject to a stream") from fault
    if code in _PERMANENT_ERRORS:
        return MessageRefusal(f"JetStream rejected it: {description}")
    raise Unsettled(f"JetStream did not store a message: {description}")
