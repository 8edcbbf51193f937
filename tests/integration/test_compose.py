"""What docker-compose.yml starts, without containers: the four brokers on their own files, and the router on its own.

Only addresses and folders differ, and they are given as an operator would give them: by environment. Each broker lets
in nobody but the user that the router is.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import nats
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from proton import ConnectionException, Message
from proton.utils import BlockingConnection

from tests.support import composed, plain
from tests.support.composed import PASSWORDS, USER, ComposedKafka, ComposedMosquitto, ComposedNats, ComposedQpid
from tests.support.deployed import COMPOSE
from tests.support.kafka import create_topics, produce, read_all, written
from tests.support.mqtt import Client
from tests.support.ports import free_ports
from tests.support.router import RouterProcess, submit_options
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker
SECONDS: Final = 300.0
TYPE: Final = "Contoso.Sensors.Temperature"
SENSORS: Final = "/plants/7/sensors"
DATA: Final = b'{"degrees": 21.50}'
TOPICS: Final = ("plant.telemetry", "events.Contoso.Sensors", "events.Contoso.Alarms", "dead-letters")


@dataclass(frozen=True)
class Brokers:
    """One of each, on the files that the containers mount."""

    kafka: ComposedKafka
    mqtt: ComposedMosquitto
    amqp: ComposedQpid
    nats: ComposedNats


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    folder = tmp_path_factory.mktemp("brokers")
    started = Brokers(
        ComposedKafka(folder / "kafka"),
        ComposedMosquitto(folder / "mqtt"),
        ComposedQpid(folder / "amqp"),
        ComposedNats(folder / "nats"),
    )
    with ExitStack() as ending:
        for broker in (started.kafka, started.mqtt, started.amqp, started.nats):
            ending.callback(broker.kill)
            broker.start()
        create_topics(started.kafka.bootstrap, TOPICS, 2)
        yield started


def environment(brokers: Brokers, folder: Path, http: int, metrics: int) -> dict[str, str]:
    """Everything that is elsewhere than in a container; sources by their place in the file."""
    return {
        **composed.environment("router"),
        **submit_options(),
        "XROUTER_SOURCES__0__BOOTSTRAP_SERVERS": brokers.kafka.internal,
        "XROUTER_SOURCES__1__URIS": brokers.mqtt.uri,
        "XROUTER_SOURCES__2__URIS": brokers.amqp.uri,
        "XROUTER_SOURCES__3__URIS": brokers.nats.uri,
        "XROUTER_SINKS__BUS__BOOTSTRAP_SERVERS": brokers.kafka.internal,
        "XROUTER_SINKS__DEAD__BOOTSTRAP_SERVERS": brokers.kafka.internal,
        "XROUTER_SINKS__BOARD__URI": brokers.mqtt.uri,
        "XROUTER_SINKS__LAKE__PATH": str(folder / "lake"),
        "XROUTER_STATE": str(folder / "state"),
        "XROUTER_HTTP__HOST": "127.0.0.1",
        "XROUTER_HTTP__PORT": str(http),
        "XROUTER_METRICS__HOST": "127.0.0.1",
        "XROUTER_METRICS__PORT": str(metrics),
    }


def login(broker: str) -> dict[str, str]:
    """Who the router is there."""
    return {"username": USER, "password": PASSWORDS[f"PASSWORD_{broker}"]}


def connect_amqp(broker: ComposedQpid, password: str) -> BlockingConnection:
    """Log in with a password; an empty one is no login."""
    if not password:
        return BlockingConnection(broker.uri, timeout=SECONDS)
    return BlockingConnection(broker.uri, timeout=SECONDS, user=USER, password=password, allow_insecure_mechs=True)


def reading(protocol: str) -> dict[str, str]:
    """Return the attributes of a sensor that is named for its protocol."""
    return plain.attributes(TYPE, protocol, f"{SENSORS}/{protocol}")


def send(brokers: Brokers, http: int) -> None:
    """One message through each protocol: four readings, and an alarm by HTTP."""
    headers = plain.kafka_headers(TYPE, "kafka", f"{SENSORS}/kafka", plain.JSON)
    produce(brokers.kafka.bootstrap, TOPICS[0], [(None, DATA, headers)])
    with Client(brokers.mqtt.uri, **login("MQTT")) as client:
        told = list(reading("mqtt").items())
        client.send("plants/7", DATA, UserProperty=told, ContentType="application/json")
    connection = connect_amqp(brokers.amqp, PASSWORDS["PASSWORD_AMQP"])
    try:
        told_amqp = {f"cloudEvents:{name}": text for name, text in reading("amqp").items()}
        message = Message(body=DATA, inferred=True, content_type="application/json", properties=told_amqp, durable=True)
        connection.create_sender("plant.telemetry").send(message)
    finally:
        connection.close()
    asyncio.run(send_nats(brokers.nats.uri))
    plain.post(http, "/plants/7/alarms", {"alarm": "hot"})


async def send_nats(uri: str) -> None:
    client = await nats.connect(uri, user=USER, password=PASSWORDS["PASSWORD_NATS"])
    headers = {f"ce-{name}": text for name, text in reading("nats").items()}
    await client.publish("plants.7", DATA, headers={**headers, "content-type": "application/json"})
    await client.close()


@pytest.mark.full
def test_one_message_through_each_protocol(brokers: Brokers, router: RouterProcess, tmp_path: Path) -> None:
    (http,) = free_ports(1)
    router.config = COMPOSE / "router.yaml"
    kafka = brokers.kafka.bootstrap
    router.start(environ=environment(brokers, tmp_path, http, router.port))
    wait_until(lambda: router.readiness().get("ready"), SECONDS, lambda: f"all gateways\n{router.log[-4000:]}")
    with Client(brokers.mqtt.uri, **login("MQTT")) as board:
        board.subscribe("alarms/#")
        send(brokers, http)

        def arrived() -> int:
            return written(kafka, *TOPICS[1:])

        wait_until(lambda: arrived() >= 5 and board.messages, SECONDS, lambda: f"five events\n{router.log[-4000:]}")
    assert router.stop() == 0, router.log[-3000:]
    readings = {record.header("ce_source"): record.value for record in read_all(kafka, "events.Contoso.Sensors")}
    assert readings == {f"{SENSORS}/{name}": DATA for name in ("kafka", "mqtt", "amqp", "nats")}
    [alarm] = read_all(kafka, "events.Contoso.Alarms")
    assert json.loads(alarm.header("xrouter-context") or "{}") == {"plant": "7"}
    assert board.messages[0].topic == "alarms/Contoso.Alarms.Raised"
    assert not read_all(kafka, "dead-letters")


@pytest.mark.parametrize("listener", ["internal", "loopback"])
def test_kafka_lets_nobody_in_without_the_password(brokers: Brokers, listener: str) -> None:
    address: str = getattr(brokers.kafka, listener)
    # A request for metadata: an open listener answers it, these hang up.
    request = bytes.fromhex("0000000e 0003 0001 00000007 ffff ffffffff")
    assert ask(brokers.kafka.bootstrap, request)[4:8] == bytes.fromhex("00000007")
    assert ask(address, request) == b""
    assert not kafka_accepts(address, "wrong")
    assert kafka_accepts(address, PASSWORDS["PASSWORD_KAFKA"])


@pytest.mark.parametrize(("password", "answer"), [("", 5), ("wrong", 5), (PASSWORDS["PASSWORD_MQTT"], 0)])
def test_mqtt_lets_nobody_in_without_the_password(brokers: Brokers, password: str, answer: int) -> None:
    known = b"".join(len(text).to_bytes(2) + text.encode() for text in (USER, password)) if password else b""
    # CONNECT of MQTT 3.1.1 with a clean session, client "x"; the last byte of the answer is 5 for "not authorized".
    body = b"\0\4MQTT\4" + (b"\xc2" if known else b"\x02") + b"\0\x3c\0\1x" + known
    assert ask(f"127.0.0.1:{brokers.mqtt.port}", bytes((0x10, len(body))) + body) == bytes((0x20, 2, 0, answer))


@pytest.mark.parametrize(
    ("password", "answer"), [("", b"-ERR"), ("wrong", b"-ERR"), (PASSWORDS["PASSWORD_NATS"], b"PONG")]
)
def test_nats_lets_nobody_in_without_the_password(brokers: Brokers, password: str, answer: bytes) -> None:
    known = {"user": USER, "pass": password} if password else {}
    with socket.create_connection(("127.0.0.1", brokers.nats.port), SECONDS) as connection:
        lines = connection.makefile("rb")
        assert lines.readline().startswith(b"INFO")
        connection.sendall(f"CONNECT {json.dumps({'verbose': False, **known})}\r\nPING\r\n".encode())
        # The server may ask for a sign of life before it answers ours.
        assert next(line for line in lines if line != b"PING\r\n")[:4] == answer


@pytest.mark.parametrize("password", ["", "wrong"])
def test_amqp_lets_nobody_in_without_the_password(brokers: Brokers, password: str) -> None:
    with pytest.raises(ConnectionException, match="unauthorized-access"):
        connect_amqp(brokers.amqp, password)
    connect_amqp(brokers.amqp, PASSWORDS["PASSWORD_AMQP"]).close()


def ask(address: str, request: bytes) -> bytes:
    """Send bytes to a server, and return the first that come back; none when it hangs up."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), SECONDS) as connection:
        connection.sendall(request)
        return connection.recv(1000)


def kafka_accepts(address: str, password: str) -> bool:
    """Log in, and tell whether the broker accepts or refuses that."""
    refusals: list[bool] = []

    def failed(error: KafkaError) -> None:
        if error.code() == KafkaError._AUTHENTICATION:
            refusals.append(True)

    known = {"sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": password}
    place = {"bootstrap.servers": address, "security.protocol": "SASL_PLAINTEXT"}
    told: dict[str, Any] = {"error_cb": failed, "log_level": 0}
    client = AdminClient({**place, **known, **told})

    def decided() -> str:
        with suppress(KafkaException):  # until it is connected
            return "accepted" if client.list_topics(timeout=2).brokers else ""
        client.poll(0)
        return "refused" if refusals else ""

    return wait_until(decided, SECONDS, "a login that is accepted or refused") == "accepted"
