"""When the records at some offsets arrived, as their topics say: the age of what waits first."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaException, TopicPartition

from bindings.kafka.client import KafkaClient
from bindings.kafka.ranges import reading

SECONDS: Final = 3.0
"""The most time that one question takes."""
PLACES: Final = 256
"""With more partitions than this nobody asks: the answers would take too long."""
_POLL_SECONDS: Final = 0.2
_FETCH_BYTES: Final = 2**16
Place = tuple[str, int]


class KafkaHeads:
    """Asks a cluster repeatedly for the times of records, over one connection. Not for concurrent use."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._consumer: Consumer | None = None
        self._known: dict[Place, tuple[int, int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def arrived(self, places: Mapping[Place, int]) -> dict[Place, int]:
        """Return the time, in milliseconds since 1970, of the first record at or behind each offset.

        It leaves out records without a time, and those whose time the brokers do not return within :data:`SECONDS`.
        An offset of the previous question costs nothing.
        """
        self._known = {place: known for place, known in self._known.items() if places.get(place) == known[0]}
        wanted = {place: offset for place, offset in places.items() if place not in self._known}
        if wanted:
            try:
                self._ask(wanted)
            except KafkaException:
                self._close()
        return {place: at for place, (_, at) in self._known.items()}

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
                if message is None or message.error() is not None:
                    continue
                topic, partition = message.topic(), message.partition()
                assert topic is not None and partition is not None
                offset = wanted.pop((topic, partition), None)
                if offset is None:
                    continue
                consumer.pause([TopicPartition(topic, partition)])
                kind, at = message.timestamp()
                if kind != TIMESTAMP_NOT_AVAILABLE:
                    self._known[topic, partition] = (offset, at)
        finally:
            consumer.unassign()

    def _config(self) -> dict[str, object]:
        return {
            **reading(self._client),
            "group.id": "xrouter-heads",
            "fetch.message.max.bytes": _FETCH_BYTES,
            "queued.max.messages.kbytes": 1024,
        }

    def _close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()
