"""An inbox that is a topic, read without Spark: its rows are those that Spark makes, and tap and plan look at them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
import yaml

from bindings.kafka.client import KafkaClient
from bindings.kafka.record_columns import SOURCE_SCHEMA
from bindings.kafka.store import KafkaStore, build_headers, to_inbox_columns, to_inbox_rows
from bindings.parts import InboxRow, Part
from router.cli import run_command_line
from tests.conftest import Kafka, TopicFactory
from tests.support import shop
from tests.support.waiting import repeating

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT: Final = 240.0
FOREIGN: Final[list[list[tuple[str, bytes | None]]]] = [
    [],
    [("xrouter-in-endpoint", b"\xff"), ("xrouter-in-protocol", None), ("xrouter-in-received", b"soon")],
    [("xrouter-in-received", b"99999999999999999999"), ("xrouter-in:", b"a"), ("xrouter-in:x", b"b")],
    [("xrouter-in-received", b"253402300800000000"), ("xrouter-in-endpoint", b"/e"), ("xrouter-in-endpoint", b"/f")],
    [("xrouter-in::name", None), ("xrouter-in:json:a:b:c", b"1"), ("xrouter-in:binary:", b"\x00")],
]
"""Headers that no gateway writes."""


def messages() -> pa.RecordBatch:
    """Return messages of an inbox topic, of gateways and of others."""
    rows = [row for reason in ("good", "no-match", "unmappable", "oversized") for row in shop.records(reason, [1, 2])]
    rows.append(InboxRow("/e", "MQTT", 0, [Part("n", b"1", "json"), Part("a:b", None), Part("é", "ü".encode())], b""))
    written: list[list[tuple[str, Any]]] = [build_headers(row) for row in rows]
    bodies = [row.body for row in rows] + [b"x"] * len(FOREIGN)
    told = [
        {
            "key": b"k",
            "value": body,
            "topic": "in",
            "partition": 1,
            "offset": offset,
            "timestamp": 7,
            "headers": [{"key": key, "value": value} for key, value in headers] or None,
        }
        for offset, (headers, body) in enumerate(zip([*written, *FOREIGN], bodies, strict=True))
    ]
    return pa.RecordBatch.from_pylist(told, SOURCE_SCHEMA)


@pytest.mark.spark
def test_rows_are_those_that_spark_makes(spark: SparkSession) -> None:
    found = to_inbox_rows(messages())
    made = to_inbox_columns(spark.createDataFrame(pa.Table.from_batches([messages()]))).orderBy("position")
    assert pa.Table.from_batches([found]).sort_by("position").to_pylist() == made.toArrow().to_pylist()
    assert found.num_rows == 9 + len(FOREIGN)


@contextmanager
def gateway(kafka: Kafka, topic: str) -> Iterator[None]:
    """Store good and late records in the inbox topic while the block runs, as a gateway does."""
    store = KafkaStore(KafkaClient(kafka.bootstrap), topic, max_message_bytes=1 << 20)

    def send(number: int) -> None:
        rows = [row for reason in ("good", "no-match") for row in shop.records(reason, [number])]
        store.append_many(rows).result(LIMIT)

    with closing(store), repeating(send, 0.05):
        yield


@pytest.mark.broker
def test_tap_and_plan_read_it(
    kafka: Kafka, topic_factory: TopicFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = topic_factory("inbox", 2)
    shop.write_catalog(tmp_path, fixed=False)
    told = shop.settings(tmp_path, "http://127.0.0.1:9/", state=str(tmp_path / "state"))
    told["inbox"] = {"kafka": {"bootstrap_servers": kafka.bootstrap, "topic": topic}}
    config = tmp_path / "router.yaml"
    config.write_text(yaml.safe_dump(told))
    with gateway(kafka, topic):
        assert run_command_line(["tap", str(config), "--format", "json", "-n", "40", "--rate", "100"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {(each["endpoint"], each["message"], each["reason"]) for each in found} == {
        (shop.SHOP, "/messagegroups/G/messages/good", None),
        (shop.SHOP, None, "no-match"),
    }
    assert all(each["protocol"] == "HTTP" and each["position"].startswith(f"{topic}-") for each in found)

    (tmp_path / "new.json").write_text(json.dumps(shop.catalog(fixed=True)))
    plan = ["plan", str(config), "--new", str(tmp_path / "new.json"), "--format", "json", "--last", "10"]
    assert run_command_line([*plan, "--from", "inbox", "--fail-on", "none"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["outcomes"], report["places"][0]["place"]) == (10, "inbox")
    assert report["changed"]["matched"] == 10 // 2
