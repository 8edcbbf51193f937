"""Sinks of type ``nats``: core or JetStream."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Literal

from pydantic import Field, SecretStr

from bindings.gateways import Login
from bindings.protocols import Binding
from bindings.sending import Publisher, Translating
from catalog.model import Endpoint
from router.settings.logins import path_of
from router.settings.sinks.contract import Fault
from router.settings.sinks.messages import MessageSink, rival_ways
from router.settings.values import Texts


class NatsSink(MessageSink):
    """Subjects of a NATS server; with JetStream each message is stored by a stream."""

    family = "nats"
    template_field = "subject"
    schemes = ("nats", "tls")

    type: Literal["nats"] = Field(description="`nats`.")
    uri: Texts = Field((), description="Address such as nats://host:4222 or tls://host, or several tried in turn.")
    subject: str | None = Field(None, description="Subject, or a template such as events.{messagegroup}.{type}.")
    jetstream: bool = Field(
        True, description="Whether a stream must confirm each message; false is core NATS, which may lose some."
    )
    token: SecretStr | None = Field(None, description="Token, by reference.")
    credentials: str | None = Field(None, description="File with a user's JWT and seed (`.creds`).")
    seed: str | None = Field(None, description="File with an nkey seed.")

    @property
    def uncarried(self) -> frozenset[str]:
        """JetStream's own acknowledgement takes the place of ``reply-to``."""
        return frozenset({"reply-to"} if self.jetstream else ())

    def login(self) -> Login:
        """Return as whom to connect."""
        token = self.token.get_secret_value() if self.token else None
        files = {"credentials": path_of(self.credentials), "seed": path_of(self.seed)}
        known = super().login()
        return Login(known.username, known.password, token, **files)

    def address_faults(self, key: str) -> Iterator[Fault]:
        """Yield what is wrong with addresses, and ways to log in that exclude each other."""
        yield from super().address_faults(key)
        ways = rival_ways(self, "username", "token", "credentials", "seed")
        if len(ways) > 1:
            yield f"{key}.{ways[1]}", f"is one way to log in and {ways[0]} another; keep one"

    def publisher(self, name: str, binding: Binding, endpoint: Endpoint | None) -> Publisher:
        """Return a client; with JetStream a repeat inside its window is dropped there."""
        from bindings.nats.publisher import NatsPublisher, message_of

        connection = self.connection(name, endpoint)
        client = NatsPublisher(connection, name=f"xrouter-{name}", timeout=self.seconds, stream=self.jetstream)
        return Translating(client, partial(message_of, name))
