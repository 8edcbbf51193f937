"""Where topics of a cluster begin and end, and how large their records are."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from confluent_kafka import (
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

from bindings.kafka.client import COMMITTED, ISOLATION, TIMEOUT_SECONDS, KafkaClient, KafkaUnreachable

# Where topics of a cluster begin and end, as its brokers say.

_REFUSED: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED})
"""Errors that no further try mends: the brokers do not accept a login or a certificate."""
_NO_TOPIC: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION})
_NO_ID: Final = "A" * 22
"""How the client writes an id that brokers do not tell."""


@dataclass(frozen=True, slots=True)
class Takes:
    """What a topic takes: whether we may write to it, and the largest batch of records, None where that is not told."""

    writable: bool
    most_bytes: int | None = None


class KafkaEnds:
    """Asks a cluster, once or repeatedly, over one connection. Not for concurrent use.

    It keeps the connection as long as the cluster answers.
    """

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._admin: AdminClient | None = None
        self._troubles: list[KafkaError] = []

    def partitions(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Return the partitions of those topics that exist.

        Raises:
            KafkaUnreachable: the brokers refused us, none answered within ten seconds, or a certificate cannot be read.
        """
        with self._connected() as admin:
            return self._partitions(admin, topics)

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of those topics that exist, empty where the brokers tell none (before Kafka 2.8).

        A topic that was deleted and made again has another.

        Raises:
            KafkaUnreachable: as :meth:`partitions`.
        """
        found: dict[str, str] = {}
        if not (names := sorted(set(topics))):
            return found
        with self._connected() as admin:
            asked = admin.describe_topics(TopicCollection(names), request_timeout=TIMEOUT_SECONDS)
            for name, answer in asked.items():
                try:
                    id = str(answer.result().topic_id)
                except KafkaException as error:
                    if error.args[0].code() not in _NO_TOPIC:
                        raise
                else:
                    found[name] = "" if id == _NO_ID else id
        return found

    def takes(self, topics: Iterable[str]) -> dict[str, Takes]:
        """Return what those topics that exist take of us.

        Raises:
            KafkaUnreachable: as :meth:`partitions`.
        """
        found: dict[str, Takes] = {}
        if not (names := sorted(set(topics))):
            return found
        with self._connected() as admin:
            options: dict[str, Any] = {"request_timeout": TIMEOUT_SECONDS}
            asked = admin.describe_topics(TopicCollection(names), include_authorized_operations=True, **options)
            for name, answer in asked.items():
                try:
                    may = answer.result().authorized_operations
                except KafkaException as error:
                    if error.args[0].code() in (*_NO_TOPIC, KafkaError.TOPIC_AUTHORIZATION_FAILED):
                        if error.args[0].code() not in _NO_TOPIC:
                            found[name] = Takes(writable=False)
                        continue
                    raise
                found[name] = Takes(not may or AclOperation.WRITE in may)
            there = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in found]
            for resource, settings in (admin.describe_configs(there, **options) if there else {}).items():
                # Who may write need not be allowed to read the configuration.
                with contextlib.suppress(KafkaException):
                    limit = settings.result()["max.message.bytes"].value
                    found[resource.name] = Takes(found[resource.name].writable, int(limit))
        return found

    def create(
        self, topics: Iterable[str], *, partitions: int | None, replication: int | None, options: Mapping[str, str]
    ) -> dict[str, str]:
        """Create those topics that do not exist; return why some were not, by name. None is the brokers' default.

        Raises:
            KafkaUnreachable: as :meth:`partitions`.
        """
        failed: dict[str, str] = {}
        with self._connected() as admin:
            there = self._partitions(admin, topics)
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

    def ends(self, topics: Iterable[str], *, committed: bool = True) -> dict[str, dict[int, int]]:
        """Return where the partitions of those topics that exist end: the offset of the next record to be read.

        What an open transaction holds back is behind the end, unless the client reads what is not *committed*, or the
        last record of all is asked for.

        Raises:
            KafkaUnreachable: as :meth:`partitions`, or a partition's end is not known, since it has no leader now.
        """
        latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        with self._connected() as admin:
            return self._offsets(admin, self._partitions(admin, topics), latest, committed=committed)

    def firsts(self, partitions: Mapping[str, Iterable[int]]) -> dict[str, dict[int, int]]:
        """Return the offset of the first record that partitions have, or will have.

        Raises:
            KafkaUnreachable: as :meth:`ends`.
        """
        earliest: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        with self._connected() as admin:
            return self._offsets(admin, partitions, earliest)

    def since(self, partitions: Mapping[str, Iterable[int]], milliseconds: int) -> dict[str, dict[int, int]]:
        """Return the offset of the first record of that time or later; negative where there is none.

        Raises:
            KafkaUnreachable: as :meth:`ends`.
        """
        moment: OffsetSpec = OffsetSpec.for_timestamp(milliseconds)
        with self._connected() as admin:
            return self._offsets(admin, partitions, moment)

    def commit(self, group: str, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Commit where partitions are read on to a consumer group, which need not exist and has no members.

        Raises:
            KafkaUnreachable: as :meth:`partitions`, or the brokers refuse: we may not, or the group has members.
        """
        places = [TopicPartition(topic, number, at) for topic in offsets for number, at in offsets[topic].items()]
        with self._connected() as admin:
            asked = admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, places)], request_timeout=TIMEOUT_SECONDS
            )
            for answer in asked.values():
                for place in answer.result().topic_partitions:
                    if place.error is not None:
                        raise KafkaException(place.error)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[AdminClient]:
        """Give a client for questions, and keep it unless they fail."""
        self._client.check_files()
        admin, self._admin = self._admin, None
        try:
            if admin is None:
                troubles = self._troubles = list[KafkaError]()
                config = {**self._client.librdkafka(), "log_level": 0, "socket.timeout.ms": 5000}
                config["error_cb"] = troubles.append
                admin = AdminClient(config)
            else:
                # Earlier errors do not matter any more, and a login may have to be renewed.
                self._troubles.clear()
                admin.poll(0)
            yield admin
        except KafkaException as error:
            reason = self._reason() or (error.args[0].str() if error.args else str(error))
            refused = any(each.code() in _REFUSED for each in self._troubles)
            text = f"Kafka at {self._client.servers} does not answer: {reason}"
            raise KafkaUnreachable(text, refused=refused) from error
        self._admin = admin

    def _partitions(self, admin: AdminClient, topics: Iterable[str]) -> dict[str, list[int]]:
        known, wanted = self._answer(admin).topics, set(topics)
        return {name: sorted(topic.partitions) for name, topic in known.items() if name in wanted and not topic.error}

    def _answer(self, admin: AdminClient) -> Any:
        """Ask until there is an answer, a refusal, or no time left. The client reports a refusal to callbacks only."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            try:
                return admin.list_topics(timeout=1.0)
            except KafkaException:
                admin.poll(0)
                if time.monotonic() > deadline or any(each.code() in _REFUSED for each in self._troubles):
                    raise

    def _offsets(
        self,
        admin: AdminClient,
        partitions: Mapping[str, Iterable[int]],
        which: OffsetSpec,
        *,
        committed: bool = True,
    ) -> dict[str, dict[int, int]]:
        committed = committed and self._client.isolation == COMMITTED
        wanted = {TopicPartition(topic, number): which for topic in partitions for number in partitions[topic]}
        offsets: dict[str, dict[int, int]] = {topic: {} for topic in partitions}
        if not wanted:
            return offsets
        answers = admin.list_offsets(
            wanted,
            # If the end were past what a reader may see, Spark would take the difference for lost records.
            isolation_level=IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED,
            request_timeout=TIMEOUT_SECONDS,
        )
        for place, answer in answers.items():
            offsets[place.topic][place.partition] = answer.result().offset
        return offsets

    def _reason(self) -> str:
        """Return the most telling error of the client: a refusal, rather than the lost connection that followed it."""
        ranked = sorted(self._troubles, key=lambda each: each.code() not in _REFUSED)
        return ranked[0].str() if ranked else ""


# How large the records of topics are, from a few of them.
#
# Only reading them shows that. Brokers know the size of their logs, but with compression, compaction and transactions
# that says little about what a reader gets.

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
