"""Every protocol in, every protocol out: one router between five real brokers, sent to and read by independent clients.

On each of the five sources come a binary and a structured CloudEvent and a native message that its definition maps. All
are part of a trace: events by the distributed tracing extension, native messages by a header that is mapped to it. All
must be found, with equal attributes and data, at each of the five sinks, over TLS and with credentials everywhere.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import nats
import paho.mqtt.client as paho
import pytest
from nats.aio.client import Client as NatsClient
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from proton import Message, SSLDomain
from proton.utils import BlockingConnection

from tests.support import plain
from tests.support.amqp import queue_name
from tests.support.kafka import SecuredKafka, create_topics, produce, read_all
from tests.support.mqtt import Mosquitto, Security
from tests.support.nats import NatsServer, key
from tests.support.ports import Authority, free_ports
from tests.support.qpid import QpidBroker, make_certificates
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until
from tests.support.web import Answer, Webhook

pytestmark = pytest.mark.broker
SECONDS: Final = 120.0
USER, PASSWORD, TOKEN = "plant", "s3cret-Wort", "tok-4be1"
PROTOCOLS: Final = {"kafka": "KAFKA", "http": "HTTP", "mqtt": "MQTT/5.0", "amqp": "AMQP/1.0", "nats": "NATS"}
PREFIXES: Final = {"kafka": "ce_", "http": "ce-", "mqtt": "", "amqp": "cloudEvents:", "nats": "ce-"}
MODES: Final = ("binary", "structured", "native")
CELLS: Final = frozenset((protocol, mode) for protocol in PROTOCOLS for mode in MODES)
TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STATE: Final = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
DATA: Final = b'{"litres": 1.50, "bed": "\\u00e4"}'
Found = list[dict[str, Any]]


@dataclass
class World:
    """Brokers that speak TLS, and let in who has a password; NATS who has an nkey."""

    folder: Path
    ending: ExitStack
    port: int = field(default_factory=lambda: free_ports(1)[0])
    queues: tuple[str, str] = field(default_factory=lambda: (queue_name(), queue_name()))

    def __post_init__(self) -> None:
        self.authority = Authority(self.folder / "authority")
        self.pair = self.authority.sign("all", alternatives="IP:127.0.0.1,DNS:localhost")
        user, self.seed = key(), self.folder / "user.seed"
        self.seed.write_text(user.seed)
        certificates = make_certificates(self.folder / "certificates")
        self.trusted = {**dict.fromkeys(PROTOCOLS, self.authority.certificate), "amqp": certificates.ca}
        tls = {"cert_file": str(self.pair.certificate), "key_file": str(self.pair.key)}
        login = {USER: PASSWORD}
        open_ = self.ending.enter_context
        self.kafka = open_(SecuredKafka(self.folder / "kafka", self.authority, login))
        self.amqp = open_(QpidBroker(self.folder / "amqp", users=login, certificates=certificates))
        self.mqtt = open_(Mosquitto(self.folder / "mqtt", Security(self.pair, username=USER, password=PASSWORD)))
        authorization = {"users": [{"nkey": user.public}]}
        self.nats = open_(NatsServer(self.folder / "nats", tls=tls, authorization=authorization))
        create_topics(self.kafka.bootstrap, ["beds", "out"])

    def login(self, protocol: str) -> dict[str, Any]:
        """The settings of a source or sink that let it in."""
        tls = {"tls": {"ca": str(self.trusted[protocol])}}
        if protocol == "nats":
            return {**tls, "seed": str(self.seed)}
        known = {**tls, "username": USER, "password": "${BEDS_PASSWORD}"}
        return {**known, "sasl": "scram-sha-512"} if protocol == "kafka" else known

    def trust(self, protocol: str) -> ssl.SSLContext:
        """What a client trusts."""
        return ssl.create_default_context(cafile=str(self.trusted[protocol]))

    def mqtt_client(self) -> paho.Client:
        """Connect."""
        client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        client.tls_set_context(self.trust("mqtt"))
        client.username_pw_set(USER, PASSWORD)
        where = urlsplit(self.mqtt.uri)
        client.connect(where.hostname or "", where.port or 0)
        client.loop_start()
        return client

    def amqp_client(self) -> closing[BlockingConnection]:
        """Connect."""
        domain = SSLDomain(SSLDomain.MODE_CLIENT)
        domain.set_trusted_ca_db(str(self.trusted["amqp"]))
        domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
        login: dict[str, Any] = {"user": USER, "password": PASSWORD, "allowed_mechs": "PLAIN"}
        return closing(BlockingConnection(self.amqp.uri, timeout=SECONDS, ssl_domain=domain, **login))

    async def nats_client(self) -> NatsClient:
        """Connect."""
        return await nats.connect(self.nats.uri, tls=self.trust("nats"), nkeys_seed=str(self.seed))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as ending:
        yield World(tmp_path, ending)


def attributes(protocol: str, mode: str) -> dict[str, str]:
    """Return what the event of one cell of the matrix has."""
    made = {"specversion": "1.0", "source": f"/beds/{protocol}", "type": f"watered.{mode}", "subject": "north/7"}
    made["traceparent"] = TRACE
    return made if mode == "native" else {**made, "id": f"{protocol}-{mode}", "tracestate": STATE}


def messages(protocol: str, **native: str) -> Iterator[tuple[dict[str, str], str, bytes]]:
    """Yield headers, content type and body of a message in each mode; a native one has these headers."""
    yield (
        {f"{PREFIXES[protocol]}{name}": text for name, text in attributes(protocol, "binary").items()},
        plain.JSON,
        DATA,
    )
    told = json.dumps({**attributes(protocol, "structured"), "datacontenttype": plain.JSON})
    yield {}, plain.STRUCTURED, told[:-1].encode() + b', "data": ' + DATA + b"}"
    yield {**native, "traceparent": TRACE}, plain.JSON, DATA


def send(world: World) -> None:
    """Send by each protocol."""
    records = [
        (None, body, [(name, text.encode()) for name, text in {**headers, "content-type": media}.items()])
        for headers, media, body in messages("kafka", row="7")
    ]
    produce(world.kafka.bootstrap, "beds", records)
    with httpx.Client(verify=world.trust("http"), trust_env=False, timeout=SECONDS) as client:
        for headers, media, body in messages("http", row="7"):
            known = {"content-type": media, "Authorization": f"Bearer {TOKEN}"}
            url = f"https://127.0.0.1:{world.port}/beds"
            assert client.post(url, headers={**headers, **known}, content=body).status_code == 202
    mqtt = world.mqtt_client()
    for headers, media, body in messages("mqtt"):
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ContentType, properties.UserProperty = media, list(headers.items())
        mqtt.publish("beds/7", body, qos=1, properties=properties).wait_for_publish(SECONDS)
    mqtt.disconnect()
    mqtt.loop_stop()
    with world.amqp_client() as connection:
        sender = connection.create_sender(world.queues[0])
        for headers, media, body in messages("amqp", row="7"):
            sender.send(Message(body=body, inferred=True, content_type=media, properties=headers, durable=True))

    async def send_nats() -> None:
        client = await world.nats_client()
        for headers, media, body in messages("nats"):
            await client.jetstream().publish("beds.7", body, headers={**headers, "content-type": media})
        await client.close()

    asyncio.run(send_nats())


def event(protocol: str, headers: Any, data: bytes | None) -> dict[str, Any]:
    """Return attributes and data of an event in binary mode."""
    return {**{name.removeprefix(PREFIXES[protocol]): text for name, text in headers.items()}, "data": data}


def read_kafka(world: World) -> Found:
    records = read_all(world.kafka.bootstrap, "out")
    return [event("kafka", {name: (text or b"").decode() for name, text in one.headers}, one.value) for one in records]


def read_amqp(world: World) -> Found:
    found: Found = []
    with world.amqp_client() as connection:
        receiver = connection.create_receiver(world.queues[1], credit=len(CELLS))
        for _ in CELLS:
            message: Any = receiver.receive(SECONDS)
            found.append(event("amqp", message.properties, bytes(message.body)))
            receiver.accept()
    return found


async def read_nats(world: World) -> Found:
    client = await world.nats_client()
    pull = await client.jetstream().pull_subscribe("out.>", durable="reader", stream="OUT")
    found: Found = []
    while len(found) < len(CELLS):
        for message in await pull.fetch(1, timeout=SECONDS):
            found.append(event("nats", message.headers or {}, message.data))
            await message.ack()
    await client.close()
    return found


async def make_streams(world: World) -> None:
    client = await world.nats_client()
    await client.jetstream().add_stream(name="BEDS", subjects=["beds.*"])
    await client.jetstream().add_stream(name="OUT", subjects=["out.>"])
    await client.close()


def cells(found: Found) -> set[tuple[str, str]]:
    """Return which cells are there; every event must be as it was sent, and a mapped one must have an id."""
    seen = set()
    for each in found:
        protocol, mode = each["source"].rsplit("/", 1)[-1], each["type"].rsplit(".", 1)[-1]
        expected = attributes(protocol, mode)
        assert {name: each.get(name) for name in expected} == expected, each
        assert each["id"] and each["data"] == DATA, each
        seen.add((protocol, mode))
    return seen


def catalog(world: World) -> dict[str, Any]:
    """Return one endpoint a protocol; each has CloudEvents by type, and one native definition of its own."""
    trace, row = {"name": "traceparent", "value": "{trace}"}, {"name": "row", "value": "{row}"}
    named = {"row": {"value": "{row}"}, "traceparent": {"value": "{trace}"}}
    told: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
        "kafka": (world.kafka.sasl, {"topic": "beds"}, {"topic": {"value": "beds"}, "headers": [row, trace]}),
        "http": ("", {"path": "/beds"}, {"path": {"value": "/beds", "type": "uritemplate"}, "headers": [row, trace]}),
        "mqtt": (
            world.mqtt.uri,
            {"topicfilter": "beds/#"},
            {"topic_name": {"value": "beds/{row}", "type": "uritemplate"}, "user_properties": [trace]},
        ),
        "amqp": (world.amqp.uri, {"node": world.queues[0]}, {"application-properties": named}),
        "nats": (
            world.nats.uri,
            {"subject": "beds.*", "stream": "BEDS", "durable": "router"},
            {"subject": {"value": "beds.{row}", "type": "uritemplate"}, "headers": [trace]},
        ),
    }
    endpoints, groups = {}, {}
    for name, (uri, options, native) in told.items():
        mapped = plain.event("watered.native", protocol=PROTOCOLS[name], protocoloptions=native)
        values = {"source": f"/beds/{name}", "subject": "north/{row}", "traceparent": "{trace}"}
        mapped["envelopemetadata"] |= {attribute: {"value": value} for attribute, value in values.items()}
        groups[name] = {mode: plain.event(f"watered.{mode}") for mode in MODES[:2]} | {"native": mapped}
        endpoints[name] = plain.endpoint(PROTOCOLS[name], options, name, uri=uri)
    return plain.catalog(endpoints, **groups)


def settings(world: World, hook: Webhook, folder: Path) -> dict[str, Any]:
    """Return the router's settings: every protocol is a source, and every event goes to every protocol."""
    sinks: dict[str, dict[str, Any]] = {
        "kafka": {"type": "kafka", "bootstrap_servers": world.kafka.sasl, "topic": "out"},
        "mqtt": {"type": "mqtt", "uri": world.mqtt.uri, "topic": "out/{messagegroup}"},
        "amqp": {"type": "amqp", "uri": world.amqp.uri, "node": world.queues[1]},
        "nats": {"type": "nats", "uri": world.nats.uri, "subject": "out.{messagegroup}"},
        "http": {"type": "http", "url": f"{hook.url}/events"},
    }
    sinks = {name: {**sink, **world.login(name)} for name, sink in sinks.items()}
    tls = {"cert": str(world.pair.certificate), "key": str(world.pair.key)}
    return plain.routed(
        plain.write(folder, catalog(world)),
        sinks | plain.lines(folder, "dead"),
        # What a source of HTTP is let in by is a matter of the gateway.
        sources=[
            {"endpoint": f"/endpoints/{name}", **(world.login(name) if name != "http" else {})} for name in PROTOCOLS
        ],
        http={"port": world.port, "tls": tls, "auth": {"bearer": {"tests": "${BEDS_TOKEN}"}}},
    )


