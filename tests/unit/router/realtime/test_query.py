"""Real-time mode: what it cannot read is refused by name, how a query ends, and which types it settles."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from pyspark.sql import Row

from catalog.documents.documents import Document
from catalog.findings import Findings
from catalog.load import build_catalog
from catalog.values import is_valid
from router.errors import ConfigError
from router.evaluation.plan import Plan
from router.reading.generations import Generation
from router.realtime import PLAIN_FORMS, FastPathType, RealTimeQuery, find_fast_types, read_tally, require_real_time
from router.settings import settings_from_dict
from router.state.state import StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.support import plain
from tests.support.cases import read_cases

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


# A real-time query ends behind a note of how far it is, where one comes in time; batches take over after an error.


class Reports:
    """A streaming query that reports a batch more at each look; ``error`` is why it ended."""

    def __init__(self, error: Exception | None = None) -> None:
        self.number = 3
        self.error = error
        self.stopped = False

    @property
    def isActive(self) -> bool:
        return self.error is None and not self.stopped

    @property
    def lastProgress(self) -> dict[str, Any]:
        self.number += 1
        return report(self.number)

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self.stopped = True


def report(number: int, *counts: tuple[int, float]) -> dict[str, Any]:
    observed = Row(settled=[{"x": x, "y": y} for x, y in counts])
    return {"batchId": number, "observedMetrics": {"settled": observed}, "sources": []}


def real_time(folder: Path, checkpoint: str = "5s", metrics: Metrics | None = None) -> RealTimeQuery:
    told = {"rest": "rest", "checkpoint": checkpoint}
    generation = Generation(folder / "1", "g", ("orders",))
    return RealTimeQuery(
        "q",
        generation,
        plan({"a": ORDERS}, realtime=told),
        metrics or Metrics(),
        RouterStatus(),
        StateFolder(folder).accounts,
    )


def test_counts_of_a_report_are_those_of_definitions() -> None:
    types = find_fast_types(plan({"a": ORDERS}))
    tally = read_tally(report(1, (0, 2.0), (0, 3.0)), types)
    assert dict(tally.records) == {("/endpoints/a", "routed", ""): 5}
    assert dict(tally.delivered) == {("bus", "/endpoints/a"): 5}
    assert dict(tally.definitions) == {("/endpoints/a", "/messagegroups/g/messages/m"): 5}
    assert read_tally({"batchId": 1, "observedMetrics": {}}, types).total == 0
    assert read_tally({"batchId": 1, "observedMetrics": {"settled": Row(settled=None)}}, types).total == 0


def test_a_report_counts_once(tmp_path: Path) -> None:
    metrics = Metrics()
    query = real_time(tmp_path, metrics=metrics)
    for number in (7, 7, 8):
        query.record_progress(report(number, (0, 2.0)))
    sample = 'xrouter_records_total{endpoint="/endpoints/a",outcome="routed",reason=""} 4.0'
    assert sample in generate_latest(metrics.registry).decode()
    assert query.last == 8


def test_counts_go_on_after_a_restart(tmp_path: Path) -> None:
    for total in (2.0, 4.0):
        metrics = Metrics()
        real_time(tmp_path, metrics=metrics).record_progress(report(7, (0, 2.0)))
        labels = {"endpoint": "/endpoints/a", "outcome": "routed", "reason": ""}
        assert metrics.registry.get_sample_value("xrouter_records_total", labels) == total


def test_it_is_idle_once_a_batch_has_ended_since_it_was_asked(tmp_path: Path) -> None:
    query = real_time(tmp_path)
    query.record_progress(report(3))
    query._query = Reports()  # type: ignore[assignment]
    query.drain()
    assert query.draining and not query.ended_batch
    assert query.wait_idle(60) and query.ended_batch


def test_it_does_not_wait_for_a_note_that_comes_too_late(tmp_path: Path) -> None:
    query = real_time(tmp_path, checkpoint="10m")
    query._query = Reports()  # type: ignore[assignment]
    query.drain()
    began = time.monotonic()
    assert not query.wait_idle(60) and time.monotonic() - began < 30


# Which types of events a plan settles without the matcher: what any other candidate might take is not among them.


CASES = read_cases(Path(__file__).parents[3] / "cases" / "routes" / "settled.yaml")
ORDER = {"type": {"value": "order"}}
PATHS = {"value": "/shops/{shop}/{order}", "type": "uritemplate"}
"""A template of whole segments."""


def event(attributes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"envelope": "CloudEvents/1.0", "envelopemetadata": attributes, **more}


def settled(messages: dict[str, Any], **told: Any) -> dict[str, FastPathType]:
    orders = plain.endpoint("KAFKA", {"topic": "orders"}, "g", uri="kafka://broker:9092")
    document = plain.catalog({"in": orders}, g=messages)
    values = {"sinks": {"bus": BUS}, "routes": [{"to": ["bus"]}], **told}
    plan = Plan(build_catalog([Document("c.json", document)], Findings()), settings_from_dict(values, {}, Path()))
    return {each.type: each for each in find_fast_types(plan)}


def test_a_type_of_one_definition_is_settled_with_all_it_asks() -> None:
    schema = {"value": "https://schemas.example/order"}
    (order,) = settled({"order": event({**ORDER, "source": PATHS, "dataschema": schema, "time": {}})}).values()
    assert (order.topic, order.message, order.endpoint) == (
        "orders",
        "/messagegroups/g/messages/order",
        "/endpoints/in",
    )
    assert (order.route.topic, order.route.lineage) == ("out", True)
    asked = {each.header: each for each in order.constraints}
    assert asked["ce_type"].text == "order" and asked["ce_dataschema"].text == schema["value"]
    assert asked["ce_source"].segments == ("", "shops", None, None)
    assert (asked["ce_time"].type, asked["ce_time"].optional) == ("timestamp", True)
    assert [(each.name, each.header, each.index, each.decodes) for each in order.context] == [
        ("shop", "ce_source", 2, True),
        ("order", "ce_source", 3, True),
    ]


@pytest.mark.parametrize("messages", CASES["left"].values(), ids=CASES["left"])
def test_what_the_matcher_may_decide_otherwise_is_left_to_it(messages: dict[str, Any]) -> None:
    assert settled({name: {"envelope": "CloudEvents/1.0", **each} for name, each in messages.items()}) == {}


@pytest.mark.parametrize("told", CASES["told"])
def test_where_values_or_bodies_decide_the_way_nothing_is_settled(told: dict[str, Any]) -> None:
    assert settled({"order": event({**ORDER, "source": PATHS})}, **told) == {}


def test_routes_by_definition_are_settled() -> None:
    routes = [{"when": {"message": "*/order"}, "to": "fast"}, {"to": "bus"}]
    sinks = {"bus": BUS, "fast": {**BUS, "topic": "fast.{messageid}", "lineage": False}}
    ways = settled({"order": event(ORDER), "other": event({"type": {"value": "x"}})}, sinks=sinks, routes=routes)
    assert {type: (each.route.topic, each.route.lineage) for type, each in ways.items()} == {
        "order": ("fast.order", False),
        "x": ("out", True),
    }


@given(st.sampled_from(sorted(PLAIN_FORMS)).flatmap(lambda form: st.tuples(st.just(form), _texts(form))))
def test_what_looks_plainly_like_a_type_is_valid_for_it(drawn: tuple[str, str]) -> None:
    form, text = drawn
    assert is_valid(form, text, bits32=True)


def _texts(form: str) -> st.SearchStrategy[str]:
    return st.from_regex(re.compile(PLAIN_FORMS[form], re.ASCII), fullmatch=True)
