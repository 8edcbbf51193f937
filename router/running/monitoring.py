"""What watchers see of a process that has a catalog, be it a router or gateways, from before it has read that."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from catalog.listing import catalog_from_json, catalog_to_json
from catalog.model import Catalog
from router.errors import CatalogUnavailable
from router.judging.plan import VERSION, Plan, read_catalog
from router.logs import few, get_logger
from router.overview.overview import Overview, Replays
from router.running.reload import unless_stopped
from router.settings import Settings
from router.sinks.tables.head import local_folder
from router.state.durable import write_durably
from router.telemetry.configured import telemetry
from router.watching.collectors import certificate_collector
from router.watching.metrics import DiskCollector, Metrics
from router.watching.monitor import MonitorServer
from router.watching.status import RouterStatus

HOLD_SECONDS: Final = 5.0
"""Time between two looks at what a catalog refers to before the first start, when the catalog is not polled."""
_USER: Final = re.compile(r"//[^/@]*@")
"""User and password of a URL, which are not written down."""
_log = get_logger()


@dataclass(frozen=True, slots=True)
class Monitored:
    """What watchers see of this process, from before it has a catalog, at ``port``."""

    metrics: Metrics
    status: RouterStatus
    port: int
    overview: Overview
    last: LastCatalog | None = None

    def announce(self, plan: Plan, endpoints: Iterable[str], *, stale: str = "") -> None:
        """Show a plan as the one in force, and series of these endpoints; *stale* is why its catalog was not read."""
        self.metrics.catalog(plan.epoch, len(plan.catalog.definitions))
        self.metrics.catalog_state.set_findings(plan.catalog.findings)
        self.status.catalog(plan.epoch, len(plan.catalog.definitions))
        self.metrics.expect(endpoints=endpoints)
        self.overview.follow(plan)
        self.status.stale(stale)
        if self.last is not None and not stale:
            self.last.keep(plan.catalog)


class LastCatalog:
    """The catalog that was in force last, in ``catalog.json`` of the state folder, for starts while it is away.

    It counts for the sources that it was read from, and for the version that wrote it. Who writes last has kept it.
    """

    def __init__(self, settings: Settings) -> None:
        self._path = Path(settings.state) / "catalog.json"
        read = settings.catalog
        told = json.dumps([[_USER.sub("//", source) for source in read.source], read.base_uri])
        self._of = {"format": 1, "version": VERSION, "sources": hashlib.sha256(told.encode()).hexdigest()}
        self._kept = ""

    def keep(self, catalog: Catalog) -> None:
        """Write down the catalog that is in force, unless it is there."""
        if catalog.pending or catalog.epoch == self._kept:
            return
        try:
            write_durably(self._path, json.dumps({**self._of, "catalog": catalog_to_json(catalog)}).encode())
            self._kept = catalog.epoch
        except OSError as error:
            _log.warning("catalog is not kept for a start without its registry", file=self._path, problem=str(error))

    def read(self) -> tuple[Catalog, str] | None:
        """Return the catalog and since when it is kept; None where there is none of these sources and this version."""
        try:
            form = json.loads(self._path.read_bytes())
            if {name: form.get(name) for name in self._of} != self._of:
                return None
            catalog = catalog_from_json(form["catalog"])
            kept = datetime.fromtimestamp(self._path.stat().st_mtime, UTC).isoformat(timespec="seconds")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning("the catalog that was kept cannot be used", file=self._path, problem=str(error))
            return None
        self._kept = catalog.epoch
        return catalog, kept


@contextmanager
def monitored(settings: Settings, status: RouterStatus, replays: Replays | None = None) -> Iterator[Monitored]:
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
            yield Monitored(metrics, status, server.port, overview, LastCatalog(settings))
    finally:
        server.stop()
        overview.close()


def disks(settings: Settings) -> dict[str, Path]:
    """Return the folders on disks of this machine that are written to, by their keys of the settings."""
    folders = {f"sinks.{name}": local_folder(sink.folder) for name, sink in settings.sinks.items() if sink.folder}
    local = {key: folder for key, folder in folders.items() if folder is not None}
    return {"state": Path(settings.state), **local}


def whole_catalog(settings: Settings, stop: threading.Event, monitoring: Monitored) -> tuple[Catalog, str] | None:
    """Load the catalog; where it cannot be reached now, take the one that was in force last, and return why.

    Without such a one a start holds until all that its catalog refers to is loaded or known to be unloadable. None when
    *stop* came first, however long somebody takes to answer.

    Raises:
        CatalogUnavailable: as :func:`read_catalog`, and none was in force before.
    """
    reported: tuple[str, ...] = ()
    while not stop.is_set():
        try:
            catalog = unless_stopped(lambda: read_catalog(settings), stop)
        except CatalogUnavailable as error:
            last = monitoring.last.read() if monitoring.last is not None and error.awaited else None
            if last is None:
                raise
            return _stale(monitoring, (error.awaited,), *last)
        if catalog is None:
            return None
        monitoring.status.awaiting(catalog.pending)
        monitoring.metrics.awaited(len(catalog.pending))
        if not catalog.pending:
            return catalog, ""
        if (last := monitoring.last.read() if monitoring.last is not None else None) is not None:
            return _stale(monitoring, catalog.pending, *last)
        if catalog.pending != reported:
            reported = catalog.pending
            _log.warning("not started yet: the catalog refers to what cannot be reached", unreachable=list(reported))
        stop.wait(settings.catalog.poll.total_seconds() or HOLD_SECONDS)
    return None


def _stale(monitoring: Monitored, awaited: tuple[str, ...], catalog: Catalog, kept: str) -> tuple[Catalog, str]:
    """Say that the last good catalog is taken, since these addresses cannot be reached."""
    monitoring.status.awaiting(awaited)
    monitoring.metrics.awaited(len(awaited))
    reason = f"the catalog cannot be reached at {few(awaited)}; the last good one, of {kept}, is in force until it can"
    _log.warning("started with the last good catalog", unreachable=list(awaited), epoch=catalog.epoch, kept=kept)
    return catalog, reason
