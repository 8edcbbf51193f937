"""Sinks of type ``amqp``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from bindings.protocols import Binding
from bindings.sending import Publisher, Translating
from catalog.model import Endpoint
from router.settings.logins import clear_faults
from router.settings.sinks.contract import Fault
from router.settings.sinks.messages import MessageSink
from router.settings.values import Texts


class AmqpSink(MessageSink):
    """Nodes of an AMQP 1.0 broker, each message accepted by it."""

    family = "amqp"
    template_field = "node"
    schemes = ("amqp", "amqps")

    type: Literal["amqp"] = Field(description="`amqp`.")
    uri: Texts = Field((), description="Address such as amqp://host:5672 or amqps://host, or several tried in turn.")
    node: str | None = Field(None, description="Node (queue, topic), or a template such as events/{messagegroup}.")

    def login_faults(self, key: str) -> Iterator[Fault]:
        """Yield addresses without TLS beside certificates."""
        yield from clear_faults(f"{key}.uri", self.uri, self.tls)

    def publisher(self, name: str, binding: Binding, endpoint: Endpoint | None) -> Publisher:
        """Return a client; messages are durable, and accepted by the broker."""
        from bindings.amqp.outgoing import message_of
        from bindings.amqp.sender import AmqpSender

        ours = f"xrouter-{name}-{os.getpid()}"
        client = AmqpSender(self.connection(name, endpoint), container_id=ours, timeout=self.seconds)
        return Translating(client, message_of)
