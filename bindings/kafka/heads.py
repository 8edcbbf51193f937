"""The first records at or behind some offsets, as their topics have them: whether any waits, and since when."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message, TopicPartition

from bindings.kafka.client import KafkaClient
from bindings.kafka.ranges import reading

SECONDS: Final = 3.0
"""The most time that one question takes."""
PLACES: Final = 256
"""With more partitions than this nobody asks: the answers would take too long."""
_POLL_SECONDS: Final = 0.2
_FETCH_BYTES: Final = 2**16
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Head:
    """The first record at or behind a position: its ``offset`` and when it arrived, in milliseconds since 1970.

    Where there is no record, ``offset`` is the end of the partition. ``arrived`` is None then, and for records without
    a time.
    """

    offset: int
    arrived: int | None = None


class KafkaHeads:
    """Asks a cluster repeatedly for first records, over one connection. Not for concurrent use."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._consumer: Consumer | None = None
        self._known: dict[Place, tuple[int, Head]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def of(self, places: Mapping[Place, tuple[int, int]]) -> dict[Place, Head]:
        """Return the first record of each place between a position and the end, which is behind it.

        It leaves out what the brokers do not return within :data:`SECONDS`. A position of the previous question costs
        nothing, but where there was no record and the end has moved.
        """
        self._known = {
            place: (start, head)
            for place, (start, head) in self._known.items()
            if place in places
            and places[place][0] == start
            and (head.arrived is not None or head.offset >= places[place][1])
        }
        wanted = {place: start for place, (start, _) in places.items() if place not in self._known}
        if wanted:
            try:
                self._ask(wanted)
            except KafkaException:
                self._close()
        return {place: head for place, (_, head) in self._known.items()}

    def _ask(self, wanted: dict[Place, int]) -> None:
        consumer = self._consumer = self._consumer or Consumer(self._config())
        places = [TopicPartition(*place, offset) for place, offset in wanted.items()]
        consumer.assign(places)
        # A partition that was paused stays so when it is assigned anew.
        consumer.resume(places)
        try:
            deadline = time.monotonic() + SECONDS
            while wanted and time.monotonic() < deadline:
                message = consumer.poll(_POLL_SECONDS)
                if message is None:
                    continue
                error, topic, partition, offset = message.error(), *_place(message)
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    continue
                start = wanted.pop((topic, partition), None)
                if start is None:
                    continue
                consumer.pause([TopicPartition(topic, partition)])
                kind, at = message.timestamp() if error is None else (TIMESTAMP_NOT_AVAILABLE, 0)
                head = Head(offset, None if kind == TIMESTAMP_NOT_AVAILABLE else at)
                self._known[topic, partition] = (start, head)
        finally:
            consumer.unassign()

    def _config(self) -> dict[str, object]:
        return {
            **reading(self._client),
            "group.id": "xrouter-heads",
            "enable.partition.eof": True,
            "fetch.message.max.bytes": _FETCH_BYTES,
            "queued.max.messages.kbytes": 1024,
        }

    def _close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()


def _place(message: Message) -> tuple[str, int, int]:
    """Return topic, partition and offset of a message, or of the end that one tells of."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None and partition is not None and offset is not None
    return topic, partition, offset
