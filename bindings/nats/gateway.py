"""The NATS gateway: receives messages of core NATS and JetStream, and stores them in the inbox.

**JetStream** (an endpoint whose options name a ``stream``): a message is acknowledged only after it is on disk; until
then the gateway reports it to JetStream as in progress. After a crash of either side, unacknowledged messages are
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
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from nats import errors
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from bindings.background import Backoff
from bindings.certificates import Address
from bindings.gateways import JOIN_SECONDS, EndpointSubscription, GatewayConfig
from bindings.nats.binding import (
    CorePlan,
    NatsDelivery,
    Plan,
    StreamPlan,
    parse_ack_subject,
    parse_headers,
    parse_status,
    plan_subscriptions,
    to_row,
)
from bindings.nats.publisher import (
    ConnectFault,
    NatsDialer,
    RawClient,
    cancel_tasks,
    run_until_first,
    wait_for_event,
)
from bindings.parts import InboxRow
from bindings.store_and_ack import AckAfterStore
from catalog.values import parse_whole_number

# Receiving a JetStream stream through a durable pull consumer.
#
# The server sends only requested messages, and requests are limited by the unstored ones: so a full inbox slows the
# stream down. Requests overlap, so that the server need not wait for the next one; this module counts how many messages
# are still requested, and the server says so when a request ends unfilled.

# Storing received messages, on the event loop that received them.

_logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class PulledMessage:
    """A received message that is not stored yet; ``owner`` is None for core NATS.

    ``reply`` is the subject to acknowledge it at, ``since`` when it arrived or was last reported as in progress.
    """

    row: InboxRow
    owner: StreamPuller | None = None
    reply: bytes = b""
    since: float = 0.0


class MessageStorer:
    """Stores messages, and reports outcomes to their owners; used on one event loop only. It outlives connections.

    Core NATS has no acknowledgement and no way to make a server wait. So up to ``share`` of its messages wait while the
    store is full, and further ones are dropped and counted in ``dropped``.
    """

    def __init__(self, config: GatewayConfig, loop: asyncio.AbstractEventLoop) -> None:
        self.share = config.limits.max_in_flight
        self.dropped = 0
        self._unstored = 0  # of core NATS
        self._limits = config.limits
        self._counters = config.counters
        self._loop = loop
        self._ack_queue = AckAfterStore(config.store, self, self._schedule_advance, Backoff(0.1, 2.0))
        self._due: asyncio.Handle | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def trouble(self) -> str:
        """Why the store accepts nothing at present; empty if it does."""
        return self._ack_queue.trouble

    def add(self, item: PulledMessage) -> None:
        """Queue a message, to be stored with others that arrive soon; its owner gets the outcome."""
        self._ack_queue.add(item)
        if self._idle.is_set():
            self._idle.clear()
            self._due = self._loop.call_soon(self._advance)

    def handle_core_message(self, endpoint: str, arrival: NatsDelivery) -> None:
        """Store a message of core NATS, or drop it if too many wait."""
        self._counters.received(endpoint)
        if self._unstored >= self.share:
            self.dropped += 1
            return
        self._unstored += 1
        row = to_row(endpoint, arrival, None, time.time_ns() // 1000, self._limits.max_body_bytes)
        self.add(PulledMessage(row))

    async def wait_until_idle(self) -> None:
        """Wait until all messages are stored or refused."""
        await self._idle.wait()

    def on_stored(self, messages: Sequence[PulledMessage]) -> None:
        for item in messages:
            if item.owner is not None:
                item.owner.on_stored(item)
            else:
                self._unstored -= 1
                self._counters.acknowledged(item.row.endpoint)

    def on_refused(self, message: PulledMessage) -> None:
        if message.owner is not None:
            message.owner.on_refused(message)
        else:
            self._unstored -= 1
            self.dropped += 1

    def select_retries(self, messages: Sequence[PulledMessage]) -> Sequence[PulledMessage]:
        return messages

    def _schedule_advance(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._advance)
        except RuntimeError:
            _logger.debug("%s messages were settled after the gateway had stopped", self._ack_queue.unstored_count)

    def _advance(self) -> None:
        if self._due is not None:
            self._due.cancel()
        self._ack_queue.advance()
        if not self._ack_queue.unstored_count:
            self._idle.set()
        else:
            self._due = self._loop.call_later(self._ack_queue.seconds_until_due(2.0), self._advance)


_ACK: Final = b"+ACK"
_PROGRESS: Final = b"+WPI"
EXPIRES_SECONDS: Final = 30.0
HEARTBEAT_SECONDS: Final = 5.0
_PENDING: Final = b"nats-pending-messages"
_HEARTBEAT, _NONE, _EXPIRED = 100, 404, 408


class ConsumerGone(errors.Error):
    """The consumer no longer answers, or was deleted; the message is the server's."""


