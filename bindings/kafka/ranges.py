"""Ranges of Kafka's partitions, read by our own client where Spark's source cannot.

Spark turns each record's timestamp into microseconds before anything else, and fails the batch when they do not fit
into 64 bits: a sender that gives nanoseconds as milliseconds would stop its topic for ever. The client of this module
hands timestamps over as the milliseconds they are.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from bindings.kafka.client import ISOLATION, KafkaClient
from bindings.kafka.ends import KafkaEnds
from bindings.kafka.facts import SOURCE_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STILL_SECONDS: Final = 60.0
"""If no record arrives for this long, the brokers count as unreachable."""
_ROWS: Final = 1000
_BYTES: Final = 8 << 20
_POLL_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class KafkaRange:
    """The records of one partition from ``start`` (included; None is the oldest there is) to ``end`` (not)."""

    topic: str
    partition: int
    start: int | None
    end: int


class RangeUnreadable(Exception):
    """Brokers did not hand over a range in time; reading it again is safe."""


class RangeLost(RangeUnreadable):
    """Brokers no longer have the first records of a range; no further try brings them back."""


def read_ranges(spark: SparkSession, client: KafkaClient, ranges: tuple[KafkaRange, ...], *, lossy: bool) -> DataFrame:
    """Return these ranges' records as rows of :data:`SOURCE_SCHEMA`, one task for each range; nothing is read yet.

    When it is evaluated and brokers do not answer, tasks raise :class:`RangeUnreadable`. Reading again gives the same
    rows. If retention has removed some meanwhile, tasks raise :class:`RangeLost`; with *lossy* they leave these out.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    config = reading(client, elsewhere=True, lossy=lossy)
    places = spark.range(0, len(ranges), 1, max(1, len(ranges)))
    return places.mapInArrow(_reader(config, ranges), from_arrow_schema(SOURCE_SCHEMA))


def reading(client: KafkaClient, *, elsewhere: bool = False, lossy: bool = True) -> dict[str, Any]:
    """Return the configuration by which :func:`records_of` reads; *elsewhere* is for another machine.

    *lossy* begins with the oldest record there is where the first of a range is gone.
    """
    return {
        ISOLATION: client.isolation,
        **client.librdkafka(elsewhere=elsewhere),
        # The client joins no group, and requires the name of one all the same.
        "group.id": "xrouter-ranges",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": False,
        "auto.offset.reset": "earliest" if lossy else "error",
        "queued.max.messages.kbytes": 16384,
        "log_level": 0,
    }


def _reader(
    config: Mapping[str, Any], ranges: tuple[KafkaRange, ...]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(places: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in places:
            for place in batch.column(0).to_pylist():
                yield from records_of(config, ranges[place])

    return read


def records_of(config: Mapping[str, Any], wanted: KafkaRange) -> Iterator[pa.RecordBatch]:
    """Yield the records of one range in their order; the client lives as long as the iteration.

    Raises:
        RangeLost: the first records are gone, and *config* does not let that pass.
        RangeUnreadable: brokers do not answer, or hand over nothing more.
    """
    consumer = Consumer(dict(config))
    try:
        start = OFFSET_BEGINNING if wanted.start is None else wanted.start
        consumer.assign([TopicPartition(wanted.topic, wanted.partition, start)])
        rows: list[dict[str, Any]] = []
        size = 0
        for message in _messages(consumer, wanted):
            rows.append(row_of(message))
            size += len(message.value() or b"") + len(message.key() or b"")
            if len(rows) >= _ROWS or size >= _BYTES:
                yield batch_of(rows)
                rows, size = [], 0
        yield batch_of(rows)
    except KafkaException as error:
        if error.args[0].code() == KafkaError._AUTO_OFFSET_RESET:
            # Spark's own source uses these words, and a query that ends on them says what was lost.
            lost = f"{wanted.topic}-{wanted.partition} no longer has offset {wanted.start}"
            raise RangeLost(f"some data may have been lost. Reason: {lost}") from error
        raise RangeUnreadable(f"{wanted.topic}-{wanted.partition}: {error.args[0].str()}") from error
    finally:
        consumer.close()


def _messages(consumer: Consumer, wanted: KafkaRange) -> Iterator[Message]:
    """Yield the messages before the range's end; offsets that hold none (transactions, compaction) are passed over."""
    deadline = time.monotonic() + STILL_SECONDS
    place = TopicPartition(wanted.topic, wanted.partition)
    while True:
        message = consumer.poll(_POLL_SECONDS)
        if message is None:
            position = consumer.position([place])[0].offset
            if position >= wanted.end:
                return
            if time.monotonic() > deadline:
                raise RangeUnreadable(f"{wanted.topic}-{wanted.partition}: no record for {STILL_SECONDS:.0f} s")
            continue
        if (error := message.error()) is not None:
            raise KafkaException(error)
        deadline = time.monotonic() + STILL_SECONDS
        offset = message.offset()
        if offset is None or offset >= wanted.end:
            return
        yield message
        if offset == wanted.end - 1:
            return


def row_of(message: Message) -> dict[str, Any]:
    """Return a message as a row of :data:`SOURCE_SCHEMA`."""
    stamp: tuple[int, int] = message.timestamp()
    pairs: list[Any] = list(message.headers() or ())
    headers = [{"key": name, "value": value} for name, value in pairs]
    return {
        "key": message.key(),
        "value": message.value(),
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": stamp[1] if stamp[0] else -1,
        "headers": headers or None,
    }


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Return rows as an Arrow batch."""
    return pa.RecordBatch.from_pylist(rows, SOURCE_SCHEMA)


# The first records at or behind some offsets, as their topics have them: whether any waits, and since when.

SECONDS: Final = 3.0
"""The most time that one question takes."""
PLACES: Final = 256
"""With more partitions than this nobody asks: the answers would take too long."""
_HEAD_POLL_SECONDS: Final = 0.2
_FETCH_BYTES: Final = 2**16
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class FirstRecord:
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
        self._known: dict[Place, tuple[int, FirstRecord]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def of(self, places: Mapping[Place, tuple[int, int]]) -> dict[Place, FirstRecord]:
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
                message = consumer.poll(_HEAD_POLL_SECONDS)
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
                head = FirstRecord(offset, None if kind == TIMESTAMP_NOT_AVAILABLE else at)
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


# The last records of a topic.


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
