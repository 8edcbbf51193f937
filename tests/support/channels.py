"""One channel into the router for each push protocol: the real broker, the endpoint in the catalog, and its sender."""

from __future__ import annotations

import asyncio
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import nats

from tests.support.mosquitto import Mosquitto
from tests.support.natsserver import NatsServer
from tests.support.ports import free_ports
from tests.support.processes import BrokerProcess
from tests.support.qpid import QpidBroker
from tests.support.senders import AmqpEventSender, HttpSender, MqttSender, NatsSender, Sender


class Channel(ABC):
    """What is there for one protocol. Where the router is the server, ``broker`` is None and ``port`` the router's."""

    protocol: str
    version: str
    broker: BrokerProcess | None = None
    port = 0

    @abstractmethod
    def sender(self, count: int) -> Sender:
        """Return a sender that is not yet started; the broker has to be there."""

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Return the protocol options of the endpoint."""

    def save(self, sender: Sender) -> None:
        """Make sure that the broker's disk has what it confirmed; the sender rests until it is told to go.

        Mosquitto confirms what it has in memory, so it is told to save; of others a confirmation says all.
        """
        if isinstance(self.broker, Mosquitto):
            sender.hold()
            self.broker.save()

    def endpoint(self) -> dict[str, Any]:
        """Return the endpoint for the catalog."""
        return {
            "usage": ["consumer"],
            "protocol": self.version,
            "protocoloptions": self.options(),
            "messagegroups": ["/messagegroups/plant"],
        }


class MqttChannel(Channel):
    """Mosquitto."""

    protocol, version = "mqtt", "MQTT/5.0"

    def __init__(self, folder: Path) -> None:
        self.broker: Mosquitto = Mosquitto(folder)
        self.broker.start()

    def sender(self, count: int) -> Sender:
        return MqttSender(count, self.broker.uri, "plants")

    def options(self) -> dict[str, Any]:
        return {"endpoints": [{"uri": self.broker.uri}], "options": {"topicfilter": "plants/#"}}


class AmqpChannel(Channel):
    """Qpid Broker-J and a durable queue."""

    protocol, version = "amqp", "AMQP/1.0"

    def __init__(self, folder: Path) -> None:
        self.broker: QpidBroker = QpidBroker(folder)
        self.broker.start()
        self._queue = f"q.{uuid.uuid4().hex[:12]}"

    def sender(self, count: int) -> Sender:
        return AmqpEventSender(count, self.broker.uri, self._queue)

    def options(self) -> dict[str, Any]:
        return {"endpoints": [{"uri": self.broker.uri}], "options": {"node": self._queue}}


class NatsChannel(Channel):
    """JetStream with a durable consumer, which delivers again after two seconds what was not acknowledged."""

    protocol, version = "nats", "NATS"

    def __init__(self, folder: Path) -> None:
        self.broker: NatsServer = NatsServer(folder)
        self.broker.start()
        asyncio.run(self._make())

    async def _make(self) -> None:
        client = await nats.connect(self.broker.uri)
        await client.jetstream().add_stream(name="PLANTS", subjects=["plants.*"])
        await client.close()

    def sender(self, count: int) -> Sender:
        return NatsSender(count, self.broker.uri, "plants")

    def options(self) -> dict[str, Any]:
        options = {"subject": "plants.*", "stream": "PLANTS", "durable": "router", "ackwait": 2}
        return {"endpoints": [{"uri": self.broker.uri}], "options": options}


class HttpChannel(Channel):
    """The router's own port."""

    protocol, version = "http", "HTTP"

    def __init__(self, folder: Path) -> None:
        (self.port,) = free_ports(1)

    def sender(self, count: int) -> Sender:
        return HttpSender(count, self.port, "/plants")

    def options(self) -> dict[str, Any]:
        return {"options": {"path": "/plants"}}


KINDS: Final[dict[str, type[MqttChannel | AmqpChannel | NatsChannel | HttpChannel]]] = {
    kind.protocol: kind for kind in (MqttChannel, AmqpChannel, NatsChannel, HttpChannel)
}


@contextmanager
def channels(protocols: Sequence[str], folder: Path) -> Iterator[list[Channel]]:
    """Yield the channels of these protocols, with their brokers running; ended afterwards."""
    with ExitStack() as ending:
        opened: list[Channel] = []
        for protocol in protocols:
            channel = KINDS[protocol](folder / protocol)
            if channel.broker is not None:
                ending.callback(channel.broker.kill)
            opened.append(channel)
        yield opened


def catalog(opened: Sequence[Channel]) -> dict[str, Any]:
    """Return a catalog with an endpoint for each channel, and one definition for all: events of type ``counted``."""
    message = {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": "counted"}}}
    return {
        "messagegroups": {"plant": {"messages": {"counted": message}}},
        "endpoints": {channel.protocol: channel.endpoint() for channel in opened},
    }