def test_all_modes_of_every_protocol_reach_every_protocol_with_tls_and_credentials(
    world: World, router: RouterProcess, tmp_path: Path
) -> None:
    right = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    published: Found = []
    asyncio.run(make_streams(world))
    with Webhook(lambda request: Answer(202 if request.header("Authorization") == right else 401), world.pair) as hook:
        router.configure(settings(world, hook, tmp_path))
        reader = world.mqtt_client()
        reader.on_message = lambda _, __, told: published.append(
            event("mqtt", dict(told.properties.UserProperty), bytes(told.payload))  # type: ignore[union-attr]
        )
        reader.subscribe("out/#", qos=1)
        router.start(environ={"BEDS_PASSWORD": PASSWORD, "BEDS_TOKEN": TOKEN})
        send(world)
        log = lambda: f"all cells\n{router.log[-4000:]}"  # noqa: E731
        wait_until(lambda: min(len(hook.taken), len(published)) >= len(CELLS), SECONDS, log)
        reader.disconnect()
        reader.loop_stop()
        assert cells([{**taken.attributes(), "data": taken.body} for taken in hook.taken]) == CELLS
        assert cells(published) == CELLS
        assert cells(asyncio.run(read_nats(world))) == CELLS
        assert cells(read_amqp(world)) == CELLS
        assert cells(read_kafka(world)) == CELLS
        assert not plain.lines_of(tmp_path / "dead")
        assert router.stop() == 0
    files = [path for path in (tmp_path / "router").rglob("*") if path.is_file()]
    written = b"\n".join(path.read_bytes() for path in files)
    secrets = (PASSWORD, TOKEN, world.seed.read_text())
    assert files and not [secret for secret in secrets if secret.encode() in written]
