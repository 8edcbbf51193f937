"""The NATS gateway: receives messages of core NATS and JetStream, and stores them in the inbox.

**JetStream** (an endpoint whose options name a ``stream``): a message is acknowledged only after it is on disk; until
then the gateway reports it to JetStream as in progress. What was not acknowledged, through a crash of either side, is
redelivered, so delivery is at least once, and the same stream and sequence mean the same message. While the inbox is
full, no more than ``max_in_flight`` messages are requested.

**Core NATS** has no acknowledgement. A message is lost if it comes while nobody is connected, if this process ends
before it is on disk, or if ``max_in_flight`` messages wait already because the inbox is full. The last are counted in
``dropped`` and named in ``trouble``. A server also disconnects a client that reads too slowly, which loses messages.

Order is that of arrival; redelivered messages come later than they were sent.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from nats import errors
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from bindings.background import Backoff
from bindings.certificates import Address
from bindings.gateways import (
    EndpointSubscription,
    GatewayConfig,
    GatewayCounters,
    GatewayError,
    GatewayLimits,
    RowStore,
)
from bindings.nats.binding import (
    CorePlan,
    NatsDelivery,
    NatsStatus,
    Plan,
    StreamPlan,
    headers_of,
    plans_of,
    row_of,
    status_of,
    stored_at,
)
from bindings.nats.publisher import ConnectFault, Dialling, RawClient, Sink, connect, dialling_of, within
from bindings.parts import InboxRow
from bindings.store_and_ack import AckAfterStore
from catalog.values import whole_number

# Receiving a JetStream stream through a durable pull consumer.
#
# The server sends only what was requested, and no more is requested than may be unstored: so a full inbox slows the
# stream down. Requests overlap, so that the server need not wait for the next one; this module counts how many messages
# are still requested, and the server says so when a request ends unfilled.

# Messages of one gateway on their way to the store, on the event loop that received them.

_LOWEST_SECONDS: Final = 0.1
_HIGHEST_SECONDS: Final = 2.0

_logger = logging.getLogger(__name__)


class NatsAckHandler(Protocol):
    """The owner of messages, which gets their outcomes; called on the event loop."""

    def stored(self, items: Sequence[PulledMessage]) -> None:
        """Handle messages that are durable now."""

    def refused(self, items: Sequence[PulledMessage]) -> None:
        """Handle messages that can never be stored."""


@dataclass(slots=True, eq=False)
class PulledMessage:
    """A message between arrival and disk; ``reply`` is the subject to acknowledge it at, ``since`` when it arrived or
    was last reported as in progress.
    """

    row: InboxRow
    owner: NatsAckHandler
    reply: bytes = b""
    since: float = 0.0


class MessageStorer:
    """Passes messages to the store, and outcomes to their owners; used on one event loop only."""

    def __init__(self, store: RowStore, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handover = AckAfterStore(store, self, self._wake, Backoff(_LOWEST_SECONDS, _HIGHEST_SECONDS))
        self._due: asyncio.Handle | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def trouble(self) -> str:
        """Why the store accepts nothing at present; empty if it does."""
        return self._handover.trouble

    def add(self, item: PulledMessage) -> None:
        """Store a message soon, together with others that arrive until then; its owner gets the outcome."""
        self._handover.add(item)
        if self._idle.is_set():
            self._idle.clear()
            self._due = self._loop.call_soon(self._advance)

    async def settled(self) -> None:
        """Wait until nothing is on its way to the disk."""
        await self._idle.wait()

    def stored(self, messages: Sequence[PulledMessage]) -> None:
        shares: dict[int, list[PulledMessage]] = {}
        for item in messages:
            shares.setdefault(id(item.owner), []).append(item)
        for share in shares.values():
            share[0].owner.stored(share)

    def refused(self, message: PulledMessage) -> None:
        message.owner.refused([message])

    def held_back(self, messages: Sequence[PulledMessage]) -> Sequence[PulledMessage]:
        return messages

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._advance)
        except RuntimeError:
            _logger.debug("%s messages were settled after the gateway had stopped", self._handover.held)

    def _advance(self) -> None:
        if self._due is not None:
            self._due.cancel()
        self._handover.advance()
        if not self._handover.held:
            self._idle.set()
        else:
            self._due = self._loop.call_later(self._handover.patience(_HIGHEST_SECONDS), self._advance)


# The answers to JetStream about messages it delivered: stored ones are acknowledged, others are in progress.

_ACK: Final = b"+ACK"
_PROGRESS: Final = b"+WPI"


class PendingAcks:
    """Messages of one consumer that this connection delivered and that are not acknowledged yet.

    An acknowledgement is only sent over the connection that delivered the message: by then the stream may have been
    created anew, and the same numbers identify other messages. What is not acknowledged is redelivered.
    """

    def __init__(self, client: RawClient, ack_wait: float, counters: GatewayCounters) -> None:
        self._client = client
        self._counters = counters
        self._held: dict[int, PulledMessage] = {}  # in order of the last answer about them
        self._stored: list[PulledMessage] = []
        self._wake = asyncio.Event()
        self.ack_wait = ack_wait
        """Seconds without an answer after which the server redelivers a message."""
        self.freed: Callable[[], None] = lambda: None
        """Called when messages are settled."""

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, item: PulledMessage) -> None:
        """Report a message as in progress until it is stored."""
        self._held[id(item)] = item

    def stored(self, items: Sequence[PulledMessage]) -> None:
        """Acknowledge these soon."""
        self._stored.extend(items)
        self._wake.set()

    def refused(self, items: Sequence[PulledMessage]) -> None:
        """Leave these with the server, which redelivers them."""
        for item in items:
            self._held.pop(id(item), None)
        self.freed()

    async def run(self) -> None:
        """Send answers until the connection ends."""
        while True:
            await within(self._wake, self.ack_wait / 3)
            try:
                await self.send()
                await self._extend()
            except errors.Error:
                return

    async def send(self) -> None:
        """Acknowledge all that is stored by now.

        Raises:
            nats.errors.Error: the connection is closed.
        """
        self._wake.clear()
        items, self._stored = self._stored, []
        if not items:
            return
        await self._client.command(b"".join([_command(item.reply, _ACK) for item in items]))
        for item in items:
            del self._held[id(item)]
            self._counters.acknowledged(item.row.endpoint)
        self.freed()

    async def _extend(self) -> None:
        now = asyncio.get_running_loop().time()
        due: list[PulledMessage] = []
        for item in self._held.values():
            if now - item.since < self.ack_wait / 3:
                break
            due.append(item)
        if not due:
            return
        await self._client.command(b"".join([_command(item.reply, _PROGRESS) for item in due]))
        for item in due:
            item.since = now
            # Moved behind those that were answered earlier; one that was stored meanwhile is gone.
            if self._held.pop(id(item), None) is not None:
                self._held[id(item)] = item


def _command(subject: bytes, payload: bytes) -> bytes:
    return b"PUB %s %d\r\n%s\r\n" % (subject, len(payload), payload)


EXPIRES_SECONDS: Final = 30.0
HEARTBEAT_SECONDS: Final = 5.0
_PENDING: Final = b"nats-pending-messages"
_HEARTBEAT, _NONE, _EXPIRED = 100, 404, 408
_SHORTEST_PULL_SECONDS: Final = 0.25
_LONGEST_PULL_SECONDS: Final = 10.0


class ConsumerGone(errors.Error):
    """The consumer no longer answers, or was deleted; the message is the server's."""


