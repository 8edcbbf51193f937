"""One router between brokers of all five protocols: where they are, what its catalog and settings say, what is sent.

On each of the five sources come a binary and a structured CloudEvent and a native message that its definition maps. All
are part of a trace: events by the distributed tracing extension, native messages by a header that is mapped to it. The
brokers let in who has credentials, over TLS.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import nats
import paho.mqtt.client as paho
from nats.aio.client import Client as NatsClient
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from proton import Message, SSLDomain
from proton.utils import BlockingConnection

from tests.support.kafka import produce, read_all
from tests.support.ports import Pair
from tests.support.web import Webhook

PROTOCOLS: Final = {"kafka": "KAFKA", "http": "HTTP", "mqtt": "MQTT/5.0", "amqp": "AMQP/1.0", "nats": "NATS"}
MODES: Final = ("binary", "structured", "native")
CELLS: Final = frozenset((protocol, mode) for protocol in PROTOCOLS for mode in MODES)
TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STATE: Final = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
DATA: Final = b'{"litres": 1.50, "bed": "\\u00e4"}'


@dataclass(frozen=True, slots=True)
class Keys:
    """What clients of secured brokers need: authorities to trust by protocol, and what they prove who they are with.

    ``certificate`` is for HTTP servers. ``settings`` are those of the router's sources and sinks by protocol,
    ``gateway`` those of its HTTP gateway; both refer to secrets in ``environ``.
    """

    authorities: Mapping[str, Path]
    certificate: Pair
    username: str
    password: str = field(repr=False)
    token: str = field(repr=False)
    seed: Path
    settings: Mapping[str, Mapping[str, Any]]
    gateway: Mapping[str, Any]
    environ: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class World:
    """The brokers: what the router is told of each, and the queues and topics. ``own_kafka`` is for the tests alone."""

    kafka: str
    own_kafka: str
    topic: str
    out_topic: str
    mqtt: str
    amqp: str
    queue: str
    out_queue: str
    nats: str
    http_port: int
    keys: Keys

    def login(self, protocol: str) -> dict[str, Any]:
        """The settings of a source or sink that let it in."""
        return dict(self.keys.settings.get(protocol, {}))


def attributes(protocol: str, mode: str) -> dict[str, str]:
    """Return what the event of one cell of the matrix has."""
    made = {"specversion": "1.0", "source": f"/beds/{protocol}", "type": f"watered.{mode}", "subject": "north/7"}
    made["traceparent"] = TRACE
    return made if mode == "native" else {**made, "id": f"{protocol}-{mode}", "tracestate": STATE}


def structured(protocol: str) -> bytes:
    """Return the structured event of a protocol."""
    told = {**attributes(protocol, "structured"), "datacontenttype": "application/json"}
    return json.dumps(told)[:-1].encode() + b', "data": ' + DATA + b"}"


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


def catalog(world: World) -> dict[str, Any]:
    """Return one endpoint a protocol; each has CloudEvents by type, and one native definition of its own."""
    options: dict[str, dict[str, Any]] = {
        "kafka": {"topic": world.topic},
        "http": {"path": "/beds"},
        "mqtt": {"topicfilter": "beds/#"},
        "amqp": {"node": world.queue},
        "nats": {"subject": "beds.*", "stream": "BEDS", "durable": "router"},
    }
    uris = {
        "kafka": world.kafka,
        "http": "http://127.0.0.1/beds",
        "mqtt": world.mqtt,
        "amqp": world.amqp,
        "nats": world.nats,
    }
    groups: dict[str, Any] = {}
    endpoints: dict[str, Any] = {}
    for name, protocol in PROTOCOLS.items():
        messages: dict[str, Any] = {
            mode: {"envelopemetadata": {"type": {"value": f"watered.{mode}"}}} for mode in MODES[:2]
        }
        messages["native"] = {
            "protocol": protocol,
            "protocoloptions": _native(world)[name],
            "envelopemetadata": {
                "type": {"value": "watered.native"},
                "source": {"value": f"/beds/{name}"},
                "subject": {"value": "north/{row}"},
                "traceparent": {"value": "{trace}"},
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


def settings(world: World, hook: Webhook, folder: Path) -> dict[str, Any]:
    """Return the router's settings: every protocol is a source, and every event goes to every protocol.

    The catalog is written to *folder*; dead letters go to ``dead`` in there.
    """
    source = folder / "catalog.json"
    source.write_text(json.dumps(catalog(world)))
    sinks: dict[str, Any] = {
        "kafka": {"type": "kafka", "bootstrap_servers": world.kafka, "topic": world.out_topic},
        "mqtt": {"type": "mqtt", "uri": world.mqtt, "topic": "out/{messagegroup}"},
        "amqp": {"type": "amqp", "uri": world.amqp, "node": world.out_queue},
        "nats": {"type": "nats", "uri": world.nats, "subject": "out.{messagegroup}"},
        "http": {"type": "http", "url": f"{hook.url}/events"},
    }
    sinks = {name: {**sink, **world.login(name)} for name, sink in sinks.items()}
    return {
        "catalog": {"source": str(source)},
        # What a source of HTTP is let in by is a matter of the gateway.
        "sources": [
            {"endpoint": f"/endpoints/{name}", **(world.login(name) if name != "http" else {})} for name in PROTOCOLS
        ],
        "http": {"port": world.http_port, **world.keys.gateway},
        "sinks": {**sinks, "dead": {"type": "jsonl", "path": str(folder / "dead")}},
        "routes": [{"to": list(sinks)}],
        "dead_letters": {"sinks": ["dead"]},
    }


def _native(world: World) -> dict[str, Any]:
    """Return what the native definition of each protocol takes."""
    trace = {"name": "traceparent", "value": "{trace}"}
    row = {"name": "row", "value": "{row}"}
    return {
        "kafka": {"topic": {"value": world.topic}, "headers": [row, trace]},
        "http": {"path": {"value": "/beds", "type": "uritemplate"}, "headers": [row, trace]},
        "mqtt": {"topic_name": {"value": "beds/{row}", "type": "uritemplate"}, "user_properties": [trace]},
        "amqp": {"application-properties": {"row": {"value": "{row}"}, "traceparent": {"value": "{trace}"}}},
        "nats": {"subject": {"value": "beds.{row}", "type": "uritemplate"}, "headers": [trace]},
    }


# Independent clients of all five protocols: what they send to the router of a matrix, and what they read behind it.

SECONDS: Final = 120.0
_CONNECT_SECONDS: Final = 120


def send_kafka(world: World) -> None:
    """Send by Kafka."""
    event = attributes("kafka", "binary")
    headers = [(f"ce_{name}", text.encode()) for name, text in event.items()]
    produce(
        world.own_kafka,
        world.topic,
        [
            (None, DATA, [*headers, ("content-type", b"application/json")]),
            (None, structured("kafka"), [("content-type", b"application/cloudevents+json")]),
            (None, DATA, [("row", b"7"), ("traceparent", TRACE.encode()), ("content-type", b"application/json")]),
        ],
    )


def send_http(world: World) -> None:
    """Send to the router's gateway."""
    url = f"https://127.0.0.1:{world.http_port}/beds"
    trust = _trust(world, "http")
    known = {"Authorization": f"Bearer {world.keys.token}"}
    event = {f"ce-{name}": text for name, text in attributes("http", "binary").items()}
    for headers, body in (
        ({**event, "content-type": "application/json"}, DATA),
        ({"content-type": "application/cloudevents+json"}, structured("http")),
        ({"row": "7", "traceparent": TRACE, "content-type": "application/json"}, DATA),
    ):
        answer = httpx.post(
            url, headers={**headers, **known}, content=body, verify=trust, trust_env=False, timeout=SECONDS
        )
        assert answer.status_code == 202, answer.text


