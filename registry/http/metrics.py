"""The server for those who watch a registry: ``/metrics``, in the text form of Prometheus.

It has no login and speaks no TLS, so it listens on loopback unless the settings say otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bindings.http.limits import ServerLimits
from bindings.http.listening import listen
from bindings.http.problems import HttpProblem, Reply
from bindings.http.request import Head
from bindings.http.server import HttpServer
from registry.delivery.dispatch import Dispatch
from registry.delivery.tallies import Tally
from registry.upkeep.history import HistoryKeeper

_LIMITS: Final = ServerLimits(max_header_bytes=16 * 2**10, max_headers=100, max_connections=100, max_per_address=50)
_STOP_SECONDS: Final = 1.0
_GAUGES: Final[tuple[tuple[str, str, Callable[[Tally, float], float]], ...]] = (
    ("pending", "Events that are not delivered yet.", lambda each, now: each.pending),
    (
        "oldest_seconds",
        "Age of the oldest event that is not delivered yet.",
        lambda each, now: max(now - each.oldest, 0.0) if each.oldest else 0.0,
    ),
    ("held", "Whether an entity, or the whole subscriber, waits.", lambda each, now: each.state in ("holding", "away")),
)
_COUNTERS: Final[tuple[tuple[str, str, Callable[[Tally], int]], ...]] = (
    ("delivered", "Events that the subscriber has taken.", lambda each: each.delivered),
    ("failed", "Tries that failed.", lambda each: each.failed),
    ("dropped", "Events that were dropped, being too old or too many.", lambda each: each.dropped),
)


class DeliveryCollector(Collector):
    """Gives what delivery counts, as it is when it is asked."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; those of subscribers under their ids."""
        tallies, now = self._dispatch.tallies.all().items(), time.time()
        for name, told, value in _GAUGES:
            gauge = GaugeMetricFamily(f"xrouter_registry_events_{name}", told, labels=("subscriber",))
            for subscriber, tally in tallies:
                gauge.add_metric((subscriber,), value(tally, now))
            yield gauge
        for name, told, count in _COUNTERS:
            counter = CounterMetricFamily(f"xrouter_registry_events_{name}", told, labels=("subscriber",))
            for subscriber, tally in tallies:
                counter.add_metric((subscriber,), count(tally))
            yield counter
        told = "Whether this process delivers, of those over one database."
        yield GaugeMetricFamily("xrouter_registry_delivers", told, value=float(self._dispatch.delivers))


class HistoryCollector(Collector):
    """Gives how much history there is, and how much of it went."""

    def __init__(self, keeper: HistoryKeeper) -> None:
        self._keeper = keeper

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        told = "Entries of history, as they were last looked at."
        yield GaugeMetricFamily("xrouter_registry_history_entries", told, value=self._keeper.entries)
        told = "Entries of history that this process took away, being too old or too many."
        yield CounterMetricFamily("xrouter_registry_history_pruned", told, value=self._keeper.pruned)


class MetricsServer:
    """Serves metrics from a thread of its own; started once, stopped once. ``port`` is the one in use once started."""

    def __init__(self, host: str, port: int, collectors: Iterable[Collector]) -> None:
        self._host = host
        self.port = port
        self._registry = CollectorRegistry(auto_describe=False)
        for each in collectors:
            self._registry.register(each)
        self._server: HttpServer | None = None

    def start(self) -> None:
        """Listen.

        Raises:
            GatewayError: the address is taken.
        """
        listener = listen(self._host, self.port, "the registry's metrics")
        self.port = listener.getsockname()[1]
        self._server = HttpServer(listener, self, _LIMITS, name="registry-metrics")
        self._server.start()

    def stop(self) -> None:
        """Stop listening; does nothing when not running."""
        if self._server is not None:
            self._server.stop(_STOP_SECONDS)
            self._server = None

    def admit(self, head: Head) -> Reply:
        """Answer a request."""
        if head.method not in ("GET", "HEAD"):
            return HttpProblem(HTTPStatus.METHOD_NOT_ALLOWED, "GET it", (b"Allow", b"GET, HEAD")).reply()
        if head.path != b"/metrics":
            return HttpProblem(HTTPStatus.NOT_FOUND, "there is /metrics").reply()
        headers = (b"Content-Type", CONTENT_TYPE_LATEST.encode("ascii")), (b"Cache-Control", b"no-store")
        return Reply(HTTPStatus.OK, headers, generate_latest(self._registry))
