"""What brokers are asked for: filters from templates, what covers what, and which sources share a channel."""

from __future__ import annotations

from pathlib import Path

import pytest

from catalog.model import Catalog, Definition, Endpoint, Property
from router.settings import settings_from_dict
from router.sources import sources_of
from router.subscriptions import addresses_of, covers, mqtt_filter, nats_filter, overlap


@pytest.mark.parametrize(
    ("template", "expected"),
    [("a/b", "a/b"), ("a/{x}/b", "a/+/b"), ("a/p{x}s/#", "a/+/#"), ("{x}", "+"), ("a/{not a name}", "a/{not a name}")],
)
def test_a_topic_template_becomes_a_filter(template: str, expected: str) -> None:
    assert mqtt_filter(template) == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [("a.b", "a.b"), ("a.{x}.b", "a.*.b"), ("a.p{x.y}s.>", "a.*.>"), ("{x}", "*")],
)
def test_a_subject_template_becomes_a_filter(template: str, expected: str) -> None:
    assert nats_filter(template) == expected


@pytest.mark.parametrize(
    ("one", "other", "protocol", "meet", "covered"),
    [
        ("a/+", "a/b", "MQTT/5.0", True, True),
        ("a/b", "a/+", "MQTT/5.0", True, False),
        ("a/#", "a/b/c", "MQTT/5.0", True, True),
        ("a/#", "a", "MQTT/5.0", True, True),
        ("a", "a/#", "MQTT/5.0", True, False),
        ("a/+/c", "a/b/+", "MQTT/5.0", True, False),
        ("a/+/c", "a/b/d", "MQTT/5.0", False, False),
        ("+/c", "a.b/c", "MQTT/3.1.1", True, True),
        ("a.*", "a.b", "NATS", True, True),
        ("a.>", "a.b.c", "NATS", True, True),
        ("a.*", "a.b.c", "NATS", False, False),
        ("a.b/c", "a.*", "NATS", True, False),
        ("q", "q", "AMQP/1.0", True, True),
        ("q/+", "q/a", "AMQP/1.0", False, False),
    ],
)
def test_filters_meet_and_cover(one: str, other: str, protocol: str, meet: bool, covered: bool) -> None:
    assert overlap(one, other, protocol) is meet
    assert covers(one, other, protocol) is covered


def test_options_come_before_addresses_and_definitions() -> None:
    topic = Property("topic_name", "uritemplate", "plant/{line}/state")
    definitions = {
        xid: Definition(xid, "/m", protocol="MQTT/5.0", protocoloptions=(prop,))
        for xid, prop in (("/m/a", topic), ("/m/b", Property("topic_name", "string", "plant/7/state")))
    }
    catalog = Catalog(definitions)
    endpoint = Endpoint("/endpoints/e", protocol="MQTT/5.0", candidates=tuple(definitions))
    assert addresses_of(endpoint, catalog) == ("plant/+/state",)
    by_path = Endpoint("/endpoints/e", protocol="MQTT/5.0", uris=("mqtt://h/a/%7Bx%7D",), candidates=tuple(definitions))
    assert addresses_of(by_path, catalog) == ("a/{x}",)
    told = Endpoint("/endpoints/e", protocol="MQTT/5.0", options={"topic": "x/{y}"}, uris=("mqtt://h/a",))
    assert addresses_of(told, catalog) == ("x/+",)
    node = Endpoint("/endpoints/e", protocol="AMQP/1.0", options={"node": "q"}, uris=("amqp://h/p",))
    assert addresses_of(node, catalog) == ("q",)
    assert addresses_of(Endpoint("/endpoints/e", protocol="NATS"), catalog) == ()


def test_sources_whose_subscriptions_overlap_share_a_channel() -> None:
    def endpoint(name: str, topic: str, host: str = "h") -> Endpoint:
        uri = f"mqtt://{host}:1883"
        return Endpoint(
            f"/endpoints/{name}", ("consumer",), protocol="MQTT/5.0", uris=(uri,), options={"topicfilter": topic}
        )

    found = (endpoint("a", "x/+"), endpoint("b", "y/#"), endpoint("c", "+/1"), endpoint("d", "x/+", "other"))
    catalog = Catalog(endpoints={each.xid: each for each in found})
    sinks = {"sinks": {"o": {"type": "jsonl"}}, "routes": [{"to": ["o"]}], "dead_letters": {"sinks": ["o"]}}
    settings = settings_from_dict(sinks, {}, Path())
    channels = {source.endpoint[-1]: source.channel for source in sources_of(catalog, settings)}
    assert channels["a"] == channels["b"] == channels["c"] != channels["d"]
