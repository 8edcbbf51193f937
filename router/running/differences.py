"""What a changed catalog changes for consumers: told with every reload, and a reason to refuse one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from catalog.comparing import Change, Difference, compare
from catalog.model import Catalog, Finding
from router.logs import get_logger

if TYPE_CHECKING:
    from router.watching.metrics import Metrics
    from router.watching.status import Status

SHOWN: Final = 20
"""Changes of a reload that are logged one by one, the incompatible ones first."""
CAP: Final = 500
"""Characters of one change."""
RULE: Final = "incompatible-change"
_HINT: Final = "mend it; or restart the router, which takes it as it is"
_log = get_logger()


def incompatible(difference: Difference) -> tuple[Finding, ...]:
    """Return what would no longer reach its definition with a changed catalog, as findings."""
    wrong = (change for change in difference.changes if not change.compatible)
    return tuple(Finding("", change.xid, "error", RULE, _text(change), _HINT) for change in wrong)


def tell_changes(
    active: Catalog, catalog: Catalog, known: Difference | None, metrics: Metrics, status: Status
) -> threading.Thread:
    """Log, count and note what a reload changes, in a thread of its own: comparing large catalogs holds up nobody.

    *known* is the difference where it has been worked out already.
    """

    def tell() -> None:
        difference = known or compare(active, catalog)
        status.compared(difference)
        metrics.catalog_state.changed(len(difference.changes), _wrong(difference))
        _log_difference(difference)

    thread = threading.Thread(target=tell, name="catalog-changes", daemon=True)
    thread.start()
    return thread


def _log_difference(difference: Difference) -> None:
    wrong = _wrong(difference)
    for change in sorted(difference.changes, key=lambda each: each.compatible)[:SHOWN]:
        log = _log.info if change.compatible else _log.warning
        log(
            "catalog change" if change.compatible else "incompatible catalog change",
            xid=change.xid,
            change=_text(change),
        )
    told = {"before": difference.before, "after": difference.after}
    _log.info("catalog changes", changes=len(difference.changes), incompatible=wrong, **told)


def _wrong(difference: Difference) -> int:
    return sum(not change.compatible for change in difference.changes)


def _text(change: Change) -> str:
    words = [change.kind, change.name]
    if change.before is not None or change.after is not None:
        words.append(f"{change.before!r} -> {change.after!r}")
    return " ".join(word for word in (*words, change.detail) if word)[:CAP]
