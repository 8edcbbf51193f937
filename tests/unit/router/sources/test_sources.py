"""What brokers are asked for: filters from templates, what covers what, and which sources share a channel."""

from __future__ import annotations

from pathlib import Path

import pytest

from bindings.gateways import ReceivingBinding
from bindings.protocols import BINDINGS
from catalog.model import Catalog, Definition, Endpoint, Property
from router.errors import ConfigError
from router.settings import SourceSettings, settings_from_dict
from router.sources import Source, group_by_query, resolve_sources
from tests.support.watched import LINEAR, growth


def receiving(protocol: str | None) -> ReceivingBinding:
    side = BINDINGS[protocol or ""].receiving
    assert side is not None
    return side


def addresses_of(endpoint: Endpoint, catalog: Catalog) -> tuple[str, ...]:
    return receiving(endpoint.protocol).list_addresses(endpoint, catalog)


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
    anything = Endpoint("/endpoints/e", protocol="MQTT/5.0", options={"topic-filter": "{y}"})
    assert addresses_of(anything, catalog) == ("#",)
    node = Endpoint("/endpoints/e", protocol="AMQP/1.0", options={"node": "q"}, uris=("amqp://h/p",))
    assert addresses_of(node, catalog) == ("q",)
    address = Endpoint("/endpoints/e", protocol="AMQP/1.0", options={"address": "q/{x}"})
    assert addresses_of(address, catalog) == ("q/{x}",)
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
    channels = {source.endpoint[-1]: source.channel for source in resolve_sources(catalog, settings)}
    assert channels["a"] == channels["b"] == channels["c"] != channels["d"]


@pytest.mark.slow
def test_sources_of_a_query_come_together_in_their_order_however_many() -> None:
    def sources(count: int) -> list[Source]:
        told = SourceSettings(endpoint="/endpoints/e")
        return [Source(f"/endpoints/{n}", "kafka", "c", "inbox" if n == 1 else "kafka-1", told) for n in range(count)]

    found = {query: [each.endpoint[-1] for each in members] for query, members in group_by_query(sources(4)).items()}
    assert found == {"kafka-1": ["0", "2", "3"], "inbox": ["1"]}
    prepared = {size: sources(size) for size in (4_000, 32_000)}
    assert growth(lambda size: lambda: group_by_query(prepared[size]), 4_000) < LINEAR


SETTINGS = {"sinks": {"o": {"type": "jsonl"}}, "routes": [{"to": ["o"]}], "dead_letters": {"sinks": ["o"]}}


def test_one_query_reads_all_of_its_topics_committed_or_none() -> None:
    endpoints = {
        f"/endpoints/{name}": Endpoint(
            f"/endpoints/{name}", ("consumer",), protocol="KAFKA", uris=("kafka://h:9092",), options={"topic": name}
        )
        for name in "ab"
    }
    catalog = Catalog(endpoints=endpoints)
    uncommitted = {"isolation.level": "read_uncommitted"}

    def read(**more: str) -> set[str]:
        told = [{"endpoint": "/endpoints/a", "kafka": uncommitted}, {"endpoint": "/endpoints/b", **more}]
        settings = settings_from_dict({**SETTINGS, "sources": told}, {}, Path())
        return {source.query for source in resolve_sources(catalog, settings)}

    with pytest.raises(ConfigError, match=r"/endpoints/a and /endpoints/b are read together, with unlike isolation"):
        read()
    assert len(read(lane="other")) == 2
