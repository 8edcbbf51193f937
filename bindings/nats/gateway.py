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
from bindings.background import Backoff
from bindings.gateways import EndpointSubscription, GatewayConfig, GatewayCounters, GatewayError, GatewayLimits
from bindings.nats.binding import CorePlan, NatsDelivery, Plan, StreamPlan, plans_of, row_of
from bindings.nats.connection import ConnectFault, Dialling, RawClient, Sink, connect, dialling_of, within
from bindings.nats.pulling import PulledMessage, Puller, Storing

# All that is taken over one connection, and the messages of core NATS, which outlive it.


class CoreIntake:
    """Messages of core NATS between arrival and disk.

    Their protocol has no acknowledgement and no way to make a server wait. So up to ``share`` of them are held while
    the store takes nothing, and what comes then is dropped and counted in ``dropped``.
    """

    def __init__(self, storing: Storing, limits: GatewayLimits, counters: GatewayCounters) -> None:
        self._storing = storing
        self._limits = limits
        self._counters = counters
        self._held = 0
        self.share = limits.max_in_flight
        self.dropped = 0

    def sink(self, endpoint: str) -> Sink:
        """Return what takes the messages of a subscription."""

        def arrived(arrival: NatsDelivery) -> None:
            self._counters.received(endpoint)
            if self._held >= self.share:
                self.dropped += 1
                return
            self._held += 1
            row = row_of(endpoint, arrival, None, time.time_ns() // 1000, self._limits.max_body_bytes)
            self._storing.add(PulledMessage(row, self))

        return arrived

    def stored(self, items: Sequence[PulledMessage]) -> None:
        """Make room; nobody waits for an acknowledgement."""
        self._held -= len(items)
        for item in items:
            self._counters.acknowledged(item.row.endpoint)

    def refused(self, items: Sequence[PulledMessage]) -> None:
        """Count what can never be stored as dropped."""
        self._held -= len(items)
        self.dropped += len(items)


class NatsSession:
    """The subscriptions on one connection; made anew with each."""

    def __init__(
        self, client: RawClient, core: CoreIntake, storing: Storing, limits: GatewayLimits, counters: GatewayCounters
    ) -> None:
        self.client = client
        self._core = core
        self._storing = storing
        self._limits = limits
        self._counters = counters
        self._subscribed: dict[CorePlan, int] = {}
        self._pulling: dict[StreamPlan, tuple[Puller, asyncio.Task[None]]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._following = False
        self.crash: BaseException | None = None
        """What ended a consumer by a fault of this package; the connection is over then."""

    @property
    def ready(self) -> bool:
        """Whether the connection stands and everything asked for is subscribed."""
        return (
            self._following
            and not self.client.ended.is_set()
            and not self.client.denied
            and all(puller.ready for puller, _ in tuple(self._pulling.values()))
        )

    @property
    def trouble(self) -> str:
        """What keeps it from being ready."""
        if self.client.denied:
            return self.client.denied
        return next((puller.trouble for puller, _ in tuple(self._pulling.values()) if puller.trouble), "")

    async def follow(self, plans: Sequence[Plan]) -> None:
        """Take exactly these from now on; what is in flight of others is finished.

        Raises:
            nats.errors.Error: the connection is closed.
        """
        self._following = False
        self.client.denied = ""
        wanted = frozenset(plans)
        for gone in [plan for plan in self._pulling if plan not in wanted]:
            puller, task = self._pulling.pop(gone)
            puller.close()
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        share = max(1, self._limits.max_in_flight // max(1, _shares(plans)))
        self._core.share = share
        for plan in plans:
            if isinstance(plan, StreamPlan):
                self._pull(plan, share)
            elif plan not in self._subscribed:
                self._subscribed[plan] = await self.client.take(
                    plan.subject, plan.queue, self._core.sink(plan.endpoint)
                )
        for unwanted in [plan for plan in self._subscribed if plan not in wanted]:
            await self.client.untake(self._subscribed.pop(unwanted))
        await self.client.flush()
        self._following = True

    async def finish(self) -> None:
        """Take nothing more, and wait until what is in flight is stored and acknowledged."""
        try:
            await self.follow(())
        except (errors.Error, TimeoutError):
            return
        if self._leaving:
            await asyncio.wait(set(self._leaving))
        await self._storing.settled()

    async def end(self) -> None:
        """Close the connection; what was not acknowledged by now will be delivered again."""
        await self.client.end()
        tasks = {*self._leaving, *(task for _, task in self._pulling.values())}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _pull(self, plan: StreamPlan, share: int) -> None:
        if plan not in self._pulling:
            puller = Puller(plan, self.client, self._storing, self._limits, self._counters)
            task = asyncio.create_task(puller.run())
            task.add_done_callback(self._ended)
            self._pulling[plan] = (puller, task)
        self._pulling[plan][0].share = share

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.crash = error
            self.client.ended.set()


def _shares(plans: Sequence[Plan]) -> int:
    """Return among how many the messages in flight are divided: each consumer, and core NATS as a whole."""
    streams = sum(isinstance(plan, StreamPlan) for plan in plans)
    return streams + any(isinstance(plan, CorePlan) for plan in plans)


_LOWEST_SECONDS: Final = 0.25
_HIGHEST_SECONDS: Final = 15.0
_END_SECONDS: Final = 10.0

_logger = logging.getLogger(__name__)


class NatsGateway:
    """One connection to a NATS server and all that is taken over it; keeps :class:`bindings.gateways.Gateway`.

    Servers are those of ``connection.uris`` and no others, tried in turn. See :mod:`bindings.nats.binding` for what the
    options of a subscription say.
    """

    def __init__(self, terms: GatewayConfig) -> None:
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
        self._session: NatsSession | None = None
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

    def replace(self, subscriptions: Sequence[EndpointSubscription]) -> None:
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
                session = NatsSession(client, self._core, storing, self._terms.limits, self._terms.counters)
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

    async def _serve(self, session: NatsSession, place: str) -> bool:
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
