"""MQTT gateways for tests, over stores that can be looked into."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bindings.gateways import Connection, EndpointSubscription, GatewayConfig, GatewayLimits, RowStore
from bindings.inbox.source import InboxView
from bindings.mqtt.gateway import MqttGateway
from bindings.mqtt.messages import Version
from bindings.parts import InboxRow
from bindings.protocols import BINDINGS
from catalog.record import Record
from tests.support.counts import Counts
from tests.support.waiting import wait_until

LIMIT_SECONDS: Final = 120.0
CLIENT_ID: Final = "xrouter-tests"


class Rows:
    """A store in memory. While *held*, no future is done before :meth:`release`; *failing* is what they fail with."""

    def __init__(self, *, held: bool = False) -> None:
        self._lock = threading.Lock()
        self._futures: list[tuple[Future[None], Sequence[InboxRow]]] = []
        self.held = held
        self.failing: Exception | None = None
        self.offered = 0
        self.stored: list[InboxRow] = []

    def append_many(self, rows: Sequence[InboxRow]) -> Future[None]:
        done: Future[None] = Future()
        with self._lock:
            self.offered += len(rows)
            self._futures.append((done, rows))
        if not self.held:
            self.release()
        return done

    def release(self) -> None:
        """Let all that is on its way be stored, or fail."""
        with self._lock:
            futures, self._futures = self._futures, []
        for done, rows in futures:
            if self.failing is not None:
                done.set_exception(self.failing)
            else:
                self.stored.extend(rows)
                done.set_result(None)

    def bodies(self) -> list[str]:
        """Return the bodies stored, in order."""
        return [(row.body or b"").decode() for row in self.stored]


def gateway(
    uri: str | Connection,
    subscriptions: Mapping[str, str],
    store: RowStore,
    *,
    protocol: Version = "MQTT/5.0",
    client_id: str = CLIENT_ID,
    limits: GatewayLimits | None = None,
    counts: Counts | None = None,
    options: Mapping[str, Any] | None = None,
) -> MqttGateway:
    """Return a gateway that is not started, for subscriptions as ``{endpoint: filter}``."""
    terms = GatewayConfig(
        Connection((uri,)) if isinstance(uri, str) else uri,
        [EndpointSubscription(endpoint, address, options or {}) for endpoint, address in subscriptions.items()],
        store,
        client_id,
        limits or GatewayLimits(),
        counts or Counts(),
    )
    return MqttGateway(terms, protocol)


@contextmanager
def running(*args: Any, **kwargs: Any) -> Iterator[MqttGateway]:
    """Yield a gateway that is connected and subscribed; stopped afterwards."""
    each = gateway(*args, **kwargs)
    each.start()
    try:
        connected(each)
        yield each
    finally:
        each.stop(5.0)


def connected(each: MqttGateway) -> None:
    """Wait until a gateway is connected and subscribed."""
    wait_until(lambda: each.connected, LIMIT_SECONDS, lambda: f"a connection; its trouble: {each.trouble}")


def record_of(row: InboxRow) -> Record:
    """Return the native record that a row is."""
    return Record(row.protocol, BINDINGS[row.protocol].native(list(row.properties)), row.body, row.endpoint)


def bodies_in(path: Path) -> list[bytes]:
    """Return the bodies of all rows in an inbox."""
    view = InboxView(path)
    return [
        body
        for each in view.partitions
        for batch in view.read(each, view.spans(each, view.first(each), view.end(each)))
        for body in batch.column("body").to_pylist()
    ]
