"""The last records of a topic: which offsets they have, as the brokers say before anything is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bindings.kafka.client import KafkaClient
from bindings.kafka.ends import KafkaEnds
from bindings.kafka.ranges import KafkaRange


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a topic as it is now. ``offsets`` counts what there was to choose from, in all partitions."""

    ranges: tuple[KafkaRange, ...]
    offsets: int


def tail_of(client: KafkaClient, topic: str, most: int, since: int | None = None) -> Tail | None:
    """Return the last *most* offsets of a topic, about as many of each partition; None if there is no such topic.

    With *since*, in milliseconds, only records of that time or later count. Transactions and compaction leave offsets
    without a record, so there may be fewer records.

    Raises:
        KafkaUnreachable: the brokers refused us, or none answered within ten seconds.
    """
    asked = KafkaEnds(client)
    ends = asked.ends([topic]).get(topic)
    if ends is None:
        return None
    places = {topic: sorted(ends)}
    firsts = asked.firsts(places)[topic]
    if since is not None:
        later = asked.since(places, since)[topic]
        firsts = {
            number: max(first, later[number]) if later[number] >= 0 else ends[number]
            for number, first in firsts.items()
        }
    lengths = {number: max(0, end - firsts[number]) for number, end in ends.items()}
    shares = shared(lengths, most)
    ranges = (
        KafkaRange(topic, number, ends[number] - share, ends[number]) for number, share in shares.items() if share
    )
    return Tail(tuple(ranges), sum(lengths.values()))


def shared(lengths: Mapping[int, int], most: int) -> dict[int, int]:
    """Return how many of *most* each partition gives: as many as the others, or all that it has."""
    shares: dict[int, int] = {}
    left = most
    for at, (number, length) in enumerate(sorted(lengths.items(), key=lambda each: each[1])):
        shares[number] = min(length, left // (len(lengths) - at))
        left -= shares[number]
    return dict(sorted(shares.items()))
