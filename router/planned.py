"""What Spark planned a batch of topics to read: its offsets, from the checkpoint, and those of a part of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from router.generations import Generation

if TYPE_CHECKING:
    from router.extents import Ranges

Spans: TypeAlias = dict[str, dict[int, tuple[int, int]]]
"""By topic and partition, the first offset and the one behind the last."""


def planned(generation: Generation, batch: int) -> Spans | None:
    """Return the offsets of a batch; None where they are not all known, or it is not one of topics."""
    ends = _offsets(generation.path / "offsets" / str(batch))
    starts = _offsets(generation.path / "offsets" / str(batch - 1)) if batch else generation.first()
    found: Spans = {}
    try:
        for topic, partitions in ends.items():
            begun = starts.get(topic, {})
            found[topic] = {int(number): (begun[number], end) for number, end in partitions.items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        return None  # A partition that was added since, or the places of an inbox.
    firsts = [first for spans in found.values() for first, _ in spans.values()]
    return found if firsts and all(isinstance(first, int) and first >= 0 for first in firsts) else None


def records_in(spans: Spans) -> int:
    """Return how many offsets these are; a compacted topic has fewer records."""
    return sum(end - first for partitions in spans.values() for first, end in partitions.values())


def spans_of(ranges: Ranges, whole: Spans) -> Spans:
    """Return the offsets of the parts of a batch that *ranges* name, within those of the *whole* batch."""
    found: Spans = {}
    for each in ranges:
        (low, first), (high, last) = each.first, each.last
        for number, (begin, end) in whole.get(each.channel, {}).items():
            if low <= number <= high:
                span = (first if number == low else begin, last + 1 if number == high else end)
                before = found.setdefault(each.channel, {}).get(number, span)
                found[each.channel][number] = (min(before[0], span[0]), max(before[1], span[1]))
    return found


def _offsets(path: Path) -> Mapping[str, Any]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return {}
    found: Any = json.loads(lines[2]) if len(lines) > 2 and lines[2] != "-" else {}
    return found if isinstance(found, dict) else {}
