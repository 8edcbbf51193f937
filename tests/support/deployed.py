"""The settings files of brokers that docker-compose.yml mounts; the brokers of the tests run on the same."""

from __future__ import annotations

from pathlib import Path
from typing import Final

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
