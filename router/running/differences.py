"""What a changed catalog takes away: reported when it takes effect, and a reason to refuse it."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from bindings.protocols import BINDINGS
from catalog.comparing import Change, Difference, compare
from catalog.model import CLOUDEVENTS, Catalog, Endpoint, Finding
from catalog.parsing.nearest import Suggestions
from router.logs import get_logger

if TYPE_CHECKING:
    from router.judging.plan import Plan
    from router.watching.metrics import Metrics
    from router.watching.status import Status

_RECEIVING: Final = frozenset({"consumer", "subscriber"})
SHOWN: Final = 20
"""Changes of a reload that are logged one by one, the incompatible ones first."""
CAP: Final = 500
"""Characters of one change."""
RULE: Final = "incompatible-change"
NAMED: Final = 3
"""Definitions and causes that the finding of a lost source names."""
_HINT: Final = "correct it; or restart the router, which takes the catalog as it is"
_CAUSES: Final = frozenset(
    {"dangling-group", "unknown-protocol", "unknown-envelope", "endpoint-mismatch", "unknown-usage", "dangling-borrow"}
)
"""Rules of what may take the candidates of an endpoint away."""
_log = get_logger()


def incompatible(difference: Difference) -> tuple[Finding, ...]:
    """Return what would no longer reach its definition with a changed catalog, as findings."""
    wrong = (change for change in difference.changes if not change.compatible)
    return tuple(Finding("", change.xid, "error", RULE, _text(change), _HINT) for change in wrong)


def lost_sources(active: Plan, catalog: Catalog) -> tuple[Finding, ...]:
    """Return the sources that had candidates and would have none with a changed catalog, as findings.

    A candidate counts where it can match. An endpoint that the catalog no longer has, or that is no longer for
    consumers, is given up on purpose, unless the settings name it.
    """
    named = {source.endpoint for source in active.settings.sources}
    found = []
    for source in active.sources:
        before, after = active.catalog.endpoints[source.endpoint], catalog.endpoints.get(source.endpoint)
        had = _usable(before, active.catalog)
        if not had or (after is None and source.endpoint not in named):
            continue
        if after is not None and _usable(after, catalog) and _is_source(after, named):
            continue
        found.append(_lost(source.endpoint, had, after, active.catalog, catalog))
    return tuple(found)


def _is_source(endpoint: Endpoint, named: Collection[str]) -> bool:
    """Tell whether records are still taken from an endpoint, or it says itself that it is for producers."""
    usage = set(endpoint.usage)
    return endpoint.protocol in BINDINGS and (endpoint.xid in named or bool(usage & _RECEIVING) or "producer" in usage)


def _usable(endpoint: Endpoint, catalog: Catalog) -> tuple[str, ...]:
    """Return the candidates that some record of the endpoint can match."""
    return tuple(
        xid
        for xid in endpoint.candidates
        if (definition := catalog.definitions.get(xid)) is not None
        and (definition.envelope or endpoint.envelope) in (None, CLOUDEVENTS)
        and definition.protocol in (None, endpoint.protocol)
    )


def _lost(xid: str, had: tuple[str, ...], after: Endpoint | None, active: Catalog, catalog: Catalog) -> Finding:
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
    text = f"the source {xid} would have no candidate left, and had {len(had)} ({names}): {why}"
    meant = "If it is meant, restart the router, or set catalog.on_incompatible to warn"
    return Finding(own[0].file if own else "", own[0].pointer if own else xid, "error", RULE, text, f"{hint} {meant}")


class Comparisons:
    """Compares each catalog that takes effect with the one before, and reports to log, metrics and status page.

    It compares one at a time, in a thread of its own, so that large catalogs hold up nobody. If several take effect
    meanwhile, only the last one is compared, with the one that was reported last. Any thread may call it.
    """

    def __init__(self, metrics: Metrics, status: Status) -> None:
        self._metrics, self._status = metrics, status
        self._lock = threading.Lock()
        self._compared: Catalog | None = None
        self._coming: Catalog | None = None
        self._busy = False
        self._good: Catalog | None = None
        """The catalog before the first incompatible change that is not mended; None where there is none."""

    def follow(self, catalog: Catalog) -> None:
        """Note the catalog that is in force from now on. The first one is only the base of the next comparison."""
        with self._lock:
            if self._compared is None:
                self._compared = catalog
                return
            self._coming = catalog
            if self._busy:
                return
            self._busy = True
        threading.Thread(target=self._compare, name="catalog-changes", daemon=True).start()

    def _compare(self) -> None:
        while (pair := self._next()) is not None:
            try:
                self._report(*pair)
            except Exception:
                _log.exception(
                    "changes of a catalog cannot be determined; it is in force all the same", epoch=pair[1].epoch
                )

    def _next(self) -> tuple[Catalog, Catalog] | None:
        with self._lock:
            before, after, self._coming = self._compared, self._coming, None
            if before is None or after is None or before.epoch == after.epoch:
                self._busy = False
                return None
            self._compared = after
            return before, after

    def _report(self, before: Catalog, after: Catalog) -> None:
        difference = compare(before, after)
        self._status.compared(difference)
        good = self._good or before
        wrong = _wrong(difference) if good is before else _wrong(compare(good, after))
        self._good = good if wrong else None
        self._metrics.catalog_state.changed(len(difference.changes), _wrong(difference), wrong)
        _log_difference(difference)


def _log_difference(difference: Difference) -> None:
    wrong = _wrong(difference)
    for change in sorted(difference.changes, key=lambda each: each.compatible)[:SHOWN]:
        log = _log.info if change.compatible else _log.warning
        log(
            "catalog change" if change.compatible else "incompatible catalog change",
            xid=change.xid,
            change=_text(change),
        )
    epochs = {"before": difference.before, "after": difference.after}
    _log.info("catalog changes", changes=len(difference.changes), incompatible=wrong, **epochs)


def _wrong(difference: Difference) -> int:
    return sum(not change.compatible for change in difference.changes)


def _text(change: Change) -> str:
    words = [change.kind, change.name]
    if change.before is not None or change.after is not None:
        words.append(f"{change.before!r} -> {change.after!r}")
    return " ".join(word for word in (*words, change.detail) if word)[:CAP]
