"""All records of some topics up to their present ends, in the order of their timestamps."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from bindings.kafka.client import TIMEOUT_SECONDS, KafkaClient, KafkaUnreachable

HELD_BYTES: Final = 64 * 2**20
"""Bytes of records that wait for those of other partitions; each partition has an equal share, and one record more.

A partition that is paused loses what the client has fetched of it, and fetching again costs a round trip: it must be
rare.
"""
STALL_SECONDS: Final = 30.0
"""Longest time without a record while some are still to come."""
_POLL: Final = 0.5
PartitionKey = tuple[str, int]


def merged(client: KafkaClient, topics: re.Pattern[str], last: int | None = None) -> Iterator[Message]:
    """Yield the records of all topics whose names fit, oldest timestamp first; offsets order those of one partition.

    With *last*, only so many at the end of each partition.

    Retention that removes what was to be read is no error; what is gone is left out.

    Raises:
        KafkaUnreachable: no broker answers, or records that should be there do not come.
    """
    config = {
        **client.librdkafka(),
        "group.id": "xrouter-dead-letters",  # a name is required; nothing is joined or committed
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "queued.max.messages.kbytes": 16_384,
        # At the end of a partition the broker keeps a fetch that long, and with it those of other partitions.
        "fetch.wait.max.ms": 20,
        "log_level": 0,
    }
    try:
        consumer = Consumer(config)
        try:
            yield from _Merge(consumer, _ranges(consumer, topics, last)).run()
        finally:
            consumer.close()
    except KafkaException as error:
        reason = error.args[0].str() if error.args else str(error)
        raise KafkaUnreachable(f"Kafka at {client.servers} does not answer: {reason}") from error


def _ranges(
    consumer: Consumer, topics: re.Pattern[str], last: int | None = None
) -> dict[PartitionKey, tuple[int, int]]:
    """Return first and end offset of each partition that has records, or of the *last* of them."""
    ranges: dict[PartitionKey, tuple[int, int]] = {}
    for name, topic in consumer.list_topics(timeout=TIMEOUT_SECONDS).topics.items():
        if name.startswith("__") or not topics.fullmatch(name):
            continue
        for partition in topic.partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=TIMEOUT_SECONDS)
            if low < high:
                ranges[(name, partition)] = (low if last is None else max(low, high - last), high)
    return ranges


class _Merge:
    """Holds at most :data:`HELD_BYTES`: a partition that is far ahead of others is paused."""

    def __init__(self, consumer: Consumer, ranges: dict[PartitionKey, tuple[int, int]]) -> None:
        self._consumer = consumer
        self._ends = {place: end for place, (_, end) in ranges.items()}
        self._held: dict[PartitionKey, deque[Message]] = {place: deque() for place in ranges}
        self._bytes = dict.fromkeys(ranges, 0)
        self._share = HELD_BYTES // max(1, len(ranges))
        self._reading = set(ranges)
        self._paused: set[PartitionKey] = set()
        consumer.assign([TopicPartition(*place, first) for place, (first, _) in ranges.items()])

    def run(self) -> Iterator[Message]:
        """Yield all records."""
        while True:
            self._fill()
            heads = [(held[0].timestamp()[1], place) for place, held in self._held.items() if held]
            if not heads:
                return
            place = min(heads)[1]
            message = self._held[place].popleft()
            self._bytes[place] -= _size(message)
            yield message
            if place in self._paused and not self._held[place]:
                self._paused.discard(place)
                self._consumer.resume([TopicPartition(*place)])

    def _fill(self) -> None:
        """Wait until each partition that has more shows its next record."""
        last = time.monotonic()
        while any(not self._held[place] for place in self._reading):
            message = self._consumer.poll(_POLL)
            if message is not None:
                last = time.monotonic()
                self._take(message)
            elif time.monotonic() - last > STALL_SECONDS:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no record in {STALL_SECONDS:g} s"))

    def _take(self, message: Message) -> None:
        place = (str(message.topic()), int(message.partition() or 0))
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        if place not in self._reading:
            return
        offset = int(message.offset() or 0)
        if error is None and offset < self._ends[place]:
            self._held[place].append(message)
            self._bytes[place] += _size(message)
        if error is not None or offset >= self._ends[place] - 1:
            self._reading.discard(place)
            self._consumer.pause([TopicPartition(*place)])
        elif self._bytes[place] >= self._share:
            self._paused.add(place)
            self._consumer.pause([TopicPartition(*place)])


def _size(message: Message) -> int:
    """Return about how much memory a record takes."""
    headers: Sequence[tuple[str, bytes | None]] = message.headers() or []  # type: ignore[assignment]
    told = sum(len(name) + len(value or b"") for name, value in headers)
    return 500 + len(message.value() or b"") + len(message.key() or b"") + told
