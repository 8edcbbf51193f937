"""Delivering produced records to brokers of MQTT, AMQP and NATS, by the clients that sinks have."""

from __future__ import annotations

import uuid
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

from bindings.gateways import Connection, GatewayError
from bindings.mqtt.messages import Version
from bindings.parts import Part, first
from bindings.protocols import BINDINGS, Binding
from bindings.sending import Outbound, Publisher, Translating, Unsettled
from catalog.model import Endpoint
from catalog.record import Record
from router.errors import BrokerUnreachable, RouterError

CHUNK: Final = 100
"""Records that are handed over at a time, and so may be on their way when one is turned down."""
_SECONDS: Final = 30.0
_HINT: Final = "check the address and the login; records before the failure may have been taken"


class BrokerTarget:
    """Sends records of one family of protocols; what the URL has as its path goes before each record's own address.

    *endpoint* gives the address of records that have none, such as the node of AMQP.
    """

    def __init__(self, url: str, endpoint: Endpoint | None) -> None:
        parts = urlsplit(url)
        self._server = urlunsplit((parts.scheme, parts.netloc, "", "", ""))
        self._shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._address = unquote(parts.path.removeprefix("/"))
        self._endpoint = endpoint
        self._publisher: Publisher | None = None
        self._waiting: list[Outbound] = []

    def send(self, record: Record) -> None:
        """Hand a record over, or keep it until there are some."""
        binding = BINDINGS[record.protocol]
        if self._publisher is None:
            self._publisher = self._connected(binding)
        parts = binding.parts(record.native)
        address = self._address or self._own_address(binding, parts)
        if not address:
            hint = f"add it to the target, as in {self._shown}/NAME, or name an endpoint that has it"
            raise RouterError(f"nothing says where at {self._shown} the record goes", hint=hint)
        own = tuple(part for part in parts if not binding.sending.address or part.key != binding.sending.address)
        self._waiting.append(Outbound(address, own, record.body, address, uuid.uuid4().hex))
        if len(self._waiting) >= CHUNK:
            self.finish()

    def finish(self) -> None:
        """Wait until every record is confirmed.

        Raises:
            BrokerUnreachable: the broker is away, or refuses us.
            RouterError: it turned a record down.
        """
        waiting, self._waiting = self._waiting, []
        if self._publisher is None or not waiting:
            return
        try:
            answers = self._publisher.send(waiting)
        except Unsettled as error:
            raise BrokerUnreachable(f"{self._shown} did not take every record: {error}", hint=_HINT) from error
        except GatewayError as error:
            raise RouterError(f"{self._shown}: {error}", hint="correct --to") from error
        refused = next((answer for answer in answers if answer is not None), None)
        if refused is not None:
            raise RouterError(f"{self._shown} turned a record down: {refused.reason}")

    def close(self) -> None:
        """Disconnect."""
        if self._publisher is not None:
            self._publisher.close()

    def _own_address(self, binding: Binding, parts: list[Part]) -> str:
        if self._endpoint is not None:
            return binding.sending.address_of(parts, self._endpoint, True, "", str)
        named = first(parts, binding.sending.address or "properties.to")
        return (named.text if named is not None else None) or ""

    def _connected(self, binding: Binding) -> Publisher:
        """Return the client of a protocol, whose library is imported here; it connects when it first sends."""
        connection, name = Connection((self._server,)), f"xrouter-emit-{uuid.uuid4().hex[:12]}"
        try:
            return _CLIENTS[binding.sending.family](connection, name, binding)
        except GatewayError as error:
            raise RouterError(f"{self._shown}: {error}", hint="correct --to") from error


def _mqtt(connection: Connection, name: str, binding: Binding) -> Publisher:
    from bindings.mqtt.outgoing import message_of
    from bindings.mqtt.publisher import MqttPublisher

    version: Version = "MQTT/5.0" if binding.binary else "MQTT/3.1.1"
    return Translating(MqttPublisher(connection, protocol=version, client_id=name, timeout=_SECONDS), message_of)


def _amqp(connection: Connection, name: str, binding: Binding) -> Publisher:
    from bindings.amqp.outgoing import message_of
    from bindings.amqp.sender import AmqpSender

    return Translating(AmqpSender(connection, container_id=name, timeout=_SECONDS), message_of)


def _nats(connection: Connection, name: str, binding: Binding) -> Publisher:
    from functools import partial

    from bindings.nats.publisher import NatsPublisher, message_of

    # Without JetStream: a message counts as taken when the server has it, whether a stream takes the subject or not.
    client = NatsPublisher(connection, name=name, timeout=_SECONDS, stream=False)
    return Translating(client, partial(message_of, name))


_CLIENTS: Final = {"mqtt": _mqtt, "amqp": _amqp, "nats": _nats}
