"""What brokers have lost of what a batch was to read, for where Spark goes on without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bindings.kafka.client import KafkaClient
from bindings.kafka.ends import KafkaEnds
from router.reading.planned import Spans
from router.settings import Settings
from router.sources.clusters import query_client
from router.sources.sources import Source

Losses = Callable[[Spans], int]
"""Returns how many of some offsets are lost at most; KafkaUnreachable where brokers do not say."""


def losses_of(settings: Settings, query: str, sources: Sequence[Source]) -> Losses | None:
    """Return a function that gives how many of a batch's offsets are lost at most, for a query of these sources.

    None where it is not needed: Spark ends the query instead, or it reads the local inbox.
    """
    client = query_client(settings, query, sources)
    return None if client is None or settings.on_data_loss == "stop" else TopicLosses(client).most


class TopicLosses:
    """Asks the brokers of one cluster. It keeps its connection; not for concurrent use."""

    def __init__(self, client: KafkaClient) -> None:
        self._ends = KafkaEnds(client)

    def most(self, spans: Spans) -> int:
        """Return how many of these offsets brokers have no more; whatever else held no record never held one.

        All of a partition's count where it ends before them: its topic was deleted, made anew or cut. What a broker
        removed after it was read counts as well, so it is the most that can be lost.

        Raises:
            KafkaUnreachable: they do not say.
        """
        ends = self._ends.ends(spans)
        firsts = self._ends.firsts(ends)
        lost = 0
        for topic, partitions in spans.items():
            for number, (first, end) in partitions.items():
                there = ends.get(topic, {}).get(number, 0) >= end
                lost += min(max(0, firsts[topic][number] - first), end - first) if there else end - first
        return lost
