"""What tests of the NATS gateway share: stores and counters that tell, a short way to run it, JetStream's own view."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import nats
from nats.aio.client import Client

from bindings.gateways import Connection, EndpointSubscription, GatewayConfig, GatewayLimits, RowStore
from bindings.inbox import InboxFull
from bindings.nats.binding import native
from bindings.nats.gateway import NatsGateway
from bindings.parts import InboxRow
from tests.support.counts import Counts
from tests.support.natsserver import NatsServer
from tests.support.waiting import wait_until

SECONDS = 120
STREAM, DURABLE = "S", "taker"
T = TypeVar("T")


class Kept:
    """A store in memory that can be told to be full."""

    def __init__(self) -> None:
        self.rows: list[InboxRow] = []
        self.appends = 0
        self.full = False

    def append_many(self, rows: Sequence[InboxRow]) -> Future[None]:
        """Keep rows at once, or none."""
        self.appends += 1
        done: Future[None] = Future()
        if self.full:
            done.set_exception(InboxFull("the disk is full; free some space"))
        else:
            self.rows += rows
            done.set_result(None)
        return done


class Held(Kept):
    """A store that resolves when told to, as a slow disk would."""

    def __init__(self) -> None:
        super().__init__()
        self.futures: list[Future[None]] = []

    def append_many(self, rows: Sequence[InboxRow]) -> Future[None]:
        """Keep rows, and the promise open."""
        self.rows += rows
        self.futures.append(Future())
        return self.futures[-1]

    def release(self) -> None:
        """Keep all promises made so far: keeping one may bring the next, in the gateway's thread."""
        for future in list(self.futures):
            if not future.done():
                future.set_result(None)


def core(subject: str, **options: Any) -> EndpointSubscription:
    """Take a subject of core NATS."""
    return EndpointSubscription("/endpoints/core", subject, options)


def stream(subject: str = "js.>", **options: Any) -> EndpointSubscription:
    """Take a subject of the stream that :func:`make_stream` makes."""
    return EndpointSubscription("/endpoints/stream", subject, {"stream": STREAM, "durable": DURABLE, **options})


def natives(rows: Sequence[InboxRow]) -> list[dict[str, Any]]:
    """Return the native form of rows."""
    return [native(list(row.properties)) for row in rows]


def made(
    server: NatsServer | Connection,
    store: RowStore,
    *subscriptions: EndpointSubscription,
    counts: Counts,
    limits: GatewayLimits,
) -> NatsGateway:
    """Return a gateway that is not yet started."""
    connection = server if isinstance(server, Connection) else Connection((server.uri,))
    return NatsGateway(GatewayConfig(connection, subscriptions, store, "test", limits, counts))


@contextmanager
def running(
    server: NatsServer | Connection,
    store: RowStore,
    *subscriptions: EndpointSubscription,
    counts: Counts | None = None,
    limits: GatewayLimits | None = None,
) -> Iterator[NatsGateway]:
    """Run a gateway that is connected, and stop it."""
    gateway = made(server, store, *subscriptions, counts=counts or Counts(), limits=limits or GatewayLimits())
    gateway.start()
    try:
        wait_until(lambda: gateway.connected, SECONDS, lambda: f"a connection: {gateway.trouble}")
        yield gateway
    finally:
        gateway.stop(1.0)


def with_client(server: NatsServer, work: Callable[[Client], Awaitable[T]]) -> T:
    """Do something with nats-py's own client."""

    async def done() -> T:
        client = await nats.connect(server.uri)
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(done())


def make_stream(server: NatsServer, subjects: Sequence[str] = ("js.>",), **settings: Any) -> None:
    """Make the stream that :func:`stream` takes."""

    async def make(client: Client) -> None:
        await client.jetstream().add_stream(name=STREAM, subjects=list(subjects), **settings)

    with_client(server, make)


def consumer(server: NatsServer, durable: str = DURABLE) -> Any:
    """Return what JetStream knows of the consumer."""
    return with_client(server, lambda client: client.jetstream().consumer_info(STREAM, durable))
