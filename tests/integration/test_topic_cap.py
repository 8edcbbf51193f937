"""A router whose Kafka topics are made from values of records stops at the cap, batch after batch."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import Kafka, TopicFactory
from tests.integration.test_sinks_outbound import catalog, configure, event, letters_of, post
from tests.support.kafka import create_topics, read_all
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

LIMIT = 120.0


def of_plant(number: int, plant: str) -> dict[str, object]:
    """Return a reading of a plant."""
    return event(number, source=f"/plants/{plant}")


def test_records_of_topics_past_the_cap_are_refused(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    prefix = topic_factory("cap")
    create_topics(kafka.bootstrap, [f"{prefix}.{plant}" for plant in ("a", "b")])
    topic = f"{prefix}.{{context.plant}}"
    sink = {"type": "kafka", "bootstrap_servers": kafka.bootstrap, "topic": topic, "max_destinations": 2}
    port = configure(router, catalog(), {"bus": sink})
    router.start()
    batch = [of_plant(number, plant) for number, plant in enumerate("abacbd")]
    post(port, batch, "application/cloudevents-batch+json")
    wait_until(lambda: router.total("xrouter_records_total") >= 6, LIMIT, lambda: router.log[-3000:])
    post(port, of_plant(6, "c"))
    post(port, of_plant(7, "a"))
    wait_until(lambda: router.total("xrouter_records_total") >= 8, LIMIT, lambda: router.log[-3000:])
    assert router.total("xrouter_records_total", reason="sink-rejected") == 3
    assert router.stop() == 0, router.log[-2000:]
    sent = {
        plant: [json.loads(m.value or b"") for m in read_all(kafka.bootstrap, f"{prefix}.{plant}")] for plant in "ab"
    }
    assert sent == {"a": [0, 2, 7], "b": [1, 4]}
    letters = letters_of(Path(router.folder))
    assert sorted(letter["detail"].partition(": it would be")[0] for letter in letters) == [
        f"sink bus: topic {prefix}.c",
        f"sink bus: topic {prefix}.c",
        f"sink bus: topic {prefix}.d",
    ]
    assert all("max_destinations is 2" in letter["detail"] for letter in letters)