class StreamPuller:
    """Receives from one consumer on one connection. ``share`` is the maximum of requested and unstored messages.

    Stored messages are acknowledged, others reported as in progress, and only over the connection that delivered them:
    by then the stream may have been created anew, and the same numbers identify other messages. What is not
    acknowledged is redelivered.
    """

    def __init__(
        self,
        plan: StreamPlan,
        client: RawClient,
        storer: MessageStorer,
        config: GatewayConfig,
    ) -> None:
        self.plan = plan
        self.share = config.limits.max_in_flight
        self.is_ready = False
        self.trouble = ""
        self._client = client
        self._storer = storer
        self._limits = config.limits
        self._counters = config.counters
        self._ack_wait = plan.ack_wait  # seconds without an answer after which the server redelivers a message
        self._unstored: dict[int, PulledMessage] = {}  # in order of the last answer about them
        self._stored: list[PulledMessage] = []
        self._answer_due = asyncio.Event()
        self._backoff = Backoff(0.25, 10.0)
        self._wake = asyncio.Event()
        self._requested = 0
        self._last_seen = 0.0
        self._interruption = ""
        self._closing = asyncio.Event()

    async def run(self) -> None:
        """Receive messages until the connection ends or :meth:`close`; wait for a missing stream."""
        answering = asyncio.create_task(self._send_answers())
        try:
            while not self._closing.is_set() and not self._client.ended.is_set():
                try:
                    self._adopt_consumer(await self._ensure_consumer())
                    await self._pull_messages()
                except (errors.Error, TimeoutError, ValueError) as error:
                    self.is_ready, self.trouble = False, self._describe_error(error)
                    await wait_for_event(self._closing, self._backoff.next_pause())
            await self._finish_pending()
        finally:
            answering.cancel()

    def close(self) -> None:
        """Stop requesting messages; :meth:`run` ends when received messages are stored and acknowledged."""
        self._closing.set()
        self._wake.set()

    def on_stored(self, item: PulledMessage) -> None:
        """Acknowledge a stored message."""
        self._stored.append(item)
        self._answer_due.set()

    def on_refused(self, item: PulledMessage) -> None:
        """Leave a message that can never be stored with the server."""
        self._unstored.pop(id(item), None)
        self._wake.set()

    async def _send_answers(self) -> None:
        """Send answers until the connection ends."""
        while True:
            await wait_for_event(self._answer_due, self._ack_wait / 3)
            try:
                await self._acknowledge_stored()
                await self._report_progress()
            except errors.Error:
                return

    async def _acknowledge_stored(self) -> None:
        self._answer_due.clear()
        items, self._stored = self._stored, []
        if not items:
            return
        await self._client.send_commands(b"".join([_publish_command(item.reply, _ACK) for item in items]))
        for item in items:
            del self._unstored[id(item)]
            self._counters.acknowledged(item.row.endpoint)
        self._wake.set()

    async def _report_progress(self) -> None:
        now = time.monotonic()
        due = list(itertools.takewhile(lambda item: now - item.since >= self._ack_wait / 3, self._unstored.values()))
        if not due:
            return
        await self._client.send_commands(b"".join([_publish_command(item.reply, _PROGRESS) for item in due]))
        for item in due:
            item.since = now
            # Moved behind those that were answered earlier; one that was stored meanwhile is gone.
            if self._unstored.pop(id(item), None) is not None:
                self._unstored[id(item)] = item

    async def _finish_pending(self) -> None:
        try:
            while self._unstored and not self._client.ended.is_set():
                await wait_for_event(self._wake, 1.0)
                self._wake.clear()
            await self._client.flush()
        except (errors.Error, TimeoutError):
            return  # the connection is gone; the server redelivers what got no answer

    async def _ensure_consumer(self) -> ConsumerInfo:
        """Return the durable consumer; create it if it is missing."""
        plan, context = self.plan, JetStreamContext(self._client)
        try:
            info: ConsumerInfo = await context.consumer_info(plan.stream, plan.durable)
            return info
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

    def _adopt_consumer(self, info: ConsumerInfo) -> None:
        """Use a consumer if it gives the required guarantees.

        Raises:
            ConsumerGone: it does not; it was created for another purpose.
        """
        found = info.config
        subject = found.filter_subject or ">"
        if found.deliver_subject or found.ack_policy != AckPolicy.EXPLICIT or subject != self.plan.subject:
            how = "push" if found.deliver_subject else "pull"
            raise ConsumerGone(
                f"it is a {how} consumer of {subject} with acknowledgement {found.ack_policy}, but a pull consumer of "
                f"{self.plan.subject} with explicit acknowledgement is required; delete it, or use another durable"
            )
        self._ack_wait = found.ack_wait or self.plan.ack_wait

    async def _pull_messages(self) -> None:
        inbox = self._client.new_inbox()
        number = await self._client.subscribe_raw(inbox, "", self._handle_message)
        self._requested, self._interruption, self._last_seen = 0, "", time.monotonic()
        self.is_ready, self.trouble = True, ""
        try:
            while not self._closing.is_set():
                await self._request_messages(inbox.encode())
                await self._wait_for_work()
        finally:
            self._requested = 0
            if not self._client.ended.is_set():
                await self._client.unsubscribe_raw(number)

    async def _request_messages(self, inbox: bytes) -> None:
        room = self.share - len(self._unstored) - self._requested
        if room < max(1, self.share // 4):
            return
        request = {"batch": room, "expires": int(EXPIRES_SECONDS * 1e9), "idle_heartbeat": int(HEARTBEAT_SECONDS * 1e9)}
        payload = json.dumps(request).encode()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.plan.stream}.{self.plan.durable}".encode()
        self._requested += room
        self._last_seen = time.monotonic()
        await self._client.send_commands(_publish_command(subject, payload, inbox))

    async def _wait_for_work(self) -> None:
        """Wait until another request may be needed.

        Raises:
            ConsumerGone: it was deleted, or was silent for too long.
        """
        await wait_for_event(self._wake, HEARTBEAT_SECONDS)
        self._wake.clear()
        if self._client.ended.is_set():
            raise errors.ConnectionClosedError
        if self._interruption:
            raise ConsumerGone(self._interruption)
        if self._requested and time.monotonic() - self._last_seen > 2 * HEARTBEAT_SECONDS + 1:
            raise ConsumerGone("it was silent for too long")

    def _handle_message(self, arrival: NatsDelivery) -> None:
        self._last_seen = time.monotonic()
        stored = parse_ack_subject(arrival.reply)
        if stored is None:
            self._handle_status(arrival)
            return
        self._backoff.reset()
        self._counters.received(self.plan.endpoint)
        received = time.time_ns() // 1000
        row = to_row(self.plan.endpoint, arrival, stored, received, self._limits.max_body_bytes)
        item = PulledMessage(row, self, arrival.reply, self._last_seen)
        self._unstored[id(item)] = item
        self._storer.add(item)
        self._requested = max(0, self._requested - 1)
        if self._requested == 0:
            self._wake.set()

    def _handle_status(self, arrival: NatsDelivery) -> None:
        status = parse_status(arrival.headers) if arrival.headers else None
        if status is None or status.code == _HEARTBEAT:
            return
        left = _count_unsent(arrival.headers)
        if status.code in (_NONE, _EXPIRED) and left is not None:
            self._requested = max(0, self._requested - left)
        else:
            self._interruption = f"{status.code} {status.description}".strip()
        self._wake.set()

    def _describe_error(self, error: Exception) -> str:
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


