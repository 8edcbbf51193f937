"""Events of a registry to real brokers: to subscribers of its settings, and to those of the Subscriptions API."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bindings.protocols import BINDINGS
from router.commands.registry.settings import load_registry
from tests.conftest import Kafka, TopicFactory
from tests.support.amqp import queue_name
from tests.support.gateways import Rows, running
from tests.support.kafka import read_all
from tests.support.mqtt import Mosquitto
from tests.support.nats import NatsServer, make_stream, stream
from tests.support.qpid import amqp_for_tests
from tests.support.registry import client_of
from tests.support.waiting import wait_until

LIMIT = 300.0
E = "/endpoints/e"
MESSAGE = "/messagegroups/g/messages/m"
Events = Callable[[], list[Mapping[str, str]]]
"""Gives the attributes of the events that have arrived."""


@contextmanager
def served(folder: Path, to: Mapping[str, Any]) -> Iterator[httpx.Client]:
    """Serve a registry with one subscriber in its settings."""
    events = {"subscribers": {"audit": {"to": to}}, "allow_addresses": ["127.0.0.1", "localhost"], "max_pause": "500ms"}
    path = folder / "registry.yaml"
    path.write_text(
        json.dumps({"open": True, "base_url": "https://reg.example", "http": {"port": 0}, "events": events})
    )
    with client_of(load_registry(path, {})[1], timeout=60) as client:
        yield client


def check(folder: Path, to: Mapping[str, Any], asked: Mapping[str, Any], arrived: Events) -> None:
    """Write to a registry whose settings and API name the same place, and look at what arrives there."""
    with served(folder, to) as client:
        made = client.post("/subscriptions", json={**asked, "types": ["io.xregistry.group.deleted"]})
        assert made.status_code == 201, made.text
        names = [f"n{number}" for number in range(5)]
        written = [client.put(MESSAGE, json={"name": name}) for name in names]
        assert all(each.is_success for each in written)
        assert client.delete("/messagegroups/g").is_success
        # Each write is of a resource and a version; the first is of group and registry too, and so is the last.
        count = 4 + 2 * 4 + 4 + 1
        wait_until(lambda: len(arrived()) >= count, LIMIT, lambda: f"{count} events; there are {len(arrived())}")
    found = arrived()
    assert len({(each["id"], each["type"]) for each in found}) == count - 1  # the one that both were told of
    assert {each["source"] for each in found} == {"https://reg.example"}
    assert {each["specversion"] for each in found} == {"1.0"}
    mine = [each for each in found if each["subject"] == MESSAGE]
    assert [each["type"].rpartition(".")[2] for each in mine] == ["created", *["updated"] * 4, "deleted"]
    correlations = [each.headers["xRegistry-xregcorrelationid"] for each in written]
    assert [each["xregcorrelationid"] for each in mine[:5]] == correlations


def of(rows: Rows) -> Events:
    """Return what gives the events that a gateway has stored."""

    def arrived() -> list[Mapping[str, str]]:
        return [
            dict(BINDINGS[row.protocol].read_envelope(row.properties, row.body, lambda: True).attributes)
            for row in list(rows.stored)
        ]

    return arrived


def test_kafka(kafka: Kafka, topic_factory: TopicFactory, tmp_path: Path) -> None:
    topic = topic_factory("changes", partitions=1)

    def arrived() -> list[Mapping[str, str]]:
        records = read_all(kafka.bootstrap, topic)
        assert all((each.key or b"").startswith(b"/") for each in records)
        headers = [{name: (value or b"").decode() for name, value in each.headers} for each in records]
        return [{name.removeprefix("ce_"): value for name, value in each.items()} for each in headers]

    to = {"type": "kafka", "bootstrap_servers": kafka.bootstrap, "topic": topic}
    check(tmp_path, to, {"protocol": "KAFKA", "sink": f"kafka://{kafka.bootstrap}/{topic}"}, arrived)


@pytest.mark.parametrize(("version", "protocol"), [("5.0", "MQTT5"), ("3.1.1", "MQTT3")])
def test_mqtt(tmp_path: Path, version: str, protocol: str) -> None:
    rows = Rows()
    with Mosquitto(tmp_path / "mosquitto") as broker, running("MQTT/5.0", broker.uri, {E: "changes/#"}, rows):
        to = {"type": "mqtt", "uri": broker.uri, "topic": "changes/all", "version": version}
        asked = {"protocol": protocol, "sink": broker.uri, "protocolsettings": {"topicname": "changes/deleted"}}
        check(tmp_path, to, asked, of(rows))


def test_amqp(tmp_path: Path) -> None:
    rows, node = Rows(), queue_name()
    with amqp_for_tests(tmp_path / "qpid") as uri, running("AMQP/1.0", uri, {E: node}, rows):
        to = {"type": "amqp", "uri": uri, "node": node}
        check(tmp_path, to, {"protocol": "AMQP", "sink": f"{without_login(uri)}/{node}"}, of(rows))


def without_login(uri: str) -> str:
    """Return an address without user and password, which subscriptions may not have."""
    scheme, _, place = uri.partition("://")
    return f"{scheme}://{place.rpartition('@')[2].rstrip('/')}"


def test_nats(tmp_path: Path) -> None:
    rows = Rows()
    with NatsServer(tmp_path / "nats") as server:
        make_stream(server)
        with running("NATS", server.uri, [stream("js.changes.>", durable="taker")], rows):
            to = {"type": "nats", "uri": server.uri, "subject": "js.changes.all"}
            asked = {"protocol": "NATS", "sink": server.uri, "protocolsettings": {"subject": "js.changes.deleted"}}
            check(tmp_path, to, asked, of(rows))


UPDATED = "io.xregistry.resource.updated"


def types(rows: Rows) -> list[tuple[str, str]]:
    return [(each["subject"], each["type"]) for each in of(rows)()]


def test_a_broker_that_is_away_is_waited_for(tmp_path: Path) -> None:
    rows = Rows()
    with Mosquitto(tmp_path / "mosquitto") as broker:
        to = {"type": "mqtt", "uri": broker.uri, "topic": "changes/all", "timeout": "2s"}
        with served(tmp_path, to) as client:
            broker.stop()
            names = [f"n{number}" for number in range(5)]
            assert all(client.put(MESSAGE, json={"name": name}).is_success for name in names)
            broker.start()
            with running("MQTT/5.0", broker.uri, {E: "changes/#"}, rows, client_id="reader"):
                assert client.put(MESSAGE, json={"name": "last"}).is_success
                # What came before there was a reader, no broker keeps; the last is behind all of an entity's others.
                wait_until(lambda: (MESSAGE, UPDATED) in types(rows), LIMIT, lambda: str(types(rows)))
