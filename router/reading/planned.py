"""What Spark planned a batch of topics to read: its offsets, from the checkpoint, and those of a part of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from bindings.kafka.ranges import KafkaRange
from router.reading.generations import Generation
from router.reading.positions import EARLIEST

if TYPE_CHECKING:
    from router.reading.extents import Ranges

Spans: TypeAlias = dict[str, dict[int, tuple[int, int]]]
"""By topic and partition, the first offset and the one behind the last."""


_KEPT: Final = 64
"""Notes of batches that are read once; a batch is asked of a few times, and again as where the next one begins."""


def planned(generation: Generation, batch: int) -> Spans | None:
    """Return the offsets of a batch; None where they are not all known, or it is not one of topics."""
    offsets = offsets_of(generation, batch)
    firsts = [first for spans in offsets.values() for first, _ in spans.values()]
    return offsets if firsts and all(first >= 0 for first in firsts) else None


def ranges_of(generation: Generation, batch: int) -> tuple[KafkaRange, ...]:
    """Return what a batch of topics reads, for our own client; a partition that was added since begins at its first."""
    return tuple(
        KafkaRange(topic, number, first if first >= 0 else None, end)
        for topic, partitions in sorted(offsets_of(generation, batch).items())
        for number, (first, end) in sorted(partitions.items())
        if first < end
    )


def bounds(generation: Generation, batch: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the offsets of the one source of a batch, where it begins and where it ends; empty when not known."""
    return _ends(generation, batch - 1) if batch else generation.first(), _ends(generation, batch)


def offsets_of(generation: Generation, batch: int) -> Spans:
    """Return the offsets of a batch, -2 for where a partition that was added begins; empty for one of the inbox."""
    starts, ends = bounds(generation, batch)
    spans: Spans = {}
    try:
        for topic, partitions in ends.items():
            begun = starts.get(topic, {})
            spans[topic] = {int(n): (int(begun.get(n, EARLIEST)), int(end)) for n, end in partitions.items()}
    except (TypeError, ValueError, AttributeError):
        return {}  # The places of an inbox.
    return spans


def turned_back(generation: Generation, batch: int) -> Spans:
    """Return the partitions that a batch ends before where it begins: their topic was made again, or cut."""
    reversed_spans: Spans = {}
    for topic, partitions in offsets_of(generation, batch).items():
        for number, (first, end) in partitions.items():
            if end < first:
                reversed_spans.setdefault(topic, {})[number] = (first, end)
    return reversed_spans


def records_in(spans: Spans) -> int:
    """Return how many offsets these are; a compacted topic has fewer records."""
    return sum(end - first for partitions in spans.values() for first, end in partitions.values())


def spans_of(ranges: Ranges, whole: Spans) -> Spans:
    """Return the offsets of the parts of a batch that *ranges* name, within those of the *whole* batch."""
    spans: Spans = {}
    for each in ranges:
        (low, first), (high, last) = each.first, each.last
        for number, (begin, end) in whole.get(each.channel, {}).items():
            if low <= number <= high:
                span = (first if number == low else begin, last + 1 if number == high else end)
                before = spans.setdefault(each.channel, {}).get(number, span)
                spans[each.channel][number] = (min(before[0], span[0]), max(before[1], span[1]))
    return spans


def _ends(generation: Generation, batch: int) -> Mapping[str, Any]:
    try:
        return _noted(generation, batch)
    except FileNotFoundError:
        return {}


@lru_cache(_KEPT)
def _noted(generation: Generation, batch: int) -> Mapping[str, Any]:
    """Return where a batch ends, which never changes once Spark has noted it."""
    return generation.ends(batch)
