"""How far a query is behind, from Spark's reports of its progress."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from bindings.inbox.errors import InboxDamaged
from bindings.inbox.offsets import positions_of
from bindings.inbox.view import InboxView


def lag_by_topic(progress: Any) -> dict[str, int]:
    """Return how many records each topic has that the query has not read, from Spark's progress report."""
    lag: dict[str, int] = {}
    for source in progress["sources"]:
        end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        for topic, partitions in latest.items():
            read = end.get(topic, {})
            behind = sum(max(0, at - read.get(number, 0)) for number, at in partitions.items())
            lag[topic] = lag.get(topic, 0) + behind
    return lag


def end_of(progress: Any) -> Any:
    """Return the offset of the only source up to which the last batch reads."""
    return progress["sources"][0].get("endOffset")


def finding_seconds(progress: Any) -> float:
    """Return how long Spark took over the last batch besides the batch itself: to find, plan and note it."""
    told: dict[str, int] = progress["durationMs"]
    return max(0, told.get("triggerExecution", 0) - told.get("addBatch", 0)) / 1000


class InboxBacklog:
    """How many durable rows of a local inbox no batch has taken yet. It keeps what sealed segments hold."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._view: InboxView | None = None
        self._records = 0

    def behind(self, end: Any) -> int:
        """Return the rows behind an offset of the inbox's source; all there are for None, before the first batch."""
        if self._view is None:
            self._view = InboxView(self._path)
        # A segment that is trimmed meanwhile belongs to a batch that is committed: the next look begins behind it.
        with suppress(InboxDamaged):
            self._records = self._count(self._view, json.loads(end) if isinstance(end, str) else end)
        return self._records

    def _count(self, view: InboxView, offset: Any) -> int:
        if isinstance(offset, dict):
            positions = positions_of(offset, view.layout.inbox)
        else:
            positions = {number: view.first(number) for number in view.partitions}
        return sum(
            view.count(number, position, max(position, view.end(number))) for number, position in positions.items()
        )


def _offsets(reported: Any) -> dict[str, dict[str, int]]:
    offsets = json.loads(reported) if isinstance(reported, str) else reported
    return offsets if isinstance(offsets, dict) else {}
