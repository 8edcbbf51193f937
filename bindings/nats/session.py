"""All that is taken over one connection, and the messages of core NATS, which outlive it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from nats import errors

from bindings.gateways import GatewayCounters, Limits
from bindings.nats.connection import RawClient, Sink
from bindings.nats.options import CorePlan, Plan, StreamPlan
from bindings.nats.pulling import Puller
from bindings.nats.records import Arrival, row_of
from bindings.nats.storing import Item, Storing


class CoreIntake:
    """Messages of core NATS between arrival and disk.

    Their protocol has no acknowledgement and no way to make a server wait. So up to ``share`` of them are held while
    the store takes nothing, and what comes then is dropped and counted in ``dropped``.
    """

    def __init__(self, storing: Storing, limits: Limits, counters: GatewayCounters) -> None:
        self._storing = storing
        self._limits = limits
        self._counters = counters
        self._held = 0
        self.share = limits.max_in_flight
        self.dropped = 0

    def sink(self, endpoint: str) -> Sink:
        """Return what takes the messages of a subscription."""

        def arrived(arrival: Arrival) -> None:
            self._counters.received(endpoint)
            if self._held >= self.share:
                self.dropped += 1
                return
            self._held += 1
            row = row_of(endpoint, arrival, None, time.time_ns() // 1000, self._limits.max_body_bytes)
            self._storing.add(Item(row, self))

        return arrived

    def stored(self, items: Sequence[Item]) -> None:
        """Make room; nobody waits for an acknowledgement."""
        self._held -= len(items)
        for item in items:
            self._counters.acknowledged(item.row.endpoint)

    def refused(self, items: Sequence[Item]) -> None:
        """Count what can never be stored as dropped."""
        self._held -= len(items)
        self.dropped += len(items)


class Session:
    """The subscriptions on one connection; made anew with each."""

    def __init__(
        self, client: RawClient, core: CoreIntake, storing: Storing, limits: Limits, counters: GatewayCounters
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
