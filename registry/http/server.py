"""The registry server: startup, metrics, and clean shutdown."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError

from bindings.certificates import CertificateCollector
from bindings.gateways import Tls
from bindings.http.monitor import HealthCheck, MetricsServer
from bindings.http.request import Access, ServerLimits, create_server_tls, open_listener
from bindings.http.server import HttpServer
from registry.backup import HistoryKeeper, HistoryLimits
from registry.core.ancestry import Linter, Strictness
from registry.core.service import RegistryService
from registry.delivery.service import PERMISSIONS, SubscriptionApi
from registry.delivery.subscriber_worker import Dispatch
from registry.delivery.subscriptions import PATH, DeliverySettings, sources_of
from registry.http.access import Authorizer, RegistryApiFactory, Roles, WriteRateLimiter
from registry.http.application import (
    HistoryApi,
    PermissionApi,
    RegistryApplication,
    RequestLimits,
    SubscriptionsHttpApi,
)
from registry.http.openapi import HISTORY, build_openapi
from registry.replication.peers import Peer, Replication
from registry.store.engine import Database, open_database, store_error


def create_metrics_server(
    host: str, port: int, collectors: Iterable[Collector], is_ready: Callable[[], bool]
) -> MetricsServer:
    """Return the server of metrics and health; ``/readyz`` is whether the registry accepts requests.

    It is ready even if the store is unavailable: another process with the same store would not help, and the responses
    name the problem.
    """
    registry = CollectorRegistry(auto_describe=True)  # so that name[] filters work
    for each in collectors:
        registry.register(each)

    def ready() -> tuple[bool, dict[str, str]]:
        return is_ready(), {"status": "ok" if is_ready() else "not serving"}

    checks: dict[bytes, HealthCheck] = {b"/healthz": lambda: (True, {"status": "ok"}), b"/readyz": ready}
    return MetricsServer("registry's metrics", (host, port), registry, checks)


# Metrics: delivery by subscriber, replication by peer, and history.

_Spec = tuple[type[GaugeMetricFamily] | type[CounterMetricFamily], str, str, Callable[[Any], float]]
"""A metric of tallies: its kind, name and description, and its value for a tally."""


def _iter_families(
    prefix: str, labels: Sequence[str], specs: Sequence[_Spec], tallies: Iterable[tuple[Sequence[str], Any]]
) -> Iterator[Metric]:
    """Yield the metrics of tallies, which are labelled by their keys."""
    for kind, name, description, value in specs:
        family = kind(f"xrouter_registry_{prefix}_{name}", description, labels=labels)
        for key, tally in tallies:
            family.add_metric(key, value(tally))
        yield family


def _age(since: float) -> float:
    return max(time.time() - since, 0.0)


_DELIVERY: Final[Sequence[_Spec]] = (
    (GaugeMetricFamily, "pending", "Events not delivered yet.", lambda each: each.pending),
    (
        GaugeMetricFamily,
        "oldest_seconds",
        "Age of the oldest event not delivered yet, in seconds.",
        lambda each: _age(each.oldest) if each.oldest else 0.0,
    ),
    (
        GaugeMetricFamily,
        "held",
        "Whether delivery is blocked, for an entity or for the whole subscriber.",
        lambda each: each.state in ("holding", "away"),
    ),
    (CounterMetricFamily, "delivered", "Events delivered to the subscriber.", lambda each: each.delivered),
    (CounterMetricFamily, "failed", "Failed delivery attempts.", lambda each: each.failed),
    (
        CounterMetricFamily,
        "dropped",
        "Events dropped because they were too old or too many.",
        lambda each: each.dropped,
    ),
)
_REPLICATION: Final[Sequence[_Spec]] = (
    (
        GaugeMetricFamily,
        "behind_seconds",
        "Seconds since the last completed round began; before the first, since startup.",
        lambda each: _age(each.equal_since),
    ),
    (
        GaugeMetricFamily,
        "last_success_timestamp_seconds",
        "Unix time of the last completed round, 0 before the first.",
        lambda each: each.success,
    ),
    (CounterMetricFamily, "changes", "Changes transferred.", lambda each: each.changes),
    (CounterMetricFamily, "applied", "Changes that were new to the receiver.", lambda each: each.applied),
    (CounterMetricFamily, "refused", "Changes refused by the receiver.", lambda each: each.refused),
    (CounterMetricFamily, "failures", "Rounds that failed.", lambda each: each.failures),
)


class RegistryCollector(Collector):
    """Collects the current metrics of delivery, replication and history."""

    def __init__(self, dispatch: Dispatch | None, replication: Replication, keeper: HistoryKeeper) -> None:
        self._dispatch = dispatch
        self._replication = replication
        self._keeper = keeper

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; those of delivery only if this process may deliver."""
        if self._dispatch is not None:
            subscribers = [((name,), tally) for name, tally in self._dispatch.tallies.copy().items()]
            yield from _iter_families("events", ("subscriber",), _DELIVERY, subscribers)
            description = "Whether this process delivers events, of those that share a database."
            yield GaugeMetricFamily("xrouter_registry_delivers", description, value=float(self._dispatch.is_delivering))
        peers = list(self._replication.tallies.items())
        yield from _iter_families("replication", ("peer", "direction"), _REPLICATION, peers)
        description = "History entries after the last pruning."
        yield GaugeMetricFamily("xrouter_registry_history_entries", description, value=self._keeper.entries)
        description = "History entries pruned by this process because they were too old or too many."
        yield CounterMetricFamily("xrouter_registry_history_pruned", description, value=self._keeper.pruned)


