"""The settings files of brokers that docker-compose.yml mounts; the brokers of the tests run on the same."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Final

COMPOSE: Final = Path(__file__).resolve().parents[2] / "deploy" / "compose"
MOSQUITTO: Final = COMPOSE / "mosquitto" / "mosquitto.conf"
MOSQUITTO_PLACE: Final = COMPOSE / "mosquitto" / "local.d" / "compose.conf"
MOSQUITTO_USERS: Final = COMPOSE / "mosquitto" / "with-users.sh"
NATS: Final = COMPOSE / "nats" / "nats.conf"
NATS_PLACE: Final = COMPOSE / "nats" / "compose.conf"
KAFKA: Final = COMPOSE / "kafka.properties"
KAFKA_CLIENT: Final = COMPOSE / "kafka-client.properties"
QPID: Final = COMPOSE / "amqp" / "broker.json"
QPID_LOGGING: Final = COMPOSE / "amqp" / "logback.xml"
ALL: Final = (
    *(MOSQUITTO, MOSQUITTO_PLACE, MOSQUITTO_USERS, NATS, NATS_PLACE),
    *(KAFKA, KAFKA_CLIENT, QPID, QPID_LOGGING),
)


# The examples of ``deploy/examples``: where they are, and their senders.

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "deploy" / "examples"
NAMES: Final = ("amqp", "http", "kafka", "mqtt", "nats")
EXPECTED: Final[dict[str, list[str]]] = {
    "amqp": ["com.example.workshop.ordered", "com.example.workshop.urgent", "no-match"],
    "http": ["com.example.shop.order.placed"] * 3 + ["no-match", "schema-violation"],
    "kafka": ["com.example.order.paid", "com.example.order.placed", "com.example.till.sale", "no-match"],
    "mqtt": ["com.example.plant.pressure", "com.example.plant.reading", "com.example.plant.temperature", "no-match"],
    "nats": ["com.example.fleet.moved", "com.example.fleet.parked", "no-match"],
}
"""What the messages of each become, by type or reason, sorted."""


def sender(name: str) -> Any:
    """Load ``send.py`` of an example; it takes its broker from the environment as that is now."""
    spec = importlib.util.spec_from_file_location(f"send_{name}", EXAMPLES / name / "send.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
