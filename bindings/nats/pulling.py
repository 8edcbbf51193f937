"""Taking a JetStream stream by a durable pull consumer.

The server sends only what was asked for, and no more is asked for than may be held: that is how a full inbox holds the
stream. Requests overlap, so that the server need not wait for the next one; this module counts how many messages they
still stand for, and the server says so when a request ends unfilled.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Final

from nats import errors
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from bindings.backoff import Backoff
from bindings.gateways import GatewayCounters, Limits
from bindings.nats.answers import Answers
from bindings.nats.connection import RawClient
from bindings.nats.headers import Status, headers_of, status_of
from bindings.nats.options import StreamPlan
from bindings.nats.records import Arrival, row_of, stored_at
from bindings.nats.storing import Item, Storing
from bindings.nats.waiting import within
from catalog.values import whole_number

EXPIRES_SECONDS: Final = 30.0
HEARTBEAT_SECONDS: Final = 5.0
_PENDING: Final = b"nats-pending-messages"
_HEARTBEAT, _NONE, _EXPIRED = 100, 404, 408
_LOWEST_SECONDS: Final = 0.25
_HIGHEST_SECONDS: Final = 10.0


class Interrupted(errors.Error):
    """The consumer no longer answers, or said that it is gone; the message is the server's."""


class Puller:
    """One consumer on one connection. ``share`` is how many messages may be asked for and held at once."""

    def __init__(
        self, plan: StreamPlan, client: RawClient, storing: Storing, limits: Limits, counters: GatewayCounters
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
        self._backoff = Backoff(_LOWEST_SECONDS, _HIGHEST_SECONDS)
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

    def stored(self, items: Sequence[Item]) -> None:
        """Acknowledge what is on disk."""
        self._answers.stored(items)

    def refused(self, items: Sequence[Item]) -> None:
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
            raise Interrupted(
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
            raise Interrupted(self._interrupted)
        if self._asked and self._now() - self._last_seen > 2 * HEARTBEAT_SECONDS + 1:
            raise Interrupted("nothing was heard of it for too long")

    def _arrived(self, arrival: Arrival) -> None:
        self._last_seen = self._now()
        stored = stored_at(arrival.reply)
        if stored is None:
            self._take_status(arrival)
            return
        self._backoff.reset()
        self._counters.received(self.plan.endpoint)
        received = time.time_ns() // 1000
        row = row_of(self.plan.endpoint, arrival, stored, received, self._limits.max_body_bytes)
        item = Item(row, self, arrival.reply, self._last_seen)
        self._answers.hold(item)
        self._storing.add(item)
        self._asked = max(0, self._asked - 1)
        if self._asked == 0:
            self._wake.set()

    def _take_status(self, arrival: Arrival) -> None:
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


def _text(status: Status) -> str:
    return f"{status.code} {status.description}".strip()