_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """Settings of a registry server.

    ``store`` is an SQLAlchemy URL. ``base`` is the registry's URL for clients ('' is each request's host). ``port``
    0 selects a free one. With ``ca`` of ``tls`` clients need a certificate of these authorities, whose common name is
    the user name unless there is an ``access``; without either anybody may do everything. Each sender may make
    ``writes_per_second`` writes, and ``write_burst`` at once. ``apis`` are the APIs besides the core API, by path.
    Without ``delivery`` this process delivers no events. ``metrics`` is host and port of the metrics, None for none.
    ``authority`` is the one of :class:`registry.core.service.RegistryService`; replication with ``peers`` requires it.
    """

    store: str
    registryid: str = "registry"
    base: str = ""
    host: str = "127.0.0.1"
    port: int = 8090
    tls: Tls | None = None
    access: Access | None = None
    roles: Roles = field(default_factory=Roles)
    lint: Strictness = "refuse"
    writes_per_second: float = 200.0
    write_burst: int = 1000
    limits: RequestLimits = field(default_factory=RequestLimits)
    server: ServerLimits = field(default_factory=ServerLimits)
    apis: Mapping[str, RegistryApiFactory] = field(default_factory=dict)
    delivery: DeliverySettings | None = field(default_factory=DeliverySettings)
    metrics: tuple[str, int] | None = None
    authority: str = ""
    peers: tuple[Peer, ...] = ()
    history: HistoryLimits = field(default_factory=HistoryLimits)


def open_service(settings: RegistrySettings) -> tuple[Database, RegistryService]:
    """Open the store, and create the registry if there is none.

    Raises:
        StoreError: the store cannot be opened.
        Refusal: the id of the registry is not valid.
    """
    database = open_database(settings.store)
    subscriptions = settings.delivery is not None and settings.delivery.subscriptions
    service = RegistryService(
        database,
        Linter(settings.lint),
        partial(build_openapi, access=settings.access, subscriptions=subscriptions),
        settings.authority,
    )
    try:
        service.prepare(settings.registryid)
    except SQLAlchemyError as error:
        database.close()
        raise store_error(settings.store, error) from error
    except BaseException:
        database.close()
        raise
    return database, service