def send_mqtt(world: World) -> None:
    """Send by MQTT 5."""
    client = _mqtt(world)
    client.loop_start()
    for media, pairs, body in (
        ("application/json", list(attributes("mqtt", "binary").items()), DATA),
        ("application/cloudevents+json", [], structured("mqtt")),
        ("application/json", [("traceparent", TRACE)], DATA),
    ):
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ContentType = media
        properties.UserProperty = pairs
        client.publish("beds/7", body, qos=1, properties=properties).wait_for_publish(_CONNECT_SECONDS)
    client.disconnect()
    client.loop_stop()


def send_amqp(world: World) -> None:
    """Send by AMQP 1.0."""
    event = {f"cloudEvents:{name}": text for name, text in attributes("amqp", "binary").items()}
    connection = _amqp(world)
    try:
        sender = connection.create_sender(world.queue)
        for media, properties, body in (
            ("application/json", event, DATA),
            ("application/cloudevents+json", {}, structured("amqp")),
            ("application/json", {"row": "7", "traceparent": TRACE}, DATA),
        ):
            sender.send(Message(body=body, inferred=True, content_type=media, properties=properties, durable=True))
    finally:
        connection.close()


def send_nats(world: World) -> None:
    """Send by JetStream."""

    async def done() -> None:
        client = await _nats(world)
        event = {f"ce-{name}": text for name, text in attributes("nats", "binary").items()}
        for headers, body in (
            ({**event, "content-type": "application/json"}, DATA),
            ({"content-type": "application/cloudevents+json"}, structured("nats")),
            ({"traceparent": TRACE, "content-type": "application/json"}, DATA),
        ):
            await client.jetstream().publish("beds.7", body, headers=headers)
        await client.close()

    asyncio.run(done())


