"""Reload: a changed catalog becomes a new epoch between two batches, or is refused and the last good one goes on.

A catalog is refused when it cannot be read, when it has an error that the active one does not have, when a source
would not work with it or would have no candidate left, or when it would show credentials to another address
(:mod:`router.state.trust`): a slip must not remove a working definition. With ``catalog.on_incompatible: refuse`` no
other change may do so either, with ``warn`` sources may lose their candidates. A catalog waits while it refers to what
cannot be reached. Looks are taken in a thread of their own, so a server that is slow to answer delays neither the
router's other duties nor its end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from catalog.comparing import compare
from catalog.documents.doubting import Doubtful
from catalog.model import Catalog, Finding
from catalog.watch import CatalogWatcher, RefusedCatalog, Waiting
from router.errors import ConfigError, StateError
from router.judging.plan import Plan
from router.logs import get_logger
from router.realtime.checks import require_real_time
from router.running.differences import incompatible, lost_sources
from router.settings import Settings
from router.settings.catalogs import logins_of
from router.state.trust import Pins, clients_of, distrusted

if TYPE_CHECKING:
    from router.watching.metrics import Metrics
    from router.watching.status import Status

T = TypeVar("T")
UNREAD_SECONDS: Final = 5.0
"""Time between two looks for a catalog that could not be read at the start, where it is not polled."""
LOOK_SECONDS: Final = 0.1
"""Time between two checks whether a thread has ended, or the wait for it is over."""
_log = get_logger()


def _nobody() -> None:
    """Nudge nobody."""


class Reloader:
    """Polls the catalog and compiles plans for what it finds."""

    def __init__(
        self,
        settings: Settings,
        active: Plan,
        metrics: Metrics,
        status: Status,
        nudge: Callable[[], None] = _nobody,
        *,
        unread: bool = False,
    ) -> None:
        """*nudge* is called, in any thread, when an event makes a poll due and none is under way.

        With *unread* the active catalog was kept from before: it is looked for even where changes are not.
        """
        self._settings = settings
        self._nudge = nudge
        self._looking = False
        self._active = active
        self._metrics = metrics
        self._status = status
        self._pins = Pins(Path(settings.state))
        self._interval = settings.catalog.poll.total_seconds() or (UNREAD_SECONDS if unread else 0)
        self._watcher = CatalogWatcher(
            settings.catalog.source,
            self._interval,
            network=settings.catalog.network,
            allow=settings.catalog.allow_addresses,
            logins=logins_of(settings),
            base_uri=settings.catalog.base_uri,
            max_shrink=settings.catalog.max_shrink,
            current=active.catalog,
            unfit=self._unfit,
            unread=unread,
        )
        if settings.catalog.events is not None:
            metrics.listen(settings.catalog.events, self._wake)

    @property
    def due(self) -> bool:
        """Whether a poll would look; before that it returns None."""
        return self._interval > 0 and self._watcher.due

    def _wake(self) -> None:
        self._watcher.wake()
        # Whoever polls starts the next look when this one has ended.
        if self.due and not self._looking:
            self._nudge()

    def poll(self) -> Plan | None:
        """Return the plan for a new, accepted catalog; None when there is nothing new to act on."""
        if not self.due:
            return None
        self._looking = True
        try:
            return self._look()
        finally:
            self._looking = False

    def _look(self) -> Plan | None:
        polled = self._watcher.poll()
        self._status.awaiting(self._watcher.awaited)
        self._metrics.awaited(len(self._watcher.awaited))
        self._status.doubting(self._watcher.doubts)
        self._metrics.doubted(len(self._watcher.doubts))
        if polled is None:
            _log.debug("catalog looked at, and nothing new", epoch=self._active.epoch)
            return None
        if isinstance(polled, RefusedCatalog):
            self._refuse(polled.errors)
            return None
        if isinstance(polled, Doubtful):
            hint = "if the change is intended, do nothing: the next look takes it"
            _log.warning("catalog waits for a second look", reasons=list(polled.reasons), hint=hint)
            return None
        if isinstance(polled, Waiting):
            _log.warning(
                "catalog waits for what it refers to; the last good one goes on", unreachable=list(polled.uris)
            )
            return None
        return self._consider(polled)

    def _consider(self, catalog: Catalog) -> Plan | None:
        self._interval = self._settings.catalog.poll.total_seconds()
        if catalog.epoch == self._active.epoch:
            self._status.catalog(catalog.epoch, len(catalog.definitions))
            self._metrics.catalog_state.refused(0)
            _log.info("catalog is good again, and unchanged", epoch=catalog.epoch)
            return None
        plan = Plan(catalog, self._settings)
        try:
            require_real_time(plan)
            clients = clients_of(self._settings, catalog, plan.sources)
            distrust = distrusted(clients, self._pins)
        except (ConfigError, StateError) as error:
            self._refuse((Finding("", "", "error", "unusable-source", error.message, error.hint),))
            return None
        if distrust:
            self._refuse(tuple(distrust))
            return None
        _ = plan.judge
        try:
            # An address is on the disk before any connection shows credentials to it.
            self._pins.keep(clients)
        except StateError as error:
            self._refuse((Finding("", "", "error", "moved-address", error.message, error.hint),))
            return None
        self._active = plan
        self._metrics.reload("accepted")
        self._metrics.catalog_state.refused(0)
        _log.info("catalog reloaded", epoch=plan.epoch, definitions=len(catalog.definitions))
        return plan

    def _unfit(self, catalog: Catalog) -> tuple[Finding, ...]:
        """Return what a changed catalog would take away, as far as that is a reason to refuse it."""
        if catalog.epoch == self._active.epoch or self._settings.catalog.on_incompatible == "warn":
            return ()
        lost = lost_sources(self._active, catalog)
        if self._settings.catalog.on_incompatible == "sources":
            return lost
        return (*lost, *incompatible(compare(self._active.catalog, catalog)))

    def _refuse(self, findings: tuple[Finding, ...]) -> None:
        self._metrics.reload("refused")
        self._metrics.catalog_state.refused(len(findings))
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


class BackgroundReloads:
    """Polls in a thread of its own, one look at a time; whoever asks gets an answer at once."""

    def __init__(self, reloader: Reloader, nudge: Callable[[], None] = _nobody) -> None:
        """*nudge* is called, in another thread, when a look has come to its end."""
        self._reloader = reloader
        self._nudge = nudge
        self._look: Future[Plan | None] | None = None

    def poll(self) -> Plan | None:
        """Return the plan that a look has found since the last call; None when there is none, or it is under way.

        Raises what the look raised.
        """
        if self._look is None and self._reloader.due:
            self._look = in_background(self._reloader.poll)
            self._look.add_done_callback(lambda _: self._nudge())
        if self._look is None or not self._look.done():
            return None
        look, self._look = self._look, None
        return look.result()


def in_background(work: Callable[[], T]) -> Future[T]:
    """Begin work in a thread that the end of the process does not wait for."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # Whoever asks for the result gets the error.
            future.set_exception(error)

    threading.Thread(target=run, name="catalog", daemon=True).start()
    return future


def unless_stopped(work: Callable[[], T], stop: threading.Event) -> T | None:
    """Return what work gives, or None as soon as *stop* is set; raises what the work raises."""
    future = in_background(work)
    while not future.done():
        if stop.wait(LOOK_SECONDS):
            return None
    return future.result()
