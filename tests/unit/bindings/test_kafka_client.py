"""What Spark's client of Kafka is told besides how to connect."""

from __future__ import annotations

from bindings.kafka.client import KafkaClient

CONNECTING = {"kafka.bootstrap.servers": "h:9092", "kafka.security.protocol": "PLAINTEXT"}


def test_what_settings_say_of_a_source_comes_first() -> None:
    said = {"max.poll.records": "7", "fetch.min.bytes": "9", "fetch.max.wait.ms": "300"}
    said["isolation.level"] = "read_uncommitted"
    assert KafkaClient("h:9092", options=said).source_options() == CONNECTING | {
        f"kafka.{key}": said[key] for key in said
    }


def test_a_sink_compresses_batches_unless_settings_say_otherwise() -> None:
    assert KafkaClient("h:9092").sink_options() == CONNECTING | {
        "kafka.compression.type": "lz4",
        "kafka.linger.ms": "5",
        "kafka.max.block.ms": "20000",
    }
    own = {"compression.type": "none", "linger.ms": "0", "max.block.ms": "60000"}
    client = KafkaClient("h:9092", options=own)
    assert client.sink_options() == CONNECTING | {f"kafka.{name}": value for name, value in own.items()}
