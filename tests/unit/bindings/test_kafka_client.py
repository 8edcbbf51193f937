"""What Spark's client of Kafka is told besides how to connect."""

from __future__ import annotations

from bindings.kafka.client import KafkaClient

CONNECTING = {"kafka.bootstrap.servers": "h:9092", "kafka.security.protocol": "PLAINTEXT"}


def test_a_source_takes_more_at_a_time_than_spark_does_by_itself() -> None:
    client = KafkaClient("h:9092")
    assert client.jvm() == CONNECTING
    assert client.reading() == CONNECTING | {"kafka.max.poll.records": "3000"}


def test_what_settings_say_of_a_source_comes_first() -> None:
    client = KafkaClient("h:9092", options={"max.poll.records": "7", "fetch.min.bytes": "9"})
    assert client.reading() == CONNECTING | {"kafka.max.poll.records": "7", "kafka.fetch.min.bytes": "9"}


def test_a_sink_compresses_batches_unless_settings_say_otherwise() -> None:
    assert KafkaClient("h:9092").writing() == CONNECTING | {"kafka.compression.type": "lz4"}
    client = KafkaClient("h:9092", options={"compression.type": "none"})
    assert client.writing() == CONNECTING | {"kafka.compression.type": "none"}
