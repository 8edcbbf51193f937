"""The brokers of docker-compose.yml as it starts them: on its files, with its environment, for its user alone.

Those of other tests take the same files, but let anybody in. Here only addresses and folders are others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from bindings.sending import Outbound
from router.sinks.messages.definitions import EndpointComposer
from router.sinks.messages.sink import RoutedEvent, UnsendableMessage
from tests.support import deployed
from tests.support.brokers import KafkaBroker
from tests.support.mqtt import Mosquitto
from tests.support.nats import NatsServer
from tests.support.ports import LOOPBACK, free_ports
from tests.support.qpid import QpidBroker

USER: Final = "router"
PASSWORDS: Final[Mapping[str, str]] = {
    "PASSWORD_KAFKA": "kafka1",
    "PASSWORD_MQTT": "mqtt2",
    "PASSWORD_AMQP": "amqp3",
    # NATS would read it as a number.
    "PASSWORD_NATS": "4e40000",
}
"""What stands in ``.env``."""
_COMPOSE: Final = deployed.COMPOSE.parents[1] / "docker-compose.yml"
_LISTENERS: Final = """
listeners=PLAINTEXT://{host}:{port},INTERNAL://{host}:{internal},LOOPBACK://{host}:{loopback},\
CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port},INTERNAL://{host}:{internal},LOOPBACK://{host}:{loopback}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,{protocols}
inter.broker.listener.name={between}
"""


def service(name: str) -> dict[str, Any]:
    """Return a service of the compose file."""
    found: dict[str, Any] = yaml.safe_load(_COMPOSE.read_text(encoding="utf-8"))["services"][name]
    return found


def environment(name: str) -> dict[str, str]:
    """Return the passwords that a service gets by its environment, as the engine fills them in from ``.env``."""
    given: dict[str, str] = service(name)["environment"]
    return {
        variable: re.sub(r"\$\{(\w+):\?[^}]+\}", lambda hit: PASSWORDS[hit[1]], value)
        for variable, value in given.items()
        if variable in PASSWORDS
    }


class ComposedKafka(KafkaBroker):
    """``bootstrap`` asks for nothing, and is for the tests' own use; ``internal`` and ``loopback`` are as deployed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._ports = free_ports(2)

    @property
    def internal(self) -> str:
        """The bootstrap servers for other containers."""
        return f"{LOOPBACK}:{self._ports[0]}"

    @property
    def loopback(self) -> str:
        """The bootstrap servers for clients on the machine."""
        return f"{LOOPBACK}:{self._ports[1]}"

    def _environment(self) -> Mapping[str, str]:
        return environment("kafka")

    def _more_properties(self) -> str:
        given = service("kafka")["environment"]
        return _LISTENERS.format(
            host=LOOPBACK,
            port=self._port,
            internal=self._ports[0],
            loopback=self._ports[1],
            controller=self._controller_port,
            protocols=given["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"],
            between=given["KAFKA_INTER_BROKER_LISTENER_NAME"],
        )


class ComposedMosquitto(Mosquitto):
    """Its users are written by the script of the container."""

    def _environment(self) -> Mapping[str, str]:
        return environment("mqtt")

    def _command(self) -> list[str]:
        *started_there, program, option, file = super()._command()
        script = ["/bin/sh", str(deployed.MOSQUITTO_USERS), str(self._folder / "passwords")]
        return [*started_there, *script, program, option, file]

    def _configuration(self) -> str:
        places = {
            "listener 1883": f"listener {self.port} {LOOPBACK}",
            "password_file /tmp/passwords": f"password_file {self._folder / 'passwords'}",
            "persistence_location /mosquitto/data/": f"persistence_location {self._folder}/",
        }
        kept = deployed.MOSQUITTO_PLACE.read_text().splitlines()
        assert places.keys() < set(kept), f"{deployed.MOSQUITTO_PLACE} has other lines"
        return "\n".join([self._own_user(), *(places.get(line, line) for line in kept)]) + "\n"


class ComposedNats(NatsServer):
    """Its health is asked for on another port, as tests run side by side."""

    base = deployed.NATS_PLACE

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, http=f"{LOOPBACK}:{free_ports(1)[0]}")

    def _environment(self) -> Mapping[str, str]:
        return environment("nats")


class ComposedQpid(QpidBroker):
    """On the very file."""

    def _environment(self) -> Mapping[str, str]:
        return environment("amqp")

    def _initial(self) -> Path:
        return deployed.QPID


# Messages for an endpoint, one event at a time.


class OneByOne(EndpointComposer):
    """Composes one event, or raises why there can be no message."""

    def compose_one(self, event: RoutedEvent) -> Outbound:
        """Return the message for one event."""
        (made,) = self.compose([event])
        if isinstance(made, UnsendableMessage):
            raise made
        return made
