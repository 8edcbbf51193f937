"""Reload: a changed catalog becomes a new epoch between two batches, or is refused and the last good one goes on.

A catalog is refused when it cannot be read, when it has an error that the active one does not have, or when a source
would not work with it: a slip of the pen must not take a working definition away. It waits while it refers to what
cannot be reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalog.model import Catalog, Finding
from catalog.watch import CatalogWatcher, Refusal, Waiting
from router.errors import ConfigError
from router.logs import get_logger
from router.plan import Plan
from router.settings import Settings

if TYPE_CHECKING:
    from router.metrics import Metrics
    from router.status import Status

_log = get_logger()


class Reloader:
    """Polls the catalog and compiles plans for what it finds."""

    def __init__(self, settings: Settings, active: Plan, metrics: Metrics, status: Status) -> None:
        self._settings = settings
        self._active = active
        self._metrics = metrics
        self._status = status
        self._interval = settings.catalog.poll.total_seconds()
        self._watcher = CatalogWatcher(
            settings.catalog.source, self._interval, network=settings.catalog.network, current=active.catalog
        )

    def poll(self) -> Plan | None:
        """Return the plan for a new, accepted catalog; None when there is nothing new to act on."""
        if self._interval <= 0:
            return None
        found = self._watcher.poll()
        if found is None:
            return None
        if isinstance(found, Refusal):
            self._refuse(found.errors)
            return None
        if isinstance(found, Waiting):
            _log.warning("catalog waits for what it refers to; the last good one goes on", unreachable=list(found.uris))
            return None
        return self._consider(found)

    def _consider(self, catalog: Catalog) -> Plan | None:
        if not catalog.definitions:
            self._refuse((Finding("", "", "error", "no-definitions", "the catalog has no usable definition left"),))
            return None
        if catalog.epoch == self._active.epoch:
            self._status.catalog(catalog.epoch, len(catalog.definitions))
            _log.info("catalog is good again, and what it was", epoch=catalog.epoch)
            return None
        plan = Plan(catalog, self._settings)
        try:
            _ = plan.sources
        except ConfigError as error:
            self._refuse((Finding("", "", "error", "unusable-source", error.message, error.hint),))
            return None
        _ = plan.judge
        self._active = plan
        self._metrics.reload("accepted")
        _log.info("catalog reloaded", epoch=plan.epoch, definitions=len(catalog.definitions))
        return plan

    def _refuse(self, findings: tuple[Finding, ...]) -> None:
        self._metrics.reload("refused")
        self._status.refused(findings)
        for finding in findings[:20]:
            _log.error(
                "catalog refused; the last good one goes on",
                file=finding.file,
                pointer=finding.pointer,
                rule=finding.rule,
                problem=finding.message,
                hint=finding.hint,
            )