class RegistryServer:
    """Serves one registry; started once, stopped once. After the start ``port`` is the actual port."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._database: Database | None = None
        self._listener: socket.socket | None = None
        self._application: RegistryApplication | None = None
        self._server: HttpServer | None = None
        self._dispatch: Dispatch | None = None
        self._metrics: MetricsServer | None = None
        self._replication: Replication | None = None
        self._history: HistoryKeeper | None = None
        self.port = settings.port
        self.metrics_port = 0

    def start(self) -> None:
        """Start: when this returns, requests are accepted; when it raises, nothing is left open.

        Raises:
            StoreError: the store cannot be opened.
            GatewayError: the address is in use, or the certificate or key is not usable.
        """
        try:
            self._start()
        except BaseException:
            self.stop(0.0)
            raise

    def _start(self) -> None:
        chosen = self._settings
        tls = create_server_tls(chosen.tls)
        self._database, service = open_service(chosen)
        authorizer = Authorizer(
            chosen.access, chosen.roles, certificates=chosen.tls is not None and chosen.tls.ca is not None
        )
        rate_limiter = WriteRateLimiter(chosen.writes_per_second, chosen.write_burst)
        self._listener = listener = open_listener(chosen.host, chosen.port, "registry")
        self.port = listener.getsockname()[1]
        apis: dict[str, RegistryApiFactory] = {**chosen.apis, HISTORY: HistoryApi}
        if chosen.delivery is not None:
            apis |= self._create_delivery(self._database, chosen.delivery, secure=tls is not None)
        self._application = RegistryApplication(
            service,
            authorizer,
            rate_limiter,
            chosen.limits,
            chosen.base,
            apis,
            secure=tls is not None,
            open_paths=(PERMISSIONS,),
        )
        self._server = HttpServer(
            "registry",
            (chosen.host, chosen.port),
            self._application,
            chosen.server,
            tls=tls,
            listener=listener,
            finish_reply=self._application.with_cors,
        )
        self._history = HistoryKeeper(self._database, chosen.history)
        self._replication = Replication(service, chosen.peers)
        if chosen.metrics is not None:
            collectors: list[Collector] = [RegistryCollector(self._dispatch, self._replication, self._history)]
            if chosen.tls is not None and chosen.tls.certificate is not None:
                collectors.append(CertificateCollector({"http.tls": chosen.tls.certificate}))
            self._metrics = create_metrics_server(*chosen.metrics, collectors, lambda: self.is_alive)
            self._metrics.start()
            self.metrics_port = self._metrics.port
        if self._dispatch is not None:
            self._dispatch.start()
        self._server.start()
        self._replication.start()
        self._history.start()

    def _create_delivery(
        self, database: Database, chosen: DeliverySettings, *, secure: bool
    ) -> dict[str, RegistryApiFactory]:
        """Create the delivery of events, and return the APIs of subscriptions."""
        host = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
        base = self._settings.base.rstrip("/") or f"{'https' if secure else 'http'}://{host}:{self.port}"
        if not self._settings.base and self._settings.host in ("0.0.0.0", "::"):
            _logger.warning("base_url is not set: events have the source %s", base)
        sources = sources_of(base, chosen.catalog)
        subscriptions = SubscriptionApi(database, sources, chosen, lambda: dispatch.wake())
        dispatch = Dispatch(database, chosen.subscribers, subscriptions.build_delivery, sources, chosen.limits)
        self._dispatch = dispatch
        if not chosen.subscriptions:
            return {}
        return {
            PATH: lambda _: SubscriptionsHttpApi(subscriptions),
            PERMISSIONS: lambda _: PermissionApi(subscriptions),
        }

    @property
    def is_alive(self) -> bool:
        """Whether it is listening."""
        return self._server is not None and self._server.alive

    def stop(self, grace: float = 10.0) -> None:
        """Complete requests in flight, then close everything.

        All parts together have *grace* seconds. Requests get at most half of it, so that delivery, which stops after
        them, has time to stop cleanly; independent parts get all of it. A part that hangs, for example on the store, is
        abandoned some seconds later.
        """
        begun = time.monotonic()

        def seconds_left(part: float = 1.0) -> float:
            return max(begun + part * grace - time.monotonic(), 0.0)

        beside = [each for each in (self._replication, self._history) if each is not None]
        for each in beside:
            each.request_stop()
        if self._server is not None:
            self._server.stop(seconds_left(0.5))
        if self._listener is not None:
            self._listener.close()  # the server does so if it was started
        if self._application is not None:
            self._application.close(seconds_left(0.5))
        if self._dispatch is not None:
            self._dispatch.stop(seconds_left())
        if self._metrics is not None:
            self._metrics.stop()
        for each in beside:
            each.join(seconds_left())
        if self._database is not None:
            self._database.close()
