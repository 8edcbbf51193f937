"""What watchers see of a process that has a catalog, be it a router or gateways, from before it has read that."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from catalog.model import Catalog
from router.judging.loading import read_catalog
from router.judging.plan import Plan
from router.logs import get_logger
from router.overview.overview import Overview, Replays
from router.running.reload import unless_stopped
from router.settings import Settings
from router.sinks.tables.files import local_folder
from router.telemetry.configured import telemetry
from router.watching.certificates import certificate_collector
from router.watching.metrics import Metrics
from router.watching.monitor import MonitorServer
from router.watching.process import DiskCollector
from router.watching.status import Status

HOLD_SECONDS: Final = 5.0
"""Time between two looks at what a catalog refers to before the first start, when the catalog is not polled."""
_log = get_logger()


@dataclass(frozen=True, slots=True)
class Monitored:
    """What watchers see of this process, from before it has a catalog, at ``port``."""

    metrics: Metrics
    status: Status
    port: int
    overview: Overview

    def announce(self, plan: Plan, endpoints: Iterable[str]) -> None:
        """Show a plan as the one in force, and series of these endpoints."""
        self.metrics.catalog(plan.epoch, len(plan.catalog.definitions))
        self.metrics.catalog_state.set_findings(plan.catalog.findings)
        self.status.catalog(plan.epoch, len(plan.catalog.definitions))
        self.metrics.expect(endpoints=endpoints)
        self.overview.follow(plan)


@contextmanager
def monitored(settings: Settings, status: Status, replays: Replays | None = None) -> Iterator[Monitored]:
    """Serve metrics and status for the time of the block; without *replays*, the status page shows no records.

    Raises:
        ConfigError: as :meth:`MonitorServer.start`.
    """
    metrics = Metrics(settings.sinks)
    metrics.registry.register(certificate_collector(settings))
    metrics.registry.register(DiskCollector(disks(settings)))
    overview = Overview(settings, metrics, status, replays)
    server = MonitorServer(settings.metrics.host, settings.metrics.port, metrics, status, overview)
    server.start()
    try:
        with telemetry(settings.telemetry.otlp, metrics.registry, status.steps):
            yield Monitored(metrics, status, server.port, overview)
    finally:
        server.stop()
        overview.close()


def disks(settings: Settings) -> dict[str, Path]:
    """Return the folders on disks of this machine that are written to, by their keys of the settings."""
    folders = {f"sinks.{name}": local_folder(sink.folder) for name, sink in settings.sinks.items() if sink.folder}
    local = {key: folder for key, folder in folders.items() if folder is not None}
    return {"state": Path(settings.state), **local}


def whole_catalog(settings: Settings, stop: threading.Event, monitoring: Monitored) -> Catalog | None:
    """Load the catalog, and hold until all that it refers to is loaded or known to be unloadable.

    None when *stop* came first, however long somebody takes to answer.

    Raises:
        CatalogUnavailable: as :func:`read_catalog`.
    """
    reported: tuple[str, ...] = ()
    while not stop.is_set():
        catalog = unless_stopped(lambda: read_catalog(settings), stop)
        if catalog is None:
            return None
        monitoring.status.awaiting(catalog.pending)
        monitoring.metrics.awaited(len(catalog.pending))
        if not catalog.pending:
            return catalog
        if catalog.pending != reported:
            reported = catalog.pending
            _log.warning("not started yet: the catalog refers to what cannot be reached", unreachable=list(reported))
        stop.wait(settings.catalog.poll.total_seconds() or HOLD_SECONDS)
    return None
