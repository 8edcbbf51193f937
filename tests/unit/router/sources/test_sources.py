"""What brokers are asked for: filters from templates, what covers what, and which sources share a channel."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest
import structlog

from bindings.background import fault_counts
from bindings.gateways import EndpointSubscription, GatewayError, ReceivingBinding
from bindings.inbox.log import Inbox
from bindings.parts import InboxRow
from bindings.protocols import BINDINGS
from catalog.load import load
from catalog.model import Catalog, Definition, Endpoint, Property
from router.errors import ConfigError
from router.evaluation.plan import Plan
from router.intake.intake import BrokerGateways, Intake, open_local_store
from router.settings import Settings, SourceSettings, settings_from_dict
from router.sources import Source, group_by_query, resolve_sources
from router.state.state import StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
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


# Gateways of brokers as the router runs them: one that ends by a fault of its own is opened again.


ENDPOINT = "/endpoints/plant"


class NoRows:
    """A store that nothing reaches in these tests."""

    def append_many(self, rows: Sequence[InboxRow]) -> Future[None]:
        """Store nothing."""
        raise AssertionError("no gateway of this test takes a message")


class FragileGateway:
    """A gateway that ends when it is told to, and that may not start."""

    def __init__(self, fault: str = "") -> None:
        self._fault = fault
        self.alive = False
        self.connected = False
        self.trouble = ""
        self.stopped = False

    def start(self) -> None:
        """Begin, or refuse to."""
        if self._fault:
            raise GatewayError(self._fault)
        self.alive = self.connected = True

    def end(self) -> None:
        """End as by a fault of its own."""
        self.alive = self.connected = False
        self.trouble = "it stopped after an internal error: ValueError"

    def replace_subscriptions(self, subscriptions: Sequence[EndpointSubscription]) -> None:
        """Take other subscriptions."""

    def stop(self, grace: float) -> None:
        """Note that it was let go."""
        self.stopped = True


@pytest.fixture
def source() -> Source:
    settings = SourceSettings(endpoint=ENDPOINT)
    place = {"uris": ("mqtt://127.0.0.1:1",), "addresses": ("a/b",), "protocol": "MQTT/5.0"}
    return Source(ENDPOINT, "mqtt", f"mqtt:{ENDPOINT}", "inbox", settings, **place)  # type: ignore[arg-type]


def settings_of() -> Settings:
    given = {
        "catalog": {"source": "x"},
        "sinks": {"out": {"type": "jsonl", "path": "-"}},
        "dead_letters": {"sinks": ["out"]},
    }
    return Settings.model_validate({**given, "routes": [{"to": ["out"]}]})


def test_a_connection_that_is_lost_and_there_again_is_told_once(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = FragileGateway()
    monkeypatch.setattr("router.intake.intake.open_gateway", lambda *_: gateway)
    gateways = BrokerGateways(NoRows(), settings_of(), Metrics(), RouterStatus(), "id")
    with structlog.testing.capture_logs() as logged:
        gateways.run_for_sources([source])
        for connected in (True, True, False, False, True, True):
            gateway.connected, gateway.trouble = connected, "" if connected else "the broker went away"
            gateways.check_gateways()
    told = [(entry["event"], entry["endpoints"]) for entry in logged if entry["event"] != "gateway started"]
    assert told == [(event, ENDPOINT) for event in ("connected", "connection lost", "connected again")]
    assert {entry["addresses"] for entry in logged[1:]} == {", ".join(source.addresses)} != {""}
    assert [entry["problem"] for entry in logged if "problem" in entry] == ["the broker went away"]


def test_a_gateway_that_ended_by_itself_is_opened_again(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("bindings.background.time.monotonic", lambda: now[0])
    later = [FragileGateway(), FragileGateway("certificate plant.pem cannot be read"), FragileGateway()]
    opened: list[FragileGateway] = []

    def opener(*_: object) -> FragileGateway:
        opened.append(later[len(opened)])
        return opened[-1]

    status = RouterStatus()
    monkeypatch.setattr("router.intake.intake.open_gateway", opener)
    gateways = BrokerGateways(NoRows(), settings_of(), Metrics(), status, "id")

    def reasons() -> str:
        return " ".join(status.check_readiness()[1]["reasons"])

    gateways.run_for_sources([source])
    gateways.check_gateways()
    assert "gateway" not in reasons()
    counted = fault_counts().get("gateway", 0)
    opened[0].end()
    gateways.check_gateways()  # The second one cannot start; the router goes on and says so.
    assert opened[0].stopped
    assert "certificate plant.pem cannot be read" in reasons()
    gateways.check_gateways()
    assert len(opened) == 2, "the next try waits for its time"
    now[0] += 120
    gateways.check_gateways()
    assert len(opened) == 3
    gateways.check_gateways()
    assert "gateway" not in reasons()
    assert fault_counts()["gateway"] == counted + 2


# What the inbox takes on disk is told as it was while nobody can look.


def test_without_descriptors_the_last_size_is_told(tmp_path: Path) -> None:
    endpoint = {"usage": ["consumer"], "protocol": "HTTP", "protocoloptions": {"options": {"path": "/e"}}}
    (tmp_path / "c.json").write_text(json.dumps({"endpoints": {"e": {**endpoint, "messagegroups": []}}}))
    tables = {name: {"type": "table", "path": name} for name in ("lake", "dead")}
    told = {"sinks": tables, "routes": [{"to": ["lake"]}], "dead_letters": {"sinks": ["dead"]}, "http": {"port": 0}}
    settings = settings_from_dict(told, {}, tmp_path)
    sizes: list[int | OSError] = [7, OSError(errno.EMFILE, "too many open files"), 9]

    def size() -> int:
        found = sizes.pop(0)
        if isinstance(found, OSError):
            raise found
        return found

    def opened() -> Inbox:
        inbox = open_local_store(settings, state)
        inbox.measure_size = size  # type: ignore[method-assign]
        return inbox

    with StateFolder.open(tmp_path / "state") as state:
        intake = Intake(settings, Metrics(), RouterStatus(), opened)
        assert intake.inbox_size() == (0, settings.inbox.max_bytes)
        intake.receive_for_plan(Plan(load([tmp_path / "c.json"]), settings))
        try:
            assert [intake.inbox_size()[0] for _ in range(3)] == [7, 7, 9]
        finally:
            intake.close()
