"""Delivering produced records: to standard output, an HTTP target, a Kafka topic or another broker, each acknowledged.

A record counts as delivered when the other side says so: a 2xx answer, or the broker's acknowledgement. We send nothing
twice, except after a 503, by which an HTTP target says that it took nothing.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final, Protocol
from urllib.parse import quote, unquote, urlencode, urlsplit, urlunsplit

import httpx
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from bindings.gateways import Connection, GatewayError
from bindings.kafka.publisher import record_of
from bindings.mqtt.messages import Version
from bindings.parts import Part, first
from bindings.protocols import BINDINGS, Binding
from bindings.sending import Outbound, Publisher, Translating, Unsettled, headers_of
from catalog.errors import escaped_json
from catalog.model import Endpoint
from catalog.record import Record
from catalog.values import whole_number
from router.commands.emit.producer import record_line
from router.errors import BrokerUnreachable, RouterError

# Delivering produced records to brokers of MQTT, AMQP and NATS, by the clients that sinks have.

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
    from bindings.mqtt.publisher import MqttPublisher, message_of

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


HTTP_SECONDS: Final = 30.0
KAFKA_SECONDS: Final = 30.0
BUSY_SECONDS: Final = 60.0
"""How long a target that answers 503 is asked again."""
_PATH_CHARACTERS: Final = "/:@!$&'()*+,;=-._~%"
SCHEMES: Final = {
    "http": "HTTP",
    "https": "HTTP",
    "kafka": "KAFKA",
    "mqtt": "MQTT/5.0",
    "mqtts": "MQTT/5.0",
    "amqp": "AMQP/1.0",
    "amqps": "AMQP/1.0",
    "nats": "NATS",
    "tls": "NATS",
}
"""What a definition that leaves its protocol open is made for, by the scheme of the target."""


class Destination(Protocol):
    """Where records go."""

    def send(self, record: Record) -> None:
        """Deliver one record, or have it on its way; an error may also come from a later call, or on leaving."""


def protocol_of(target: str) -> str:
    """Return the protocol that a target's URL takes.

    Raises:
        RouterError: it is no URL of a known scheme.
    """
    scheme = urlsplit(target).scheme.lower()
    if scheme not in SCHEMES:
        hint = f"write SCHEME://HOST:PORT, with a path to name topic, node or subject; schemes are {', '.join(SCHEMES)}"
        raise RouterError(f"cannot send to {target!r}: not a known kind of target", hint=hint)
    return SCHEMES[scheme]


@contextmanager
def opened(target: str | None, output: BinaryIO, endpoint: Endpoint | None = None) -> Iterator[Destination]:
    """Open a target for the time of the block; on leaving it, all that was sent is acknowledged.

    *endpoint* is the one that records are made for: what it says of addresses counts where the target says nothing.

    Raises:
        BrokerUnreachable: nobody answers there.
        RouterError: the other side refuses a record, or the target is of an unknown kind.
    """
    if target is None:
        yield _Lines(output)
        output.flush()
    elif protocol_of(target) == "HTTP":
        with httpx.Client(timeout=HTTP_SECONDS) as client:
            yield _Http(client, target)
    elif protocol_of(target) == "KAFKA":
        topic = _Kafka(target)
        yield topic
        topic.finish()
    else:
        broker = BrokerTarget(target, endpoint)
        try:
            yield _Checked(broker, protocol_of(target))
            broker.finish()
        finally:
            broker.close()


class _Lines:
    def __init__(self, output: BinaryIO) -> None:
        self._output = output

    def send(self, record: Record) -> None:
        self._output.write(escaped_json(record_line(record)))


class _Http:
    """Posts records. A URL without path takes each record's own; else the URL is used as given."""

    def __init__(self, client: httpx.Client, url: str) -> None:
        self._client = client
        self._base = urlsplit(url)

    def send(self, record: Record) -> None:
        _require(record, "HTTP")
        parts = BINDINGS["HTTP"].parts(record.native)
        headers = [(name.encode(), part.value or b"") for name, part in headers_of(parts)]
        method = _text(first(parts, "method")) or "POST"
        request = self._client.build_request(method, self._url(parts), headers=headers, content=record.body or b"")
        self._delivered(request)

    def _url(self, parts: list[Part]) -> str:
        path = self._base.path if self._base.path not in ("", "/") else _text(first(parts, "path")) or "/"
        own = [(name, part.value or b"") for name, part in headers_of(parts, "query.")]
        query = "&".join(text for text in (self._base.query, urlencode(own)) if text)
        path = quote(path, safe=_PATH_CHARACTERS)
        return f"{self._base.scheme}://{self._base.netloc}{path}" + (f"?{query}" if query else "")

    def _delivered(self, request: httpx.Request) -> None:
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                answer = self._client.send(request)
            except httpx.HTTPError as error:
                hint = "check the address, and that the router (or other target) runs"
                raise BrokerUnreachable(f"{request.url} does not answer: {error}", hint=hint) from error
            if answer.is_success:
                return
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or time.monotonic() >= deadline:
                reason = " ".join(answer.text.split())[:300]
                raise RouterError(f"{request.url} answers {answer.status_code}: {reason or answer.reason_phrase}")
            # What Retry-After asks for, within reason.
            asked = whole_number(answer.headers.get("retry-after", ""))
            time.sleep(1 if asked is None else min(asked, 10))


class _Kafka:
    """Produces records; a URL without topic takes each record's own."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._servers = parts.netloc
        self._topic = parts.path.strip("/")
        self._failed: KafkaError | None = None
        self._producer = Producer(
            {"bootstrap.servers": self._servers, "message.timeout.ms": int(KAFKA_SECONDS * 1000), "log_level": 0}
        )

    def send(self, record: Record) -> None:
        _require(record, "KAFKA")
        parts = BINDINGS["KAFKA"].parts(record.native)
        topic = self._topic or _text(first(parts, "topic")) or ""
        while True:
            try:
                self._producer.produce(topic, record.body, on_delivery=self._delivered, **record_of(parts))
                break
            except BufferError:
                self._producer.poll(1)  # the queue is full: wait for acknowledgements
            except KafkaException as error:
                raise self._refused(error.args[0]) from error
        self._producer.poll(0)
        if self._failed is not None:
            raise self._refused(self._failed)

    def finish(self) -> None:
        """Wait until every record is acknowledged."""
        self._producer.flush()
        if self._failed is not None:
            raise self._refused(self._failed)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        self._failed = self._failed or error

    def _refused(self, error: KafkaError) -> RouterError:
        hint = "check the address and that the topic exists; records before the failure may have been taken"
        return BrokerUnreachable(f"Kafka at {self._servers} did not take every record: {error.str()}", hint=hint)


class _Checked:
    """Sends records on that are of the family of *protocol*."""

    def __init__(self, broker: BrokerTarget, protocol: str) -> None:
        self._broker = broker
        self._protocol = protocol

    def send(self, record: Record) -> None:
        _require(record, self._protocol)
        self._broker.send(record)


def _require(record: Record, protocol: str) -> None:
    if BINDINGS[record.protocol].sending.family != BINDINGS[protocol].sending.family:
        hint = f"choose a message of that protocol, or --protocol {protocol} for one that leaves it open"
        raise RouterError(f"a record of protocol {record.protocol} cannot go to a target of {protocol}", hint=hint)


def _text(part: Part | None) -> str | None:
    return part.text if part else None
