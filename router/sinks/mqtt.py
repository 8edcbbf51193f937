"""Messages to MQTT, 3.1.1 and 5, by :mod:`bindings.mqtt.publisher`."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final

from bindings.gateways import Connection, GatewayError
from bindings.mqtt.messages import Version
from bindings.mqtt.outgoing import OutMessage
from bindings.mqtt.publisher import MqttPublisher, PublishError
from bindings.parts import Part
from router.sinks.messages.events import Outbound
from router.sinks.messages.sink import TargetDown, reason_of

_USER: Final = "user_properties."
_MOST_QOS: Final = 1


class MqttTarget:
    """Keeps :class:`~router.sinks.messages.sink.Target`; with QoS 0 a message is confirmed once it is written."""

    def __init__(self, name: str, connection: Connection, version: Version, *, timeout: float) -> None:
        # A name of our own for each process: two clients of one name would throw each other out for ever.
        client_id = f"xrouter-{name}-{uuid.uuid4().hex[:12]}"
        try:
            self._publisher = MqttPublisher(connection, protocol=version, client_id=client_id, timeout=timeout)
        except GatewayError as error:
            raise TargetDown(str(error)) from error

    def send(self, messages: Sequence[Outbound]) -> list[str | None]:
        """Send messages and wait for their confirmation.

        Raises:
            TargetDown: the broker takes nothing now.
        """
        try:
            answers = self._publisher.send([message_of(each) for each in messages])
        except (PublishError, GatewayError) as error:
            raise TargetDown.by(error) from error
        return [reason_of(answer) for answer in answers]

    def close(self) -> None:
        """Disconnect."""
        self._publisher.close()


def message_of(made: Outbound) -> OutMessage:
    """Return the client's message. QoS 2 becomes 1: the promise is at least once, and 2 would add none to it."""
    scalars: dict[str, Part] = {}
    for part in made.parts:
        scalars.setdefault(part.key, part)
    qos = _number(scalars.get("qos"))
    return OutMessage(
        made.address,
        made.body or b"",
        qos=_MOST_QOS if qos is None else min(qos, _MOST_QOS),
        retain=_text(scalars.get("retain")) == "true",
        content_type=_text(scalars.get("content_type")),
        user_properties=tuple(
            (part.key.removeprefix(_USER), part.text or "") for part in made.parts if part.key.startswith(_USER)
        ),
        response_topic=_text(scalars.get("response_topic")),
        correlation_data=scalars["correlation_data"].value if "correlation_data" in scalars else None,
        message_expiry_interval=_number(scalars.get("message_expiry_interval")),
        payload_format=_number(scalars.get("payload_format")),
        lane=made.lane,
    )


def _text(part: Part | None) -> str | None:
    return None if part is None else part.text


def _number(part: Part | None) -> int | None:
    text = _text(part)
    return int(text) if text is not None and text.isdecimal() else None
