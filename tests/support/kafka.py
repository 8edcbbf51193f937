"""Feeding and reading topics with an independent client."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from hypothesis import strategies as st

from bindings.kafka.record_columns import SOURCE_SCHEMA
from tests.support.brokers import KafkaBroker
from tests.support.cases import bytes_of, read_cases
from tests.support.ports import LOOPBACK, Authority, free_ports
from tests.support.tokens import AUDIENCE, TokenServer
from tests.support.waiting import wait_until

READ_SECONDS: Final = 120.0
TICK_SECONDS: Final = 0.005
Headers = Sequence[tuple[str, bytes | None]]
Sent = tuple[bytes | None, bytes | None, Headers]
"""Key, value and headers of a record that is sent."""


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

    def lineage(self, member: str) -> str | None:
        """Return a member of an event's lineage; a dead letter has it as a header."""
        text = self.header("xrouter-lineage")
        value: str | None = self.header(f"xrouter-{member}") if text is None else json.loads(text).get(member)
        return value


def produce(
    bootstrap: str,
    topic: str,
    records: Iterable[Sent],
    timestamps: Iterable[int] = (),
    partitions: Iterable[int] = (),
    *,
    idempotent: bool = False,
) -> int:
    """Send (key, value, headers) records and wait until all are acknowledged; return how many.

    *timestamps* and *partitions* are those of the first ones, where they are to have some. With *idempotent* a record
    is there once even if a broker goes before it has answered, for which the others may be waited for a minute.
    """
    failures: list[str] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failures.append(str(error))

    options = {"linger.ms": 20, "queue.buffering.max.messages": 200_000, "acks": "all"}
    producer = Producer({"bootstrap.servers": bootstrap, **options, "enable.idempotence": idempotent})
    count, times, places = 0, iter(timestamps), iter(partitions)
    for key, value, headers in records:
        place, moment = next(places, -1), next(times, 0)
        while True:
            try:
                producer.produce(topic, value, key, place, delivered, timestamp=moment, headers=list(headers))
                break
            except BufferError:
                producer.poll(0.1)
        count += 1
        if count % 1000 == 0:
            producer.poll(0)
    producer.flush(60)
    assert not failures, failures[:3]
    return count


class SteadySender(threading.Thread):
    """Sends records, so many a second, until there are no more or it is ended; what comes late is made up for.

    ``sent`` counts them, ``seconds`` is how long it has been sending.
    """

    def __init__(self, bootstrap: str, topic: str, records: Iterable[Sent], rate: int) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all"})
        self._topic, self._records, self._rate = topic, iter(records), rate
        self._stopping = threading.Event()
        self.sent, self.seconds = 0, 0.0

    def run(self) -> None:
        began, more = time.monotonic(), True
        while more and not self._stopping.wait(TICK_SECONDS):
            self.seconds = time.monotonic() - began
            due = int(self.seconds * self._rate)
            for key, value, headers in itertools.islice(self._records, due - self.sent):
                self._producer.produce(self._topic, value, key, headers=list(headers))
                self.sent += 1
            more = self.sent == due
            self._producer.poll(0)
        assert self._producer.flush(READ_SECONDS) == 0, "records could not be sent"

    def end(self) -> int:
        """Stop sending, and return how many records the broker has."""
        self._stopping.set()
        self.join(READ_SECONDS)
        assert not self.is_alive() and len(self._producer) == 0
        return self.sent


