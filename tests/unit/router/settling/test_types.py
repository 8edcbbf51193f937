"""Which types of events a plan settles without the matcher: what any other candidate might take is not among them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.documents.documents import Document
from catalog.findings import Findings
from catalog.load import build_catalog
from catalog.values import is_valid
from router.evaluation.plan import Plan
from router.realtime import PLAIN_FORMS, FastPathType, find_fast_types
from router.settings import settings_from_dict
from tests.support import plain
from tests.support.cases import read_cases

CASES = read_cases(Path(__file__).parents[3] / "cases" / "routes" / "settled.yaml")
BUS = {"type": "kafka", "bootstrap_servers": "broker:9092", "topic": "out"}
ORDER = {"type": {"value": "order"}}
PATHS = {"value": "/shops/{shop}/{order}", "type": "uritemplate"}
"""A template of whole segments."""


def message(attributes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"envelope": "CloudEvents/1.0", "envelopemetadata": attributes, **more}


def settled(messages: dict[str, Any], **told: Any) -> dict[str, FastPathType]:
    orders = plain.endpoint("KAFKA", {"topic": "orders"}, "g", uri="kafka://broker:9092")
    document = plain.catalog({"in": orders}, g=messages)
    values = {"sinks": {"bus": BUS}, "routes": [{"to": ["bus"]}], **told}
    plan = Plan(build_catalog([Document("c.json", document)], Findings()), settings_from_dict(values, {}, Path()))
    return {each.type: each for each in find_fast_types(plan)}


def test_a_type_of_one_definition_is_settled_with_all_it_asks() -> None:
    schema = {"value": "https://schemas.example/order"}
    (order,) = settled({"order": message({**ORDER, "source": PATHS, "dataschema": schema, "time": {}})}).values()
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
    assert settled({"order": message({**ORDER, "source": PATHS})}, **told) == {}


def test_routes_by_definition_are_settled() -> None:
    routes = [{"when": {"message": "*/order"}, "to": "fast"}, {"to": "bus"}]
    sinks = {"bus": BUS, "fast": {**BUS, "topic": "fast.{messageid}", "lineage": False}}
    ways = settled({"order": message(ORDER), "other": message({"type": {"value": "x"}})}, sinks=sinks, routes=routes)
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
