"""The NATS gateway: takes messages of core NATS and JetStream, and stores them in the inbox.

**JetStream** (an endpoint whose options name a ``stream``): a message is acknowledged after it survives a crash here,
never before; until then the gateway reports it to JetStream as in progress. What was not acknowledged, through a crash
of either side, is delivered again, so delivery is at least once, and the same stream and sequence mean the same
message. While the inbox takes nothing, no more is asked for than ``max_in_flight``.

**Core NATS** has no acknowledgement: a message is lost when it comes while nobody is connected, when this process ends
before it is on disk, or when ``max_in_flight`` are held already because the inbox takes nothing. The last are counted
in ``dropped`` and named in ``trouble``. A server also disconnects a client that reads too slowly, which loses messages.

Order is that of arrival; redelivered messages come later than they were sent.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Final

from nats import errors

from bindings.addresses import Address
from bindings.backoff import Backoff
from bindings.gateways import GatewayError, Subscription, Terms
from bindings.nats.connection import ConnectFault, Dialling, RawClient, connect, dialling_of
from bindings.nats.options import Plan, plans_of
from bindings.nats.session import CoreIntake, Session
from bindings.nats.storing import Storing
from bindings.nats.waiting import within

_LOWEST_SECONDS: Final = 0.25
_HIGHEST_SECONDS: Final = 15.0
_END_SECONDS: Final = 10.0

_logger = logging.getLogger(__name__)


class NatsGateway:
    """One connection to a NATS server and all that is taken over it; keeps :class:`bindings.gateways.Gateway`.

    Servers are those of ``connection.uris`` and no others, tried in turn. See :mod:`bindings.nats.options` for what the
    options of a subscription say.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._subscriptions = tuple(terms.subscriptions)
        self._name = terms.client_id
        self._plans: tuple[Plan, ...] = ()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._changed = asyncio.Event()
        self._deadline = 0.0
        self._session: Session | None = None
        self._core: CoreIntake | None = None
        self._storing: Storing | None = None
        self._fault = ""

    @property
    def connected(self) -> bool:
        """Whether it is connected and everything is subscribed now."""
        session = self._session
        return session is not None and session.ready

    @property
    def alive(self) -> bool:
        """Whether it runs; False before the start, after the stop, and when it ended by a fault of its own."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def dropped(self) -> int:
        """Messages of core NATS that came while no more could be held, and are lost."""
        return self._core.dropped if self._core is not None else 0

    @property
    def trouble(self) -> str:
        """What keeps it from being connected, or from storing; empty when nothing does."""
        session, storing = self._session, self._storing
        text = self._fault or (session.trouble if session is not None else "")
        text = text or (storing.trouble if storing is not None else "")
        if storing is not None and storing.trouble and self.dropped:
            text = f"{text}; {self.dropped} messages of core NATS were dropped"
        return text

    def start(self) -> None:
        """Begin to connect, and return at once.

        Raises:
            GatewayError: an address, option, certificate or credentials file that waiting does not repair.
        """
        if self._thread is not None:
            raise GatewayError(f"{self._name} was started already; make another gateway")
        dialling = dialling_of(self._terms.connection, self._name)
        self._plans = plans_of(self._subscriptions, self._terms.connection.options)
        self._thread = threading.Thread(target=self._run, args=(dialling,), name=f"nats-{self._name}", daemon=True)
        self._thread.start()
        self._ready.wait()

    def replace(self, subscriptions: Sequence[Subscription]) -> None:
        """Take other subscriptions from now on; what is in flight is finished.

        Raises:
            GatewayError: a subject or option that no server takes; then all stays as it was.
        """
        self._plans = plans_of(subscriptions, self._terms.connection.options)
        self._subscriptions = tuple(subscriptions)
        self._notify(self._changed)

    def stop(self, grace: float) -> None:
        """Take nothing more, store and acknowledge what is in flight for up to *grace* seconds, and disconnect."""
        if self._thread is None:
            return
        self._deadline = time.monotonic() + grace
        self._notify(self._stop)
        self._thread.join(grace + _END_SECONDS)

    def _notify(self, event: asyncio.Event) -> None:
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(event.set)
        except RuntimeError:
            _logger.debug("%s had ended already", self._name)

    def _run(self, dialling: Dialling) -> None:
        try:
            asyncio.run(self._work(dialling))
        except Exception:
            # A fault of this package. alive says so from now on, and whoever runs the gateway decides.
            self._fault = "it ended by a fault of its own; see the log, and restart the router"
            _logger.exception("the NATS gateway %s ended", self._name)
        finally:
            self._session = None
            self._ready.set()

    async def _work(self, dialling: Dialling) -> None:
        self._loop = asyncio.get_running_loop()
        self._storing = storing = Storing(self._terms.store, self._loop)
        self._core = CoreIntake(storing, self._terms.limits, self._terms.counters)
        self._ready.set()
        backoff = Backoff(_LOWEST_SECONDS, _HIGHEST_SECONDS)
        for address in itertools.cycle(dialling.addresses):
            try:
                client = await self._connected(dialling, address)
            except ConnectFault as error:
                self._tell_fault(str(error))
            else:
                if client is None:
                    break
                session = Session(client, self._core, storing, self._terms.limits, self._terms.counters)
                if await self._serve(session, str(address)):
                    backoff.reset()
            if await within(self._stop, backoff.pause()):
                break
        await self._drained(storing.settled())

    async def _connected(self, dialling: Dialling, address: Address) -> RawClient | None:
        """Connect to one server; None when it is time to stop."""
        connecting = asyncio.create_task(connect(dialling, address))
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait((connecting, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if connecting.done():
            return connecting.result()
        connecting.cancel()
        await asyncio.wait((connecting,))
        return None

    async def _serve(self, session: Session, place: str) -> bool:
        """Take messages over one connection until it ends or all stops; tell whether it ever worked."""
        self._session = session
        worked = False
        try:
            while not self._stop.is_set() and not session.client.ended.is_set():
                self._changed.clear()
                await session.follow(self._plans)
                worked, self._fault = True, ""
                _logger.info("%s: connected to %s", self._name, place)
                await _first(self._stop, self._changed, session.client.ended)
            if self._stop.is_set():
                await self._drained(session.finish())
        except (errors.Error, TimeoutError) as error:
            session.client.fault = session.client.fault or str(error) or "no answer in time"
        finally:
            await session.end()
            self._session = None
        if session.crash is not None:
            raise session.crash
        if not self._stop.is_set():
            self._tell_fault(f"{place}: {session.client.fault or 'the connection ended'}")
        return worked

    async def _drained(self, ending: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(ending)
        await asyncio.wait((task,), timeout=max(0.0, self._deadline - time.monotonic()))
        if not task.done():
            _logger.warning("%s: some messages are still in flight when the grace is over", self._name)
            task.cancel()
            await asyncio.wait((task,))

    def _tell_fault(self, text: str) -> None:
        if text != self._fault:
            _logger.warning("%s: not connected: %s", self._name, text)
        self._fault = text


async def _first(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
