"""How large the records of topics are, from a few of them.

Only reading them shows that. Brokers know the size of their logs, but with compression, compaction and transactions
that says little about what a reader gets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, cast

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from bindings.kafka.client import ISOLATION, KafkaClient

RECORDS: Final = 100
"""Records read at each place."""
PARTITIONS: Final = 8
"""Partitions read, of all topics together."""
ASKED: Final = 64
"""Partitions whose offsets are compared, at most, to find some with unread records."""
SECONDS: Final = 2.0
_OVERHEAD: Final = 64
"""Bytes that every record adds: topic, offset, time, and the room that its parts take in memory."""
_FETCH_BYTES: Final = 2**20

Starts = Mapping[str, Mapping[str, int]]


def mean_record_bytes(client: KafkaClient, topics: Iterable[str], starts: Starts) -> float | None:
    """Return the mean size of unread records, at the place where they are largest; None when nothing could be read.

    *starts* are where reading will begin, by topic and partition, as Spark writes them; partitions that they do not
    name begin at their first record.
    It looks at the beginning, the middle and the end of the unread records. It takes a few seconds at most, and never
    raises: the size is an estimate anyway.
    """
    try:
        consumer = Consumer(
            {
                **client.librdkafka(),
                ISOLATION: client.isolation,
                "group.id": "xrouter-sizes",
                "enable.auto.commit": False,
                "fetch.message.max.bytes": _FETCH_BYTES,
                "queued.max.messages.kbytes": _FETCH_BYTES // 1024,
                "log_level": 0,
            }
        )
    except KafkaException:
        return None
    try:
        return _largest_mean(consumer, set(topics), starts)
    except KafkaException:
        return None
    finally:
        consumer.close()


def _largest_mean(consumer: Consumer, topics: set[str], starts: Starts) -> float | None:
    unread = _unread(consumer, topics, starts)
    means: list[float] = []
    for share in (0.0, 0.5, 1.0):
        places = [
            TopicPartition(topic, number, first + int(max(0, last - first - RECORDS) * share))
            for (topic, number), (first, last) in unread.items()
            if share == 0.0 or last - first > 3 * RECORDS
        ]
        if places:
            # To ask for more records than there are would mean waiting for them.
            there = sum(min(RECORDS, unread[place.topic, place.partition][1] - place.offset) for place in places)
            consumer.assign(places)
            means.extend(_means(consumer.consume(there, SECONDS)))
    return max(means, default=None)


def _unread(consumer: Consumer, topics: set[str], starts: Starts) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the first unread offset, and the one after the last, of some partitions with unread records."""
    known = consumer.list_topics(timeout=SECONDS).topics
    wanted = [(topic, number) for topic in sorted(topics & known.keys()) for number in sorted(known[topic].partitions)]
    unread: dict[tuple[str, int], tuple[int, int]] = {}
    for topic, number in wanted[:ASKED]:
        first = starts.get(topic, {}).get(str(number), 0)
        bounds = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=SECONDS)
        if bounds is not None and max(first, bounds[0]) < bounds[1]:
            unread[topic, number] = (max(first, bounds[0]), bounds[1])
        if len(unread) == PARTITIONS:
            break
    return unread


def _means(messages: list[Message]) -> list[float]:
    """Return the mean size of the records of each partition."""
    sizes: dict[tuple[str | None, int | None], list[int]] = {}
    for message in messages:
        if message.error() is None:
            sizes.setdefault((message.topic(), message.partition()), []).append(_size(message))
    return [sum(each) / len(each) for each in sizes.values()]


def _size(message: Message) -> int:
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    size = _OVERHEAD + len(message.key() or b"") + len(message.value() or b"")
    return size + sum(len(name) + len(value or b"") for name, value in headers)
