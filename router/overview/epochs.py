"""The last catalogs: which took effect, what changed with each, which were refused, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import msgspec

from router.watching.status import CatalogDifference, CatalogEvent

VALUE: Final = 500
"""Characters of a value before or after a change."""


def history(events: Sequence[CatalogEvent], differences: Mapping[str, CatalogDifference]) -> list[dict[str, Any]]:
    """Return what became of catalogs, newest first; the difference is that of the newest change to an epoch."""
    entries: list[dict[str, Any]] = []
    seen: set[str] = set()
    for event in reversed(events):
        difference = None if event.epoch is None or event.epoch in seen else differences.get(event.epoch)
        entries.append(
            {
                "at": event.at,
                "result": "refused" if event.epoch is None else "active",
                "epoch": event.epoch,
                "definitions": None if event.epoch is None else event.definitions,
                "difference": None if difference is None else _difference(difference),
                "findings": [asdict(finding) for finding in event.findings],
                "findings_total": event.total,
                "times": event.times,
            }
        )
        if event.epoch is not None:
            seen.add(event.epoch)
    return entries


def _difference(difference: CatalogDifference) -> dict[str, Any]:
    changes = [each.to_json() for each in difference.changes]
    return {
        "before": difference.before,
        "compatible": not difference.incompatible,
        "incompatible": difference.incompatible,
        "total": difference.total,
        "changes": [change | {side: _short(change[side]) for side in ("before", "after")} for change in changes],
    }


def _short(value: Any) -> Any:
    """Return a value as it may be shown: one that is long is cut, as text or as JSON."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode("utf-8", "backslashreplace")
    return value if len(text) <= VALUE else text[:VALUE] + "…"