class Transactions:
    """A transactional producer, as Kafka Streams or Flink have one: each call is a transaction, or leaves one open."""

    def __init__(self, bootstrap: str, name: str) -> None:
        told = {"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 2, "log_level": 0}
        # The broker aborts what is open for longer: the most that it allows, for a busy machine.
        self._producer = Producer({**told, "transaction.timeout.ms": 900_000})
        self._producer.init_transactions(READ_SECONDS)

    def begin(self, topic: str, records: Iterable[Sent]) -> None:
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


def written(bootstrap: str, *topics: str) -> int:
    """Return how many records have been written to the topics."""
    return sum(sum(ends(bootstrap, topic).values()) for topic in topics)


def read_all(bootstrap: str, topic: str) -> list[Message]:
    """Return all records that a topic has now."""
    return list(iter_all(bootstrap, topic))


def iter_all(bootstrap: str, topic: str) -> Iterator[Message]:
    """Yield the records that a topic has now, of each partition in their order."""
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


# Rows of Kafka that no sane client sends, for tests that hold two readings of them against each other.

_ROWS: Final = read_cases(Path(__file__).resolve().parents[1] / "cases/hostile/rows.yaml")["kafka"]
NAMES: Final = _ROWS["names"]
BYTES: Final = [None if each is None else bytes_of(each) for each in _ROWS["values"]]

names = st.one_of(st.sampled_from(NAMES), st.text(max_size=6), st.none())
contents = st.one_of(st.sampled_from(BYTES), st.binary(max_size=90))
header_lists = st.one_of(st.none(), st.lists(st.tuples(names, contents), max_size=8))
times = st.sampled_from([0, 1, 999, 1_700_000_000_123, -1, 2**31])


@st.composite
def rows(draw: st.DrawFn) -> tuple[Any, ...]:
    return (
        draw(contents),
        draw(contents),
        draw(st.sampled_from(["in", "", "a.b", "ä"])),
        draw(st.sampled_from([0, 7, 2**31 - 1])),
        draw(st.sampled_from([0, 2**63 - 1])),
        draw(times),
        draw(header_lists),
    )


def batch_of(made: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = list(zip(*made, strict=True))
    headers = [None if h is None else [{"key": name, "value": value} for name, value in h] for h in columns[-1]]
    arrays = [
        pa.array(values, field.type) for values, field in zip((*columns[:-1], headers), SOURCE_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SOURCE_SCHEMA)


# A real Kafka broker with security: SASL over TLS with every mechanism that the router speaks, and mutual TLS.

SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_SECURITY: Final = "org.apache.kafka.common.security"
_PROPERTIES: Final = """\
listeners=PLAINTEXT://{host}:{plain},SASL://{host}:{sasl},MUTUAL://{host}:{mutual},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{plain},SASL://{host}:{sasl},MUTUAL://{host}:{mutual}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL:SASL_SSL,MUTUAL:SSL,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
ssl.truststore.type=PEM
ssl.truststore.location={truststore}
listener.name.mutual.ssl.client.auth=required
listener.name.sasl.ssl.client.auth=none
sasl.enabled.mechanisms={mechanisms}
listener.name.sasl.plain.sasl.jaas.config={security}.plain.PlainLoginModule required {users};
listener.name.sasl.scram-sha-256.sasl.jaas.config={security}.scram.ScramLoginModule required;
listener.name.sasl.scram-sha-512.sasl.jaas.config={security}.scram.ScramLoginModule required;
"""
_TOKENS: Final = """\
listener.name.sasl.oauthbearer.sasl.jaas.config={security}.oauthbearer.OAuthBearerLoginModule required \
unsecuredLoginStringClaim_sub="broker" ssl.truststore.type="PEM" ssl.truststore.location="{truststore}";
listener.name.sasl.oauthbearer.sasl.server.callback.handler.class=\
{security}.oauthbearer.OAuthBearerValidatorCallbackHandler
sasl.oauthbearer.jwks.endpoint.url={url}/keys
sasl.oauthbearer.expected.audience={audience}
sasl.oauthbearer.expected.issuer={url}
"""


class SecuredKafka(KafkaBroker):
    """A broker whose certificate is for 127.0.0.1 alone, so that ``localhost`` is a wrong name for it.

    ``users`` log in by PLAIN and by SCRAM, clients of *tokens* by OAUTHBEARER, all at :attr:`sasl`; a certificate of
    *authority* is asked for at :attr:`mutual`. ``bootstrap`` asks for nothing, and is for the tests' own use.
    """

    def __init__(
        self, folder: Path, authority: Authority, users: Mapping[str, str], tokens: TokenServer | None = None
    ) -> None:
        super().__init__(folder)
        self._authority = authority
        self._users = dict(users)
        self._tokens = tokens
        self._ports = free_ports(2)

    @property
    def sasl(self) -> str:
        """The bootstrap servers of the listener with SASL over TLS."""
        return f"{LOOPBACK}:{self._ports[0]}"

    @property
    def mutual(self) -> str:
        """The bootstrap servers of the listener with TLS and client certificates."""
        return f"{LOOPBACK}:{self._ports[1]}"

    def _more_properties(self) -> str:
        pair = self._authority.sign("kafka", alternatives=f"IP:{LOOPBACK}")
        keystore = self._folder / "keystore.pem"
        keystore.write_bytes(pair.key.read_bytes() + pair.certificate.read_bytes())
        sasl, mutual = self._ports
        told = {
            "host": LOOPBACK,
            "plain": self._port,
            "sasl": sasl,
            "mutual": mutual,
            "controller": self._controller_port,
            "keystore": keystore,
            "truststore": self._authority.certificate,
            "security": _SECURITY,
            "users": " ".join(f'user_{name}="{secret}"' for name, secret in self._users.items()),
            "mechanisms": ",".join(("PLAIN", *SCRAM, *(("OAUTHBEARER",) if self._tokens else ()))),
        }
        lines = _PROPERTIES.format(**told)
        if self._tokens is not None:
            lines += _TOKENS.format(**told, url=self._tokens.url, audience=AUDIENCE)
        return lines

    def _format_options(self) -> Sequence[str]:
        added = [
            f'{mechanism}=[name="{name}",password="{secret}"]'
            for mechanism in SCRAM
            for name, secret in self._users.items()
        ]
        return [option for each in added for option in ("--add-scram", each)]

    def _system_properties(self) -> Sequence[str]:
        # Kafka 4 fetches keys from addresses only that somebody has allowed.
        if self._tokens is None:
            return ()
        return (f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._tokens.url}/keys",)
