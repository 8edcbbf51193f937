"""The last records of a topic."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

import pyarrow as pa

from bindings.kafka.client import KafkaClient
from bindings.kafka.ends import KafkaEnds
from bindings.kafka.ranges import KafkaRange, reading, records_of


class KafkaTail:
    """The last *most* records of a topic as it is now, about as many of each partition.

    Transactions and compaction leave offsets without a record, so that it reads further back until it has as many.
    ``whole`` says of what was read whether there is nothing before it.
    """

    def __init__(
        self, client: KafkaClient, topic: str, firsts: Mapping[int, int], ends: Mapping[int, int], most: int
    ) -> None:
        self.records = 0
        self.whole = True
        self._config = reading(client)
        self._topic = topic
        self._firsts = firsts
        self._ends = ends
        self._most = most

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the records, those of each partition from its end backwards, some in their order at a time.

        Raises:
            RangeUnreadable: brokers do not answer, or hand over nothing more.
        """
        lengths = {number: max(0, end - self._firsts[number]) for number, end in self._ends.items()}
        for number, share in shared(lengths, self._most).items():
            yield from self._partition(number, share)

    def _partition(self, number: int, missing: int) -> Iterator[pa.RecordBatch]:
        first, end, step = self._firsts[number], self._ends[number], missing
        while missing and end > first:
            start = max(first, end - step)
            for batch in self._last(KafkaRange(self._topic, number, start, end), missing):
                missing -= batch.num_rows
                self.records += batch.num_rows
                yield batch
            end, step = start, 2 * step
        self.whole &= end <= first

    def _last(self, wanted: KafkaRange, most: int) -> Iterator[pa.RecordBatch]:
        """Yield the last *most* records of a range; no more than these are in memory."""
        batches = records_of(self._config, wanted)
        if wanted.start is not None and wanted.end - wanted.start <= most:
            yield from batches
            return
        kept = deque[pa.RecordBatch]()
        rows = 0
        for batch in batches:
            kept.append(batch)
            rows += batch.num_rows
            while rows - kept[0].num_rows >= most:
                rows -= kept.popleft().num_rows
        if kept and rows > most:
            kept[0] = kept[0].slice(rows - most)
            self.whole = False
        yield from kept


def tail_of(client: KafkaClient, topic: str, most: int, since: int | None = None) -> KafkaTail | None:
    """Return the last *most* records of a topic; None if there is no such topic.

    With *since*, in milliseconds, only records of that time or later count.

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
    return KafkaTail(client, topic, firsts, ends, most)


def shared(lengths: Mapping[int, int], most: int) -> dict[int, int]:
    """Return how many of *most* each partition gives: as many as the others, or all that it has."""
    shares: dict[int, int] = {}
    left = most
    for at, (number, length) in enumerate(sorted(lengths.items(), key=lambda each: each[1])):
        shares[number] = min(length, left // (len(lengths) - at))
        left -= shares[number]
    return dict(sorted(shares.items()))
