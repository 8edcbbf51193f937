"""The last catalogs: which took effect, what changed with each, and which were refused for what."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from catalog.comparing import compare
from catalog.model import Catalog
from router.watching.status import EPOCHS, CatalogEvent

CHANGES: Final = 100
"""Changes of one reload that are told; the rest is counted."""
VALUE: Final = 500
"""Characters of a value before or after a change."""


class Differences:
    """What changed from one epoch to the next, as JSON. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_epoch: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def note(self, before: Catalog, after: Catalog) -> None:
        """Compare two catalogs, of which the second takes the place of the first; it takes seconds for thousands."""
        difference = compare(before, after)
        changes = [each.to_json() for each in difference.changes[:CHANGES]]
        for change in changes:
            change |= {side: _short(change[side]) for side in ("before", "after")}
        told = {
            "before": difference.before,
            "compatible": difference.compatible,
            "incompatible": sum(not each.compatible for each in difference.changes),
            "total": len(difference.changes),
            "changes": changes,
        }
        with self._lock:
            self._by_epoch.pop(after.epoch, None)
            self._by_epoch[after.epoch] = told
            while len(self._by_epoch) > EPOCHS:
                self._by_epoch.popitem(last=False)

    def history(self, events: Sequence[CatalogEvent]) -> list[dict[str, Any]]:
        """Return what became of catalogs, newest first; the difference is that of the newest change to an epoch."""
        told: list[dict[str, Any]] = []
        seen: set[str] = set()
        with self._lock:
            for event in reversed(events):
                newest = event.epoch is not None and event.epoch not in seen
                told.append(
                    {
                        "at": event.at,
                        "result": "refused" if event.epoch is None else "active",
                        "epoch": event.epoch,
                        "definitions": None if event.epoch is None else event.definitions,
                        "difference": self._by_epoch.get(event.epoch) if event.epoch is not None and newest else None,
                        "findings": [asdict(finding) for finding in event.findings],
                        "findings_total": event.total,
                        "times": event.times,
                    }
                )
                if event.epoch is not None:
                    seen.add(event.epoch)
        return told


def _short(value: Any) -> Any:
    """Return a value as it may be told: a text that is not too long, or what is no text if it is not long as one."""
    text = value if isinstance(value, str) else str(value)
    return value if len(text) <= VALUE else text[:VALUE] + "…"
