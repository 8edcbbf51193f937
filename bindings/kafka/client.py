"""Connections to Kafka: one description, as options of the JVM client and of librdkafka."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from bindings.kafka.addresses import protocol_of
from bindings.kafka.login import SaslLogin

TIMEOUT_SECONDS: Final = 10.0
_SHARED: Final = ("security.protocol", "client.id")
"""Options that both clients know by the same name and in the same sense."""
_READING: Final = {"max.poll.records": "3000"}
"""After each poll Spark asks the broker where its partition begins and ends, so one is to take most of a fetch. Spark
also keeps what a poll gave, for each partition: more would take memory where there are hundreds.
"""
_REFUSED: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED})
"""What no further try mends: a login or a certificate that is not taken."""


Asked: TypeAlias = tuple[AdminClient, list[KafkaError]]
"""A client for questions, and what it has run into."""


class KafkaUnreachable(Exception):
    """No broker answered, or it refused us. The message names the servers and the broker's own reason."""


@dataclass(frozen=True, slots=True)
class KafkaClient:
    """How to reach a cluster. ``login`` and ``options`` may hold secrets and are never printed.

    ``security`` is the protocol that the addresses ask for, empty where they say nothing: then TLS is used when ``tls``
    is set. TLS verifies certificates and host names. ``ca``, ``cert`` and ``key`` are PEM
    files; without ``ca`` the system's authorities are trusted.
    """

    servers: str
    login: SaslLogin | None = None
    tls: bool = False
    security: str = ""
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def jvm(self) -> dict[str, str]:
        """Return the options of Spark's Kafka source and sink that they connect with, names with ``kafka.`` in front.

        Raises:
            OSError: the certificate or key cannot be read.
        """
        made = {"bootstrap.servers": self.servers, "security.protocol": self._protocol()}
        # The files are of this machine: executors elsewhere get what is in them.
        if self.tls and self.ca:
            made |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _text_of(self.ca)}
        if self.tls and self.cert and self.key:
            chain, private = _text_of(self.cert), _text_of(self.key)
            made |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": private}
        if self.login is not None:
            made |= self.login.jvm()
        return _prefixed(made | dict(self.options))

    def reading(self) -> dict[str, str]:
        """Return the options of Spark's Kafka source for batches, by which it reads quickly unless told otherwise.

        Raises:
            OSError: as :meth:`jvm`.
        """
        return _prefixed(_READING) | self.jvm()

    def librdkafka(self, *, elsewhere: bool = False) -> dict[str, Any]:
        """Return the configuration for confluent-kafka; *elsewhere* is for another machine, without our files.

        Raises:
            OSError: what is to be sent elsewhere cannot be read.
        """
        made = {"bootstrap.servers": self.servers, "security.protocol": self._protocol()}
        for name, value in (("ca", self.ca), ("certificate", self.cert), ("key", self.key)):
            if self.tls and value:
                made |= {f"ssl.{name}.pem": _text_of(value)} if elsewhere else {f"ssl.{name}.location": value}
        if self.login is not None:
            made |= self.login.librdkafka()
        return made | {name: value for name, value in self.options.items() if name in _SHARED}

    def partitions(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Return the partitions of those topics that exist.

        Raises:
            KafkaUnreachable: the brokers refused us, none answered within ten seconds, or a certificate cannot be read.
        """
        with self._asking() as (admin, troubles):
            return self._partitions(admin, troubles, topics)

    def ends(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        """Return where the partitions of those topics that exist end: the offset of the next record to be read.

        Raises:
            KafkaUnreachable: as :meth:`partitions`, or a partition's end is not known, since it has no leader now.
        """
        with self._asking() as (admin, troubles):
            return self._ends(admin, self._partitions(admin, troubles, topics))

    def _ends(self, admin: AdminClient, partitions: Mapping[str, Iterable[int]]) -> dict[str, dict[int, int]]:
        latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        return self._offsets(admin, partitions, latest)

    def _firsts(self, admin: AdminClient, partitions: Mapping[str, Iterable[int]]) -> dict[str, dict[int, int]]:
        earliest: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        return self._offsets(admin, partitions, earliest)

    def _offsets(
        self, admin: AdminClient, partitions: Mapping[str, Iterable[int]], which: OffsetSpec
    ) -> dict[str, dict[int, int]]:
        committed = self.options.get("isolation.level") == "read_committed"
        wanted = {TopicPartition(topic, number): which for topic in partitions for number in partitions[topic]}
        found: dict[str, dict[int, int]] = {topic: {} for topic in partitions}
        if not wanted:
            return found
        asked = admin.list_offsets(
            wanted,
            # One end past what a reader may see would look to Spark as if records had been lost.
            isolation_level=IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED,
            request_timeout=TIMEOUT_SECONDS,
        )
        for place, answer in asked.items():
            found[place.topic][place.partition] = answer.result().offset
        return found

    @contextlib.contextmanager
    def _asking(self, kept: Asked | None = None) -> Iterator[Asked]:
        """Give a client for questions, and the list of what it runs into; *kept* is one that was given before."""
        self._check_files()
        troubles: list[KafkaError] = [] if kept is None else kept[1]
        try:
            if kept is None:
                config = {**self.librdkafka(), "log_level": 0, "socket.timeout.ms": 5000, "error_cb": troubles.append}
                kept = (AdminClient(config), troubles)
            yield kept
        except KafkaException as error:
            reason = _told(troubles) or (error.args[0].str() if error.args else str(error))
            raise KafkaUnreachable(f"Kafka at {self.servers} does not answer: {reason}") from error

    def _partitions(
        self, admin: AdminClient, troubles: list[KafkaError], topics: Iterable[str]
    ) -> dict[str, list[int]]:
        found, wanted = self._answer(admin, troubles).topics, set(topics)
        return {name: sorted(topic.partitions) for name, topic in found.items() if name in wanted and not topic.error}

    def _answer(self, admin: AdminClient, troubles: list[KafkaError]) -> Any:
        """Ask until there is an answer, a refusal, or no time left; only callbacks tell a refusal."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            try:
                return admin.list_topics(timeout=1.0)
            except KafkaException:
                admin.poll(0)
                if time.monotonic() > deadline or any(each.code() in _REFUSED for each in troubles):
                    raise

    def _check_files(self) -> None:
        """Name a file that cannot be read; librdkafka would only say which option failed."""
        for file in (self.ca, self.cert, self.key, self.login.token_ca if self.login else None):
            try:
                if file is not None:
                    open(file, "rb").close()
            except OSError as error:
                raise KafkaUnreachable(f"Kafka at {self.servers}: cannot read {file}: {error.strerror}") from error

    def _protocol(self) -> str:
        return protocol_of(self.security, tls=self.tls, login=self.login is not None, options={})


class KafkaEnds:
    """Asks a cluster again and again where topics begin and end, by one connection. Not for concurrent use.

    The connection is kept for as long as it gives answers.
    """

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._kept: Asked | None = None

    def ends(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        """Return what :meth:`KafkaClient.ends` returns.

        Raises:
            KafkaUnreachable: as there.
        """
        with self._asking() as (admin, troubles):
            return self._client._ends(admin, self._client._partitions(admin, troubles, topics))

    def firsts(self, partitions: Mapping[str, Iterable[int]]) -> dict[str, dict[int, int]]:
        """Return the offset of the first record that partitions have, or will have.

        Raises:
            KafkaUnreachable: as :meth:`ends`.
        """
        with self._asking() as (admin, _):
            return self._client._firsts(admin, partitions)

    def since(self, partitions: Mapping[str, Iterable[int]], milliseconds: int) -> dict[str, dict[int, int]]:
        """Return the offset of the first record of that time or later; negative where there is none.

        Raises:
            KafkaUnreachable: as :meth:`ends`.
        """
        moment: OffsetSpec = OffsetSpec.for_timestamp(milliseconds)
        with self._asking() as (admin, _):
            return self._client._offsets(admin, partitions, moment)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[Asked]:
        kept, self._kept = self._kept, None
        with self._client._asking(kept) as asked:
            # What it ran into before is of no interest any more; and a login may have to be renewed.
            asked[1].clear()
            asked[0].poll(0)
            yield asked
        self._kept = asked


def _prefixed(options: Mapping[str, str]) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in options.items()}


def _text_of(file: str) -> str:
    with open(file, encoding="utf-8") as lines:
        return lines.read()


def _told(troubles: list[KafkaError]) -> str:
    """Return what says most of the client's troubles: a refusal before a connection that was lost for it."""
    ranked = sorted(troubles, key=lambda each: each.code() not in _REFUSED)
    return ranked[0].str() if ranked else ""
