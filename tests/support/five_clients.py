"""Independent clients of all five protocols: what they send to the router of a matrix, and what they read behind it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
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

from tests.support.five import DATA, TRACE, World, attributes, structured
from tests.support.kafka import produce, read_all

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
    keys = world.keys
    url = f"{'https' if keys else 'http'}://127.0.0.1:{world.http_port}/beds"
    trust: Any = _trust(world, "http") or False
    known = {"Authorization": f"Bearer {keys.token}"} if keys else {}
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


def _trust(world: World, protocol: str) -> ssl.SSLContext | None:
    return ssl.create_default_context(cafile=str(world.keys.authorities[protocol])) if world.keys else None


def _mqtt(world: World) -> paho.Client:
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    if world.keys is not None:
        client.tls_set_context(_trust(world, "mqtt"))
        client.username_pw_set(world.keys.username, world.keys.password)
    where = urlsplit(world.mqtt)
    client.connect(where.hostname or "", where.port or 0)
    return client


def _amqp(world: World) -> BlockingConnection:
    if world.keys is None:
        return BlockingConnection(world.amqp, timeout=_CONNECT_SECONDS)
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    domain.set_trusted_ca_db(str(world.keys.authorities["amqp"]))
    domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
    login: dict[str, Any] = {"user": world.keys.username, "password": world.keys.password, "allowed_mechs": "PLAIN"}
    return BlockingConnection(world.amqp, timeout=_CONNECT_SECONDS, ssl_domain=domain, **login)


async def _nats(world: World) -> NatsClient:
    if world.keys is None:
        return await nats.connect(world.nats)
    return await nats.connect(world.nats, tls=_trust(world, "nats"), nkeys_seed=str(world.keys.seed))