def _publish_command(subject: bytes, payload: bytes, reply: bytes = b"") -> bytes:
    return b"PUB %s %s %d\r\n%s\r\n" % (subject, reply, len(payload), payload)


def _count_unsent(block: bytes) -> int | None:
    """Return the number of unsent messages of an ended request; None if the server does not say."""
    for name, value in parse_headers(block):
        if name.lower() == _PENDING and value is not None:
            return parse_whole_number(value)
    return None


# All subscriptions of one connection.


class NatsSession:
    """The subscriptions on one connection; each connection has a new session."""

    def __init__(self, client: RawClient, storer: MessageStorer, config: GatewayConfig) -> None:
        self.client = client
        self._storer = storer
        self._config = config
        self._subscribed: dict[CorePlan, int] = {}
        self._pullers: dict[StreamPlan, tuple[StreamPuller, asyncio.Task[None]]] = {}
        self._ending_tasks: set[asyncio.Task[None]] = set()
        self._up_to_date = False
        self.crash: BaseException | None = None
        """The internal error that ended a consumer; the connection is closed then."""

    @property
    def is_ready(self) -> bool:
        """Whether the connection is open and everything is subscribed."""
        return (
            self._up_to_date
            and not self.client.ended.is_set()
            and not self.client.denied
            and all(puller.is_ready for puller, _ in tuple(self._pullers.values()))
        )

    @property
    def trouble(self) -> str:
        """The reason why it is not ready; empty if it is."""
        if self.client.denied:
            return self.client.denied
        return next((puller.trouble for puller, _ in tuple(self._pullers.values()) if puller.trouble), "")

    async def replace_plans(self, plans: Sequence[Plan]) -> None:
        """Switch to exactly these plans; messages in flight of others are finished.

        Raises:
            nats.errors.Error: the connection is closed.
        """
        self._up_to_date = False
        self.client.denied = ""
        wanted = frozenset(plans)
        for ended_plan in [plan for plan in self._pullers if plan not in wanted]:
            puller, task = self._pullers.pop(ended_plan)
            puller.close()
            self._ending_tasks.add(task)
            task.add_done_callback(self._ending_tasks.discard)
        # One share of the in-flight limit for each consumer, and one for core NATS.
        shares = sum(isinstance(plan, StreamPlan) for plan in plans) + any(isinstance(plan, CorePlan) for plan in plans)
        share = max(1, self._config.limits.max_in_flight // max(1, shares))
        self._storer.share = share
        for plan in plans:
            if isinstance(plan, StreamPlan):
                self._start_puller(plan, share)
            elif plan not in self._subscribed:
                self._subscribed[plan] = await self.client.subscribe_raw(
                    plan.subject, plan.queue, partial(self._storer.handle_core_message, plan.endpoint)
                )
        for unwanted in [plan for plan in self._subscribed if plan not in wanted]:
            await self.client.unsubscribe_raw(self._subscribed.pop(unwanted))
        await self.client.flush()
        self._up_to_date = True

    async def finish(self) -> None:
        """Stop receiving, and wait until messages in flight are stored and acknowledged."""
        try:
            await self.replace_plans(())
        except (errors.Error, TimeoutError):
            return
        if self._ending_tasks:
            await asyncio.wait(set(self._ending_tasks))
        await self._storer.wait_until_idle()

    async def end(self) -> None:
        """Close the connection; unacknowledged messages will be redelivered."""
        await self.client.end_connection()
        await cancel_tasks([*self._ending_tasks, *(task for _, task in self._pullers.values())])

    def _start_puller(self, plan: StreamPlan, share: int) -> None:
        if plan not in self._pullers:
            puller = StreamPuller(plan, self.client, self._storer, self._config)
            task = asyncio.create_task(puller.run())
            task.add_done_callback(self._handle_task_end)
            self._pullers[plan] = (puller, task)
        self._pullers[plan][0].share = share

    def _handle_task_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.crash = error
            self.client.ended.set()


class NatsGateway:
    """One connection to a NATS server and its subscriptions; implements :class:`bindings.gateways.Gateway`.

    Servers are those of ``connection.uris`` and no others, tried in turn. :mod:`bindings.nats.binding` describes the
    options of a subscription.

    Raises:
        GatewayError: an address, option, certificate or credentials file has a fault that waiting does not fix.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._name = config.client_id
        self._dialer = NatsDialer(config.connection, config.client_id)
        self._plans = plan_subscriptions(config.subscriptions, config.connection.options)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._changed = asyncio.Event()
        self._deadline = 0.0
        self._session: NatsSession | None = None
        self._storer: MessageStorer | None = None
        self._fault = ""

    @property
    def connected(self) -> bool:
        """Whether it is connected and everything is subscribed now."""
        session = self._session
        return session is not None and session.is_ready

    @property
    def alive(self) -> bool:
        """Whether it runs; False before start, after stop, and after an internal error."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def dropped(self) -> int:
        """Messages of core NATS that were lost because too many were waiting already."""
        return self._storer.dropped if self._storer is not None else 0

    @property
    def trouble(self) -> str:
        """The reason why it is not connected or cannot store; empty if all is well."""
        session, storer = self._session, self._storer
        text = self._fault or (session.trouble if session is not None else "")
        text = text or (storer.trouble if storer is not None else "")
        if storer is not None and storer.trouble and self.dropped:
            text = f"{text}; {self.dropped} messages of core NATS were dropped"
        return text

    def start(self) -> None:
        """Start connecting without waiting."""
        self._thread = threading.Thread(target=self._run, name=f"nats-{self._name}", daemon=True)
        self._thread.start()
        self._ready.wait()

    def replace_subscriptions(self, subscriptions: Sequence[EndpointSubscription]) -> None:
        """Switch to these subscriptions; messages in flight are finished.

        Raises:
            GatewayError: an invalid subject or option; the old ones stay.
        """
        self._plans = plan_subscriptions(subscriptions, self._config.connection.options)
        self._set_event(self._changed)

    def stop(self, grace: float) -> None:
        """Stop receiving, store and acknowledge messages in flight within *grace* seconds, and disconnect."""
        if self._thread is None:
            return
        self._deadline = time.monotonic() + grace
        self._set_event(self._stop)
        self._thread.join(grace + JOIN_SECONDS)

    def _set_event(self, event: asyncio.Event) -> None:
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(event.set)
        except RuntimeError:
            _logger.debug("%s had already stopped", self._name)

    def _run(self) -> None:
        try:
            asyncio.run(self._run_connections())
        except Exception:
            # An internal error. `alive` reports it from now on, and the owner of the gateway decides.
            self._fault = "it stopped after an internal error; see the log, and restart the router"
            _logger.exception("the NATS gateway %s stopped after an internal error", self._name)
        finally:
            self._session = None
            self._ready.set()

    async def _run_connections(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._storer = storer = MessageStorer(self._config, self._loop)
        self._ready.set()
        backoff = Backoff(0.25, 15.0)
        for address in itertools.cycle(self._dialer.addresses):
            try:
                client = await self._connect(address)
            except ConnectFault as error:
                self._set_fault(str(error))
            else:
                if client is None:
                    break
                session = NatsSession(client, storer, self._config)
                if await self._serve_session(session, str(address)):
                    backoff.reset()
            if await wait_for_event(self._stop, backoff.next_pause()):
                break
        await self._wait_for_end(storer.wait_until_idle())

    async def _connect(self, address: Address) -> RawClient | None:
        """Connect to one server; return None when it is time to stop."""
        connecting, _ = await run_until_first(self._dialer.connect(address), self._stop.wait())
        return None if connecting.cancelled() else connecting.result()

    async def _serve_session(self, session: NatsSession, place: str) -> bool:
        """Receive over one connection until it ends or the gateway stops; return whether it ever worked."""
        self._session = session
        worked = False
        try:
            while not self._stop.is_set() and not session.client.ended.is_set():
                self._changed.clear()
                await session.replace_plans(self._plans)
                worked, self._fault = True, ""
                _logger.info("%s: connected to %s", self._name, place)
                await run_until_first(self._stop.wait(), self._changed.wait(), session.client.ended.wait())
            if self._stop.is_set():
                await self._wait_for_end(session.finish())
        except (errors.Error, TimeoutError) as error:
            session.client.fault = session.client.fault or str(error) or "no answer in time"
        finally:
            await session.end()
            self._session = None
        if session.crash is not None:
            raise session.crash
        if not self._stop.is_set():
            self._set_fault(f"{place}: {session.client.fault or 'the connection ended'}")
        return worked

    async def _wait_for_end(self, ending: Coroutine[None, None, None]) -> None:
        try:
            async with asyncio.timeout(max(0.0, self._deadline - time.monotonic())):
                await ending
        except TimeoutError:
            _logger.warning("%s: some messages are still in flight after the grace period", self._name)

    def _set_fault(self, text: str) -> None:
        if text != self._fault:
            _logger.warning("%s: not connected: %s", self._name, text)
        self._fault = text
