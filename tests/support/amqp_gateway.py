"""An AMQP gateway under test: what it counts, where it stores, and a store whose answers the test decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from bindings.amqp.gateway import AmqpGateway
from bindings.gateways import Connection, EndpointSubscription, GatewayConfig, GatewayLimits, RowStore
from bindings.inbox import Inbox, InboxFull
from bindings.inbox.source import InboxView
from bindings.parts import InboxRow, Part
from tests.support.counts import Counts

ENDPOINT = "/endpoints/e"
SECONDS = 120.0


class HeldStore:
    """Keeps rows and answers when told: nothing is durable before :meth:`answer`."""

    def __init__(self) -> None:
        self.held: list[tuple[list[InboxRow], Future[None]]] = []

    @property
    def rows(self) -> list[InboxRow]:
        return [row for rows, _ in list(self.held) for row in rows]

    def append_many(self, rows: Sequence[InboxRow]) -> Future[None]:
        future: Future[None] = Future()
        self.held.append((list(rows), future))
        return future

    def answer(self, error: Exception | None = None) -> None:
        held, self.held = self.held, []
        for _, future in held:
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


class FillingStore:
    """An inbox that may be full for as long as the test wants; ``refused`` counts the rows that it did not take."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self.full = True
        self.refused = 0

    def append_many(self, rows: Sequence[InboxRow]) -> Future[None]:
        if not self.full:
            return self._inbox.append_many(rows)
        self.refused += len(rows)
        future: Future[None] = Future()
        future.set_exception(InboxFull("no room; make some"))
        return future


@contextmanager
def running(
    connection: Connection | str,
    subscriptions: Sequence[EndpointSubscription] | str,
    store: RowStore,
    *,
    max_in_flight: int = 1000,
    max_body_bytes: int = 2**20,
    container_id: str = "xrouter-test",
) -> Iterator[tuple[AmqpGateway, Counts]]:
    """Run a gateway; a URI and a node stand for the simplest connection and subscription."""
    counts = Counts()
    gateway = AmqpGateway(
        GatewayConfig(
            Connection((connection,)) if isinstance(connection, str) else connection,
            [EndpointSubscription(ENDPOINT, subscriptions)] if isinstance(subscriptions, str) else subscriptions,
            store,
            container_id,
            GatewayLimits(max_body_bytes, max_in_flight),
            counts,
        )
    )
    gateway.start()
    try:
        yield gateway, counts
    finally:
        gateway.stop(5.0)


def stored(path: Path) -> list[InboxRow]:
    """Return every durable row of an inbox."""
    view = InboxView(path)
    return [
        _row(form)
        for each in view.partitions
        for batch in view.read(each, view.spans(each, view.first(each), view.end(each)))
        for form in _forms(batch)
    ]


def _forms(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    forms: list[dict[str, Any]] = batch.to_pylist()
    return forms


def _row(form: dict[str, Any]) -> InboxRow:
    parts = [Part(each["key"], each["value"], each["type"]) for each in form["properties"]]
    return InboxRow(form["endpoint"], form["protocol"], int(form["received"].timestamp() * 1e6), parts, form["body"])
