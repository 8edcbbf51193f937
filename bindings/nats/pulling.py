"""Taking a JetStream stream by a durable pull consumer.

The server sends only what was asked for, and no more is asked for than may be held: that is how a full inbox holds the
stream. Requests overlap, so that the server need not wait for the next one; this module counts how many messages they
still stand for, and the server says so when a request ends unfilled.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from nats import errors
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from bindings.background import Backoff
from bindings.gateways import GatewayCounters, GatewayLimits, RowStore
from bindings.handover import Handover
from bindings.nats.binding import NatsDelivery, NatsStatus, StreamPlan, headers_of, row_of, status_of, stored_at
from bindings.nats.connection import RawClient, within
from bindings.parts import InboxRow
from catalog.values import whole_number

# The messages of one gateway on their way to the store, on the event loop that they arrived on.

_LOWEST_SECONDS: Final = 0.1
_HIGHEST_SECONDS: Final = 2.0

_logger = logging.getLogger(__name__)


class NatsAckHandler(Protocol):
    """The owner of messages, which gets their outcomes; called on the event loop."""

    def stored(self, items: Sequence[PulledMessage]) -> None:
        """These survive a crash from now on."""

    def refused(self, items: Sequence[PulledMessage]) -> None:
        """These can never be stored."""


@dataclass(slots=True, eq=False)
class PulledMessage:
    """One message between arrival and disk; ``reply`` is the subject to acknowledge it at, ``since`` when it arrived,
    or was last reported as in progress.
    """

    row: InboxRow
    owner: NatsAckHandler
    reply: bytes = b""
    since: float = 0.0


class Storing:
    """Hands messages to the store, and outcomes to their owners; used on one event loop only."""

    def __init__(self, store: RowStore, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handover = Handover(store, self, self._wake, Backoff(_LOWEST_SECONDS, _HIGHEST_SECONDS))
        self._due: asyncio.Handle | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def trouble(self) -> str:
        """Why the store takes nothing at present; empty when it does."""
        return self._handover.trouble

    def add(self, item: PulledMessage) -> None:
        """Store a message soon, together with others that are there by then; its owner gets the outcome."""
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
            _logger.debug("%s messages were settled after the gateway had ended", self._handover.held)

    def _advance(self) -> None:
        if self._due is not None:
            self._due.cancel()
        self._handover.advance()
        if not self._handover.held:
            self._idle.set()
        else:
            self._due = self._loop.call_later(self._handover.patience(_HIGHEST_SECONDS), self._advance)


# The answers to JetStream about messages it delivered: stored ones are acknowledged, held ones are in progress.

_ACK: Final = b"+ACK"
_PROGRESS: Final = b"+WPI"


class Answers:
    """The messages of one consumer that this connection delivered and nobody acknowledged yet.

    An acknowledgement goes over the connection that delivered the message and over no other: by then the stream may
    have been made anew, and the same numbers stand for other messages. What is not acknowledged is delivered again.
    """

    def __init__(self, client: RawClient, ack_wait: float, counters: GatewayCounters) -> None:
        self._client = client
        self._counters = counters
        self._held: dict[int, PulledMessage] = {}  # in order of the last answer about them
        self._stored: list[PulledMessage] = []
        self._wake = asyncio.Event()
        self.ack_wait = ack_wait
        """Seconds without an answer after which the server delivers a message again."""
        self.freed: Callable[[], None] = lambda: None
        """Called when messages are no longer held."""

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, item: PulledMessage) -> None:
        """Keep the message from being delivered again until it is stored."""
        self._held[id(item)] = item

    def stored(self, items: Sequence[PulledMessage]) -> None:
        """Acknowledge these soon."""
        self._stored.extend(items)
        self._wake.set()

    def refused(self, items: Sequence[PulledMessage]) -> None:
        """Leave these with the server, which delivers them again."""
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
    """The consumer no longer answers, or said that it is gone; the message is the server's."""


class Puller:
    """One consumer on one connection. ``share`` is how many messages may be asked for and held at once."""

    def __init__(
        self, plan: StreamPlan, client: RawClient, storing: Storing, limits: GatewayLimits, counters: GatewayCounters
    ) -> None:
        self.plan = plan
        self.share = limits.max_in_flight
        self.ready = False
        self.trouble = ""
        self._client = client
        self._storing = storing
        self._limits = limits
        self._counters = counters
        self._answers = Answers(client, plan.ack_wait, counters)
        self._backoff = Backoff(_SHORTEST_PULL_SECONDS, _LONGEST_PULL_SECONDS)
        self._wake = asyncio.Event()
        self._answers.freed = self._wake.set
        self._asked = 0
        self._last_seen = 0.0
        self._interrupted = ""
        self._closing = asyncio.Event()

    async def run(self) -> None:
        """Take messages until the connection ends or :meth:`close`; a missing stream is waited for."""
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
        """Ask for nothing more; :meth:`run` ends when what is held is stored and acknowledged."""
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
            return  # the connection is gone; the server delivers again what got no answer

    async def _consumer(self) -> ConsumerInfo:
        """Return the durable consumer; make it when it is missing."""
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
        """Take the consumer as it is, if it can do what is promised.

        Raises:
            Interrupted: it cannot; somebody made it for another purpose.
        """
        config = info.config
        subject = config.filter_subject or ">"
        if config.deliver_subject or config.ack_policy != AckPolicy.EXPLICIT or subject != self.plan.subject:
            how = "push" if config.deliver_subject else "pull"
            raise ConsumerGone(
                f"it is a {how} consumer of {subject} with acknowledgement {config.ack_policy}, and a pull consumer of "
                f"{self.plan.subject} with explicit acknowledgement is needed; delete it, or name another durable"
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
        """Wait until there may be something to ask for.

        Raises:
            Interrupted: the consumer is gone, or was not heard of for too long.
        """
        await within(self._wake, HEARTBEAT_SECONDS)
        self._wake.clear()
        if self._client.ended.is_set():
            raise errors.ConnectionClosedError
        if self._interrupted:
            raise ConsumerGone(self._interrupted)
        if self._asked and self._now() - self._last_seen > 2 * HEARTBEAT_SECONDS + 1:
            raise ConsumerGone("nothing was heard of it for too long")

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
            return f"{what}: JetStream does not answer; enable it on the server, or leave the option stream out"
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
