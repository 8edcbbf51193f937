"""Timestamps of Kafka records that are none of the calendar: they are kept as they came, and stop nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from bindings.kafka.client import KafkaClient
from bindings.kafka.offsets import KafkaRange, read_ranges
from router.errors import _java_chain, find_batch_fault, find_permanent_error, is_timestamp_overflow
from tests.conftest import Kafka
from tests.support import plain
from tests.support.kafka import produce
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker
SECONDS = 300.0
ANY_TIME = {"message_timestamp_after_max_ms": 2**63 - 1, "message_timestamp_before_max_ms": 2**63 - 1}
NOW = 1_700_000_000_000
TIMESTAMPS = (
    NOW,
    1,  # the client of this test takes 0 for now
    253_402_300_799_999,  # the last millisecond of 9999
    253_402_300_800_000,
    NOW * 1000,  # microseconds
    9_223_372_036_854_775,  # the last that Spark's source takes
    9_223_372_036_854_776,
    NOW * 1_000_000,  # nanoseconds
    2**63 - 1,
    NOW + 1,
)


def send(bootstrap: str, topic: str, timestamps: tuple[int, ...], first: int = 0) -> None:
    records = [
        (b"key-%d" % number, b'{"number": %d}' % number, plain.kafka_headers("tick", number, "/clock", plain.JSON))
        for number in range(first, first + len(timestamps))
    ]
    produce(bootstrap, topic, records, timestamps)


def test_ranges_read_what_the_brokers_have(
    kafka: Kafka, topic_factory: Callable[..., str], spark: SparkSession
) -> None:
    topic = topic_factory("ranges", 1, **ANY_TIME)
    send(kafka.bootstrap, topic, TIMESTAMPS)
    ranges = (KafkaRange(topic, 0, 2, len(TIMESTAMPS)),)
    rows = read_ranges(spark, KafkaClient(kafka.bootstrap), ranges, lossy=False).orderBy("offset").collect()
    assert [row["timestamp"] for row in rows] == list(TIMESTAMPS[2:])
    assert [row["offset"] for row in rows] == list(range(2, len(TIMESTAMPS)))
    assert {(row["topic"], row["partition"]) for row in rows} == {(topic, 0)}
    assert bytes(rows[0]["key"]) == b"key-2"
    assert json.loads(rows[0]["value"]) == {"number": 2}
    assert [(entry["key"], bytes(entry["value"])) for entry in rows[0]["headers"]][1] == ("ce_id", b"2")


def test_what_is_gone_is_told_or_left_out(kafka: Kafka, topic_factory: Callable[..., str], spark: SparkSession) -> None:
    topic = topic_factory("gone", 1, **ANY_TIME)
    send(kafka.bootstrap, topic, TIMESTAMPS)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_records([TopicPartition(topic, 0, 4)])[TopicPartition(topic, 0)].result(SECONDS)
    read = partial(read_ranges, spark, KafkaClient(kafka.bootstrap), (KafkaRange(topic, 0, 2, len(TIMESTAMPS)),))
    with pytest.raises(Exception) as caught:  # whatever Spark makes of it; what it says is what this test is about
        read(lossy=False).count()
    assert find_batch_fault(caught.value) is None
    lasting = find_permanent_error("q", str(caught.value))
    assert lasting is not None and f"{topic}-0 no longer has offset 2" in str(lasting)
    rows = read(lossy=True).collect()
    assert sorted(row["offset"] for row in rows) == list(range(4, len(TIMESTAMPS)))


def test_the_error_of_sparks_source_is_known(
    kafka: Kafka, topic_factory: Callable[..., str], spark: SparkSession
) -> None:
    topic = topic_factory("unreadable", 1, **ANY_TIME)
    send(kafka.bootstrap, topic, (NOW * 1_000_000,))
    rows = (
        spark.read.format("kafka")
        .options(**KafkaClient(kafka.bootstrap).jvm_options())
        .option("subscribe", topic)
        .load()
    )
    for evaluate in (rows.count, rows.toArrow, lambda: rows.write.format("noop").mode("overwrite").save()):
        with pytest.raises(Exception) as caught:  # which one it is, is what this test is about
            evaluate()
        assert is_timestamp_overflow(caught.value), list(_java_chain(caught.value))


def test_no_timestamp_stops_a_stream(
    kafka: Kafka, topic_factory: Callable[..., str], router: RouterProcess, tmp_path: Path
) -> None:
    topic = topic_factory("clock", 1, **ANY_TIME)
    clock = plain.endpoint("KAFKA", {"topic": topic}, "Clock", uri=kafka.bootstrap)
    source = plain.write(tmp_path, plain.catalog({"clock": clock}, Clock={"Tick": plain.event("tick")}))
    sinks = plain.lines(tmp_path, "out", "dead") | plain.tables(tmp_path, "lake")
    router.configure(plain.routed(source, sinks))
    send(kafka.bootstrap, topic, TIMESTAMPS)
    router.start()
    out = tmp_path / "out"
    wait_until(lambda: len(plain.lines_of(out)) >= len(TIMESTAMPS), SECONDS, lambda: router.log[-3000:])
    send(kafka.bootstrap, topic, (NOW,), len(TIMESTAMPS))
    wait_until(lambda: len(plain.lines_of(out)) > len(TIMESTAMPS), SECONDS, lambda: router.log[-3000:])
    router.stop()
    lines = plain.lines_of(out)
    assert sorted(int(line["cloudevent"]["id"]) for line in lines) == list(range(len(TIMESTAMPS) + 1))
    received = {line["cloudevent"]["id"]: line["received"] for line in lines}
    assert received["0"] == "2023-11-14T22:13:20Z"
    assert received["2"] == "9999-12-31T23:59:59.999Z"
    assert [received[str(number)] for number in (3, 4, 5, 6, 7, 8)] == [None] * 6
    # The table has the native record with the timestamp as it came.
    from deltalake import DeltaTable

    native = DeltaTable(tmp_path / "lake").to_pyarrow_table(columns=["id", "native"]).to_pylist()
    assert {row["id"]: json.loads(row["native"])["timestamp"] for row in native} == {
        **{str(number): timestamp for number, timestamp in enumerate(TIMESTAMPS)},
        str(len(TIMESTAMPS)): NOW,
    }
