"""What real-time mode cannot read is refused by the name of the source, at the start and at each change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from catalog.documents.documents import Document
from catalog.findings import Findings
from catalog.load import build_catalog
from router.errors import ConfigError
from router.evaluation.plan import Plan
from router.realtime import require_real_time
from router.settings import settings_from_dict

BUS = {"type": "kafka", "bootstrap_servers": "broker:9092", "topic": "out"}
TOLD: dict[str, Any] = {
    "sinks": {"bus": BUS},
    "routes": [{"to": ["bus"]}],
    "trigger": "realtime",
    "realtime": {"rest": "rest"},
}
SETTLED = {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": "order"}}}
UNSETTLED = {"envelope": "CloudEvents/1.0", "envelopemetadata": {}}


def endpoint(protocol: str, address: str, **options: Any) -> dict[str, Any]:
    told = {"endpoints": [{"uri": address}], "options": options}
    return {"usage": "consumer", "protocol": protocol, "protocoloptions": told, "messagegroups": ["/messagegroups/g"]}


ORDERS = endpoint("KAFKA", "kafka://broker:9092", topic="orders")


def plan(endpoints: dict[str, Any], message: dict[str, Any] = SETTLED, **told: Any) -> Plan:
    document = {"messagegroups": {"g": {"messages": {"m": message}}}, "endpoints": endpoints}
    return Plan(
        build_catalog([Document("c.json", document)], Findings()), settings_from_dict({**TOLD, **told}, {}, Path())
    )


def test_topics_of_one_cluster_are_taken() -> None:
    require_real_time(plan({"a": ORDERS, "b": endpoint("KAFKA", "kafka://broker:9092", topic="bills")}))


@pytest.mark.parametrize(
    ("refused", "key", "words"),
    [
        (plan({"web": endpoint("HTTP", "http://here", path="/in")}), "sources", "/endpoints/web"),
        (plan({"a": ORDERS, "b": endpoint("KAFKA", "kafka://far:9092", topic="b")}), "sources", "one Kafka cluster"),
        (
            plan({"a": ORDERS}, sources=[{"endpoint": "/endpoints/a"}], realtime={"rest": "orders"}),
            "realtime.rest",
            "a:",
        ),
        (plan({"a": ORDERS}, trigger="1s", realtime={"rest": "orders"}), "realtime.rest", "loop forever"),
        (plan({"a": ORDERS}, UNSETTLED), "trigger", "no definition"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(refused: Plan, key: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        require_real_time(refused)
    assert caught.value.key == key and words in caught.value.message and caught.value.hint


def test_batches_take_what_real_time_does_not() -> None:
    require_real_time(plan({"web": endpoint("HTTP", "http://here", path="/in")}, UNSETTLED, trigger="1s"), once=True)
    with pytest.raises(ConfigError, match="--once"):
        require_real_time(plan({"a": ORDERS}), once=True)
