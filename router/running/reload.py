"""Reload: a changed catalog becomes a new epoch between two batches, or is refused and the last good one goes on.

A catalog is refused when it cannot be read, when it has an error that the active one does not have, when a source
would not work with it or would have no candidate left, or when it would show credentials to another address
(:mod:`router.state.durable`): a slip must not remove a working definition. With ``catalog.on_incompatible: refuse`` no
other change may do so either, with ``warn`` sources may lose their candidates. A catalog waits while it refers to what
cannot be reached. Looks are taken in a thread of their own, so a server that is slow to answer delays neither the
router's other duties nor its end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bindings.background import run_in_background
from bindings.protocols import BINDINGS
from catalog.comparing import CatalogChange, CatalogDiff, compare_catalogs
from catalog.documents.documents import UnconfirmedCatalog
from catalog.linting.attributes import RECEIVING
from catalog.load import CatalogWatcher, PendingCatalog, RejectedCatalog, freeze_for_gc
from catalog.model import CLOUDEVENTS, Catalog, Endpoint, Finding
from catalog.parsing.nearest import Suggestions
from router.batches.plans import PlanCache
from router.errors import ConfigError, RouterError, StateError
from router.evaluation.plan import Plan
from router.logs import get_logger
from router.realtime import require_real_time
from router.settings import Settings
from router.settings.catalogs import make_logins
from router.state.durable import distrusted, pin_addresses
from router.terminal import plural

if TYPE_CHECKING:
    from router.watching.metrics import Metrics
    from router.watching.shadow import ShadowMetrics
    from router.watching.status import RouterStatus

# What a changed catalog takes away: reported when it takes effect, and a reason to refuse it.

SHOWN: Final = 20
"""Changes of a reload that are logged one by one, the incompatible ones first."""
CAP: Final = 500
"""Characters of one change."""
RULE: Final = "incompatible-change"
NAMED: Final = 3
"""Definitions and causes that the finding of a lost source names."""
_HINT: Final = "correct it, or restart the router, which accepts the catalog as it is"
_CAUSES: Final = frozenset(
    {"dangling-group", "unknown-protocol", "unknown-envelope", "endpoint-mismatch", "unknown-usage", "dangling-borrow"}
)
"""Rules of what may take the candidates of an endpoint away."""
_log = get_logger()


def find_lost_sources(active: Plan, catalog: Catalog) -> tuple[Finding, ...]:
    """Return the sources that had candidates and would have none with a changed catalog, as findings.

    A candidate counts where it can match. An endpoint that the catalog no longer has, or that is no longer for
    consumers, is given up on purpose, unless the settings name it.
    """
    named = {source.endpoint for source in active.settings.sources}
    found = []
    for source in active.sources:
        before, after = active.catalog.endpoints[source.endpoint], catalog.endpoints.get(source.endpoint)
        had = _matchable_candidates(before, active.catalog)
        if not had or (after is None and source.endpoint not in named):
            continue
        if after is not None and _matchable_candidates(after, catalog) and _is_still_source(after, named):
            continue
        found.append(_make_finding(source.endpoint, had, after, active.catalog, catalog))
    return tuple(found)


def _is_still_source(endpoint: Endpoint, named: Collection[str]) -> bool:
    """Whether records are still taken from an endpoint, or it says itself that it is for producers."""
    usage = set(endpoint.usage)
    return endpoint.protocol in BINDINGS and (endpoint.xid in named or bool(usage & RECEIVING) or "producer" in usage)


def _matchable_candidates(endpoint: Endpoint, catalog: Catalog) -> tuple[str, ...]:
    """Return the candidates that some record of the endpoint can match."""
    return tuple(
        xid
        for xid in endpoint.candidates
        if (definition := catalog.definitions.get(xid)) is not None
        and (definition.envelope or endpoint.envelope) in (None, CLOUDEVENTS)
        and definition.protocol in (None, endpoint.protocol)
    )


def _make_finding(xid: str, had: tuple[str, ...], after: Endpoint | None, active: Catalog, catalog: Catalog) -> Finding:
    known = {(each.rule, each.message) for each in active.findings}
    causes = [each for each in catalog.findings if each.rule in _CAUSES and (each.rule, each.message) not in known]
    parts = {xid.rpartition("/")[2], *(each.rpartition("/")[2] for each in (after.candidates if after else ()))}
    own = [each for each in causes if not parts.isdisjoint(each.pointer.split("/"))] or causes
    # That all messages are of another protocol is what comes of it where one is mistyped.
    own.sort(key=lambda each: each.rule == "endpoint-mismatch")
    names = ", ".join(had[:NAMED]) + (f" and {len(had) - NAMED} more" if len(had) > NAMED else "")
    if after is None:
        near = Suggestions(catalog.endpoints).meant(xid)
        why = "the catalog has no such endpoint any more"
        hint = f"did you mean {near}?" if near else "put the endpoint back."
    else:
        why = (
            "; ".join(each.message for each in own[:NAMED])
            or f"it lists {', '.join(after.messagegroups) or 'no group'}"
        )
        hint = next((each.hint for each in own if each.hint), "list the group that it had")
        hint += "" if hint.endswith("?") else "."
    text = f"the source {xid} would have no candidates left; it had {len(had)} ({names}): {why}"
    meant = "If this is intended, restart the router, or set catalog.on_incompatible to warn"
    return Finding(own[0].file if own else "", own[0].pointer if own else xid, "error", RULE, text, f"{hint} {meant}")


class CatalogComparisons:
    """Compares each catalog that takes effect with the one before, and reports to log, metrics and status page.

    It compares one at a time, in a thread of its own, so that large catalogs hold up nobody. If several take effect
    meanwhile, only the last one is compared, with the one that was reported last. Any thread may call it.
    """

    def __init__(self, metrics: Metrics, status: RouterStatus) -> None:
        self._metrics, self._status = metrics, status
        self._lock = threading.Lock()
        self._compared: Catalog | None = None
        self._latest: Catalog | None = None
        self._good: Catalog | None = None
        """The catalog before the first incompatible change that is not mended; None where there is none."""

    def set_active(self, catalog: Catalog) -> None:
        """Note the catalog that is in force from now on. The first one is only the base of the next comparison."""
        self._latest = catalog
        if self._compared is None:
            self._compared = catalog
        else:
            run_in_background(partial(self._compare, catalog))

    def _compare(self, catalog: Catalog) -> None:
        with self._lock:
            before = self._compared
            if before is None or catalog is not self._latest or before.epoch == catalog.epoch:
                return
            self._compared = catalog
            try:
                difference = compare_catalogs(before, catalog)
                good = self._good or before
                wrong = _count_incompatible(difference if good is before else compare_catalogs(good, catalog))
                self._good = good if wrong else None
                self._status.add_difference(difference)
                numbers = len(difference.changes), _count_incompatible(difference), wrong
                self._metrics.count_changes(*numbers)
                _log_difference(difference)
            except Exception:
                _log.exception("catalog changes cannot be determined; the catalog is active", epoch=catalog.epoch)


def _log_difference(difference: CatalogDiff) -> None:
    wrong = _count_incompatible(difference)
    for change in sorted(difference.changes, key=lambda each: each.compatible)[:SHOWN]:
        if change.compatible:
            _log.info("catalog change", xid=change.xid, change=_describe_change(change))
        else:
            _log.warning("incompatible catalog change", xid=change.xid, change=_describe_change(change))
    epochs = {"before": difference.before, "after": difference.after}
    _log.info("catalog changes", changes=len(difference.changes), incompatible=wrong, **epochs)


def _count_incompatible(difference: CatalogDiff) -> int:
    return sum(not change.compatible for change in difference.changes)


def _describe_change(change: CatalogChange) -> str:
    words = [change.kind, change.name]
    if change.before is not None or change.after is not None:
        words.append(f"{change.before!r} -> {change.after!r}")
    return " ".join(word for word in (*words, change.detail) if word)[:CAP]


def finding_fields(finding: Finding) -> dict[str, Any]:
    """Return the log fields of a finding."""
    fields = {name: getattr(finding, name) for name in ("file", "pointer", "rule", "hint")}
    return {**fields, "problem": finding.message}


T = TypeVar("T")
UNREAD_SECONDS: Final = 5.0
"""Time between two looks for a catalog that could not be read at the start, where it is not polled."""
LOOK_SECONDS: Final = 0.1
"""Time between two checks whether a thread has ended, or the wait for it is over."""


def _watch(sources: Sequence[str], interval: float, active: Plan, **more: Any) -> CatalogWatcher:
    """Watch the sources of a catalog by the settings of the active plan."""
    catalog = active.settings.catalog
    access: dict[str, Any] = {"network": catalog.network, "allow": catalog.allow_addresses}
    access |= {"logins": make_logins(active.settings), "base_uri": catalog.base_uri}
    return CatalogWatcher(sources, interval, current=active.catalog, **access, **more)


_REPORT: Final = "this is a bug in xrouter; please report it with the traceback in the log"


class Reloader:
    """Polls the catalog and compiles plans for what it finds."""

    def __init__(
        self,
        settings: Settings,
        active: Plan,
        metrics: Metrics,
        status: RouterStatus,
        nudge: Callable[[], None] = lambda: None,
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
        self._interval = settings.catalog.poll.total_seconds() or (UNREAD_SECONDS if unread else 0)
        more: dict[str, Any] = {"max_shrink": settings.catalog.max_shrink, "unfit": self._find_rejections}
        self._watcher = _watch(settings.catalog.source, self._interval, active, unread=unread, **more)
        if settings.catalog.events is not None:
            metrics.set_listener(settings.catalog.events, self._request_poll)

    @property
    def is_due(self) -> bool:
        """Whether a poll would look; before that it returns None."""
        return self._interval > 0 and self._watcher.due

    def _request_poll(self) -> None:
        self._watcher.wake()
        # Whoever polls starts the next look when this one has ended.
        if self.is_due and not self._looking:
            self._nudge()

    def poll(self) -> Plan | None:
        """Return the plan for a new, accepted catalog; None when there is nothing new to act on."""
        if not self.is_due:
            return None
        self._looking = True
        try:
            return self._poll_source()
        except RouterError:
            raise
        except Exception as error:  # Any fault of a new catalog is reported, and the stream goes on.
            _log.exception("unexpected fault of a new catalog; this is a bug in xrouter")
            text = f"reading the new catalog failed: {type(error).__name__}: {error}"
            self._reject((Finding("", "", "error", "unreadable-document", text, _REPORT),))
            return None
        finally:
            self._looking = False

    def _poll_source(self) -> Plan | None:
        polled = self._watcher.poll()
        self._status.awaited = tuple(self._watcher.awaited)
        self._status.doubts = tuple(self._watcher.doubts)
        if polled is None:
            _log.debug("catalog unchanged", epoch=self._active.epoch)
            return None
        if isinstance(polled, RejectedCatalog):
            self._reject(polled.errors)
            return None
        if isinstance(polled, UnconfirmedCatalog):
            hint = "if the change is intended, do nothing: the next poll applies it"
            _log.warning("catalog change needs confirmation", reasons=list(polled.reasons), hint=hint)
            return None
        if isinstance(polled, PendingCatalog):
            _log.warning(
                "catalog has unreachable references; keeping the last valid one", unreachable=list(polled.uris)
            )
            return None
        return self._try_catalog(polled)

    def _try_catalog(self, catalog: Catalog) -> Plan | None:
        self._interval = self._settings.catalog.poll.total_seconds()
        if catalog.epoch == self._active.epoch:
            self._status.set_catalog(catalog.epoch, len(catalog.definitions))
            _log.info("catalog is valid again and unchanged", epoch=catalog.epoch)
            return None
        plan, rule = Plan(catalog, self._settings), "unusable-source"
        try:
            require_real_time(plan)
            if distrust := distrusted(self._settings, catalog, plan.sources):
                self._reject(tuple(distrust))
                return None
            _ = plan.evaluator
            # An address is on the disk before any connection shows credentials to it.
            rule = "moved-address"
            pin_addresses(self._settings, catalog, plan.sources)
        except (ConfigError, StateError) as error:
            self._reject((Finding("", "", "error", rule, error.message, error.hint),))
            return None
        self._active = plan
        self._metrics.count_reload("accepted")
        _log.info("catalog reloaded", epoch=plan.epoch, definitions=len(catalog.definitions))
        return plan

    def _find_rejections(self, catalog: Catalog) -> tuple[Finding, ...]:
        """Return what a changed catalog would take away, as far as that is a reason to refuse it."""
        if catalog.epoch == self._active.epoch or self._settings.catalog.on_incompatible == "warn":
            return ()
        lost = find_lost_sources(self._active, catalog)
        if self._settings.catalog.on_incompatible == "sources":
            return lost
        changes = compare_catalogs(self._active.catalog, catalog).changes
        wrong = (each for each in changes if not each.compatible)
        return (*lost, *(Finding("", each.xid, "error", RULE, _describe_change(each), _HINT) for each in wrong))

    def _reject(self, findings: tuple[Finding, ...]) -> None:
        self._metrics.count_reload("refused")
        self._status.add_refused(findings)
        for finding in findings[:SHOWN]:
            _log.error("catalog rejected; keeping the last valid one", **finding_fields(finding))


class BackgroundReloader:
    """Polls in a thread of its own, one look at a time; whoever asks gets an answer at once."""

    def __init__(self, reloader: Reloader | ShadowReloader, nudge: Callable[[], None] = lambda: None) -> None:
        """*nudge* is called, in another thread, when a look has come to its end."""
        self._reloader = reloader
        self._nudge = nudge
        self.look: Future[Plan | None] | None = None
        """The look that is under way, or has ended and was not asked for."""

    def poll(self) -> Plan | None:
        """Return the plan that a look has found since the last call; None when there is none, or it is under way.

        Raises what the look raised.
        """
        if self.look is None and self._reloader.is_due:
            self.look = run_in_background(self._reloader.poll)
            self.look.add_done_callback(lambda _: self._nudge())
        if self.look is None or not self.look.done():
            return None
        look, self.look = self.look, None
        return look.result()


def wait_unless_stopped(work: Callable[[], T], stop: threading.Event) -> T | None:
    """Return what work gives, or None as soon as *stop* is set; raises what the work raises."""
    future = run_in_background(work)
    while not future.done():
        if stop.wait(LOOK_SECONDS):
            return None
    return future.result()


# The shadow catalog of a running router: read again as the active one is, without holding anything up.
#
# It is loaded and compiled in a thread of its own, refused for what a reload would refuse, and given to the plans when
# it is good. Its faults are logged and shown; the stream goes on, and so does the last good shadow.

FIRST_SECONDS: Final = 60.0
"""Longest wait for the shadow by a router that ends when it is done."""
_REMEDY: Final = "records are still routed; fix the files of catalog.shadow, which are checked again"


class ShadowReloader:
    """Looks after ``catalog.shadow``; without one it does nothing. Not for concurrent use."""

    def __init__(self, plans: PlanCache, figures: ShadowMetrics) -> None:
        """*plans* has the active plan already, whose settings these are."""
        active = plans.active
        catalog = active.settings.catalog
        self._plans = plans
        self._figures = figures
        self._settings = active.settings
        self._waits = False
        self._first = True
        self._interval = catalog.poll.total_seconds()
        self._watcher: CatalogWatcher | None = None
        self._looks = BackgroundReloader(self)
        if catalog.shadow:
            figures.init_series(catalog.shadow, [source.endpoint for source in active.sources])
            # As with a reload, faults that the active catalog has too are no reason to refuse it.
            self._watcher = _watch(catalog.shadow, self._interval, active, max_shrink=1.0, elsewhere=True)
            self.judge_if_found()

    def wait_for_first(self) -> None:
        """Wait for the first look, for a while; for a router that is about to read all there is, and end."""
        if self._looks.look is not None:
            try:
                self._looks.look.exception(FIRST_SECONDS)
            except TimeoutError:
                _log.warning("shadow catalog loads slowly; starting without it")
            self.judge_if_found()

    def judge_if_found(self) -> None:
        """Let a shadow that a look has found begin to judge, and look again if it is time; does not wait."""
        try:
            plan = self._looks.poll()
            if plan is not None:
                self._plans.shadow(plan)
                freeze_for_gc()
                # Only now: before, whoever reads that it is good would see the figures of the one before it.
                self._figures.broken("")
        except Exception as error:  # Any fault of a new catalog is reported, and the stream goes on.
            _log.warning("shadow catalog cannot be used", problem=str(error), error=type(error).__name__, hint=_REMEDY)
            self._figures.broken(f"{type(error).__name__}: {error}")

    @property
    def is_due(self) -> bool:
        """Whether it is time to look."""
        return self._watcher is not None and (self._first or (self._interval > 0 and self._watcher.due))

    def log_summary(self) -> None:
        """Log what was compared; called at the end, after which nobody can ask for figures."""
        figures = self._figures.to_json()
        if figures is None or figures["before"] is None:
            return
        changed = {kind: number for kind, number in figures["changed"].items() if number}
        counts = {name: figures[name] for name in ("before", "after", "outcomes", "unchanged", "left_out", "failed")}
        _log.info("shadow catalog compared", **counts, changed=changed)

    def poll(self) -> Plan | None:
        """Look, and return a shadow that is new and good, compiled."""
        first, self._first = self._first, False
        plan = self._poll_source()
        # The watcher reports no shadow that equals the active catalog; it is good all the same.
        return self._plans.active if plan is None and first and not self._figures.is_broken else plan

    def _poll_source(self) -> Plan | None:
        assert self._watcher is not None
        polled = self._watcher.poll()
        if self._waits and not self._watcher.awaited:
            # It does not wait any more, whatever it is now; a look does not report a catalog that is unchanged.
            self._waits = False
            self._figures.broken("")
        if isinstance(polled, RejectedCatalog):
            self._reject(polled.errors)
        elif isinstance(polled, PendingCatalog):
            self._waits = True
            self._figures.broken(f"unreachable references: {', '.join(polled.uris[:SHOWN])}")
            _log.warning("shadow catalog has unreachable references", unreachable=list(polled.uris))
        elif polled is not None and not isinstance(polled, UnconfirmedCatalog):  # The next look takes that.
            plan = Plan(polled, self._settings)
            _ = plan.evaluator
            _log.info("shadow catalog loaded", epoch=plan.epoch, definitions=len(polled.definitions))
            return plan
        return None

    def _reject(self, findings: Sequence[Finding]) -> None:
        first = findings[0].message if findings else "it cannot be read"
        self._figures.broken(f"{plural(len(findings), 'error')}: {first}", findings)
        for each in findings[:SHOWN]:
            hint = each.hint or _REMEDY
            _log.warning("shadow catalog cannot be used", **finding_fields(replace(each, hint=hint)))
