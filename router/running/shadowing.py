"""The shadow catalog of a running router: read again as the active one is, without holding anything up.

It is loaded and compiled in a thread of its own, refused for what a reload would refuse, and given to the plans when it
is good. Its faults are logged and shown; the stream goes on, and so does the last good shadow.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from catalog.documents.doubting import Doubtful
from catalog.model import Finding
from catalog.paused_gc import set_aside_from_gc
from catalog.watch import CatalogWatcher, RefusedCatalog, Waiting
from router.batches.plans import PlanHolder
from router.judging.plan import Plan
from router.logs import get_logger
from router.running.reload import in_background
from router.settings.catalogs import logins_of
from router.terminal import counted

if TYPE_CHECKING:
    from router.watching.shadow import ShadowFigures

FIRST_SECONDS: Final = 60.0
"""Longest wait for the shadow by a router that ends when it is done."""
LOGGED: Final = 20
_REMEDY: Final = "the stream goes on; mend what catalog.shadow names, which is looked at again"
_log = get_logger()


class Shadowing:
    """Looks after ``catalog.shadow``; without one it does nothing. Not for concurrent use."""

    def __init__(self, plans: PlanHolder, figures: ShadowFigures) -> None:
        """*plans* has the active plan already, whose settings these are."""
        active = plans.active
        catalog = active.settings.catalog
        self._plans = plans
        self._figures = figures
        self._settings = active.settings
        self._look: Future[Plan | None] | None = None
        self._waits = False
        self._interval = catalog.poll.total_seconds()
        self._watcher: CatalogWatcher | None = None
        if catalog.shadow:
            figures.expect(catalog.shadow, [source.endpoint for source in active.sources])
            # As with a reload, faults that the active catalog has too are no reason to refuse it.
            self._watcher = CatalogWatcher(
                catalog.shadow,
                self._interval,
                network=catalog.network,
                allow=catalog.allow_addresses,
                logins=logins_of(active.settings),
                base_uri=catalog.base_uri,
                max_shrink=1.0,
                current=active.catalog,
                elsewhere=True,
            )
            self._look = in_background(self._first)

    def wait(self) -> None:
        """Wait for the first look, for a while; for a router that is about to read all there is, and end."""
        if self._look is not None:
            try:
                self._look.exception(FIRST_SECONDS)
            except TimeoutError:
                _log.warning("shadow catalog takes long to load; the stream begins without it")
            self.check()

    def check(self) -> None:
        """Let a shadow that a look has found begin to judge, and look again if it is time; does not wait."""
        if self._look is None:
            if self._watcher is not None and self._interval > 0 and self._watcher.due:
                self._look = in_background(self._next)
            return
        if not self._look.done():
            return
        look, self._look = self._look, None
        try:
            plan = look.result()
            if plan is not None:
                self._plans.shadow(plan)
                set_aside_from_gc()
                # Only now: before, whoever reads that it is good would see the figures of the one before it.
                self._figures.broken("")
        except Exception as error:  # Any fault of a new catalog is reported, and the stream goes on.
            _log.warning("shadow catalog cannot be used", problem=str(error), error=type(error).__name__, hint=_REMEDY)
            self._figures.broken(f"{type(error).__name__}: {error}")

    def log(self) -> None:
        """Log what was compared; called at the end, after which nobody can ask for figures."""
        figures = self._figures.to_json()
        if figures is None or figures["before"] is None:
            return
        changed = {kind: number for kind, number in figures["changed"].items() if number}
        counts = {name: figures[name] for name in ("before", "after", "outcomes", "unchanged", "left_out", "failed")}
        _log.info("shadow catalog compared", **counts, changed=changed)

    def _first(self) -> Plan | None:
        plan = self._next()
        # The watcher reports no shadow that equals the active catalog; it is good all the same.
        if plan is None and not self._figures.is_broken:
            return self._plans.active
        return plan

    def _next(self) -> Plan | None:
        """Look, and return a shadow that is new and good, compiled."""
        assert self._watcher is not None
        polled = self._watcher.poll()
        if self._waits and not self._watcher.awaited:
            # It does not wait any more, whatever it is now; a look does not report a catalog that is unchanged.
            self._waits = False
            self._figures.broken("")
        if polled is None:
            return None
        if isinstance(polled, RefusedCatalog):
            self._refuse(polled.errors)
            return None
        if isinstance(polled, Waiting):
            self._wait_for(polled.uris)
            return None
        if isinstance(polled, Doubtful):  # The next look takes it.
            return None
        plan = Plan(polled, self._settings)
        _ = plan.judge
        _log.info("shadow catalog loaded", epoch=plan.epoch, definitions=len(polled.definitions))
        return plan

    def _refuse(self, findings: Sequence[Finding]) -> None:
        first = findings[0].message if findings else "it cannot be read"
        self._figures.broken(f"{counted(len(findings), 'error')}: {first}", findings)
        for each in findings[:LOGGED]:
            _log.warning(
                "shadow catalog cannot be used",
                file=each.file,
                pointer=each.pointer,
                rule=each.rule,
                problem=each.message,
                hint=each.hint or _REMEDY,
            )

    def _wait_for(self, uris: Sequence[str]) -> None:
        self._waits = True
        self._figures.broken(f"it refers to what cannot be reached: {', '.join(uris[:LOGGED])}")
        _log.warning("shadow catalog waits for what it refers to", unreachable=list(uris))