SENDERS: Final[tuple[Callable[[World], None], ...]] = (send_kafka, send_http, send_mqtt, send_amqp, send_nats)


class MqttReader:
    """A subscriber of what the router publishes, from its making on."""

    def __init__(self, world: World) -> None:
        self.found: list[dict[str, Any]] = []
        self._client = _mqtt(world)
        self._client.on_message = self._take
        self._client.subscribe("out/#", qos=1)
        self._client.loop_start()

    def _take(self, _: Any, __: Any, message: Any) -> None:
        told = dict(message.properties.UserProperty)
        self.found.append({**told, "data": message.payload})

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


def read_kafka(world: World) -> list[dict[str, Any]]:
    """Return the events of the outgoing topic."""
    records = read_all(world.own_kafka, world.out_topic)
    texts = [({name: (value or b"").decode() for name, value in each.headers}, each.value) for each in records]
    return [_event(headers, "ce_", value) for headers, value in texts]


def read_amqp(world: World, count: int) -> list[dict[str, Any]]:
    """Return and accept that many events of the outgoing queue."""
    connection = _amqp(world)
    try:
        receiver = connection.create_receiver(world.out_queue, credit=count)
        found = []
        for _ in range(count):
            message: Any = receiver.receive(SECONDS)
            found.append(_event(message.properties, "cloudEvents:", bytes(message.body)))
            receiver.accept()
        return found
    finally:
        connection.close()


def read_nats(world: World, count: int) -> list[dict[str, Any]]:
    """Return and acknowledge that many events of the outgoing stream."""

    async def done() -> list[dict[str, Any]]:
        client = await _nats(world)
        pull = await client.jetstream().pull_subscribe("out.>", durable="reader", stream="OUT")
        found: list[dict[str, Any]] = []
        while len(found) < count:
            for message in await pull.fetch(1, timeout=SECONDS):
                found.append(_event(message.headers or {}, "ce-", message.data))
                await message.ack()
        await client.close()
        return found

    return asyncio.run(done())


def make_streams(world: World) -> None:
    """Make the streams that the router takes from and sends to."""

    async def done() -> None:
        client = await _nats(world)
        await client.jetstream().add_stream(name="BEDS", subjects=["beds.*"])
        await client.jetstream().add_stream(name="OUT", subjects=["out.>"])
        await client.close()

    asyncio.run(done())


def _event(headers: dict[str, str], prefix: str, data: bytes | None) -> dict[str, Any]:
    """Return attributes and data of an event in binary mode."""
    return {**{name.removeprefix(prefix): text for name, text in headers.items()}, "data": data}


def _trust(world: World, protocol: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(world.keys.authorities[protocol]))


def _mqtt(world: World) -> paho.Client:
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.tls_set_context(_trust(world, "mqtt"))
    client.username_pw_set(world.keys.username, world.keys.password)
    where = urlsplit(world.mqtt)
    client.connect(where.hostname or "", where.port or 0)
    return client


def _amqp(world: World) -> BlockingConnection:
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    domain.set_trusted_ca_db(str(world.keys.authorities["amqp"]))
    domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
    login: dict[str, Any] = {"user": world.keys.username, "password": world.keys.password, "allowed_mechs": "PLAIN"}
    return BlockingConnection(world.amqp, timeout=_CONNECT_SECONDS, ssl_domain=domain, **login)


async def _nats(world: World) -> NatsClient:
    return await nats.connect(world.nats, tls=_trust(world, "nats"), nkeys_seed=str(world.keys.seed))
