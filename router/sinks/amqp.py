"""Messages to AMQP 1.0 nodes, by :mod:`bindings.amqp.sender`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from bindings.amqp.outgoing import OutMessage
from bindings.amqp.sender import AmqpSender, Refusal, SendError
from bindings.gateways import Connection, GatewayError
from bindings.parts import BINARY_KIND, JSON_KIND, Part
from catalog.values import instant
from router.sinks.events import Outbound
from router.sinks.messages import TargetDown

_CONTENT_TYPE: Final = "properties.content-type"
_TIMES: Final = frozenset({"absolute-expiry-time", "creation-time"})


class AmqpTarget:
    """Keeps :class:`~router.sinks.messages.Target`; messages are durable, and accepted by the broker."""

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
        except SendError as error:
            raise TargetDown(str(error), {at: _reason(done) for at, done in error.settled.items()}) from error
        except GatewayError as error:
            raise TargetDown(str(error)) from error
        return [_reason(answer) for answer in answers]

    def close(self) -> None:
        """Disconnect."""
        self._sender.close()


def message_of(made: Outbound) -> OutMessage:
    """Return the client's message; numbers and booleans of a definition keep their type, all attributes are strings."""
    sections: dict[str, dict[str, Any]] = {"properties": {}, "application-properties": {}, "message-annotations": {}}
    content_type = None
    for part in made.parts:
        section, _, name = part.key.partition(".")
        if part.key == _CONTENT_TYPE:
            content_type = part.text
        elif section in sections:
            value = _value(part)
            sections[section].setdefault(name, _moment(value) if section == "properties" and name in _TIMES else value)
    return OutMessage(
        made.address,
        made.body,
        content_type,
        sections["properties"],
        sections["application-properties"],
        sections["message-annotations"],
        lane=made.lane,
    )


def _value(part: Part) -> Any:
    if part.kind == BINARY_KIND or part.value is None:
        return part.value
    return msgspec.json.decode(part.value) if part.kind == JSON_KIND else part.text


def _moment(value: Any) -> Any:
    """Return a time as AMQP has it, to the millisecond; what is none stays, and is refused when it is encoded."""
    nanoseconds = instant(value) if isinstance(value, str) else None
    if nanoseconds is None:
        return value
    try:
        return datetime.fromtimestamp(nanoseconds // 1_000_000 / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return value


def _reason(refusal: Refusal | None) -> str | None:
    return None if refusal is None else f"the broker refuses it: {refusal.condition} {refusal.description}".strip()
