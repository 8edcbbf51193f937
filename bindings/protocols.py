"""The protocols this router speaks. A sixth one is a folder beside this file and a line in ``BINDINGS``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bindings.amqp import codec as amqp
from bindings.envelope import AttributeRule, Envelope, envelope_of
from bindings.http import codec as http
from bindings.kafka import codec as kafka
from bindings.mqtt import codec as mqtt
from bindings.nats import codec as nats
from bindings.parts import Part, Parts, first
from catalog.model import PROTOCOLS


@dataclass(frozen=True, slots=True)
class Binding:
    """How one protocol's records are taken apart and put together, and where CloudEvents attributes lie.

    ``id_key`` and ``time_key`` name the parts that give a mapped event its ``id`` and ``time``; ``binary`` is
    False where the protocol has no headers to carry attributes.
    """

    protocol: str
    parts: Callable[[Mapping[str, Any]], list[Part]]
    native: Callable[[list[Part]], dict[str, Any]]
    rule: AttributeRule
    id_key: str = ""
    time_key: str = ""
    binary: bool = True

    def envelope(self, parts: Parts, body: bytes | None, sniff: Callable[[], bool]) -> Envelope:
        """Read the envelope of a record of this protocol; see :func:`bindings.envelope.envelope_of`."""
        return envelope_of(parts, body, self.rule, sniff, binary=self.binary)


BINDINGS: Final = {
    binding.protocol: binding
    for binding in (
        Binding("KAFKA", kafka.parts, kafka.native, kafka.RULE, time_key="timestamp"),
        Binding("HTTP", http.parts, http.native, http.RULE),
        Binding(
            "AMQP/1.0",
            amqp.parts,
            amqp.native,
            amqp.RULE,
            id_key="properties.message-id",
            time_key="properties.creation-time",
        ),
        Binding("MQTT/5.0", mqtt.parts, mqtt.native, mqtt.RULE),
        Binding("MQTT/3.1.1", mqtt.parts, mqtt.native, mqtt.RULE, binary=False),
        Binding("NATS", nats.parts, nats.native, nats.RULE),
    )
}
_CANONICAL: Final = {protocol.lower(): protocol for protocol in PROTOCOLS}


def binding_of(protocol: str) -> Binding | None:
    """Return the binding of a protocol as a record names it (any letter case, any version of HTTP, Kafka or NATS)."""
    name = protocol.strip().lower()
    if name.startswith(("http/", "kafka/", "nats/")):
        name = name.partition("/")[0]
    return BINDINGS.get(_CANONICAL.get({"mqtt": "mqtt/5.0", "amqp": "amqp/1.0"}.get(name, name), ""))


def stream_id(parts: Parts) -> str | None:
    """Return ``stream-sequence`` of a JetStream message; None for any other record."""
    stream, sequence = first(parts, "stream"), first(parts, "sequence")
    if stream is None or sequence is None:
        return None
    return f"{stream.text}-{sequence.text}"
