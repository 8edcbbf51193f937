"""Kafka's offsets and topics, and ranges of records that our own client reads where Spark's source cannot.

Spark converts each record's timestamp to microseconds first, and fails the batch if that overflows 64 bits: a sender
that gives nanoseconds as milliseconds would block its topic for ever. This client passes timestamps on in milliseconds.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from bindings.inbox.format import divide_rows
from bindings.kafka.client import (
    COMMITTED,
    ISOLATION,
    POLL_SECONDS,
    QUERY_SECONDS,
    TIMEOUT_SECONDS,
    KafkaClient,
    KafkaUnreachable,
)
from bindings.kafka.record_columns import SOURCE_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Partitions, offsets and capabilities of topics, from the brokers.

_REFUSED: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED})
"""Errors that a retry does not fix: the brokers do not accept a login or a certificate."""
_NO_TOPIC: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION})
_NO_ID: Final = "A" * 22
"""The client's value for an id that brokers do not report."""


@dataclass(frozen=True, slots=True)
class TopicCapabilities:
    """Whether we may write to a topic, and its maximum batch of records in bytes (None if unknown)."""

    writable: bool
    max_batch_bytes: int | None = None


class KafkaOffsets:
    """Queries a cluster, once or repeatedly, over one connection. Not for concurrent use.

    It reuses the connection until a request fails.
    """

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._admin: AdminClient | None = None
        self._errors: list[KafkaError] = []

    def find_partitions(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Return the partitions of existing topics.

        Raises:
            KafkaUnreachable: the brokers refused us, none answered within ten seconds, or a certificate cannot be read.
        """
        with self._connect() as admin:
            return self._list_partitions(admin, topics)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of existing topics, empty if the brokers report none (before Kafka 2.8).

        A topic that was deleted and created again has another id.

        Raises:
            KafkaUnreachable: as :meth:`find_partitions`.
        """
        if not (names := sorted(set(topics))):
            return {}
        with self._connect() as admin:
            known = {name: str(each.topic_id) for name, each in _iter_descriptions(admin, names)}
        return {name: "" if id == _NO_ID else id for name, id in known.items()}

    def topic_capabilities(self, topics: Iterable[str]) -> dict[str, TopicCapabilities]:
        """Return whether we may write to existing topics, and their maximum batch size.

        Raises:
            KafkaUnreachable: as :meth:`find_partitions`.
        """
        if not (names := sorted(set(topics))):
            return {}
        with self._connect() as admin:
            described = _iter_descriptions(admin, names, operations=True)
            found = {
                name: TopicCapabilities(
                    each is not None
                    and (not each.authorized_operations or AclOperation.WRITE in each.authorized_operations)
                )
                for name, each in described
            }
            there = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in found]
            configs = admin.describe_configs(there, request_timeout=TIMEOUT_SECONDS) if there else {}
            for resource, settings in configs.items():
                # A client that may write need not be allowed to read the configuration.
                with contextlib.suppress(KafkaException):
                    limit = settings.result()["max.message.bytes"].value
                    found[resource.name] = TopicCapabilities(found[resource.name].writable, int(limit))
        return found

    def create_topics(
        self, topics: Iterable[str], *, partitions: int | None, replication: int | None, options: Mapping[str, str]
    ) -> dict[str, str]:
        """Create missing topics; return the errors by topic. None uses the brokers' default.

        Raises:
            KafkaUnreachable: as :meth:`find_partitions`.
        """
        failed: dict[str, str] = {}
        with self._connect() as admin:
            there = self._list_partitions(admin, topics)
            wanted = [
                NewTopic(
                    name, num_partitions=partitions or -1, replication_factor=replication or -1, config=dict(options)
                )
                for name in sorted(set(topics) - set(there))
            ]
            for name, answer in (
                admin.create_topics(wanted, request_timeout=TIMEOUT_SECONDS) if wanted else {}
            ).items():
                try:
                    answer.result()
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                        failed[name] = error.args[0].str()
        return failed

    def end_offsets(self, topics: Iterable[str], *, committed: bool = True) -> dict[str, dict[int, int]]:
        """Return the end of each partition of existing topics: the offset of the next record.

        It excludes records behind an open transaction, unless the client reads uncommitted ones, or *committed* is
        False for the very last record.

        Raises:
            KafkaUnreachable: as :meth:`find_partitions`, or a partition's end is unknown because it has no leader now.
        """
        latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        with self._connect() as admin:
            return self._list_offsets(admin, self._list_partitions(admin, topics), latest, committed=committed)

    def first_offsets(self, partitions: Mapping[str, Iterable[int]]) -> dict[str, dict[int, int]]:
        """Return the first offset of partitions, even if they are empty.

        Raises:
            KafkaUnreachable: as :meth:`end_offsets`.
        """
        earliest: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        with self._connect() as admin:
            return self._list_offsets(admin, partitions, earliest)

    def offsets_since(self, partitions: Mapping[str, Iterable[int]], milliseconds: int) -> dict[str, dict[int, int]]:
        """Return the offset of the first record at or after a time; negative if there is none.

        Raises:
            KafkaUnreachable: as :meth:`end_offsets`.
        """
        moment: OffsetSpec = OffsetSpec.for_timestamp(milliseconds)
        with self._connect() as admin:
            return self._list_offsets(admin, partitions, moment)

    def commit_offsets(self, group: str, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Commit offsets to a consumer group, which need not exist and has no members.

        Raises:
            KafkaUnreachable: as :meth:`find_partitions`, or the brokers refuse: not allowed, or the group has members.
        """
        places = [TopicPartition(topic, number, at) for topic in offsets for number, at in offsets[topic].items()]
        with self._connect() as admin:
            asked = admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, places)], request_timeout=TIMEOUT_SECONDS
            )
            for answer in asked.values():
                for place in answer.result().topic_partitions:
                    if place.error is not None:
                        raise KafkaException(place.error)

    @contextlib.contextmanager
    def _connect(self) -> Iterator[AdminClient]:
        """Yield an admin client, which is reused unless a request fails."""
        self._client.check_files()
        admin, self._admin = self._admin, None
        try:
            if admin is None:
                troubles = self._errors = list[KafkaError]()
                config = {**self._client.librdkafka_config(), "log_level": 0, "socket.timeout.ms": 5000}
                config["error_cb"] = troubles.append
                admin = AdminClient(config)
            else:
                # Earlier errors do not matter any more, and a login may have to be renewed.
                self._errors.clear()
                admin.poll(0)
            yield admin
        except KafkaException as error:
            reason = self._most_telling_error() or (error.args[0].str() if error.args else str(error))
            refused = any(each.code() in _REFUSED for each in self._errors)
            text = f"Kafka at {self._client.servers} does not answer: {reason}"
            raise KafkaUnreachable(text, refused=refused) from error
        self._admin = admin

    def _list_partitions(self, admin: AdminClient, topics: Iterable[str]) -> dict[str, list[int]]:
        known, wanted = self._list_topics(admin).topics, set(topics)
        return {name: sorted(topic.partitions) for name, topic in known.items() if name in wanted and not topic.error}

    def _list_topics(self, admin: AdminClient) -> Any:
        """List all topics; retry until there is an answer, a refusal, or no time left."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            try:
                return admin.list_topics(timeout=1.0)
            except KafkaException:
                admin.poll(0)
                if time.monotonic() > deadline or any(each.code() in _REFUSED for each in self._errors):
                    raise

    def _list_offsets(
        self, admin: AdminClient, partitions: Mapping[str, Iterable[int]], which: OffsetSpec, *, committed: bool = True
    ) -> dict[str, dict[int, int]]:
        committed = committed and self._client.isolation_level == COMMITTED
        wanted = {TopicPartition(topic, number): which for topic in partitions for number in partitions[topic]}
        offsets: dict[str, dict[int, int]] = {topic: {} for topic in partitions}
        if not wanted:
            return offsets
        answers = admin.list_offsets(
            wanted,
            # An end past what a reader may see would look to Spark like lost records.
            isolation_level=IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED,
            request_timeout=TIMEOUT_SECONDS,
        )
        for place, answer in answers.items():
            offsets[place.topic][place.partition] = answer.result().offset
        return offsets

    def _most_telling_error(self) -> str:
        """Return the client's most informative error: a refusal before a lost connection."""
        ranked = sorted(self._errors, key=lambda each: each.code() not in _REFUSED)
        return ranked[0].str() if ranked else ""


def _iter_descriptions(admin: AdminClient, names: list[str], *, operations: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield existing topics with their descriptions; with *operations* None for one that we may not see."""
    asked = admin.describe_topics(
        TopicCollection(names), include_authorized_operations=operations, request_timeout=TIMEOUT_SECONDS
    )
    for name, answer in asked.items():
        try:
            yield name, answer.result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED and operations:
                yield name, None
            elif error.args[0].code() not in _NO_TOPIC:
                raise


# The mean record size of topics, from a few records.
#
# Only reading shows it: brokers know the size of their logs, but compression, compaction and transactions change what a
# reader gets.

SAMPLE_SIZE: Final = 100
"""Records read at each position."""
SAMPLED_PARTITIONS: Final = 8
"""Partitions read, of all topics together."""
MAX_QUERIED_PARTITIONS: Final = 256
"""Maximum partitions to query; more would take too long."""
_OVERHEAD: Final = 64
"""Bytes that every record adds: topic, offset, time, and the memory of its parts."""
_FETCH_BYTES: Final = 2**20

Starts = Mapping[str, Mapping[str, int]]


def mean_record_bytes(client: KafkaClient, topics: Iterable[str], starts: Starts) -> float | None:
    """Return the mean size of unread records at the position where they are largest; None if nothing could be read.

    *starts* are where reading will begin, by topic and partition, in Spark's form; other partitions begin at their
    first record. It samples the beginning, the middle and the end of the unread records. It takes a few seconds at
    most, and never raises: the size is only an estimate.
    """
    try:
        consumer = Consumer(
            {
                **consumer_config(client),
                "group.id": "xrouter-sizes",
                "fetch.message.max.bytes": _FETCH_BYTES,
                "queued.max.messages.kbytes": _FETCH_BYTES // 1024,
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
    unread = _find_unread(consumer, topics, starts)
    means: list[float] = []
    for share in (0.0, 0.5, 1.0):
        places = [
            TopicPartition(topic, number, first + int(max(0, last - first - SAMPLE_SIZE) * share))
            for (topic, number), (first, last) in unread.items()
            if share == 0.0 or last - first > 3 * SAMPLE_SIZE
        ]
        if places:
            # Requesting more records than there are would mean waiting for them.
            there = sum(min(SAMPLE_SIZE, unread[place.topic, place.partition][1] - place.offset) for place in places)
            consumer.assign(places)
            means.extend(_mean_sizes(consumer.consume(there, QUERY_SECONDS)))
    return max(means, default=None)


def _find_unread(consumer: Consumer, topics: set[str], starts: Starts) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the range of unread offsets (end excluded) of some partitions with unread records."""
    known = consumer.list_topics(timeout=QUERY_SECONDS).topics
    wanted = [(topic, number) for topic in sorted(topics & known.keys()) for number in sorted(known[topic].partitions)]
    unread: dict[tuple[str, int], tuple[int, int]] = {}
    for topic, number in wanted[:MAX_QUERIED_PARTITIONS]:
        first = starts.get(topic, {}).get(str(number), 0)
        bounds = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=QUERY_SECONDS)
        if bounds is not None and max(first, bounds[0]) < bounds[1]:
            unread[topic, number] = (max(first, bounds[0]), bounds[1])
        if len(unread) == SAMPLED_PARTITIONS:
            break
    return unread


def _mean_sizes(messages: list[Message]) -> list[float]:
    """Return the mean record size of each partition."""
    sizes: dict[tuple[str | None, int | None], list[int]] = {}
    for message in messages:
        if message.error() is None:
            sizes.setdefault((message.topic(), message.partition()), []).append(_record_bytes(message))
    return [sum(each) / len(each) for each in sizes.values()]


def _record_bytes(message: Message) -> int:
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    size = _OVERHEAD + len(message.key() or b"") + len(message.value() or b"")
    return size + sum(len(name) + len(value or b"") for name, value in headers)


SILENCE_SECONDS: Final = 60.0
"""Seconds without a record after which the brokers count as unreachable."""
_ROWS: Final = 1000
_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class KafkaRange:
    """The records of one partition from ``start`` (included; None is the oldest one) to ``end`` (excluded)."""

    topic: str
    partition: int
    start: int | None
    end: int


class RangeUnreadable(Exception):
    """Brokers did not return a range in time; reading it again is safe."""


class RangeLost(RangeUnreadable):
    """Brokers no longer have the first records of a range; a retry does not help."""


def read_ranges(spark: SparkSession, client: KafkaClient, ranges: tuple[KafkaRange, ...], *, lossy: bool) -> DataFrame:
    """Return these ranges' records as rows of :data:`SOURCE_SCHEMA`, one task per range; nothing is read yet.

    If brokers do not answer at evaluation, tasks raise :class:`RangeUnreadable`. Reading again gives the same rows. If
    retention has removed some meanwhile, tasks raise :class:`RangeLost`, or leave these out with *lossy*.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    config = consumer_config(client, elsewhere=True, lossy=lossy)

    def read_all(places: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in places:
            for place in batch.column(0).to_pylist():
                yield from iter_records(config, ranges[place])

    places = spark.range(0, len(ranges), 1, max(1, len(ranges)))
    return places.mapInArrow(read_all, from_arrow_schema(SOURCE_SCHEMA))


def consumer_config(client: KafkaClient, *, elsewhere: bool = False, lossy: bool = True) -> dict[str, Any]:
    """Return the configuration for :func:`iter_records`; *elsewhere* is for another machine.

    *lossy* begins with the oldest record if the first one of a range is gone.
    """
    return {
        ISOLATION: client.isolation_level,
        **client.librdkafka_config(elsewhere=elsewhere),
        # The client joins no group, but a name is required anyway.
        "group.id": "xrouter-ranges",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": False,
        "auto.offset.reset": "earliest" if lossy else "error",
        "queued.max.messages.kbytes": 16384,
        "log_level": 0,
    }


def iter_records(config: Mapping[str, Any], wanted: KafkaRange) -> Iterator[pa.RecordBatch]:
    """Yield the records of one range in order; the client is closed after the iteration.

    Raises:
        RangeLost: the first records are gone, and *config* does not allow that.
        RangeUnreadable: brokers do not answer, or return nothing more.
    """
    consumer = Consumer(dict(config))
    try:
        start = OFFSET_BEGINNING if wanted.start is None else wanted.start
        consumer.assign([TopicPartition(wanted.topic, wanted.partition, start)])
        rows: list[dict[str, Any]] = []
        size = 0
        for message in _iter_messages(consumer, wanted):
            rows.append(to_source_row(message))
            size += len(message.value() or b"") + len(message.key() or b"")
            if len(rows) >= _ROWS or size >= _BYTES:
                yield to_source_batch(rows)
                rows, size = [], 0
        yield to_source_batch(rows)
    except KafkaException as error:
        if error.args[0].code() == KafkaError._AUTO_OFFSET_RESET:
            # Spark's own source uses these words, and a query that fails with them says what was lost.
            lost = f"{wanted.topic}-{wanted.partition} no longer has offset {wanted.start}"
            raise RangeLost(f"some data may have been lost. Reason: {lost}") from error
        raise RangeUnreadable(f"{wanted.topic}-{wanted.partition}: {error.args[0].str()}") from error
    finally:
        consumer.close()


def _iter_messages(consumer: Consumer, wanted: KafkaRange) -> Iterator[Message]:
    """Yield the messages before the range's end; offsets without one (transactions, compaction) are skipped."""
    deadline = time.monotonic() + SILENCE_SECONDS
    place = TopicPartition(wanted.topic, wanted.partition)
    while True:
        message = consumer.poll(POLL_SECONDS)
        if message is None:
            position = consumer.position([place])[0].offset
            if position >= wanted.end:
                return
            if time.monotonic() > deadline:
                raise RangeUnreadable(f"{wanted.topic}-{wanted.partition}: no record for {SILENCE_SECONDS:.0f} s")
            continue
        if (error := message.error()) is not None:
            raise KafkaException(error)
        deadline = time.monotonic() + SILENCE_SECONDS
        offset = message.offset()
        if offset is None or offset >= wanted.end:
            return
        yield message
        if offset == wanted.end - 1:
            return


def to_source_row(message: Message) -> dict[str, Any]:
    """Convert a message to a row of :data:`SOURCE_SCHEMA`."""
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


def to_source_batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Return rows as an Arrow batch."""
    return pa.RecordBatch.from_pylist(rows, SOURCE_SCHEMA)


# The first record at or after an offset, and its arrival time.

_SEARCH_FETCH_BYTES: Final = 2**16
PartitionKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class FirstRecord:
    """The first record at or after a position: its ``offset`` and when it arrived, in milliseconds since 1970.

    If there is no record, ``offset`` is the end of the partition. ``arrived`` is None then, and for records without a
    time.
    """

    offset: int
    arrived: int | None = None


class FirstUnreadRecords(contextlib.AbstractContextManager["FirstUnreadRecords"]):
    """Queries a cluster repeatedly for first records, over one connection. Not for concurrent use."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._consumer: Consumer | None = None
        self._cached: dict[PartitionKey, tuple[int, FirstRecord]] = {}

    def __exit__(self, *_: object) -> None:
        self._close()

    def find_first_records(self, places: Mapping[PartitionKey, tuple[int, int]]) -> dict[PartitionKey, FirstRecord]:
        """Return the first record of each partition between a position and the end.

        Partitions are left out if the brokers do not answer in time. A position of the previous
        call costs nothing, unless there was no record and the end has moved.
        """
        self._cached = {
            place: (start, head)
            for place, (start, head) in self._cached.items()
            if place in places
            and places[place][0] == start
            and (head.arrived is not None or head.offset >= places[place][1])
        }
        wanted = {place: start for place, (start, _) in places.items() if place not in self._cached}
        if wanted:
            try:
                self._poll_first_records(wanted)
            except KafkaException:
                self._close()
        return {place: head for place, (_, head) in self._cached.items()}

    def _poll_first_records(self, wanted: dict[PartitionKey, int]) -> None:
        consumer = self._consumer = self._consumer or Consumer(self._consumer_config())
        places = [TopicPartition(*place, offset) for place, offset in wanted.items()]
        consumer.assign(places)
        # A partition that was paused stays paused when it is assigned again.
        consumer.resume(places)
        try:
            deadline = time.monotonic() + QUERY_SECONDS
            while wanted and time.monotonic() < deadline:
                message = consumer.poll(POLL_SECONDS)
                if message is None:
                    continue
                error, topic, partition, offset = message.error(), *_position_of(message)
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    continue
                start = wanted.pop((topic, partition), None)
                if start is None:
                    continue
                consumer.pause([TopicPartition(topic, partition)])
                kind, at = message.timestamp() if error is None else (TIMESTAMP_NOT_AVAILABLE, 0)
                head = FirstRecord(offset, None if kind == TIMESTAMP_NOT_AVAILABLE else at)
                self._cached[topic, partition] = (start, head)
        finally:
            consumer.unassign()

    def _consumer_config(self) -> dict[str, object]:
        return {
            **consumer_config(self._client),
            "group.id": "xrouter-heads",
            "enable.partition.eof": True,
            "fetch.message.max.bytes": _SEARCH_FETCH_BYTES,
            "queued.max.messages.kbytes": 1024,
        }

    def _close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()


def _position_of(message: Message) -> tuple[str, int, int]:
    """Return topic, partition and offset of a message, or of a partition's end."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None and partition is not None and offset is not None
    return topic, partition, offset


# The newest records of a topic.


class KafkaTail:
    """The newest *most* records of a topic, about as many from each partition.

    Transactions and compaction leave offsets without a record, so it reads further back until it has as many.
    ``includes_oldest`` says whether the oldest record was read.
    """

    def __init__(
        self, client: KafkaClient, topic: str, firsts: Mapping[int, int], ends: Mapping[int, int], most: int
    ) -> None:
        self.records = 0
        self.includes_oldest = True
        self._config = consumer_config(client)
        self._topic = topic
        self._firsts = firsts
        self._ends = ends
        self._most = most

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the records: each partition from its end backwards, in batches that are in order.

        Raises:
            RangeUnreadable: brokers do not answer, or return nothing more.
        """
        lengths = {number: max(0, end - self._firsts[number]) for number, end in self._ends.items()}
        for number, share in share_equally(lengths, self._most).items():
            yield from self._read_partition(number, share)

    def _read_partition(self, number: int, missing: int) -> Iterator[pa.RecordBatch]:
        first, end, step = self._firsts[number], self._ends[number], missing
        while missing and end > first:
            start = max(first, end - step)
            for batch in self._read_last(KafkaRange(self._topic, number, start, end), missing):
                missing -= batch.num_rows
                self.records += batch.num_rows
                yield batch
            end, step = start, 2 * step
        self.includes_oldest &= end <= first

    def _read_last(self, wanted: KafkaRange, most: int) -> Iterator[pa.RecordBatch]:
        """Yield the last *most* records of a range; only these are in memory."""
        batches = iter_records(self._config, wanted)
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
            self.includes_oldest = False
        yield from kept


def open_tail(client: KafkaClient, topic: str, most: int, since: int | None = None) -> KafkaTail | None:
    """Return the newest *most* records of a topic; None if there is no such topic.

    With *since*, in milliseconds, only records of that time or later count.

    Raises:
        KafkaUnreachable: the brokers refused us, or none answered within ten seconds.
    """
    asked = KafkaOffsets(client)
    ends = asked.end_offsets([topic]).get(topic)
    if ends is None:
        return None
    places = {topic: sorted(ends)}
    firsts = asked.first_offsets(places)[topic]
    if since is not None:
        later = asked.offsets_since(places, since)[topic]
        firsts = {
            number: max(first, later[number]) if later[number] >= 0 else ends[number]
            for number, first in firsts.items()
        }
    return KafkaTail(client, topic, firsts, ends, most)


def share_equally(lengths: Mapping[int, int], most: int) -> dict[int, int]:
    """Divide *most* records equally among partitions; unused shares go to the longer ones."""
    return dict(sorted(divide_rows(lengths, most).items()))
