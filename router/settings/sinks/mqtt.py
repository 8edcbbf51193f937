"""Sinks of type ``mqtt``."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from bindings.parts import JSON_KIND, Part
from bindings.protocols import BINDINGS, Binding
from bindings.sending import Publisher, Translating
from catalog.model import Endpoint
from router.settings.sinks.contract import Fault
from router.settings.sinks.messages import MessageSink
from router.settings.values import Texts, as_text


class MqttSink(MessageSink):
    """Topics of an MQTT broker, each message acknowledged by it."""

    family = "mqtt"
    template_field = "topic"
    schemes = ("mqtt", "mqtts", "tcp", "ssl")

    type: Literal["mqtt"] = Field(description="`mqtt`.")
    uri: Texts = Field((), description="Address such as mqtt://host:1883 or mqtts://host, or several tried in turn.")
    topic: str | None = Field(None, description="Topic, or a template such as events/{messagegroup}/{type}.")
    qos: int = Field(1, ge=0, le=1, description="Least quality of service; 0 is not confirmed by the broker.")
    retain: bool = Field(False, description="Whether the broker keeps the last message of each topic.")
    version: Annotated[Literal["5.0", "3.1.1"], BeforeValidator(as_text)] | None = Field(
        None, description="Protocol version; unset is the endpoint's, else 5.0. 3.1.1 has structured mode only."
    )

    @property
    def least(self) -> Mapping[str, int]:
        """The quality of service."""
        return {"qos": self.qos}

    @property
    def given(self) -> tuple[Part, ...]:
        """Quality of service, and whether the broker keeps the message."""
        retain = b"true" if self.retain else b"false"
        return Part("qos", b"%d" % self.qos, JSON_KIND), Part("retain", retain, JSON_KIND)

    def binding(self, endpoint: Endpoint | None) -> Binding:
        """Return the version of the settings, else of the endpoint, else 5."""
        named = f"MQTT/{self.version}" if self.version else endpoint.protocol if endpoint else None
        return BINDINGS[named or "MQTT/5.0"]

    def address_faults(self, key: str) -> Iterator[Fault]:
        """Yield what is wrong with addresses, and a mode that the version lacks."""
        yield from super().address_faults(key)
        if self.version == "3.1.1" and self.mode == "binary":
            yield f"{key}.mode", "binary needs properties, which MQTT 3.1.1 lacks; use structured, or version 5.0"

    def publisher(self, name: str, binding: Binding, endpoint: Endpoint | None) -> Publisher:
        """Return a client; with QoS 0 a message is confirmed once it is written."""
        from bindings.mqtt.outgoing import message_of
        from bindings.mqtt.publisher import MqttPublisher

        # Each process has a name of its own: two clients of one name would disconnect each other for ever.
        ours = f"xrouter-{name}-{uuid.uuid4().hex[:12]}"
        version: Literal["MQTT/5.0", "MQTT/3.1.1"] = "MQTT/5.0" if binding.binary else "MQTT/3.1.1"
        client = MqttPublisher(self.connection(name, endpoint), protocol=version, client_id=ours, timeout=self.seconds)
        return Translating(client, message_of)
