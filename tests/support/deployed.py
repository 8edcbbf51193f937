"""The settings files of brokers that docker-compose.yml mounts; the brokers of the tests run on the same."""

from __future__ import annotations

from pathlib import Path
from typing import Final

COMPOSE: Final = Path(__file__).resolve().parents[2] / "deploy" / "compose"
MOSQUITTO: Final = COMPOSE / "mosquitto" / "mosquitto.conf"
NATS: Final = COMPOSE / "nats.conf"
KAFKA: Final = COMPOSE / "kafka.properties"
QPID: Final = COMPOSE / "amqp" / "broker.json"
QPID_LOGGING: Final = COMPOSE / "amqp" / "logback.xml"
ALL: Final = (MOSQUITTO, NATS, KAFKA, QPID, QPID_LOGGING)
