"""Topics that a Kafka sink is to write to: what is in their way is said before a record waits for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from router.cli import run_command_line
from tests.conftest import Kafka, TopicFactory
from tests.support import load, plain
from tests.support.kafka import create_topics, produce, read_all
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker
LIMIT: Final = 240.0


def settings(kafka: Kafka, folder: Path, source: str, out: str, **more: Any) -> dict[str, Any]:
    catalog = plain.write(folder, load.catalog(3, topic=source))
    sinks = plain.topics(kafka.bootstrap, bus=out, dead=f"{source}.dead")
    return load.settings(kafka.bootstrap, catalog, {name: {**sink, **more} for name, sink in sinks.items()})


def test_doctor_knows_the_topics_of_the_routes(
    kafka: Kafka, topic_factory: TopicFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also those that a template makes of the catalog, and not those that records name."""
    source, small = topic_factory("in"), topic_factory("small", max_message_bytes=100_000)
    group = "{messagegroup}"
    config = tmp_path / "router.yaml"

    def said(out: str, **more: Any) -> str:
        told = {**settings(kafka, tmp_path, source, out, **more), "state": str(tmp_path / "state")}
        config.write_text(yaml.safe_dump(told))
        run_command_line(["doctor", str(config)])
        return " ".join(capsys.readouterr().out.split())

    told = said(f"{source}.{group}")
    for number in range(3):
        assert f"{source}.plant.{number}" in told
    assert f"{source}.dead" in told and "create it, or set create_topics" in told
    create_topics(kafka.bootstrap, [f"{source}.dead", *(f"{source}.plant.{number}" for number in range(3))])
    told = said(f"{source}.{group}")
    assert "has no topic" not in told and "3 topics writable" in told and "1 topic writable" in told
    assert f"topic {small} accepts at most 100000 bytes" in said(small)
    assert "takes 100000 bytes" not in said(small, max_message_bytes=100_000)


def test_topics_are_waited_for_or_created_where_the_sink_says_so(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that routes and catalog tell are created at the start, and one that only a record names when it comes."""
    source = topic_factory("in")
    lacking = f"{source}.out"
    create = {"partitions": 3, "replication": 1, "config": {"max.message.bytes": 200_000, "retention.ms": 86_400_000}}
    quick = {"max.block.ms": "3000"}
    told = settings(kafka, router.folder, source, f"{source}." + "{subject|none}", create_topics=create, options=quick)
    bus = {"type": "kafka", "bootstrap_servers": kafka.bootstrap, "options": quick}
    told["sinks"]["apart"] = {**bus, "topic": lacking}
    router.configure({**told, "routes": [{"to": ["bus", "apart"]}]})
    run_command_line(["doctor", str(router.config)])
    said = " ".join(capsys.readouterr().out.split())
    assert f"has no topic {source}.dead: create_topics creates it" in said
    produce(kafka.bootstrap, source, load.records(5, 3, bad=0))
    router.launch()
    wait_until(lambda: "batch blocked" in router.log, LIMIT, lambda: router.log[-3000:])
    started = router.log[: router.log.index("batch blocked")]
    assert f"has no topic {lacking}" in started and "create it, or set create_topics" in started
    assert f"has no topic {lacking}" in json.dumps(router.readiness()["queries"])
    assert f"create topic {lacking}" in router.log and "batches park" not in router.log
    create_topics(kafka.bootstrap, [lacking])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for topic in (f"{source}.none", lacking):
        wait_until(lambda topic=topic: len(read_all(kafka.bootstrap, topic)) == 5, LIMIT, lambda: router.log[-3000:])  # type: ignore[misc]
    for topic in (f"{source}.dead", f"{source}.none"):
        assert len(admin.list_topics(topic, timeout=60).topics[topic].partitions) == 3
        (options,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
        made = options.result(60)
        assert (made["max.message.bytes"].value, made["retention.ms"].value) == ("200000", "86400000")
    assert router.stop() == 0, router.log[-3000:]
