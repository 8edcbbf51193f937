"""Batches that a sink never takes: seen, set aside as dead letters beside a running router or without, replayed."""

from __future__ import annotations

from collections import Counter

import pytest
from confluent_kafka.admin import AdminClient

from router.sources import INBOX
from router.state.state import StateFolder
from router.writing.outcomes import parse_sinks
from tests.conftest import Kafka, TopicFactory
from tests.support import shop
from tests.support.kafka import create_topics, read_all
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

LIMIT = 300.0
RECORDS = 30


@pytest.mark.full
def test_a_batch_for_a_topic_that_is_gone_is_set_aside_and_replayed_there_alone(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    topic = topic_factory("gone")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    configure(router, kafka.bootstrap, topic)
    shop.fill(router.folder / "state", [*shop.records("good", range(RECORDS)), *shop.records("undecodable", [99])])
    router.start()
    wait_until(lambda: router.readiness()["queries"].get(INBOX, {}).get("state") == "held", LIMIT, lambda: router.log)
    assert f"has no topic {topic}" in router.log and f"create topic {topic}" in router.log
    assert "batches park" not in router.log

    (batch,) = shop.answer(router, "batches", "show", "CONFIG")["batches"]
    assert (batch["query"], batch["state"], batch["records"]) == (INBOX, "held", RECORDS + 1)
    assert "sink bus" in batch["reason"]
    assert {share["sink"]: share["has"] for share in batch["sinks"]} == {"lake": True, "bus": None}
    shown = shop.command(router, "batches", "show", "CONFIG").stdout
    assert f"batches park {router.config} {INBOX}" in shown

    done = shop.command(router, "batches", "park", "CONFIG", INBOX, "--yes")
    assert done.returncode == 0, done.stderr
    dead = router.folder / "dead"
    wait_until(lambda: len(shop.rows_of(dead)) == RECORDS + 1, LIMIT, lambda: router.log[-3000:])
    wait_until(lambda: router.readiness()["ready"], LIMIT, lambda: router.log[-3000:])
    letters = [row for row in shop.rows_of(dead) if row["reason"] == "sink-rejected"]
    assert len(letters) == RECORDS
    assert {parse_sinks(row["detail"]) for row in letters} == {("bus",)}
    assert all("moved to dead letters by an operator: Kafka at" in row["detail"] for row in letters)
    counted = router.total("xrouter_records_total", outcome="dead-letter", reason="sink-rejected")
    assert (counted, router.total("xrouter_records_total", outcome="routed")) == (RECORDS, 0)
    assert shop.answer(router, "batches", "show", "CONFIG") == {"running": True, "batches": []}

    create_topics(kafka.bootstrap, [topic])
    result = shop.answer(router, "dead-letters", "replay", "CONFIG", "--reason", "sink-rejected")
    assert result["routed"] == RECORDS
    assert router.stop() == 0, router.log[-2000:]
    sent = Counter(message.header("ce_id") for message in read_all(kafka.bootstrap, topic))
    assert sent == Counter(f"id-{n}" for n in range(RECORDS))
    assert len(shop.rows_of(router.folder / "lake")) == RECORDS


def configure(router: RouterProcess, bootstrap: str, topic: str) -> None:
    """Send every event to a table, and then to a topic of Kafka."""
    quick = {"max.block.ms": "1000", "delivery.timeout.ms": "1500", "request.timeout.ms": "1000", "linger.ms": "0"}
    shop.write_catalog(router.folder, fixed=True)
    told = shop.settings(router.folder, "http://127.0.0.1:9")
    bus = {"type": "kafka", "bootstrap_servers": bootstrap, "topic": topic, "options": quick}
    told["sinks"] = {"lake": told["sinks"]["lake"], "dead": told["sinks"]["dead"], "bus": bus}
    told["routes"] = [{"to": ["lake", "bus"]}]
    router.configure(told)


def test_parking_what_is_not_there_says_what_is(router: RouterProcess) -> None:
    router.configure(shop.settings(router.folder, "http://127.0.0.1:9"))
    done = shop.command(router, "batches", "park", "CONFIG", "kafka-1", "--yes")
    assert done.returncode == 6
    assert "is not a state folder" in done.stderr
    with StateFolder.open(router.folder / "state"):
        done = shop.command(router, "batches", "park", "CONFIG", "kafka-1", "--yes")
    assert done.returncode == 1
    assert "query 'kafka-1' has no unfinished batch" in done.stderr
