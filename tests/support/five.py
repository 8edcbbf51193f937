"""One router between brokers of all five protocols: where they are, what its catalog and settings say, what is sent.

On each of the five sources come a binary and a structured CloudEvent and a native message that its definition maps. All
are part of a trace: events by the distributed tracing extension, native messages by a header that is mapped to it. The
brokers let anybody in, or only who has credentials, over TLS.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.authority import Pair
from tests.support.webhook import Webhook

PROTOCOLS: Final = {"kafka": "KAFKA", "http": "HTTP", "mqtt": "MQTT/5.0", "amqp": "AMQP/1.0", "nats": "NATS"}
MODES: Final = ("binary", "structured", "native")
CELLS: Final = frozenset((protocol, mode) for protocol in PROTOCOLS for mode in MODES)
TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STATE: Final = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
DATA: Final = b'{"litres": 1.50, "bed": "\\u00e4"}'


@dataclass(frozen=True, slots=True)
class Keys:
    """What clients of secured brokers need: authorities to trust by protocol, and what they prove who they are with.

    ``certificate`` is for HTTP servers. ``settings`` are those of the router's sources and sinks by protocol,
    ``gateway`` those of its HTTP gateway; both refer to secrets in ``environ``.
    """

    authorities: Mapping[str, Path]
    certificate: Pair
    username: str
    password: str = field(repr=False)
    token: str = field(repr=False)
    seed: Path
    settings: Mapping[str, Mapping[str, Any]]
    gateway: Mapping[str, Any]
    environ: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class World:
    """The brokers: what the router is told of each, and the queues and topics. ``own_kafka`` is for the tests alone."""

    kafka: str
    own_kafka: str
    topic: str
    out_topic: str
    mqtt: str
    amqp: str
    queue: str
    out_queue: str
    nats: str
    http_port: int
    keys: Keys | None = None

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment that the router needs."""
        return self.keys.environ if self.keys else {}

    def login(self, protocol: str) -> dict[str, Any]:
        """The settings of a source or sink that let it in."""
        return dict(self.keys.settings.get(protocol, {})) if self.keys else {}


def attributes(protocol: str, mode: str) -> dict[str, str]:
    """Return what the event of one cell of the matrix has."""
    made = {"specversion": "1.0", "source": f"/beds/{protocol}", "type": f"watered.{mode}", "subject": "north/7"}
    made["traceparent"] = TRACE
    return made if mode == "native" else {**made, "id": f"{protocol}-{mode}", "tracestate": STATE}


def structured(protocol: str) -> bytes:
    """Return the structured event of a protocol."""
    told = {**attributes(protocol, "structured"), "datacontenttype": "application/json"}
    return json.dumps(told)[:-1].encode() + b', "data": ' + DATA + b"}"


def cells(found: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """Return which cells are there; every event must be as it was sent, and a mapped one must have an id."""
    seen = set()
    for event in found:
        protocol, mode = event["source"].rsplit("/", 1)[-1], event["type"].rsplit(".", 1)[-1]
        expected = attributes(protocol, mode)
        assert {name: event.get(name) for name in expected} == expected, event
        assert event["id"] and event["data"] == DATA, event
        seen.add((protocol, mode))
    return seen


def catalog(world: World) -> dict[str, Any]:
    """Return one endpoint a protocol; each has CloudEvents by type, and one native definition of its own."""
    options: dict[str, dict[str, Any]] = {
        "kafka": {"topic": world.topic},
        "http": {"path": "/beds"},
        "mqtt": {"topicfilter": "beds/#"},
        "amqp": {"node": world.queue},
        "nats": {"subject": "beds.*", "stream": "BEDS", "durable": "router"},
    }
    uris = {
        "kafka": world.kafka,
        "http": "http://127.0.0.1/beds",
        "mqtt": world.mqtt,
        "amqp": world.amqp,
        "nats": world.nats,
    }
    groups: dict[str, Any] = {}
    endpoints: dict[str, Any] = {}
    for name, protocol in PROTOCOLS.items():
        messages: dict[str, Any] = {
            mode: {"envelopemetadata": {"type": {"value": f"watered.{mode}"}}} for mode in MODES[:2]
        }
        messages["native"] = {
            "protocol": protocol,
            "protocoloptions": _native(world)[name],
            "envelopemetadata": {
                "type": {"value": "watered.native"},
                "source": {"value": f"/beds/{name}"},
                "subject": {"value": "north/{row}"},
                "traceparent": {"value": "{trace}"},
            },
        }
        groups[name] = {"envelope": "CloudEvents/1.0", "messages": messages}
        endpoints[name] = {
            "usage": ["consumer"],
            "protocol": protocol,
            "protocoloptions": {"endpoints": [{"uri": uris[name]}], "options": options[name]},
            "messagegroups": [f"/messagegroups/{name}"],
        }
    return {"messagegroups": groups, "endpoints": endpoints}


def settings(world: World, hook: Webhook, folder: Path) -> dict[str, Any]:
    """Return the router's settings: every protocol is a source, and every event goes to every protocol.

    The catalog is written to *folder*; dead letters go to ``dead`` in there.
    """
    source = folder / "catalog.json"
    source.write_text(json.dumps(catalog(world)))
    sinks: dict[str, Any] = {
        "kafka": {"type": "kafka", "bootstrap_servers": world.kafka, "topic": world.out_topic},
        "mqtt": {"type": "mqtt", "uri": world.mqtt, "topic": "out/{messagegroup}"},
        "amqp": {"type": "amqp", "uri": world.amqp, "node": world.out_queue},
        "nats": {"type": "nats", "uri": world.nats, "subject": "out.{messagegroup}"},
        "http": {"type": "http", "url": f"{hook.url}/events"},
    }
    sinks = {name: {**sink, **world.login(name)} for name, sink in sinks.items()}
    return {
        "catalog": {"source": str(source)},
        # What a source of HTTP is let in by is a matter of the gateway.
        "sources": [
            {"endpoint": f"/endpoints/{name}", **(world.login(name) if name != "http" else {})} for name in PROTOCOLS
        ],
        "http": {"port": world.http_port, **(world.keys.gateway if world.keys else {})},
        "sinks": {**sinks, "dead": {"type": "jsonl", "path": str(folder / "dead")}},
        "routes": [{"to": list(sinks)}],
        "dead_letters": {"sinks": ["dead"]},
    }


def _native(world: World) -> dict[str, Any]:
    """Return what the native definition of each protocol takes."""
    trace = {"name": "traceparent", "value": "{trace}"}
    row = {"name": "row", "value": "{row}"}
    return {
        "kafka": {"topic": {"value": world.topic}, "headers": [row, trace]},
        "http": {"path": {"value": "/beds", "type": "uritemplate"}, "headers": [row, trace]},
        "mqtt": {"topic_name": {"value": "beds/{row}", "type": "uritemplate"}, "user_properties": [trace]},
        "amqp": {"application-properties": {"row": {"value": "{row}"}, "traceparent": {"value": "{trace}"}}},
        "nats": {"subject": {"value": "beds.{row}", "type": "uritemplate"}, "headers": [trace]},
    }
