"""What a first catalog says of each protocol, and the broker that one tries it with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

GROUP: Final = "Garden"
MOISTURE: Final = "com.example.garden.moisture"
KAFKA_IMAGE: Final = "apache/kafka:4.1.1"


@dataclass(frozen=True, slots=True)
class First:
    """One protocol in the first files.

    ``options`` and ``address`` are those of the endpoint. ``message`` says how a message that is no CloudEvent is
    known; None where only CloudEvents are taken. ``services`` are those of the compose file, by name.
    """

    name: str
    protocol: str
    options: Mapping[str, str]
    address: str = ""
    message: Mapping[str, Any] | None = None
    services: Mapping[str, Any] = field(default_factory=dict)

    @property
    def endpoint(self) -> str:
        """Its endpoint's id."""
        return f"garden-{self.name}"


def _template(value: str) -> dict[str, str]:
    return {"value": value, "type": "uritemplate"}


def _loopback(port: int) -> list[str]:
    return [f"127.0.0.1:{port}:{port}"]


_TOPIC: Final = (
    "until /opt/kafka/bin/kafka-topics.sh --bootstrap-server localhost:9092"
    " --create --if-not-exists --topic garden --partitions 4; do sleep 1; done"
)
PROTOCOLS: Final[Sequence[First]] = (
    First("http", "HTTP", {"path": "/beds/{bed}/{what}"}, message={"path": _template("/beds/{bed}/moisture")}),
    First(
        "kafka",
        "KAFKA",
        {"topic": "garden"},
        "kafka://localhost:9092",
        services={
            "kafka": {"image": KAFKA_IMAGE, "ports": _loopback(9092)},
            # In the network of the broker, whose address is localhost for clients outside as well.
            "topic": {
                "image": KAFKA_IMAGE,
                "network_mode": "service:kafka",
                "depends_on": ["kafka"],
                "entrypoint": ["/bin/bash", "-c"],
                "command": [_TOPIC],
            },
        },
    ),
    First(
        "mqtt",
        "MQTT/5.0",
        {"topic": "garden/+/moisture"},
        "mqtt://localhost:1883",
        {"topic_name": _template("garden/{bed}/moisture")},
        {
            "mqtt": {
                "image": "eclipse-mosquitto:2.0.22",
                "command": ["mosquitto", "-c", "/mosquitto-no-auth.conf"],
                "ports": _loopback(1883),
            }
        },
    ),
    First(
        "amqp",
        "AMQP/1.0",
        {"node": "garden"},
        "amqp://localhost:5672",
        services={
            "amqp": {
                "image": "apache/activemq-artemis:2.42.0",
                "environment": {"ANONYMOUS_LOGIN": "true"},
                "ports": _loopback(5672),
            }
        },
    ),
    First(
        "nats",
        "NATS",
        {"subject": "garden.*.moisture"},
        "nats://localhost:4222",
        {"subject": _template("garden.{bed}.moisture")},
        {"nats": {"image": "nats:2.11.8-alpine", "command": ["-js"], "ports": _loopback(4222)}},
    ),
)


def catalog_of(chosen: Sequence[First]) -> dict[str, Any]:
    """Return a catalog with an endpoint for each protocol, and one event that all of them carry."""
    return {
        "specversion": "1.0-rc4",
        "endpoints": {each.endpoint: _endpoint(each) for each in chosen},
        "messagegroups": {
            GROUP: {"messages": {f"{GROUP}.Moisture": _event()}},
            **{_group(each): {"messages": _native(each)} for each in chosen if each.message is not None},
        },
    }


def compose_of(chosen: Sequence[First]) -> dict[str, Any]:
    """Return the brokers of the protocols as a compose file has them; empty where none needs one."""
    services = {name: service for each in chosen for name, service in each.services.items()}
    return {"services": services} if services else {}


def _endpoint(first: First) -> dict[str, Any]:
    where = {"endpoints": [{"uri": first.address}]} if first.address else {}
    groups = [GROUP] if first.message is None else [GROUP, _group(first)]
    return {
        "usage": ["consumer"],
        "protocol": first.protocol,
        "protocoloptions": {**where, "options": dict(first.options)},
        "messagegroups": [f"/messagegroups/{group}" for group in groups],
    }


def _group(first: First) -> str:
    return f"{GROUP}.{first.name.capitalize()}"


def _event() -> dict[str, Any]:
    schema = {"type": "object", "required": ["percent"], "properties": {"percent": {"type": "number"}}}
    return {
        "description": "How wet a bed is, sent as a CloudEvent.",
        "envelope": "CloudEvents/1.0",
        "envelopemetadata": {"type": {"value": MOISTURE}, "source": _template("/beds/{bed}")},
        "datacontenttype": "application/json",
        "dataschemaformat": "JsonSchema/draft-07",
        "dataschema": schema,
    }


def _native(first: First) -> dict[str, Any]:
    """Return a definition of messages that are no CloudEvents, by id: they become the same event."""
    return {
        f"{_group(first)}.Moisture": {
            "description": f"The same, as a plain {first.name.upper()} message; the placeholder goes into the source.",
            "basemessage": f"/messagegroups/{GROUP}/messages/{GROUP}.Moisture",
            "envelope": "CloudEvents/1.0",
            "protocol": first.protocol,
            "protocoloptions": dict(first.message or {}),
        }
    }
