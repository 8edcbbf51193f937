"""``xrouter plan`` reads the ends of topics at a real broker: no more than is asked for, and commits nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import AdminClient

from router.cli import run_command_line
from tests.conftest import Kafka, TopicFactory
from tests.support import plain
from tests.support.kafka import produce

pytestmark = pytest.mark.broker
SECONDS = 120.0
NOW = 1_767_323_045_000
"""2026-01-02T03:04:05Z"""


def catalog_of(bootstrap: str, topic: str, kinds: str) -> dict[str, Any]:
    plant = plain.endpoint("KAFKA", {"topic": topic}, "Plant", uri=bootstrap)
    return plain.catalog({"plant": plant}, Plant={kind: plain.event(kind) for kind in kinds})


def report_of(
    folder: Path, bootstrap: str, topic: str, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, dict[str, Any]]:
    """Plan a catalog that lacks the definition ``b``."""
    source = plain.write(folder, catalog_of(bootstrap, topic, "ab"))
    new = plain.write(folder, catalog_of(bootstrap, topic, "a"), "new.json")
    told = plain.routed(source, plain.lines(folder, "events") | plain.tables(folder, "dead"), state="state")
    (folder / "router.yaml").write_text(yaml.safe_dump(told))
    status = run_command_line(["plan", str(folder / "router.yaml"), "--new", str(new), "--format", "json", *arguments])
    out, err = capsys.readouterr()
    assert not err
    return status, json.loads(out)


def test_the_ends_of_partitions_are_read(
    kafka: Kafka, topic_factory: TopicFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = topic_factory(partitions=2)
    status, report = report_of(tmp_path, kafka.bootstrap, topic, capsys)
    assert (status, report["outcomes"]) == (0, 0)
    assert report["places"][0] == {"place": f"topic {topic}", "records": 0, "notes": ["it is empty"]}

    old, late = NOW, NOW + 86_400_000
    sent = [(0, "a", old)] * 10 + [(0, "b", old), (1, "b", old), (1, "c", late), (0, "b", late)]
    records = [(None, b"{}", plain.kafka_headers(kind)) for _, kind, _ in sent]
    produce(kafka.bootstrap, topic, records, [at for *_, at in sent], [place for place, *_ in sent])
    status, report = report_of(tmp_path, kafka.bootstrap, topic, capsys)
    assert (status, report["outcomes"], report["changed"]["dead-letter"]) == (1, 14, 3)
    assert {each["position"] for each in report["samples"]} == {f"{topic}-0-10", f"{topic}-0-11", f"{topic}-1-0"}
    assert report["places"][0]["notes"] == ["it has no more than 14"]

    _, report = report_of(tmp_path, kafka.bootstrap, topic, capsys, "--last", "4")
    # Of both partitions as many: one has not more than these two.
    assert (report["outcomes"], report["changed"]["dead-letter"]) == (4, 3)
    _, report = report_of(tmp_path, kafka.bootstrap, topic, capsys, "--since", "2026-01-03")
    assert (report["outcomes"], report["changed"]["dead-letter"]) == (2, 1)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    groups = admin.list_consumer_groups(request_timeout=SECONDS).result()
    assert not [each.group_id for each in groups.valid if each.group_id.startswith("xrouter-ranges")]


def test_a_topic_that_is_not_there_is_told(kafka: Kafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, report = report_of(tmp_path, kafka.bootstrap, "nowhere-at-all", capsys)
    assert (status, report["places"][0]["notes"]) == (0, ["the topic does not exist"])
