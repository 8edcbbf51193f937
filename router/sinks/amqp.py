"""Messages to AMQP 1.0 nodes, by :mod:`bindings.amqp.sender`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bindings.amqp.codec import SECTIONS
from bindings.amqp.declared import FIELD_TYPES
from bindings.amqp.forms import typed_of, types_of
from bindings.amqp.outgoing import OutMessage
from bindings.amqp.sender import AmqpSender, SendError
from bindings.amqp.values import Typed
from bindings.gateways import Connection, GatewayError
from bindings.parts import Part
from router.sinks.messages.events import Outbound
from router.sinks.messages.sink import TargetDown, reason_of

_TEXTS: Final = frozenset({None, "string", "symbol"})


class AmqpTarget:
    """Keeps :class:`~router.sinks.messages.sink.Target`; messages are durable, and accepted by the broker."""

    def __init__(self, name: str, connection: Connection, *, timeout: float) -> None:
        try:
            self._sender = AmqpSender(connection, container_id=f"xrouter-{name}-{os.getpid()}", timeout=timeout)
        except GatewayError as error:
            raise TargetDown(str(error)) from error

    def send(self, messages: Sequence[Outbound]) -> list[str | None]:
        """Send messages and wait for their disposition.

        Raises:
            TargetDown: the broker takes nothing now.
        """
        try:
            answers = self._sender.send([message_of(each) for each in messages])
        except (SendError, GatewayError) as error:
            raise TargetDown.by(error) from error
        return [reason_of(answer) for answer in answers]

    def close(self) -> None:
        """Disconnect."""
        self._sender.close()


def message_of(made: Outbound) -> OutMessage:
    """Return the client's message, each value of the type that its part and the part ``types`` tell."""
    types = types_of(made.parts)
    sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for part in made.parts:
        section, _, name = part.key.partition(".")
        if section in sections:
            sections[section].setdefault(name, _value(part, types))
    return OutMessage(
        made.address,
        made.body,
        properties=sections["properties"],
        application_properties=sections["application-properties"],
        message_annotations=sections["message-annotations"],
        header=sections["header"],
        delivery_annotations=sections["delivery-annotations"],
        footer=sections["footer"],
        lane=made.lane,
    )


def _value(part: Part, types: Mapping[str, str]) -> Any:
    """Return a value as the encoder takes it; one that is not of its field's type is refused there."""
    usual = FIELD_TYPES.get(part.key)
    if part.kind is None and part.key not in types and usual in _TEXTS:
        return part.text  # most values of most messages
    if usual is None:
        return typed_of(part, types)
    if usual in _TEXTS and part.text is not None:
        return Typed(usual, part.text)
    return Typed(usual, typed_of(part, {part.key: usual}).value)
