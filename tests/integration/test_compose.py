"""What docker-compose.yml starts, without containers: the four brokers on their own files, and the router on its own.

Only addresses and folders differ, and they are given as an operator would give them: by environment.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import nats
import pytest
from proton import Message
from proton.utils import BlockingConnection

from tests.support.brokers import KafkaBroker
from tests.support.deployed import COMPOSE
from tests.support.kafka import create_topics, ends, produce, read_all
from tests.support.mosquitto import Mosquitto
from tests.support.mqtt_sender import Client
from tests.support.natsserver import NatsServer
from tests.support.ports import free_ports
from tests.support.qpid import QpidBroker
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(420)]
SECONDS: Final = 120.0
DATA: Final = b'{"degrees": 21.50}'
TOPICS: Final = ("plant.telemetry", "events.Contoso.Sensors", "events.Contoso.Alarms", "dead-letters")


@dataclass(frozen=True)
class Brokers:
    """One of each, on the files that the containers mount."""

    kafka: KafkaBroker
    mqtt: Mosquitto
    amqp: QpidBroker
    nats: NatsServer


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    started = Brokers(
        KafkaBroker(tmp_path / "kafka"),
        Mosquitto(tmp_path / "mqtt"),
        QpidBroker(tmp_path / "amqp"),
        NatsServer(tmp_path / "nats"),
    )
    with ExitStack() as ending:
        for broker in (started.kafka, started.mqtt, started.amqp, started.nats):
            ending.callback(broker.kill)
            broker.launch()
        create_topics(started.kafka.bootstrap, TOPICS, 2)
        yield started


def environment(brokers: Brokers, folder: Path, http: int, metrics: int) -> dict[str, str]:
    """Everything that is elsewhere than in a container; sources by their place in the file."""
    return {
        "XROUTER_SOURCES__0__BOOTSTRAP_SERVERS": brokers.kafka.bootstrap,
        "XROUTER_SOURCES__1__URIS": brokers.mqtt.uri,
        "XROUTER_SOURCES__2__URIS": brokers.amqp.uri,
        "XROUTER_SOURCES__3__URIS": brokers.nats.uri,
        "XROUTER_SINKS__BUS__BOOTSTRAP_SERVERS": brokers.kafka.bootstrap,
        "XROUTER_SINKS__DEAD__BOOTSTRAP_SERVERS": brokers.kafka.bootstrap,
        "XROUTER_SINKS__BOARD__URI": brokers.mqtt.uri,
        "XROUTER_SINKS__LAKE__PATH": str(folder / "lake"),
        "XROUTER_STATE": str(folder / "state"),
        "XROUTER_HTTP__HOST": "127.0.0.1",
        "XROUTER_HTTP__PORT": str(http),
        "XROUTER_METRICS__HOST": "127.0.0.1",
        "XROUTER_METRICS__PORT": str(metrics),
    }


def attributes(protocol: str) -> dict[str, str]:
    """A reading of a sensor that is named for the protocol it came by."""
    source = f"/plants/7/sensors/{protocol}"
    return {"specversion": "1.0", "id": protocol, "type": "Contoso.Sensors.Temperature", "source": source}


def send(brokers: Brokers, http: int) -> None:
    """One message through each protocol: four readings, and an alarm by HTTP."""
    headers = [(f"ce_{name}", text.encode()) for name, text in attributes("kafka").items()]
    produce(brokers.kafka.bootstrap, TOPICS[0], [(None, DATA, [*headers, ("content-type", b"application/json")])])
    with Client(brokers.mqtt.uri) as client:
        told = list(attributes("mqtt").items())
        client.send("plants/7", DATA, UserProperty=told, ContentType="application/json")
    connection = BlockingConnection(brokers.amqp.uri, timeout=SECONDS)
    try:
        told_amqp = {f"cloudEvents:{name}": text for name, text in attributes("amqp").items()}
        message = Message(body=DATA, inferred=True, content_type="application/json", properties=told_amqp, durable=True)
        connection.create_sender("plant.telemetry").send(message)
    finally:
        connection.close()
    asyncio.run(send_nats(brokers.nats.uri))
    answer = httpx.post(f"http://127.0.0.1:{http}/plants/7/alarms", json={"alarm": "hot"})
    assert answer.status_code == 202


async def send_nats(uri: str) -> None:
    client = await nats.connect(uri)
    headers = {f"ce-{name}": text for name, text in attributes("nats").items()}
    await client.publish("plants.7", DATA, headers={**headers, "content-type": "application/json"})
    await client.close()


def test_one_message_through_each_protocol(brokers: Brokers, router: RouterProcess, tmp_path: Path) -> None:
    (http,) = free_ports(1)
    router.config = COMPOSE / "router.yaml"
    kafka = brokers.kafka.bootstrap
    router.start(environ=environment(brokers, tmp_path, http, router.port))
    wait_until(lambda: router.readiness().get("ready"), SECONDS, lambda: f"all gateways\n{router.log[-4000:]}")
    with Client(brokers.mqtt.uri) as board:
        board.subscribe("alarms/#")
        send(brokers, http)

        def arrived() -> int:
            return sum(sum(ends(kafka, topic).values()) for topic in TOPICS[1:])

        wait_until(lambda: arrived() >= 5 and board.messages, SECONDS, lambda: f"five events\n{router.log[-4000:]}")
    assert router.stop() == 0, router.log[-3000:]
    readings = {record.header("ce_source"): record.value for record in read_all(kafka, "events.Contoso.Sensors")}
    assert readings == {attributes(name)["source"]: DATA for name in ("kafka", "mqtt", "amqp", "nats")}
    [alarm] = read_all(kafka, "events.Contoso.Alarms")
    assert json.loads(alarm.header("xrouter-context") or "{}") == {"plant": "7"}
    assert board.messages[0].topic == "alarms/Contoso.Alarms.Raised"
    assert not read_all(kafka, "dead-letters")
