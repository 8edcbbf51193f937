"""An HTTP/1.1 server for untrusted clients, with its own thread and event loop, and limits on every resource.

Connections are accepted here and not by the event loop's own server, which would end when descriptors run out, and
could not identify a client before the TLS handshake.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import ipaddress
import logging
import resource
import socket
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from email.utils import formatdate
from itertools import chain
from typing import Any, Final

import uvloop

from bindings.http.connection import HttpConnection, Phase, RequestHandler
from bindings.http.request import Reply, RequestHead, ServerLimits, unavailable_problem

# All connections of an HTTP server: how many there may be, and which one is closed for a new one.
#
# At a limit the least important connection is closed: first the oldest whose client has never sent an accepted request,
# then the one that has been idle longest. At the limit of an address it is one of that address. So clients that only
# keep connections open do not lock out those that send. A request that waits for its answer is never cut off.


class EvictionOrder:
    """Connections in the order in which they are closed to make room for others."""

    def __init__(self) -> None:
        self._strangers: dict[HttpConnection, None] = {}
        self._known: dict[HttpConnection, None] = {}

    def __len__(self) -> int:
        return len(self._strangers) + len(self._known)

    def __iter__(self) -> Iterator[HttpConnection]:
        return chain(self._strangers, self._known)

    def __contains__(self, connection: HttpConnection) -> bool:
        return connection in self._strangers or connection in self._known

    def add(self, connection: HttpConnection) -> None:
        """Add a connection without an accepted request."""
        self._strangers[connection] = None

    def remove(self, connection: HttpConnection) -> None:
        """Remove a connection, which must have been added."""
        if connection in self._strangers:
            del self._strangers[connection]
        else:
            del self._known[connection]

    def promote(self, connection: HttpConnection) -> bool:
        """Move a connection to the end of the order; return False if it is not in it."""
        if connection in self._known:
            del self._known[connection]
        elif connection in self._strangers:
            del self._strangers[connection]
        else:
            return False
        self._known[connection] = None
        return True


class Connections:
    """All open connections; used on one thread. ``held_bytes`` is the size of all bodies in memory."""

    def __init__(self, limits: ServerLimits, most: int) -> None:
        self._limits = limits
        self._limit = most
        self._all = EvictionOrder()
        self._by_address: defaultdict[str, EvictionOrder] = defaultdict(EvictionOrder)
        self.held_bytes = 0

    def __iter__(self) -> Iterator[HttpConnection]:
        return iter(list(self._all))

    @property
    def busy_count(self) -> int:
        """The number of accepted requests without an answer."""
        return sum(each.phase in (Phase.BODY, Phase.ANSWER) for each in self._all)

    def has_room(self, address: str) -> bool:
        """Whether an address may open one more connection; closes another one if needed."""
        if address in self._by_address and len(self._by_address[address]) >= self._limits.max_per_address:
            return self._close_one(self._by_address[address])
        return len(self._all) < self._limit or self.make_room()

    def add(self, connection: HttpConnection) -> None:
        """Add a connection."""
        self._all.add(connection)
        self._by_address[connection.address].add(connection)

    def remove(self, connection: HttpConnection) -> None:
        """Remove a connection; does nothing if it was not added."""
        if connection not in self._all:
            return
        self._all.remove(connection)
        neighbours = self._by_address[connection.address]
        neighbours.remove(connection)
        if not len(neighbours):
            del self._by_address[connection.address]

    def record_accepted(self, connection: HttpConnection) -> None:
        """Record an accepted request; its connection is now the last one to be closed for others."""
        if self._all.promote(connection):
            self._by_address[connection.address].promote(connection)

    def make_room(self) -> bool:
        """Close the least important connection; return False if all wait for answers."""
        return self._close_one(self._all)

    def reserve_bytes(self, size: int) -> bool:
        """Count bytes of bodies (negative to release them); return False if no connection can be closed to free more.

        Connections with incomplete bodies are closed first, in the order of :meth:`make_room`.
        """
        self.held_bytes += size
        while size > 0 and self.held_bytes > self._limits.max_held_bytes:
            connection = next((each for each in self._all if each.held_bytes and each.phase is Phase.BODY), None)
            if connection is None:
                return False
            connection.abort()
        return True

    def _close_one(self, ranking: EvictionOrder) -> bool:
        connection = next((each for each in ranking if not each.is_waiting), None)
        if connection is None:
            return False
        self.remove(connection)
        connection.abort()
        return True


def address_group(peer: Any) -> str:
    """Return the key under which a client is counted: its address, or its IPv6 /64 network, which one host owns."""
    address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
    return str(address)


SPARE_DESCRIPTORS: Final = 300
"""Descriptors reserved for the rest of the process."""
_START_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 5.0
_SWEEP_SECONDS: Final = 0.25
_DRAIN_SECONDS: Final = 0.02
_EXHAUSTED_SECONDS: Final = 0.2
_LOG_SECONDS: Final = 10.0
_LOW_DESCRIPTORS: Final = 1024
"""Descriptors below this are left to clients of brokers: some use ``select``, which supports no others."""
_BURST: Final = 32
"""Connections accepted at a time, before the event loop does other work."""
_EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

_logger = logging.getLogger(__name__)


class HttpServer:
    """Serves a listening socket; started once, stopped once. With *tls* it speaks HTTPS only. *shown* adds the
    handler's headers to responses made without it.

    ``failure`` is the error that ended it, if one did.
    """

    def __init__(
        self,
        listener: socket.socket,
        handler: RequestHandler,
        limits: ServerLimits,
        *,
        name: str,
        tls: ssl.SSLContext | None = None,
        shown: Callable[[RequestHead, Reply], Reply] = lambda head, reply: reply,
    ) -> None:
        self.limits = limits
        self.finish_reply = shown
        self.handler = handler
        self.stopping = False
        self.date = b""
        self.failure: BaseException | None = None
        self._listener = listener
        self._tls = tls
        self._name = name
        self._connections = Connections(limits, _limit_connections(limits.max_connections))
        # Part of :class:`ConnectionPool`; used for every message.
        self.reserve_bytes = self._connections.reserve_bytes
        self.record_accepted = self._connections.record_accepted
        self.remove_connection = self._connections.remove
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self._grace = 0.0
        self._complaints: dict[str, tuple[float, int]] = {}

    @property
    def alive(self) -> bool:
        """Whether it serves; False before start, after stop, and after an internal error."""
        return self._thread is not None and self._thread.is_alive() and self.failure is None

    def start(self) -> None:
        """Start serving; on return, requests are accepted.

        Raises:
            OSError: it cannot.
        """
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()
        if not self._ready.wait(_START_SECONDS) or self.failure is not None:
            raise OSError(f"{self._name} did not start: {self.failure or 'no answer'}") from self.failure

    def stop(self, grace: float) -> None:
        """Finish accepted requests within *grace* seconds, then close all connections.

        Until then other requests are answered too, and every response ends its connection. Does nothing when not
        running.
        """
        if self._thread is None or self._loop is None or self._stop is None:
            return
        self._grace = grace
        try:
            self._loop.call_soon_threadsafe(self._stop.set)
        except RuntimeError:
            _logger.debug("%s ended before it was stopped", self._name)
        self._thread.join(grace + 2 * _CLOSE_SECONDS)
        self._thread = None

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except Exception as error:
            self.failure = error
            _logger.exception("%s ended", self._name)
        finally:
            self._listener.close()
            self._ready.set()

    async def _serve(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._log_loop_error)
        self._stop = asyncio.Event()
        self._listener.setblocking(False)
        self._update_date()
        tasks = [asyncio.create_task(each) for each in (self._accept(loop), self._expire_all(loop), self._stop.wait())]
        self._ready.set()
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[2] in done:
            await self._drain_requests()
        for task in tasks:
            task.cancel()
        for connection in self._connections:
            connection.abort()
        await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def _drain_requests(self) -> None:
        """Wait until all accepted requests are answered; each connection ends with its response."""
        assert self._loop is not None
        self.stopping = True
        for connection in self._connections:
            connection.shorten_deadline()
        deadline = self._loop.time() + self._grace
        while self._connections.busy_count and self._loop.time() < deadline:
            await asyncio.sleep(_DRAIN_SECONDS)
        if self._connections.busy_count:
            _logger.warning("requests are still in flight after %s s; their senders get no answer", self._grace)
        await asyncio.sleep(_DRAIN_SECONDS)  # until the last responses are sent

    async def _accept(self, loop: asyncio.AbstractEventLoop) -> None:
        burst = 0
        while True:
            try:
                accepted, peer = await loop.sock_accept(self._listener)
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._log_problem(f"no more connections now: {error.strerror}; raise the limit on open files")
                    self._connections.make_room()
                    await asyncio.sleep(_EXHAUSTED_SECONDS)
                continue
            burst = (burst + 1) % _BURST
            if not burst:
                await asyncio.sleep(0)
            self._open_connection(loop, accepted, peer)

    def _open_connection(self, loop: asyncio.AbstractEventLoop, accepted: socket.socket, peer: Any) -> None:
        address = address_group(peer)
        if not self._connections.has_room(address):
            self._refuse_connection(accepted)
            return
        connection = HttpConnection(self, address, loop)
        self._connections.add(connection)
        connection.opening = loop.create_task(self._connect(loop, connection, _move_to_high_descriptor(accepted)))

    async def _connect(self, loop: asyncio.AbstractEventLoop, connection: HttpConnection, plain: socket.socket) -> None:
        times: dict[str, Any] = {}
        if self._tls is not None:
            times = {"ssl_handshake_timeout": self.limits.header_timeout, "ssl_shutdown_timeout": self.limits.linger}
        try:
            plain.setblocking(False)
            await loop.connect_accepted_socket(lambda: connection, plain, ssl=self._tls, **times)
        except (OSError, asyncio.CancelledError) as error:
            # The client left, took too long, or does not speak TLS; nothing is wrong on our side.
            _logger.debug("a connection failed: %s", type(error).__name__)
            plain.close()
            self._connections.remove(connection)

    def _refuse_connection(self, accepted: socket.socket) -> None:
        """Reply that there are too many connections, if possible without waiting."""
        self._log_problem("connections were refused: too many, or too many from one address")
        with accepted:
            accepted.setblocking(False)
            if self._tls is None:
                reply = unavailable_problem("too many connections; reuse open ones", 1).to_reply()
                try:
                    accepted.send(reply.encode(self.date, b"close", body=True))
                    accepted.shutdown(socket.SHUT_WR)
                except OSError:
                    _logger.debug("a refused client had already left")

    async def _expire_all(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self._update_date()
            now = loop.time()
            for connection in self._connections:
                if now >= connection.deadline:
                    connection.end_expired_wait()

    def _update_date(self) -> None:
        self.date = formatdate(time.time(), usegmt=True).encode("ascii")

    def _log_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log the loop's unhandled error in one line, without the request's own bytes."""
        error = context.get("exception")
        self._log_problem(f"{context.get('message')}: {type(error).__name__ if error else 'no exception'}")

    def _log_problem(self, problem: str) -> None:
        """Log a problem at intervals, with its count, so that a flood of requests does not flood the log."""
        due, count = self._complaints.get(problem, (0.0, 0))
        now = time.monotonic()
        if now >= due:
            _logger.warning("%s (%d times)", problem, count + 1)
            due, count = now + _LOG_SECONDS, -1
        self._complaints[problem] = (due, count + 1)


def _move_to_high_descriptor(accepted: socket.socket) -> socket.socket:
    """Move a socket to a high descriptor, if the limit allows it."""
    try:
        number = fcntl.fcntl(accepted, fcntl.F_DUPFD_CLOEXEC, _LOW_DESCRIPTORS)
    except OSError:
        return accepted
    with accepted:
        return socket.socket(accepted.family, accepted.type, accepted.proto, fileno=number)


def _limit_connections(wanted: int) -> int:
    """Return the wanted number of connections, or less if the limit on open files is too low."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    room = max(limit // 8, limit - SPARE_DESCRIPTORS)
    if limit == resource.RLIM_INFINITY or room >= wanted:
        return wanted
    _logger.warning("only %d connections instead of %d: this process may open %d files", room, wanted, limit)
    return room
