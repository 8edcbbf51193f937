"""What takes pushed messages in: the inbox, the HTTP gateway and the gateways of brokers, as one thing to run."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bindings.background import count_fault
from bindings.backoff import Retries
from bindings.gateways import GatewayError, RowStore
from bindings.http.gateway import HttpGateway
from bindings.http.gateway import HttpSettings as ServerSettings
from bindings.http.routing import HttpRoute
from bindings.http.shadowing import shadows
from bindings.inbox import Inbox, InboxError, InboxLimits
from bindings.kafka.store import KafkaStore
from router.errors import ConfigError, StateError
from router.intake.gateways import BrokerGateways
from router.judging.plan import Plan
from router.logs import get_logger
from router.settings import HttpSettings, Settings
from router.settings.inward import KafkaInboxSettings
from router.settings.security import cautions
from router.settings.serving import access_of, limits_of
from router.sources.clusters import inbox_client
from router.state.durable import RESTORE, disk_of
from router.state.state import State
from router.watching.metrics import Metrics
from router.watching.status import Status

IDLE_SECONDS: Final = 5.0
"""With ``--once``: how long no message may come before the gateways of brokers are closed."""
STARTING: Final = "gateways"
"""What the status calls all gateways together before they are open."""
_STOP_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 1.0
"""Time between two looks whether the inbox accepts messages."""
SHADOW_REMEDY: Final = "list the restricted source first, or give the other the same users"
_log = get_logger()


@dataclass(frozen=True, slots=True)
class Store:
    """Where rows go. ``identity`` distinguishes this store's gateways from others, in names that brokers remember."""

    rows: RowStore
    identity: str
    size: Callable[[], int]
    """Bytes on the disk."""
    limit: Callable[[], int]
    """The bytes at which it accepts nothing more; 0 where only other limits hold."""
    trouble: Callable[[], str]
    """Why it accepts nothing now; '' while it does."""
    close: Callable[[], None]


def local_store(settings: Settings, state: State) -> Store:
    """Open the inbox in the state folder.

    Raises:
        StateError: it is damaged, of another format, or cannot be read.
        DiskError: there is no room for it.
    """
    chosen = settings.inbox
    limits = InboxLimits(chosen.segment_bytes, chosen.max_bytes, chosen.min_free_bytes)
    try:
        with disk_of(state.root):
            inbox = Inbox(state.inbox, partitions=chosen.partitions, limits=limits)
            state.inventory.note_inbox(inbox.layout.inbox)
    except (InboxError, OSError) as error:
        raise StateError(f"inbox {state.inbox}: {error}", hint=RESTORE) from error
    return Store(inbox, inbox.layout.inbox[:8], inbox.size, inbox.limit, inbox.trouble, inbox.close)


def topic_store(chosen: KafkaInboxSettings) -> Store:
    """Open a Kafka topic as the inbox; the host's name distinguishes gateways."""
    store = KafkaStore(inbox_client(chosen), chosen.topic, max_message_bytes=chosen.max_message_bytes)
    identity = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
    return Store(store, identity, lambda: 0, lambda: 0, store.trouble, store.close)