class Puller:
    """One consumer on one connection. ``share`` is the maximum number of requested and unstored messages."""

    def __init__(
        self,
        plan: StreamPlan,
        client: RawClient,
        storing: MessageStorer,
        limits: GatewayLimits,
        counters: GatewayCounters,
    ) -> None:
        self.plan = plan
        self.share = limits.max_in_flight
        self.ready = False
        self.trouble = ""
        self._client = client
        self._storing = storing
        self._limits = limits
        self._counters = counters
        self._answers = PendingAcks(client, plan.ack_wait, counters)
        self._backoff = Backoff(_SHORTEST_PULL_SECONDS, _LONGEST_PULL_SECONDS)
        self._wake = asyncio.Event()
        self._answers.freed = self._wake.set
        self._asked = 0
        self._last_seen = 0.0
        self._interrupted = ""
        self._closing = asyncio.Event()

    async def run(self) -> None:
        """Receive messages until the connection ends or :meth:`close`; wait for a missing stream."""
        answering = asyncio.create_task(self._answers.run())
        try:
            while not self._closing.is_set() and not self._client.ended.is_set():
                try:
                    self._adopt(await self._consumer())
                    await self._pull()
                except (errors.Error, TimeoutError, ValueError) as error:
                    self.ready, self.trouble = False, self._problem_of(error)
                    await within(self._closing, self._backoff.pause())
            await self._finish()
        finally:
            answering.cancel()

    def close(self) -> None:
        """Request nothing more; :meth:`run` ends when received messages are stored and acknowledged."""
        self._closing.set()
        self._wake.set()

    def stored(self, items: Sequence[PulledMessage]) -> None:
        """Acknowledge what is on disk."""
        self._answers.stored(items)

    def refused(self, items: Sequence[PulledMessage]) -> None:
        """Leave with the server what can never be stored."""
        self._answers.refused(items)

    async def _finish(self) -> None:
        try:
            while len(self._answers) and not self._client.ended.is_set():
                await within(self._wake, 1.0)
                self._wake.clear()
            await self._client.flush()
        except (errors.Error, TimeoutError):
            return  # the connection is gone; the server redelivers what got no answer

    async def _consumer(self) -> ConsumerInfo:
        """Return the durable consumer; create it if it is missing."""
        plan, context = self.plan, JetStreamContext(self._client)
        try:
            consumer: ConsumerInfo = await context.consumer_info(plan.stream, plan.durable)
        except NotFoundError:
            wanted = ConsumerConfig(
                durable_name=plan.durable,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=plan.ack_wait,
                deliver_policy=DeliverPolicy.ALL if plan.from_first else DeliverPolicy.NEW,
                filter_subject=plan.subject,
                max_ack_pending=max(1, self._limits.max_in_flight),
            )
            return await context.add_consumer(plan.stream, wanted)
        return consumer

    def _adopt(self, info: ConsumerInfo) -> None:
        """Use an existing consumer if it gives the required guarantees.

        Raises:
            Interrupted: it does not; it was created for another purpose.
        """
        config = info.config
        subject = config.filter_subject or ">"
        if config.deliver_subject or config.ack_policy != AckPolicy.EXPLICIT or subject != self.plan.subject:
            how = "push" if config.deliver_subject else "pull"
            raise ConsumerGone(
                f"it is a {how} consumer of {subject} with acknowledgement {config.ack_policy}, but a pull consumer of "
                f"{self.plan.subject} with explicit acknowledgement is required; delete it, or use another durable"
            )
        self._answers.ack_wait = config.ack_wait or self.plan.ack_wait

    async def _pull(self) -> None:
        inbox = self._client.new_inbox()
        number = await self._client.take(inbox, "", self._arrived)
        self._asked, self._interrupted, self._last_seen = 0, "", self._now()
        self.ready, self.trouble = True, ""
        try:
            while not self._closing.is_set():
                await self._ask(inbox.encode())
                await self._waited()
        finally:
            self._asked = 0
            if not self._client.ended.is_set():
                await self._client.untake(number)

    async def _ask(self, inbox: bytes) -> None:
        room = self.share - len(self._answers) - self._asked
        if room < max(1, self.share // 4):
            return
        request = {
            "batch": room,
            "expires": int(EXPIRES_SECONDS * 1e9),
            "idle_heartbeat": int(HEARTBEAT_SECONDS * 1e9),
        }
        payload = json.dumps(request).encode()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.plan.stream}.{self.plan.durable}".encode()
        self._asked += room
        self._last_seen = self._now()
        await self._client.command(b"PUB %s %s %d\r\n%s\r\n" % (subject, inbox, len(payload), payload))

    async def _waited(self) -> None:
        """Wait until another request may be needed.

        Raises:
            Interrupted: the consumer is gone, or was silent for too long.
        """
        await within(self._wake, HEARTBEAT_SECONDS)
        self._wake.clear()
        if self._client.ended.is_set():
            raise errors.ConnectionClosedError
        if self._interrupted:
            raise ConsumerGone(self._interrupted)
        if self._asked and self._now() - self._last_seen > 2 * HEARTBEAT_SECONDS + 1:
            raise ConsumerGone("it was silent for too long")

    def _arrived(self, arrival: NatsDelivery) -> None:
        self._last_seen = self._now()
        stored = stored_at(arrival.reply)
        if stored is None:
            self._take_status(arrival)
            return
        self._backoff.reset()
        self._counters.received(self.plan.endpoint)
        received = time.time_ns() // 1000
        row = row_of(self.plan.endpoint, arrival, stored, received, self._limits.max_body_bytes)
        item = PulledMessage(row, self, arrival.reply, self._last_seen)
        self._answers.hold(item)
        self._storing.add(item)
        self._asked = max(0, self._asked - 1)
        if self._asked == 0:
            self._wake.set()

    def _take_status(self, arrival: NatsDelivery) -> None:
        status = status_of(arrival.headers) if arrival.headers else None
        if status is None or status.code == _HEARTBEAT:
            return
        left = _left(arrival.headers)
        if status.code in (_NONE, _EXPIRED) and left is not None:
            self._asked = max(0, self._asked - left)
        else:
            self._interrupted = _text(status)
        self._wake.set()

    def _problem_of(self, error: Exception) -> str:
        what = f"consumer {self.plan.durable} of stream {self.plan.stream}"
        if isinstance(error, NotFoundError) and error.err_code == 10059:
            return f"stream {self.plan.stream} does not exist; create it, or correct the option stream"
        if isinstance(error, ServiceUnavailableError):
            return f"{what}: JetStream does not answer; enable it on the server, or remove the option stream"
        if isinstance(error, APIError):
            return f"{what}: {error.description}"
        if isinstance(error, TimeoutError):
            return f"{what}: JetStream does not answer in time"
        return f"{what}: {str(error).removeprefix('nats: ') or type(error).__name__}"

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _left(block: bytes) -> int | None:
    """Return how many messages of an ended request were not sent, if the server says so."""
    for name, value in headers_of(block):
        if name.lower() == _PENDING and value is not None:
            return whole_number(value)
    return None


