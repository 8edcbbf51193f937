"""``xrouter tap`` beside a running router or none: topics and inbox at once, as the router judges them."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from confluent_kafka.admin import AdminClient

from router.cli import run_command_line
from tests.conftest import Kafka, TopicFactory
from tests.support import plain, shop
from tests.support.kafka import produce
from tests.support.waiting import repeating

pytestmark = pytest.mark.broker
LIMIT: Final = 240.0
TOPIC: Final = "/endpoints/topic"


def traffic(kafka: Kafka, topic: str) -> AbstractContextManager[None]:
    """Send good and late events while the block runs."""

    def send(number: int) -> None:
        headers = plain.kafka_headers(("good", "late")[number % 2], f"id-{number}")
        produce(kafka.bootstrap, topic, [(b"k", b'{"n": %d}' % number, headers)])

    return repeating(send, 0.1)


def write_catalog(folder: Path, kafka: Kafka, topic: str) -> None:
    catalog = shop.catalog(fixed=False)
    catalog["endpoints"]["topic"] = plain.endpoint("KAFKA", {"topic": topic}, "G", uri=f"kafka://{kafka.bootstrap}")
    plain.write(folder, catalog)


def check(found: list[dict[str, Any]]) -> None:
    """Both kinds of record are there, each with its verdict."""
    assert {each["endpoint"] for each in found} == {TOPIC}
    verdicts = {(each["outcome"], each["message"]) for each in found if each["after"]}
    assert verdicts == {("routed", "/messagegroups/G/messages/good")}
    assert {each["reason"] for each in found if not each["after"]} == {"no-match"}


def test_a_topic_is_tapped_without_a_router(
    kafka: Kafka, topic_factory: TopicFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = topic_factory("tapped")
    write_catalog(tmp_path, kafka, topic)
    told = shop.settings(tmp_path, "http://127.0.0.1:9/", state=str(tmp_path / "state"))
    config = tmp_path / "router.yaml"
    config.write_text(yaml.safe_dump({**told, "sources": [{"endpoint": TOPIC}]}))
    with traffic(kafka, topic):
        assert run_command_line(["tap", str(config), "--format", "json", "-n", "4"]) == 0
    check([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    # A client that nobody holds ends, and what it was asked has no answer then.
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    assert "xrouter-tap" not in {each.group_id for each in admin.list_consumer_groups().result(LIMIT).valid}
