"""Feeding and reading topics with an independent client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.waiting import wait_until

READ_SECONDS: Final = 120.0
Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Message:
    """One record of a topic."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int
    """Milliseconds, by the sender's clock or the broker's, as the topic has it."""

    def header(self, name: str) -> str | None:
        """Return the first header of that name as text."""
        value = next((value for key, value in self.headers if key == name), None)
        return None if value is None else value.decode()


def produce(bootstrap: str, topic: str, records: Iterable[tuple[bytes | None, bytes | None, Headers]]) -> int:
    """Send (key, value, headers) records and wait until all are acknowledged; return how many."""
    failures: list[str] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failures.append(str(error))

    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 200_000, "acks": "all"}
    )
    count = 0
    for key, value, headers in records:
        while True:
            try:
                producer.produce(topic, value, key, headers=list(headers), on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        count += 1
        if count % 1000 == 0:
            producer.poll(0)
    producer.flush(60)
    assert not failures, failures[:3]
    return count


class Transactions:
    """A transactional producer, as Kafka Streams or Flink have one: each call is a transaction, or leaves one open."""

    def __init__(self, bootstrap: str, name: str) -> None:
        told = {"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 2, "log_level": 0}
        self._producer = Producer(told)
        self._producer.init_transactions(READ_SECONDS)

    def begin(self, topic: str, records: Iterable[tuple[bytes | None, bytes | None, Headers]]) -> None:
        """Send records in a transaction that stays open; the topic has them when this returns."""
        self._producer.begin_transaction()
        for key, value, headers in records:
            self._producer.produce(topic, value, key, headers=list(headers))
        assert self._producer.flush(READ_SECONDS) == 0

    def commit(self) -> None:
        """Commit what is open."""
        self._producer.commit_transaction(READ_SECONDS)

    def abort(self) -> None:
        """Abort what is open."""
        self._producer.abort_transaction(READ_SECONDS)


def create_topics(
    bootstrap: str,
    topics: Iterable[str],
    partitions: int = 1,
    options: Mapping[str, str] | None = None,
    *,
    copies: int = 1,
) -> None:
    """Create topics, with options by their own names, and wait until the broker has them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics([NewTopic(topic, partitions, copies, config=dict(options or {})) for topic in topics])
    for future in made.values():
        future.result(READ_SECONDS)


def ends(bootstrap: str, topic: str) -> dict[int, int]:
    """Return the end offset of every partition of a topic; empty when there is no such topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "xrouter-tests-ends"})
    try:
        found = consumer.list_topics(topic, timeout=120).topics[topic]
        if found.error is not None:
            return {}
        return {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=120)[1]
            for number in found.partitions
        }
    finally:
        consumer.close()


def read_all(bootstrap: str, topic: str) -> list[Message]:
    """Return all records that a topic has now."""
    return list(_read(bootstrap, topic))


def _read(bootstrap: str, topic: str) -> Iterator[Message]:
    left = {number: end for number, end in ends(bootstrap, topic).items() if end > 0}
    if not left:
        return
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "xrouter-tests", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in left])
        while left:
            batch = wait_until(lambda: consumer.consume(5_000, 1.0), READ_SECONDS, f"records of {topic}")
            for found in batch:
                assert found.error() is None, found.error()
                message = _message(topic, found)
                yield message
                if message.offset + 1 >= left.get(message.partition, 0):
                    left.pop(message.partition, None)
    finally:
        consumer.close()


def _message(topic: str, found: Any) -> Message:
    headers = tuple((str(name), value) for name, value in (found.headers() or ()))
    return Message(
        topic, int(found.partition()), int(found.offset()), found.key(), found.value(), headers, found.timestamp()[1]
    )
