"""The supported protocols. To add one, add a folder beside this file and an entry in ``BINDINGS``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from bindings.amqp import binding as amqp
from bindings.amqp.binding import AMQP, AmqpSending
from bindings.envelope import AttributeRule, Envelope, read_envelope
from bindings.gateways import ReceivingBinding
from bindings.http import binding as http
from bindings.http.binding import HttpSending
from bindings.kafka import binding as kafka
from bindings.kafka.binding import KafkaSending
from bindings.mqtt import binding as mqtt
from bindings.mqtt.binding import MQTT_3, MQTT_5, MqttSending
from bindings.nats import binding as nats
from bindings.nats.binding import NATS, NatsSending
from bindings.parts import NativeForm, Part, Parts, first_part, native_of, parts_of
from bindings.sending import SendingBinding


@dataclass(frozen=True, slots=True)
class Binding:
    """A protocol: how its records are split into parts and built from them, and where it puts CloudEvents attributes.

    ``id_key`` and ``time_key`` are the parts that give a mapped event its ``id`` and ``time``; ``partition_key`` is the
    one for its ``partitionkey``, in both directions. ``binary`` is False if the protocol has no headers for attributes.
    ``sending`` is shared by versions; ``receiving`` says how a gateway receives from brokers, None if there are none
    (HTTP) or Spark reads (Kafka). A record may name the protocol by ``aliases``, and a ``versioned`` one with any
    version after a slash. ``form`` is that of native records if ``build`` is :func:`bindings.parts.native_of` with it,
    so that many can be written at once; None if it does more.
    """

    protocol: str
    split: Callable[[Mapping[str, Any]], list[Part]]
    build: Callable[[list[Part]], dict[str, Any]]
    rule: AttributeRule
    sending: SendingBinding
    receiving: ReceivingBinding | None = None
    id_key: str = ""
    time_key: str = ""
    partition_key: str = ""
    binary: bool = True
    aliases: tuple[str, ...] = ()
    versioned: bool = False
    form: NativeForm | None = None

    def is_called(self, name: str) -> bool:
        """Whether *name* (in lower case) is a name of this protocol."""
        own = self.protocol.lower()
        return name == own or name in self.aliases or (self.versioned and name.startswith(f"{own}/"))

    @property
    def headers(self) -> str:
        """The list or map of headers, such as ``user_properties``."""
        return self.rule.prefixes[0].partition(".")[0]

    def read_envelope(self, parts: Parts, body: bytes | None, sniff: Callable[[], bool]) -> Envelope:
        """Read the envelope of a record of this protocol; see :func:`bindings.envelope.read_envelope`."""
        return read_envelope(parts, body, self.rule, sniff, binary=self.binary)


Codec = tuple[Callable[[Mapping[str, Any]], list[Part]], Callable[[list[Part]], dict[str, Any]]]


def _codec_of(form: NativeForm) -> Codec:
    """Return the functions that split and build native records of this form."""
    return partial(parts_of, form=form), partial(native_of, form=form)


BINDINGS: Final[dict[str, Binding]] = {
    binding.protocol: binding
    for binding in (
        Binding(
            "KAFKA",
            kafka.split,
            kafka.build,
            kafka.RULE,
            KafkaSending(),
            time_key="timestamp",
            partition_key=KafkaSending.key_name,
            versioned=True,
        ),
        Binding("HTTP", *_codec_of(http.FORM), http.RULE, HttpSending(), versioned=True, form=http.FORM),
        Binding(
            "AMQP/1.0",
            *_codec_of(amqp.FORM),
            amqp.RULE,
            AmqpSending(),
            AMQP,
            id_key="properties.message-id",
            time_key="properties.creation-time",
            partition_key="message-annotations.x-opt-partition-key",  # of Event Hubs and Service Bus
            aliases=("amqp",),
            form=amqp.FORM,
        ),
        Binding("MQTT/5.0", *_codec_of(mqtt.FORM), mqtt.RULE, MqttSending(), MQTT_5, aliases=("mqtt",), form=mqtt.FORM),
        Binding("MQTT/3.1.1", *_codec_of(mqtt.FORM), mqtt.RULE, MqttSending(), MQTT_3, binary=False, form=mqtt.FORM),
        Binding("NATS", *_codec_of(nats.FORM), nats.RULE, NatsSending(), NATS, versioned=True, form=nats.FORM),
    )
}


CARRIED_PREFIXES: Final = tuple(dict.fromkeys(f"{binding.headers}." for binding in BINDINGS.values()))
"""Prefixes of header parts; headers are passed on with a message."""


def binding_of(protocol: str) -> Binding | None:
    """Return the binding of a protocol as a record names it (any letter case, any version of HTTP, Kafka or NATS)."""
    exact = BINDINGS.get(protocol)
    if exact is not None:
        return exact
    name = protocol.strip().lower()
    return next((binding for binding in BINDINGS.values() if binding.is_called(name)), None)


def sending_of(family: str) -> SendingBinding:
    """Return the sending side of a protocol family, such as ``mqtt``."""
    return next(binding.sending for binding in BINDINGS.values() if binding.sending.family == family)


def stream_id(parts: Parts) -> str | None:
    """Return ``stream-sequence`` of a JetStream message; None for any other record."""
    stream, sequence = first_part(parts, "stream"), first_part(parts, "sequence")
    if stream is None or sequence is None:
        return None
    return f"{stream.text}-{sequence.text}"
