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
from tests.support import load
from tests.support.kafka import create_topics, produce, read_all
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker
LIMIT: Final = 240.0


def settings(kafka: Kafka, folder: Path, source: str, out: str, **more: Any) -> dict[str, Any]:
    catalog = load.write_catalog(folder / "catalog.json", load.catalog(3, topic=source))
    sink = {"type": "kafka", "bootstrap_servers": kafka.bootstrap, **more}
    return {
        "catalog": {"source": str(catalog)},
        "sources": [{"endpoint": "/endpoints/plant", "bootstrap_servers": kafka.bootstrap}],
        "sinks": {"bus": {**sink, "topic": out}, "dead": {**sink, "topic": f"{source}.dead"}},
        "routes": [{"to": ["bus"]}],
        "dead_letters": {"sinks": ["dead"]},
    }


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


def test_a_topic_that_is_lacking_is_named_and_waited_for(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    source = topic_factory("in")
    out = f"{source}.out"
    create_topics(kafka.bootstrap, [f"{source}.dead"])
    router.configure(settings(kafka, router.folder, source, out))
    produce(kafka.bootstrap, source, load.records(5, 3, bad=0))
    router.launch()
    wait_until(lambda: "batch blocked" in router.log, LIMIT, lambda: router.log[-3000:])
    started = router.log[: router.log.index("batch blocked")]
    assert f"has no topic {out}" in started and "create it, or set create_topics" in started
    reason = json.dumps(router.readiness()["queries"])
    assert f"has no topic {out}" in reason
    assert f"create topic {out}" in router.log and "batches park" not in router.log
    create_topics(kafka.bootstrap, [out])
    wait_until(lambda: len(read_all(kafka.bootstrap, out)) == 5, LIMIT, lambda: router.log[-3000:])
    assert router.stop() == 0, router.log[-3000:]


def test_topics_are_created_where_the_sink_says_so(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that routes and catalog tell at the start, and one that only a record names when it comes."""
    source = topic_factory("in")
    create = {"partitions": 3, "replication": 1, "config": {"max.message.bytes": 200_000, "retention.ms": 86_400_000}}
    out = f"{source}." + "{subject|none}"
    router.configure(settings(kafka, router.folder, source, out, create_topics=create))
    run_command_line(["doctor", str(router.config)])
    assert f"has no topic {source}.dead: create_topics creates it" in " ".join(capsys.readouterr().out.split())
    router.start()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})

    def made(topic: str) -> bool:
        return topic in admin.list_topics(timeout=60).topics

    wait_until(lambda: made(f"{source}.dead"), LIMIT, lambda: router.log[-3000:])
    produce(kafka.bootstrap, source, load.records(5, 3, bad=0))
    wait_until(lambda: made(f"{source}.none"), LIMIT, lambda: router.log[-3000:])
    wait_until(lambda: len(read_all(kafka.bootstrap, f"{source}.none")) >= 5, LIMIT, lambda: router.log[-3000:])
    for topic in (f"{source}.dead", f"{source}.none"):
        assert len(admin.list_topics(topic, timeout=60).topics[topic].partitions) == 3
        (options,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
        told = options.result(60)
        assert (told["max.message.bytes"].value, told["retention.ms"].value) == ("200000", "86400000")
    assert router.stop() == 0 and "batch blocked" not in router.log and router.readiness() == {}
