"""The answers to JetStream about messages it delivered: stored ones are acknowledged, held ones are in progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from nats import errors

from bindings.gateways import GatewayCounters
from bindings.nats.connection import RawClient
from bindings.nats.storing import Item
from bindings.nats.waiting import within

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
        self._held: dict[int, Item] = {}  # in order of the last answer about them
        self._stored: list[Item] = []
        self._wake = asyncio.Event()
        self.ack_wait = ack_wait
        """Seconds without an answer after which the server delivers a message again."""
        self.freed: Callable[[], None] = lambda: None
        """Called when messages are no longer held."""

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, item: Item) -> None:
        """Keep the message from being delivered again until it is stored."""
        self._held[id(item)] = item

    def stored(self, items: Sequence[Item]) -> None:
        """Acknowledge these soon."""
        self._stored.extend(items)
        self._wake.set()

    def refused(self, items: Sequence[Item]) -> None:
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
        due: list[Item] = []
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
