"""Messages to NATS, core or JetStream, by :mod:`bindings.nats.publisher`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from bindings.gateways import Connection, GatewayError
from bindings.nats.publisher import NatsPublisher, OutMessage, PublishError
from router.sinks.messages.events import Outbound
from router.sinks.messages.sink import TargetDown, reason_of

_HEADERS: Final = "headers."


class NatsTarget:
    """Keeps :class:`~router.sinks.messages.sink.Target`; with JetStream a repeat inside its window is dropped there."""

    def __init__(self, name: str, connection: Connection, *, jetstream: bool, timeout: float) -> None:
        self._name = name
        self._publisher = NatsPublisher(connection, name=f"xrouter-{name}", timeout=timeout, stream=jetstream)

    def send(self, messages: Sequence[Outbound]) -> list[str | None]:
        """Send messages and wait for their confirmation.

        Raises:
            TargetDown: the server or its stream takes nothing now.
        """
        try:
            answers = self._publisher.send([self.message(each) for each in messages])
        except (PublishError, GatewayError) as error:
            raise TargetDown.by(error) from error
        return [reason_of(answer) for answer in answers]

    def message(self, made: Outbound) -> OutMessage:
        """Return the client's message. Its id differs between sinks and subjects, which may share a stream."""
        headers = [
            (part.key.removeprefix(_HEADERS), part.value or b"") for part in made.parts if part.key.startswith(_HEADERS)
        ]
        reply = next((part.text for part in made.parts if part.key == "reply-to"), None)
        text = "\n".join((self._name, made.address, made.id))
        identity = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return OutMessage(made.address, made.body or b"", headers, reply or "", identity, made.lane)

    def close(self) -> None:
        """Disconnect."""
        self._publisher.close()
