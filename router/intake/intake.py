"""Receive pushed messages: inbox, HTTP gateway and broker gateways as one component."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from bindings.background import Retries, count_fault
from bindings.gateways import (
    Connection,
    EndpointSubscription,
    Gateway,
    GatewayConfig,
    GatewayCounters,
    GatewayError,
    GatewayLimits,
    RowStore,
)
from bindings.http.request import HttpRoute, iter_shadowing_routes
from bindings.inbox.log import Inbox
from bindings.inbox.space import InboxError, InboxLimits
from bindings.protocols import BINDINGS
from router.errors import ConfigError, StateError
from router.evaluation.plan import Plan
from router.logs import get_logger, shorten_list
from router.settings import HttpSettings, Settings
from router.settings.catalogs import to_tls
from router.settings.checks import iter_security_warnings
from router.settings.model import KafkaInboxSettings, make_access, make_server_limits
from router.sources import Source, group_by_connection, list_subscriptions, make_inbox_client, pick_connection_options
from router.state.durable import RESTORE, disk_of
from router.state.state import StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus

if TYPE_CHECKING:
    from bindings.http.gateway import HttpGateway, HttpGatewayConfig
    from bindings.kafka.store import KafkaStore

    IntakeStore = Inbox | KafkaStore

# Broker gateways: one client per connection; opened, monitored, changed by reloads, and stopped together.

_log = get_logger()


@dataclass(frozen=True, slots=True)
class BrokerConnection:
    """One connection and its subscriptions. ``key`` is equal for sources that can share a connection."""

    key: str
    name: str
    protocol: str
    connection: Connection
    subscriptions: tuple[EndpointSubscription, ...]
    client_id: str


CONNECTING: Final = "connecting"


def group_connections(sources: Iterable[Source], identity: str) -> list[BrokerConnection]:
    """Group sources by connection. ``identity`` distinguishes this router from others in its client ids."""
    brokers = []
    for key, members in group_by_connection(sources).items():
        first = members[0]
        chosen = first.settings
        connection = Connection(first.uris, chosen.login, to_tls(chosen.tls), pick_connection_options(first.options))
        name, client_id = ", ".join(each.endpoint for each in members), chosen.client_id or f"xrouter-{identity}-{key}"
        subscriptions = list_subscriptions(members)
        brokers.append(BrokerConnection(key, name, first.protocol, connection, subscriptions, client_id))
    return brokers


def open_gateway(
    broker: BrokerConnection, store: RowStore, limits: GatewayLimits, counters: GatewayCounters
) -> Gateway:
    """Create the gateway of a connection; it does not connect before its start."""
    receiving = BINDINGS[broker.protocol].receiving
    assert receiving is not None
    config = GatewayConfig(broker.connection, broker.subscriptions, store, broker.client_id, limits, counters)
    return receiving.create_gateway(config)


class BrokerGateways:
    """All broker gateways of a router. Not for concurrent use."""

    def __init__(
        self, store: RowStore, settings: Settings, counters: GatewayCounters, status: RouterStatus, identity: str
    ) -> None:
        self._store = store
        self._limits = GatewayLimits(settings.gateways.max_body, settings.gateways.max_in_flight)
        self._counters = counters
        self._status = status
        self._identity = identity
        self._running: dict[str, tuple[BrokerConnection, Gateway]] = {}
        self._retries = Retries()
        self._connected: dict[str, bool] = {}

    def run_for_sources(self, sources: Iterable[Source]) -> None:
        """Switch to the gateways of these sources: start new ones, stop unused ones, update the others.

        Raises:
            ConfigError: a gateway can never work with its settings.
        """
        wanted = {broker.key: broker for broker in group_connections(sources, self._identity)}
        for key in [key for key in self._running if key not in wanted]:
            broker, gateway = self._running.pop(key)
            gateway.stop(5.0)
            self._connected.pop(key, None)
            self._status.remove_gateway(broker.name)
        for key, broker in wanted.items():
            known = self._running.get(key)
            if known is None:
                self._start_gateway(broker)
            elif known[0].subscriptions != broker.subscriptions:
                known[1].replace_subscriptions(broker.subscriptions)
                self._running[key] = (broker, known[1])

    def _start_gateway(self, broker: BrokerConnection) -> None:
        try:
            gateway = open_gateway(broker, self._store, self._limits, self._counters)
            gateway.start()
        except GatewayError as error:
            raise ConfigError(f"gateway of {broker.name}: {error}", key="sources") from error
        self._running[broker.key] = (broker, gateway)
        # Not ready before it is connected, even if nobody has checked yet.
        self._status.gateway(broker.name, False, CONNECTING)
        addresses = [each.address for each in broker.subscriptions]
        _log.info("gateway started", protocol=broker.protocol, endpoints=broker.name, addresses=addresses)

    def check_gateways(self) -> None:
        """Report the state of each gateway, and reopen one that stopped after an internal error.

        The broker redelivers messages that it had not stored.
        """
        for broker, gateway in list(self._running.values()):
            if gateway.alive:
                up = gateway.connected
                self._status.gateway(broker.name, up, gateway.trouble or ("" if up else CONNECTING))
                self._log_change(broker, up, gateway.trouble)
            elif self._retries.may_retry(broker.key):
                self._reopen_gateway(broker, gateway)

    def _log_change(self, broker: BrokerConnection, up: bool, trouble: str) -> None:
        """Log that a connection is established, lost, or established again, if that changed."""
        before = self._connected.get(broker.key)
        if up == bool(before):
            return
        self._connected[broker.key] = up
        addresses = shorten_list([each.address for each in broker.subscriptions])
        connection = {"protocol": broker.protocol, "endpoints": broker.name, "addresses": addresses}
        if up:
            _log.info("connected" if before is None else "connected again", **connection)
        else:
            _log.warning("connection lost", **connection, problem=trouble or CONNECTING)

    def _reopen_gateway(self, broker: BrokerConnection, ended: Gateway) -> None:
        count_fault("gateway")
        trouble = ended.trouble or "it stopped unexpectedly"
        _log.error("gateway stopped unexpectedly; reopening it", endpoints=broker.name, problem=trouble)
        ended.stop(0.0)
        try:
            self._start_gateway(broker)
        except ConfigError as error:
            # It was opened before, so that a missing file or name may be back at the next retry.
            trouble = error.message
        self._status.gateway(broker.name, False, trouble)

    @property
    def running_count(self) -> int:
        """The number of running broker gateways."""
        return len(self._running)

    def stop(self, grace: float) -> None:
        """Stop all gateways, within *grace* seconds in total."""
        deadline = time.monotonic() + grace
        for _, gateway in self._running.values():
            gateway.stop(max(0.5, deadline - time.monotonic()))
        self._running.clear()


IDLE_SECONDS: Final = 5.0
"""With ``--once``: the time without messages after which broker gateways are closed."""
_STOP_SECONDS: Final = 10.0
_CHECK_SECONDS: Final = 1.0
"""Time between two checks whether the inbox accepts messages."""
SHADOW_REMEDY: Final = "list the restricted source first, or give the other the same users"


def open_local_store(settings: Settings, state: StateFolder) -> Inbox:
    """Open the inbox in the state folder.

    Raises:
        StateError: it is damaged, of another format, or cannot be read.
        DiskError: there is no space for it.
    """
    chosen = settings.inbox
    limits = InboxLimits(chosen.segment_bytes, chosen.max_bytes, chosen.min_free_bytes)
    try:
        with disk_of(state.root):
            inbox = Inbox(state.inbox, partitions=chosen.partitions, limits=limits)
            state.inventory.note_inbox(inbox.layout.inbox)
    except (InboxError, OSError) as error:
        raise StateError(f"inbox {state.inbox}: {error}", hint=RESTORE) from error
    return inbox


def open_topic_store(chosen: KafkaInboxSettings) -> KafkaStore:
    """Open a Kafka topic as the inbox."""
    from bindings.kafka.store import KafkaStore

    return KafkaStore(make_inbox_client(chosen), chosen.topic, max_message_bytes=chosen.max_message_bytes)


class Intake:
    """Inbox and gateways of a router, updated with every plan. Not for concurrent use.

    ``open_store`` is called once, when a source first needs it; if it is None, nothing is received here, because
    gateways run separately. With *once* nothing listens for HTTP.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        status: RouterStatus,
        open_store: Callable[[], IntakeStore] | None,
        *,
        once: bool = False,
    ) -> None:
        self._settings, self._metrics, self._status = settings, metrics, status
        self._open_store, self._once = open_store, once
        self._store: IntakeStore | None = None
        self._http: HttpGateway | None = None
        self._brokers: BrokerGateways | None = None
        self._routes: list[HttpRoute] = []
        self._retries = Retries()
        self._size = 0
        self._limit = settings.inbox.max_bytes
        self._checked_at = 0.0
        self._trouble = ""
        self._trouble_since = 0.0

    def open_inbox(self, plan: Plan) -> None:
        """Open the inbox if a source of the plan needs it, before any query reads from it.

        Raises:
            StateError: it cannot be opened.
        """
        needed = self._store is None and any(source.pushed for source in plan.sources)
        if needed and self._open_store is not None:
            self._store = self._open_store()
            # The router does not report itself as ready before the gateways are.
            self._status.opening_gateways = True
            self._check_inbox()

    def receive_for_plan(self, plan: Plan) -> None:
        """Switch to the sources of this plan: open the inbox if needed, and start, update or stop gateways.

        Raises:
            ConfigError: an address is in use, or a gateway can never work with its settings.
        """
        self.open_inbox(plan)
        store = self._store
        if store is None:
            return
        if self._brokers is None:
            self._brokers = BrokerGateways(store, self._settings, self._metrics, self._status, store.identity)
        self._brokers.run_for_sources(plan.sources)
        routes = build_http_routes(plan)
        for earlier, later in iter_shadowing_routes(routes):
            _log.warning("not safe", problem=shadow_text(earlier, later), hint=SHADOW_REMEDY)
        self._routes = routes
        if self._http is not None:
            self._http.replace_routes(routes)
        elif routes and not self._once:
            self._http = self._start_http(store, routes)
        self._status.opening_gateways = False

    def check_state(self) -> None:
        """Report the state of inbox and gateways, and reopen gateways that stopped after an internal error."""
        if self._store is not None and time.monotonic() - self._checked_at >= _CHECK_SECONDS:
            self._check_inbox()
        if self._http is not None and not self._http.alive and self._retries.may_retry("http"):
            self._reopen_http(self._http)
        if self._brokers is not None:
            self._brokers.check_gateways()

    def receive_until_idle(self, stop: threading.Event) -> None:
        """Receive from brokers until no message has arrived for a while, then close their gateways; for ``--once``."""
        if self._brokers is None or not self._brokers.running_count:
            return
        began = time.monotonic()
        while time.monotonic() - max(began, self._metrics.last_received) < IDLE_SECONDS and not stop.wait(0.1):
            self.check_state()
        self._brokers.stop(_STOP_SECONDS)

    def inbox_size(self) -> tuple[int, int]:
        """Return the size of the inbox on disk and its maximum size, in bytes.

        If they cannot be determined now, the last known numbers are returned.
        """
        # Without a free file descriptor nothing can be measured; that is no reason to stop.
        with suppress(OSError):
            self._size = self._store.measure_size() if self._store is not None else 0
            if self._store is not None:
                self._limit = self._store.max_size() or self._limit
        return self._size, self._limit

    def _check_inbox(self) -> None:
        """Report whether the inbox accepts messages, and log each change once."""
        assert self._store is not None
        self._checked_at = time.monotonic()
        before, self._trouble = self._trouble, self._store.refusal_reason()
        self._status.inbox(self._trouble)
        if self._trouble and not before:
            self._trouble_since = time.monotonic()
            _log.error("inbox accepts no messages; senders must wait", reason=self._trouble)
        elif before and not self._trouble:
            _log.info("inbox accepts messages again", seconds=round(time.monotonic() - self._trouble_since, 1))

    def stop(self, grace: float) -> None:
        """Stop receiving; messages in flight are stored and answered within *grace* seconds."""
        deadline = time.monotonic() + grace
        if self._http is not None:
            self._http.stop(grace)
        if self._brokers is not None:
            self._brokers.stop(max(1.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Stop all gateways, and close the inbox."""
        self.stop(_STOP_SECONDS)
        if self._store is not None:
            self._store.close()

    def _reopen_http(self, ended: HttpGateway) -> None:
        assert self._store is not None
        count_fault("gateway")
        _log.error("http gateway stopped unexpectedly; reopening it", port=ended.port)
        self._status.gateway("http", False, "it stopped unexpectedly")
        ended.stop(0.0)
        try:
            self._http = self._start_http(self._store, self._routes, port=ended.port)
        except ConfigError as error:
            # It was opened before, so that its port or certificate may be available at the next retry.
            self._status.gateway("http", False, error.message)

    def _start_http(self, inbox: RowStore, routes: list[HttpRoute], *, port: int | None = None) -> HttpGateway:
        chosen = self._settings.http
        if port is not None:
            chosen = chosen.model_copy(update={"port": port})
        from bindings.http.gateway import HttpGateway

        try:
            gateway = HttpGateway(routes, inbox, to_server_config(chosen), counters=self._metrics)
            gateway.start()
        except GatewayError as error:
            hint = "correct http.port (0 for any free port) or http.tls"
            raise ConfigError(f"HTTP gateway: {error}", key="http", hint=hint) from error
        self._status.gateway("http", True)
        scheme = "http" if chosen.tls is None else "https"
        _log.info("http gateway listening", address=f"{scheme}://{chosen.host}:{gateway.port}")
        for key, caution in iter_security_warnings(self._settings):
            _log.warning("not safe", key=key, problem=f"{key} {caution}")
        return gateway


def to_server_config(chosen: HttpSettings) -> HttpGatewayConfig:
    """Convert the HTTP settings to the configuration of the gateway."""
    from bindings.http.gateway import HttpGatewayConfig

    return HttpGatewayConfig(
        host=chosen.host,
        port=chosen.port,
        max_body_bytes=chosen.max_body,
        max_in_flight=chosen.max_in_flight,
        limits=make_server_limits(chosen),
        access=make_access(chosen.auth),
        tls=to_tls(chosen.tls),
    )


def shadow_text(earlier: HttpRoute, later: HttpRoute) -> str:
    """Return the text of the warning that a route accepts senders that a later one excludes."""
    allowed = "everybody" if earlier.users is None else ", ".join(sorted(earlier.users))
    barred = ", ".join(sorted(later.users or ())) or "nobody"
    taken = f"{earlier.path} of {earlier.endpoint}, open to {allowed}, accepts requests"
    return f"{taken} for {later.path} of {later.endpoint}, which is for {barred}"


def build_http_routes(plan: Plan) -> list[HttpRoute]:
    """Return the routes of the HTTP gateway; endpoints with the same path share a route, named by the first.

    A sender may use a shared path if every one of its sources allows it.
    """
    routes: dict[str, HttpRoute] = {}
    for source in plan.sources:
        if source.served:
            known = routes.get(source.path, HttpRoute(source.endpoint, source.path, ()))
            methods = dict.fromkeys((*known.methods, *source.methods))
            users, allowed = known.users, frozenset(source.settings.users or ())
            if allowed:
                users = allowed if users is None else users & allowed
            routes[source.path] = replace(known, methods=tuple(methods), users=users)
    return list(routes.values())
