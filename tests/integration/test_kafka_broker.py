"""The broker that all Kafka tests stand on: what goes in comes out byte for byte, and it survives a crash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.conftest import Kafka, TopicFactory
from tests.support.brokers import KafkaBroker, answers, kafka_for_tests
from tests.support.processes import BrokerFailed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker
LIMIT_SECONDS = 300.0
Headers = list[tuple[str, str | bytes | None]]
HEADERS: Headers = [("n", b"first"), ("latin", b"caf\xe9"), ("n", b"second"), ("empty", b"")]


def produce(bootstrap: str, topic: str, value: bytes, headers: Headers) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    faults: list[KafkaError | None] = []
    producer.produce(topic, value, b"key", headers=headers, on_delivery=lambda fault, _: faults.append(fault))
    assert producer.flush(LIMIT_SECONDS) == 0, "the record was not acknowledged in time"
    assert faults == [None]


def consume_one(bootstrap: str, topic: str) -> Message[bytes, bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"of-{topic}", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        message = wait_until(lambda: consumer.poll(1.0), LIMIT_SECONDS, f"a record in {topic}")
    finally:
        consumer.close()
    assert message.error() is None
    return message


def test_headers_keep_bytes_order_and_repeats(kafka: Kafka, topic_factory: TopicFactory) -> None:
    topic = topic_factory("headers")
    produce(kafka.bootstrap, topic, b"\x00\xff", HEADERS)
    message = consume_one(kafka.bootstrap, topic)
    assert message.headers() == HEADERS
    assert (message.key(), message.value()) == (b"key", b"\x00\xff")


def test_topics_take_partitions_and_settings(kafka: Kafka, topic_factory: TopicFactory) -> None:
    topic = topic_factory("wide", partitions=3, max_message_bytes=1000)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    assert len(admin.list_topics(topic, timeout=LIMIT_SECONDS).topics[topic].partitions) == 3


def test_data_outlives_a_killed_broker(tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path)
    broker.start()
    try:
        before = broker.bootstrap
        admin = AdminClient({"bootstrap.servers": before})
        admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result(LIMIT_SECONDS)
        produce(before, "kept", b"here before the crash", HEADERS)
        broker.kill()
        broker.start()
        assert broker.bootstrap == before
        message = consume_one(before, "kept")
        assert (message.value(), message.headers()) == (b"here before the crash", HEADERS)
    finally:
        broker.stop()


def test_no_broker_outlives_the_tests(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.support.brokers import KafkaBroker\n"
        "broker = KafkaBroker(Path(sys.argv[1])); broker.start(); print(broker.bootstrap, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        bootstrap = owner.stdout.readline().strip()
        assert answers(bootstrap)
        owner.kill()
    wait_until(lambda: not answers(bootstrap, 0.5), LIMIT_SECONDS, f"the orphan on {bootstrap} to end")


def test_a_given_broker_that_is_not_there_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XROUTER_TEST_KAFKA", "127.0.0.1:1")
    monkeypatch.setattr("tests.support.brokers.READY_LIMIT_SECONDS", 0.5)
    with pytest.raises(BrokerFailed, match="unset XROUTER_TEST_KAFKA"), kafka_for_tests(tmp_path):
        pass


def test_a_broker_that_cannot_start_tells_why(tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path, heap="1k")
    with pytest.raises(BrokerFailed, match="heap"):
        broker.start()
