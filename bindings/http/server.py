"""An HTTP/1.1 server that strangers may talk to: its own thread and event loop, and a limit on everything.

Connections are accepted here and not by the event loop's own server, which would end when descriptors run out, and
could not tell who a client is before it has shaken hands for TLS.
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

from bindings.http.connection import Handler, HttpConnection, Phase
from bindings.http.request import Reply, RequestHead, ServerLimits, unavailable

# All connections of an HTTP server: how many there may be, and which makes room for a new one.
#
# At a limit the connection that matters least is closed: one whose client has never sent anything that was taken, the
# oldest first; then one that is idle, the longest first. At the limit of an address it is one of that address. So those
# who only keep connections open do not keep out those who send. A request that waits for its answer is never cut off.


class Ranking:
    """Connections in the order in which they make room for others."""

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
        """Add one of which nothing has been taken yet."""
        self._strangers[connection] = None

    def remove(self, connection: HttpConnection) -> None:
        """Remove one that is in."""
        if connection in self._strangers:
            del self._strangers[connection]
        else:
            del self._known[connection]

    def promote(self, connection: HttpConnection) -> bool:
        """Put one behind all others; False when it is not in."""
        if connection in self._known:
            del self._known[connection]
        elif connection in self._strangers:
            del self._strangers[connection]
        else:
            return False
        self._known[connection] = None
        return True


class Connections:
    """Used on one thread. ``held`` are the bytes of all bodies that are in memory."""

    def __init__(self, limits: ServerLimits, most: int) -> None:
        self._limits = limits
        self._most = most
        self._all = Ranking()
        self._by_address: defaultdict[str, Ranking] = defaultdict(Ranking)
        self.held = 0

    def __iter__(self) -> Iterator[HttpConnection]:
        return iter(list(self._all))

    @property
    def busy(self) -> int:
        """How many requests were accepted and have no answer yet."""
        return sum(each.phase in (Phase.BODY, Phase.ANSWER) for each in self._all)

    def has_room(self, address: str) -> bool:
        """Tell whether one more may come from an address; closes another if that is what it takes."""
        if address in self._by_address and len(self._by_address[address]) >= self._limits.max_per_address:
            return self._close_one(self._by_address[address])
        return len(self._all) < self._most or self.make_room()

    def add(self, connection: HttpConnection) -> None:
        """Count a connection in."""
        self._all.add(connection)
        self._by_address[connection.address].add(connection)

    def remove(self, connection: HttpConnection) -> None:
        """Count a connection out; does nothing when it is not in."""
        if connection not in self._all:
            return
        self._all.remove(connection)
        neighbours = self._by_address[connection.address]
        neighbours.remove(connection)
        if not len(neighbours):
            del self._by_address[connection.address]

    def accepted(self, connection: HttpConnection) -> None:
        """Note that a request of it was taken; of all connections it is now the last to make room."""
        if self._all.promote(connection):
            self._by_address[connection.address].promote(connection)

    def make_room(self) -> bool:
        """Close the connection that matters least; False when all wait for answers."""
        return self._close_one(self._all)

    def hold(self, size: int) -> bool:
        """Count bytes of bodies in, or out when below 0; False when they are too many and nobody can make room.

        Bodies that are not yet whole give way, in the order of :meth:`make_room`.
        """
        self.held += size
        while size > 0 and self.held > self._limits.max_held_bytes:
            connection = next((each for each in self._all if each.held and each.phase is Phase.BODY), None)
            if connection is None:
                return False
            connection.abort()
        return True

    def _close_one(self, ranking: Ranking) -> bool:
        connection = next((each for each in ranking if not each.waiting), None)
        if connection is None:
            return False
        self.remove(connection)
        connection.abort()
        return True


def address_group(peer: Any) -> str:
    """Return what a client is counted under: its address, or its IPv6 network of 64 bits, which one host has whole."""
    address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
    return str(address)


SPARE_DESCRIPTORS: Final = 300
"""Descriptors that connections leave to the rest of the process."""
_START_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 5.0
_SWEEP_SECONDS: Final = 0.25
_DRAIN_SECONDS: Final = 0.02
_EXHAUSTED_SECONDS: Final = 0.2
_COMPLAIN_SECONDS: Final = 10.0
_LOW_DESCRIPTORS: Final = 1024
"""Descriptors below this are left to clients of brokers: some of them use ``select``, which knows no others."""
_BURST: Final = 32
"""Connections that are accepted before others get their turn."""
_EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

_logger = logging.getLogger(__name__)


class HttpServer:
    """Serves a listening socket; started once, stopped once. With *tls* it speaks HTTPS only. *shown* adds what the
    handler adds to its answers to those that are given without it.

    ``failure`` is what ended it, when it ended by itself.
    """

    def __init__(
        self,
        listener: socket.socket,
        handler: Handler,
        limits: ServerLimits,
        *,
        name: str,
        tls: ssl.SSLContext | None = None,
        shown: Callable[[RequestHead, Reply], Reply] = lambda head, reply: reply,
    ) -> None:
        self.limits = limits
        self.shown = shown
        self.handler = handler
        self.stopping = False
        self.date = b""
        self.failure: BaseException | None = None
        self._listener = listener
        self._tls = tls
        self._name = name
        self._connections = Connections(limits, _affordable(limits.max_connections))
        # Part of :class:`Ledger`; used for every message.
        self.hold = self._connections.hold
        self.accepted = self._connections.accepted
        self.gone = self._connections.remove
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self._grace = 0.0
        self._complaints: dict[str, tuple[float, int]] = {}

    @property
    def alive(self) -> bool:
        """Whether it serves; False before the start, after the stop, and when it ended by itself."""
        return self._thread is not None and self._thread.is_alive() and self.failure is None

    def start(self) -> None:
        """Serve; when this returns, requests are taken.

        Raises:
            OSError: it cannot.
        """
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()
        if not self._ready.wait(_START_SECONDS) or self.failure is not None:
            raise OSError(f"{self._name} did not start: {self.failure or 'no answer'}") from self.failure

    def stop(self, grace: float) -> None:
        """Let requests that were accepted finish for up to *grace* seconds, then close everything.

        Until then others are answered too, and every answer ends its connection. Does nothing when not running.
        """
        if self._thread is None or self._loop is None or self._stop is None:
            return
        self._grace = grace
        try:
            self._loop.call_soon_threadsafe(self._stop.set)
        except RuntimeError:
            _logger.debug("%s had ended before it was stopped", self._name)
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
        loop.set_exception_handler(self._loop_failed)
        self._stop = asyncio.Event()
        self._listener.setblocking(False)
        self._look_at_clock()
        tasks = [asyncio.create_task(each) for each in (self._accept(loop), self._sweep(loop), self._stop.wait())]
        self._ready.set()
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[2] in done:
            await self._drain()
        for task in tasks:
            task.cancel()
        for connection in self._connections:
            connection.abort()
        await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def _drain(self) -> None:
        """Answer what was accepted, and let every answer be the last of its connection."""
        assert self._loop is not None
        self.stopping = True
        for connection in self._connections:
            connection.hurry()
        deadline = self._loop.time() + self._grace
        while self._connections.busy and self._loop.time() < deadline:
            await asyncio.sleep(_DRAIN_SECONDS)
        if self._connections.busy:
            _logger.warning("requests are still in flight after %s s; their senders get no answer", self._grace)
        await asyncio.sleep(_DRAIN_SECONDS)  # for the last answers to leave

    async def _accept(self, loop: asyncio.AbstractEventLoop) -> None:
        burst = 0
        while True:
            try:
                accepted, peer = await loop.sock_accept(self._listener)
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._complain(f"no more connections for now: {error.strerror}; raise the limit on open files")
                    self._connections.make_room()
                    await asyncio.sleep(_EXHAUSTED_SECONDS)
                continue
            burst = (burst + 1) % _BURST
            if not burst:
                await asyncio.sleep(0)
            self._open(loop, accepted, peer)

    def _open(self, loop: asyncio.AbstractEventLoop, accepted: socket.socket, peer: Any) -> None:
        address = address_group(peer)
        if not self._connections.has_room(address):
            self._turn_away(accepted)
            return
        connection = HttpConnection(self, address, loop)
        self._connections.add(connection)
        connection.opening = loop.create_task(self._connect(loop, connection, _moved_up(accepted)))

    async def _connect(self, loop: asyncio.AbstractEventLoop, connection: HttpConnection, plain: socket.socket) -> None:
        times: dict[str, Any] = {}
        if self._tls is not None:
            times = {"ssl_handshake_timeout": self.limits.header_timeout, "ssl_shutdown_timeout": self.limits.linger}
        try:
            plain.setblocking(False)
            await loop.connect_accepted_socket(lambda: connection, plain, ssl=self._tls, **times)
        except (OSError, asyncio.CancelledError) as error:
            # A client that went away, took too long, or does not speak TLS; nothing of ours is wrong.
            _logger.debug("a connection was not made: %s", type(error).__name__)
            plain.close()
            self._connections.remove(connection)

    def _turn_away(self, accepted: socket.socket) -> None:
        """Say that there are too many connections, if that can be said without waiting."""
        self._complain("connections were turned away: there are too many, or too many of one address")
        with accepted:
            accepted.setblocking(False)
            if self._tls is None:
                reply = unavailable("too many connections; use those that are open", 1).reply()
                try:
                    accepted.send(reply.encoded(self.date, b"close", body=True))
                    accepted.shutdown(socket.SHUT_WR)
                except OSError:
                    _logger.debug("a client that was turned away had gone")

    async def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self._look_at_clock()
            now = loop.time()
            for connection in self._connections:
                if now >= connection.deadline:
                    connection.expire()

    def _look_at_clock(self) -> None:
        self.date = formatdate(time.time(), usegmt=True).encode("ascii")

    def _loop_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Note in one line what the loop could not hand to anybody; the request's own bytes are not in it."""
        error = context.get("exception")
        self._complain(f"{context.get('message')}: {type(error).__name__ if error else 'no exception'}")

    def _complain(self, problem: str) -> None:
        """Log a problem now and then, with how often it was met: whoever floods us shall not flood the log."""
        due, count = self._complaints.get(problem, (0.0, 0))
        now = time.monotonic()
        if now >= due:
            _logger.warning("%s (%d times)", problem, count + 1)
            due, count = now + _COMPLAIN_SECONDS, -1
        self._complaints[problem] = (due, count + 1)


def _moved_up(accepted: socket.socket) -> socket.socket:
    """Give a socket a high descriptor, where the limit allows for it."""
    try:
        number = fcntl.fcntl(accepted, fcntl.F_DUPFD_CLOEXEC, _LOW_DESCRIPTORS)
    except OSError:
        return accepted
    with accepted:
        return socket.socket(accepted.family, accepted.type, accepted.proto, fileno=number)


def _affordable(wanted: int) -> int:
    """Return how many connections there may be, with the descriptors that this process may open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    room = max(limit // 8, limit - SPARE_DESCRIPTORS)
    if limit == resource.RLIM_INFINITY or room >= wanted:
        return wanted
    _logger.warning("only %d connections instead of %d: this process may open %d files", room, wanted, limit)
    return room