class Intake:
    """Opened with the first plan that needs it, changed with every plan, stopped once. Not for concurrent use.

    ``open_store`` is asked once, when a source first needs it; without one nothing is taken in here, because gateways
    run apart. With *once* nothing listens for HTTP.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        status: Status,
        open_store: Callable[[], Store] | None,
        *,
        once: bool = False,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._status = status
        self._open_store = open_store
        self._once = once
        self._store: Store | None = None
        self._http: HttpGateway | None = None
        self._brokers: BrokerGateways | None = None
        self._routes: list[HttpRoute] = []
        self._retries = Retries()
        self._size = 0
        self._limit = settings.inbox.max_bytes
        self._looked = 0.0
        self._trouble = ""
        self._since = 0.0

    @property
    def http_port(self) -> int | None:
        """The port that HTTP is taken at; None when it is not."""
        return self._http.port if self._http is not None else None

    def open_inbox(self, plan: Plan) -> None:
        """Open the inbox when a source of the plan needs it, before any query reads from it.

        Raises:
            StateError: it cannot be opened.
        """
        needed = self._store is None and any(source.pushed for source in plan.sources)
        if needed and self._open_store is not None:
            self._store = self._open_store()
            # The router does not report itself as ready before the gateways are.
            self._status.gateway(STARTING, False, "not yet open")
            self._look()

    def take(self, plan: Plan) -> None:
        """Take messages for the sources of this plan from now on.

        Raises:
            ConfigError: an address is taken, or a gateway can never work with its settings.
        """
        self.open_inbox(plan)
        store = self._store
        if store is None:
            return
        if self._brokers is None:
            self._brokers = BrokerGateways(store.rows, self._settings, self._metrics, self._status, store.identity)
        self._brokers.take(plan.sources)
        routes = http_routes(plan)
        for earlier, later in shadows(routes):
            _log.warning("not safe", problem=shadow_text(earlier, later), hint=SHADOW_REMEDY)
        self._routes = routes
        if self._http is not None:
            self._http.replace(routes)
        elif routes and not self._once:
            self._http = self._listen(store.rows, routes)
        self._status.no_gateway(STARTING)

    def check(self) -> None:
        """Report to the status how inbox and gateways do, and open those again that ended by their own fault."""
        if self._store is not None and time.monotonic() - self._looked >= _LOOK_SECONDS:
            self._look()
        if self._http is not None and not self._http.alive and self._retries.due("http"):
            self._reopen(self._http)
        if self._brokers is not None:
            self._brokers.check()

    def until_idle(self, stop: threading.Event) -> None:
        """Take what brokers have, until nothing has come for a while, then close their gateways; for ``--once``."""
        if self._brokers is None or not self._brokers.count:
            return
        while self._brokers.idle_seconds < IDLE_SECONDS and not stop.wait(0.1):
            self.check()
        self._brokers.stop(_STOP_SECONDS)

    def size(self) -> tuple[int, int]:
        """Return the bytes that the inbox takes on disk, and those at which it accepts nothing more.

        They are the last known numbers where they cannot be counted now.
        """
        # Without a free descriptor nobody can look: no reason to end.
        with suppress(OSError):
            self._size = self._store.size() if self._store is not None else 0
            if self._store is not None:
                self._limit = self._store.limit() or self._limit
        return self._size, self._limit

    def _look(self) -> None:
        """Report whether the inbox accepts messages, and log each change once."""
        assert self._store is not None
        self._looked = time.monotonic()
        before, self._trouble = self._trouble, self._store.trouble()
        self._status.inbox(self._trouble)
        if self._trouble and not before:
            self._since = time.monotonic()
            _log.error("inbox accepts no messages: senders have to wait", reason=self._trouble)
        elif before and not self._trouble:
            _log.info("inbox accepts messages again", seconds=round(time.monotonic() - self._since, 1))

    def stop(self, grace: float) -> None:
        """Take nothing more; what is in flight is stored and answered for up to *grace* seconds."""
        deadline = time.monotonic() + grace
        if self._http is not None:
            self._http.stop(grace)
        if self._brokers is not None:
            self._brokers.stop(max(1.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Stop what still runs, and close the inbox."""
        self.stop(_STOP_SECONDS)
        if self._store is not None:
            self._store.close()

    def _reopen(self, ended: HttpGateway) -> None:
        assert self._store is not None
        count_fault("gateway")
        _log.error("http gateway ended by itself and is opened again", port=ended.port)
        self._status.gateway("http", False, "it ended by itself")
        ended.stop(0.0)
        try:
            self._http = self._listen(self._store.rows, self._routes, port=ended.port)
        except ConfigError as error:
            # It could be opened once, so that its port or certificate may be there at the next try.
            self._status.gateway("http", False, error.message)

    def _listen(self, inbox: RowStore, routes: list[HttpRoute], *, port: int | None = None) -> HttpGateway:
        chosen = self._settings.http
        if port is not None:
            chosen = chosen.model_copy(update={"port": port})
        gateway = HttpGateway(routes, inbox, server_settings(chosen), counters=self._metrics)
        try:
            gateway.start()
        except GatewayError as error:
            hint = "correct http.port (0 takes a free one) or http.tls"
            raise ConfigError(f"HTTP gateway: {error}", key="http", hint=hint) from error
        self._status.gateway("http", True)
        scheme = "http" if chosen.tls is None else "https"
        _log.info("http gateway listening", address=f"{scheme}://{chosen.host}:{gateway.port}")
        for key, caution in cautions(self._settings):
            _log.warning("not safe", key=key, problem=f"{key} {caution}")
        return gateway


def server_settings(chosen: HttpSettings) -> ServerSettings:
    """Return how the HTTP gateway listens, and to whom."""
    server = ServerSettings(
        host=chosen.host,
        port=chosen.port,
        max_body_bytes=chosen.max_body,
        max_in_flight=chosen.max_in_flight,
        limits=limits_of(chosen),
        access=access_of(chosen.auth),
    )
    if chosen.tls is None:
        return server
    clients = Path(chosen.tls.ca) if chosen.tls.ca else None
    return replace(server, tls_certificate=Path(chosen.tls.cert), tls_key=Path(chosen.tls.key), tls_clients=clients)


def shadow_text(earlier: HttpRoute, later: HttpRoute) -> str:
    """Log that a route lets in senders that a later one bars."""
    allowed = "everybody" if earlier.users is None else ", ".join(sorted(earlier.users))
    barred = ", ".join(sorted(later.users or ())) or "nobody"
    taken = f"{earlier.path} of {earlier.endpoint}, open to {allowed}, takes requests"
    return f"{taken} for {later.path} of {later.endpoint}, which is for {barred}"


def http_routes(plan: Plan) -> list[HttpRoute]:
    """Return where the HTTP gateway listens; endpoints that share a path are one route, named by the first.

    Those may send to a shared path whom every one of its sources lets in.
    """
    routes: dict[str, HttpRoute] = {}
    for source in plan.sources:
        if source.served:
            known = routes.get(source.path, HttpRoute(source.endpoint, source.path, ()))
            methods = dict.fromkeys((*known.methods, *source.methods))
            users = known.users
            if source.settings.users:
                allowed = frozenset(source.settings.users)
                users = allowed if users is None else users & allowed
            routes[source.path] = replace(known, methods=tuple(methods), users=users)
    return list(routes.values())
