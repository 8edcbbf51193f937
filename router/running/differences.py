"""What a changed catalog changes for consumers: reported when it takes effect, and a reason to refuse it."""

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
