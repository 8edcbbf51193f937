"""Ranges of Kafka's partitions, read by our own client where Spark's source cannot.

Spark turns each record's timestamp into microseconds before anything else, and fails the batch when they do not fit
into 64 bits: a sender that gives nanoseconds as milliseconds would stop its topic for ever. The client of this module
hands timestamps over as the milliseconds they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from bindings.kafka.client import ISOLATION, KafkaClient
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