def _text(status: NatsStatus) -> str:
    return f"{status.code} {status.description}".strip()


# All subscriptions of one connection, and the messages of core NATS, which outlive it.


class CoreIntake:
    """Messages of core NATS between arrival and disk.

    Core NATS has no acknowledgement and no way to make a server wait. So up to ``share`` of them wait while the store
    is full, and further ones are dropped and counted in ``dropped``.
    """

    def __init__(self, storing: MessageStorer, limits: GatewayLimits, counters: GatewayCounters) -> None:
        self._storing = storing
        self._limits = limits
        self._counters = counters
        self._held = 0
        self.share = limits.max_in_flight
        self.dropped = 0

    def sink(self, endpoint: str) -> Sink:
        """Return the handler of a subscription's messages."""

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
        """Free the capacity; nobody waits for an acknowledgement."""
        self._held -= len(items)
        for item in items:
            self._counters.acknowledged(item.row.endpoint)

    def refused(self, items: Sequence[PulledMessage]) -> None:
        """Count what can never be stored as dropped."""
        self._held -= len(items)
        self.dropped += len(items)


class NatsSession:
    """The subscriptions on one connection; created anew with each."""

    def __init__(
        self,
        client: RawClient,
        core: CoreIntake,
        storing: MessageStorer,
        limits: GatewayLimits,
        counters: GatewayCounters,
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
        """The internal error that ended a consumer; the connection is closed then."""

    @property
    def ready(self) -> bool:
        """Whether the connection is open and everything is subscribed."""
        return (
            self._following
            and not self.client.ended.is_set()
            and not self.client.denied
            and all(puller.ready for puller, _ in tuple(self._pulling.values()))
        )

    @property
    def trouble(self) -> str:
        """The reason why it is not ready."""
        if self.client.denied:
            return self.client.denied
        return next((puller.trouble for puller, _ in tuple(self._pulling.values()) if puller.trouble), "")

    async def follow(self, plans: Sequence[Plan]) -> None:
        """Receive exactly these from now on; what is in flight of others is finished.

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
        """Stop receiving, and wait until what is in flight is stored and acknowledged."""
        try:
            await self.follow(())
        except (errors.Error, TimeoutError):
            return
        if self._leaving:
            await asyncio.wait(set(self._leaving))
        await self._storing.settled()

    async def end(self) -> None:
        """Close the connection; what was not acknowledged by now will be redelivered."""
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
    """Return among how many the in-flight limit is divided: each consumer, and core NATS as a whole."""
    streams = sum(isinstance(plan, StreamPlan) for plan in plans)
    return streams + any(isinstance(plan, CorePlan) for plan in plans)


_MIN_RESTART_SECONDS: Final = 0.25
_MAX_RESTART_SECONDS: Final = 15.0
_END_SECONDS: Final = 10.0


class NatsGateway:
    """One connection to a NATS server and its subscriptions; implements :class:`bindings.gateways.Gateway`.

    Servers are those of ``connection.uris`` and no others, tried in turn. :mod:`bindings.nats.binding` describes the
    options of a subscription.
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
        self._storing: MessageStorer | None = None
        self._fault = ""

    @property
    def connected(self) -> bool:
        """Whether it is connected and everything is subscribed now."""
        session = self._session
        return session is not None and session.ready

    @property
    def alive(self) -> bool:
        """Whether it runs; False before start, after stop, and after an internal error."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def dropped(self) -> int:
        """Messages of core NATS that were lost because too many were waiting already."""
        return self._core.dropped if self._core is not None else 0

    @property
    def trouble(self) -> str:
        """The reason why it is not connected or cannot store; empty if all is well."""
        session, storing = self._session, self._storing
        text = self._fault or (session.trouble if session is not None else "")
        text = text or (storing.trouble if storing is not None else "")
        if storing is not None and storing.trouble and self.dropped:
            text = f"{text}; {self.dropped} messages of core NATS were dropped"
        return text

    def start(self) -> None:
        """Start connecting, and return at once.

        Raises:
            GatewayError: an address, option, certificate or credentials file has a fault that waiting does not fix.
        """
        if self._thread is not None:
            raise GatewayError(f"{self._name} was already started; create another gateway")
        dialling = dialling_of(self._terms.connection, self._name)
        self._plans = plans_of(self._subscriptions, self._terms.connection.options)
        self._thread = threading.Thread(target=self._run, args=(dialling,), name=f"nats-{self._name}", daemon=True)
        self._thread.start()
        self._ready.wait()

    def replace(self, subscriptions: Sequence[EndpointSubscription]) -> None:
        """Use other subscriptions from now on; what is in flight is finished.

        Raises:
            GatewayError: an invalid subject or option; the old ones stay.
        """
        self._plans = plans_of(subscriptions, self._terms.connection.options)
        self._subscriptions = tuple(subscriptions)
        self._notify(self._changed)

    def stop(self, grace: float) -> None:
        """Stop receiving, store and acknowledge what is in flight for up to *grace* seconds, and disconnect."""
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
            _logger.debug("%s had already stopped", self._name)

    def _run(self, dialling: Dialling) -> None:
        try:
            asyncio.run(self._work(dialling))
        except Exception:
            # An internal error. `alive` reports it from now on, and the owner of the gateway decides.
            self._fault = "it stopped after an internal error; see the log, and restart the router"
            _logger.exception("the NATS gateway %s stopped after an internal error", self._name)
        finally:
            self._session = None
            self._ready.set()

    async def _work(self, dialling: Dialling) -> None:
        self._loop = asyncio.get_running_loop()
        self._storing = storing = MessageStorer(self._terms.store, self._loop)
        self._core = CoreIntake(storing, self._terms.limits, self._terms.counters)
        self._ready.set()
        backoff = Backoff(_MIN_RESTART_SECONDS, _MAX_RESTART_SECONDS)
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
        """Connect to one server; return None when it is time to stop."""
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
        """Receive over one connection until it ends or the gateway stops; return whether it ever worked."""
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
            _logger.warning("%s: some messages are still in flight after the grace period", self._name)
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
