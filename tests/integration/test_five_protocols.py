"""Every protocol in, every protocol out: one router between five real brokers, sent to and read by independent clients.

On each of the five sources come a binary and a structured CloudEvent and a native message that its definition maps; all
of them must be found, with equal attributes and data, at each of the five sinks.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import nats
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from proton import Message
from proton.utils import BlockingConnection

from tests.conftest import Kafka, TopicFactory
from tests.support.amqp_client import queue_name, receive_all
from tests.support.kafka import produce, read_all
from tests.support.mosquitto import Mosquitto
from tests.support.natsserver import NatsServer
from tests.support.ports import free_ports
from tests.support.qpid import amqp_for_tests
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until
from tests.support.webhook import Webhook

pytestmark = [pytest.mark.broker, pytest.mark.timeout(420)]
SECONDS = 120.0
PROTOCOLS = {"kafka": "KAFKA", "http": "HTTP", "mqtt": "MQTT/5.0", "amqp": "AMQP/1.0", "nats": "NATS"}
MODES = ("binary", "structured", "native")
DATA = b'{"litres": 1.50, "bed": "\\u00e4"}'


@dataclass(frozen=True)
class World:
    """The brokers, and where messages go in."""

    kafka: str
    topic: str
    out_topic: str
    mqtt: Mosquitto
    amqp: str
    queue: str
    out_queue: str
    nats: NatsServer
    http_port: int


def attributes(protocol: str, mode: str) -> dict[str, str]:
    """What the event of one cell of the matrix has."""
    made = {"specversion": "1.0", "source": f"/beds/{protocol}", "type": f"watered.{mode}", "subject": "north/7"}
    return made if mode == "native" else {**made, "id": f"{protocol}-{mode}"}


def structured(protocol: str) -> bytes:
    told = {**attributes(protocol, "structured"), "datacontenttype": "application/json"}
    return json.dumps(told)[:-1].encode() + b', "data": ' + DATA + b"}"


def catalog(world: World) -> dict[str, Any]:
    """One endpoint a protocol; each has CloudEvents by type, and one native definition of its own."""
    native = {
        "kafka": {"topic": {"value": world.topic}, "headers": [{"name": "row", "value": "{row}"}]},
        "http": {"path": {"value": "/beds", "type": "uritemplate"}, "headers": [{"name": "row", "value": "{row}"}]},
        "mqtt": {"topic_name": {"value": "beds/{row}", "type": "uritemplate"}},
        "amqp": {"application-properties": {"row": {"value": "{row}"}}},
        "nats": {"subject": {"value": "beds.{row}", "type": "uritemplate"}},
    }
    options = {
        "kafka": {"topic": world.topic},
        "http": {"path": "/beds"},
        "mqtt": {"topicfilter": "beds/#"},
        "amqp": {"node": world.queue},
        "nats": {"subject": "beds.*", "stream": "BEDS", "durable": "router"},
    }
    uris = {
        "kafka": world.kafka,
        "http": "http://127.0.0.1/beds",
        "mqtt": world.mqtt.uri,
        "amqp": world.amqp,
        "nats": world.nats.uri,
    }
    groups: dict[str, Any] = {}
    endpoints: dict[str, Any] = {}
    for name, protocol in PROTOCOLS.items():
        messages: dict[str, Any] = {
            mode: {"envelopemetadata": {"type": {"value": f"watered.{mode}"}}} for mode in MODES[:2]
        }
        messages["native"] = {
            "protocol": protocol,
            "protocoloptions": native[name],
            "envelopemetadata": {
                "type": {"value": "watered.native"},
                "source": {"value": f"/beds/{name}"},
                "subject": {"value": "north/{row}"},
            },
        }
        groups[name] = {"envelope": "CloudEvents/1.0", "messages": messages}
        endpoints[name] = {
            "usage": ["consumer"],
            "protocol": protocol,
            "protocoloptions": {"endpoints": [{"uri": uris[name]}], "options": options[name]},
            "messagegroups": [f"/messagegroups/{name}"],
        }
    return {"messagegroups": groups, "endpoints": endpoints}


def send_kafka(world: World) -> None:
    event = attributes("kafka", "binary")
    headers = [(f"ce_{name}", text.encode()) for name, text in event.items()]
    produce(
        world.kafka,
        world.topic,
        [
            (None, DATA, [*headers, ("content-type", b"application/json")]),
            (None, structured("kafka"), [("content-type", b"application/cloudevents+json")]),
            (None, DATA, [("row", b"7"), ("content-type", b"application/json")]),
        ],
    )


def send_http(world: World) -> None:
    url = f"http://127.0.0.1:{world.http_port}/beds"
    event = {f"ce-{name}": text for name, text in attributes("http", "binary").items()}
    for headers, body in (
        ({**event, "content-type": "application/json"}, DATA),
        ({"content-type": "application/cloudevents+json"}, structured("http")),
        ({"row": "7", "content-type": "application/json"}, DATA),
    ):
        assert httpx.post(url, headers=headers, content=body).status_code == 202


def send_mqtt(world: World) -> None:
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.connect("127.0.0.1", world.mqtt.port)
    client.loop_start()
    for media, pairs, body in (
        ("application/json", list(attributes("mqtt", "binary").items()), DATA),
        ("application/cloudevents+json", [], structured("mqtt")),
        ("application/json", [], DATA),
    ):
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ContentType = media
        properties.UserProperty = pairs
        client.publish("beds/7", body, qos=1, properties=properties).wait_for_publish(20)
    client.disconnect()
    client.loop_stop()


def send_amqp(world: World) -> None:
    event = {f"cloudEvents:{name}": text for name, text in attributes("amqp", "binary").items()}
    connection = BlockingConnection(world.amqp, timeout=20)
    try:
        sender = connection.create_sender(world.queue)
        for media, properties, body in (
            ("application/json", event, DATA),
            ("application/cloudevents+json", {}, structured("amqp")),
            ("application/json", {"row": "7"}, DATA),
        ):
            sender.send(Message(body=body, inferred=True, content_type=media, properties=properties, durable=True))
    finally:
        connection.close()


def send_nats(world: World) -> None:
    async def done() -> None:
        client = await nats.connect(world.nats.uri)
        event = {f"ce-{name}": text for name, text in attributes("nats", "binary").items()}
        for headers, body in (
            ({**event, "content-type": "application/json"}, DATA),
            ({"content-type": "application/cloudevents+json"}, structured("nats")),
            ({"content-type": "application/json"}, DATA),
        ):
            await client.jetstream().publish("beds.7", body, headers=headers)
        await client.close()

    asyncio.run(done())


@pytest.fixture
def world(kafka: Kafka, topic_factory: TopicFactory, tmp_path: Path) -> Iterator[World]:
    """All brokers, with the stream and the queues there."""

    async def streams(uri: str) -> None:
        client = await nats.connect(uri)
        await client.jetstream().add_stream(name="BEDS", subjects=["beds.*"])
        await client.jetstream().add_stream(name="OUT", subjects=["out.>"])
        await client.close()

    server = NatsServer(tmp_path / "nats")
    with Mosquitto(tmp_path / "mqtt") as mqtt, amqp_for_tests(tmp_path / "amqp") as amqp, server:
        asyncio.run(streams(server.uri))
        (port,) = free_ports(1)
        yield World(
            kafka.bootstrap,
            topic_factory("beds"),
            topic_factory("out"),
            mqtt,
            amqp,
            queue_name(),
            queue_name(),
            server,
            port,
        )


class MqttReader:
    """An independent subscriber of what the router publishes."""

    def __init__(self, port: int) -> None:
        self.found: list[dict[str, Any]] = []
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self._client.on_message = self._take
        self._client.connect("127.0.0.1", port)
        self._client.subscribe("out/#", qos=1)
        self._client.loop_start()

    def _take(self, _: Any, __: Any, message: Any) -> None:
        told = dict(message.properties.UserProperty)
        self.found.append({**told, "data": message.payload})

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def read_nats(world: World, count: int) -> list[dict[str, Any]]:
    async def done() -> list[dict[str, Any]]:
        client = await nats.connect(world.nats.uri)
        pull = await client.jetstream().pull_subscribe("out.>", durable="reader", stream="OUT")
        found: list[dict[str, Any]] = []
        while len(found) < count:
            for message in await pull.fetch(1, timeout=SECONDS):
                headers = {name.removeprefix("ce-"): text for name, text in (message.headers or {}).items()}
                found.append({**headers, "data": message.data})
                await message.ack()
        await client.close()
        return found

    return asyncio.run(done())


def event_of(headers: dict[str, str], prefix: str, data: bytes | None) -> dict[str, Any]:
    """Return attributes and data of an event in binary mode."""
    return {**{name.removeprefix(prefix): text for name, text in headers.items()}, "data": data}


def cells(found: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """Return which cells are there; every event must be as it was sent, and a mapped one must have an id."""
    seen = set()
    for event in found:
        protocol, mode = event["source"].rsplit("/", 1)[-1], event["type"].rsplit(".", 1)[-1]
        expected = attributes(protocol, mode)
        assert {name: event.get(name) for name in expected} == expected, event
        assert event["id"] and event["data"] == DATA, event
        seen.add((protocol, mode))
    return seen


def test_all_modes_of_every_protocol_reach_every_protocol(world: World, router: RouterProcess, tmp_path: Path) -> None:
    source = tmp_path / "catalog.json"
    source.write_text(json.dumps(catalog(world)))
    wanted = {(protocol, mode) for protocol in PROTOCOLS for mode in MODES}
    with Webhook() as hook:
        sinks = {
            "bus": {"type": "kafka", "bootstrap_servers": world.kafka, "topic": world.out_topic},
            "mqtt": {"type": "mqtt", "uri": world.mqtt.uri, "topic": "out/{messagegroup}"},
            "amqp": {"type": "amqp", "uri": world.amqp, "node": world.out_queue},
            "nats": {"type": "nats", "uri": world.nats.uri, "subject": "out.{messagegroup}"},
            "hook": {"type": "http", "url": f"{hook.url}/events"},
            "dead": {"type": "jsonl", "path": str(tmp_path / "dead")},
        }
        router.configure(
            {
                "catalog": {"source": str(source)},
                "http": {"port": world.http_port},
                "sinks": sinks,
                "routes": [{"to": [name for name in sinks if name != "dead"]}],
                "dead_letters": {"sinks": ["dead"]},
                "trigger": "200ms",
            }
        )
        reader = MqttReader(world.mqtt.port)
        router.start()
        senders: tuple[Callable[[World], None], ...] = (send_kafka, send_http, send_mqtt, send_amqp, send_nats)
        for send in senders:
            send(world)
        log = lambda: f"all cells\n{router.log[-4000:]}"  # noqa: E731
        wait_until(lambda: len(hook.taken) >= len(wanted), SECONDS, log)
        wait_until(lambda: len(reader.found) >= len(wanted), SECONDS, log)
        assert cells([{**taken.attributes(), "data": taken.body} for taken in hook.taken]) == wanted
        assert cells(reader.found) == wanted
        reader.close()
        assert cells(read_nats(world, len(wanted))) == wanted
        messages: list[Any] = receive_all(world.amqp, world.out_queue, len(wanted))
        assert (
            cells([event_of(message.properties, "cloudEvents:", bytes(message.body)) for message in messages]) == wanted
        )
        records = read_all(world.kafka, world.out_topic)
        texts = [({name: (value or b"").decode() for name, value in each.headers}, each.value) for each in records]
        assert cells([event_of(headers, "ce_", value) for headers, value in texts]) == wanted
        assert not list((tmp_path / "dead").rglob("*.jsonl"))
        assert router.stop() == 0
