"""How far a query is behind, from Spark's reports of its progress."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bindings.inbox.offsets import places_of
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


def inbox_backlog(path: Path, end: Any) -> int:
    """Return how many durable rows of the inbox no batch has taken yet."""
    offset = json.loads(end) if isinstance(end, str) else end
    if not isinstance(offset, dict):
        return 0
    view = InboxView(path)
    places = places_of(offset, view.layout.inbox)
    return sum(view.count(number, place, max(place, view.end(number))) for number, place in places.items())


def _offsets(told: Any) -> dict[str, dict[str, int]]:
    found = json.loads(told) if isinstance(told, str) else told
    return found if isinstance(found, dict) else {}
