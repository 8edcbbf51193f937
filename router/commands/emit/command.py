"""``xrouter emit``: generate records that match a definition."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated, BinaryIO, Final, Protocol
from urllib.parse import quote, unquote, urlencode, urlsplit, urlunsplit

import httpx
import typer
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from rich.progress import Progress

from bindings.gateways import Connection, GatewayError
from bindings.kafka.publisher import record_of
from bindings.mqtt.messages import Version
from bindings.parts import Part, first
from bindings.protocols import BINDINGS, Binding, binding_of
from bindings.sending import Outbound, Publisher, Translating, Unsettled, headers_of
from catalog.definitions.constraints import target_of
from catalog.findings import escaped_json
from catalog.model import Catalog, Definition, Endpoint
from catalog.record import Record
from catalog.values import whole_number
from router.commands.arguments import BaseUri, CatalogOption, LoginsOption, fetcher, name_values, usable_catalog
from router.commands.emit.producer import MODES, EmitError, MessageProducer, check_matches, record_line
from router.errors import BrokerUnreachable, RouterError
from router.schemaids.framing import declared_id
from router.terminal import terminal

# Delivering produced records: to standard output, an HTTP target, a Kafka topic or another broker, each acknowledged.
#
# A record counts as delivered when the other side says so: a 2xx answer, or the broker's acknowledgement. We send
# nothing twice, except after a 503, by which an HTTP target says that it took nothing.

# Delivering produced records to brokers of MQTT, AMQP and NATS, by the clients that sinks have.

CHUNK: Final = 100
"""Records sent at a time, and so possibly in flight when one is rejected."""
_SECONDS: Final = 30.0
_HINT: Final = "check the address and the login; records before the failure may have been accepted"


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
        """Send a record, or buffer it."""
        binding = BINDINGS[record.protocol]
        if self._publisher is None:
            self._publisher = self._connected(binding)
        parts = binding.parts(record.native)
        address = self._address or self._own_address(binding, parts)
        if not address:
            hint = f"add it to the target, as in {self._shown}/NAME, or use an endpoint that has it"
            raise RouterError(f"the record has no destination at {self._shown}", hint=hint)
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
            raise BrokerUnreachable(f"{self._shown} did not accept every record: {error}", hint=_HINT) from error
        except GatewayError as error:
            raise RouterError(f"{self._shown}: {error}", hint="correct --to") from error
        refused = next((answer for answer in answers if answer is not None), None)
        if refused is not None:
            raise RouterError(f"{self._shown} rejected a record: {refused.reason}")

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
    from bindings.amqp.publisher import AmqpSender, message_of

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
"""How long to retry a target that returns 503."""
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
    """A target of records."""

    def send(self, record: Record) -> None:
        """Send one record, perhaps asynchronously; its error may be raised by a later call or on exit."""


def protocol_of(target: str) -> str:
    """Return the protocol of a target's URL.

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
    """Open a target for the block; on exit, everything sent is acknowledged.

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
                hint = "check the address, and that the router (or other target) is running"
                raise BrokerUnreachable(f"{request.url} does not respond: {error}", hint=hint) from error
            if answer.is_success:
                return
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or time.monotonic() >= deadline:
                reason = " ".join(answer.text.split())[:300]
                raise RouterError(f"{request.url} returns {answer.status_code}: {reason or answer.reason_phrase}")
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
        hint = "check the address and that the topic exists; records before the failure may have been accepted"
        return BrokerUnreachable(f"Kafka at {self._servers} did not accept every record: {error.str()}", hint=hint)


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
        raise RouterError(f"a record of protocol {record.protocol} cannot be sent to a target of {protocol}", hint=hint)


def _text(part: Part | None) -> str | None:
    return part.text if part else None


# What a user calls definitions and endpoints: xids, or as much of a name as only one of them has.

_SHOWN: Final = 5


class UnknownName(RouterError):
    """A name that is unknown or ambiguous in the catalog; exit code 1."""


def xid_called(name: str, xids: Iterable[str], what: str) -> str:
    """Return the xid that a name stands for: itself, ``ID``, ``GROUP/ID``, or the last part of an id behind a dot.

    The first of these ways in which any is called so counts; then letter case does not.

    Raises:
        UnknownName: none or several are called so; *what* they are is said.
    """
    known = tuple(xids)
    if name in known:
        return name
    for way in _WAYS:
        for wanted, names in ((name, way), (name.lower(), lambda xid, way=way: [each.lower() for each in way(xid)])):
            called = [xid for xid in known if wanted in names(xid)]
            if len(called) == 1:
                return called[0]
            if called:
                more = f" and {len(called) - _SHOWN} more" if len(called) > _SHOWN else ""
                text = f"several {what}s are called {name}: {', '.join(called[:_SHOWN])}{more}"
                raise UnknownName(text, hint="give more of the name, or the xid")
    near = get_close_matches(name, known, 1) or _near_ids(name, known)
    hint = f"did you mean {near[0]}?" if near else "`xrouter catalog list` shows what there is"
    raise UnknownName(f"the catalog has no {what} {name}", hint=hint)


def only_endpoint(catalog: Catalog, xid: str, protocol: str | None) -> str | None:
    """Return the endpoint that a definition is sent to, when there is one alone; None for none or several.

    *protocol* is what is asked for, None for any. An endpoint that the definition can never match at does not count.
    """
    definition = catalog.definitions[xid]
    endpoints = [
        endpoint.xid
        for endpoint in catalog.endpoints.values()
        if xid in endpoint.candidates and _speaks(endpoint.protocol, definition, protocol)
        if target_of(definition, endpoint) is not None
    ]
    return endpoints[0] if len(endpoints) == 1 else None


def _speaks(spoken: str | None, definition: Definition, asked: str | None) -> bool:
    if asked is None:
        return binding_of(spoken or "") is not None
    return binding_of(spoken or definition.protocol or "") is binding_of(asked)


def _parts(xid: str) -> Sequence[str]:
    return xid.strip("/").split("/")


def _by_id(xid: str) -> Iterable[str]:
    return (_parts(xid)[-1],)


def _by_group(xid: str) -> Iterable[str]:
    parts = _parts(xid)
    return (f"{parts[1]}/{parts[-1]}",) if len(parts) > 2 else ()


def _by_end(xid: str) -> Iterable[str]:
    """Yield what stands behind each dot of the id."""
    parts = _parts(xid)[-1].split(".")
    return (".".join(parts[start:]) for start in range(1, len(parts)))


_WAYS: Final[tuple[Callable[[str], Iterable[str]], ...]] = (_by_id, _by_group, _by_end)


def _near_ids(name: str, xids: Sequence[str]) -> list[str]:
    ids = {end: xid for xid in xids for end in _ends(xid)}
    return [ids[each] for each in get_close_matches(name, ids, 1)]


def _ends(xid: str) -> Iterator[str]:
    yield from _by_id(xid)
    yield from _by_end(xid)


class EmitFraming(StrEnum):
    """The frames that bodies can get."""

    confluent = "confluent"


_PROGRESS_FROM: Final = 100
"""Minimum records for a progress bar."""


def emit(
    catalog: CatalogOption,
    message: Annotated[
        str, typer.Option(metavar="NAME", help="The definition: its xid, its id, or the end of its id.")
    ],
    more: Annotated[
        list[str] | None,
        typer.Argument(metavar="MORE", help="More --catalog paths, or with `=` more --context values."),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The endpoint whose defaults and address apply; by default the only one.",
        ),
    ] = None,
    protocol: Annotated[str | None, typer.Option(metavar="NAME", help="Protocol, for definitions without one.")] = None,
    mode: Annotated[
        str | None, typer.Option(metavar="|".join(MODES), help="CloudEvents content mode; `native`: no CloudEvent.")
    ] = None,
    context: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Value of a placeholder; `{n}` is the message number."),
    ] = None,
    count: Annotated[int, typer.Option(min=0, help="Number of messages.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Seed for reproducible ids and values.")] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help="http(s)://HOST, kafka://HOST:PORT/TOPIC, mqtt(s)://HOST/TOPIC, amqp(s)://HOST/NODE or "
            "nats://HOST/SUBJECT (tls://); without a path, each record's own. Standard output by default.",
        ),
    ] = None,
    framing: Annotated[
        EmitFraming | None,
        typer.Option("--framing", help="Kafka: prefix bodies with the schema id, like Confluent's serializers."),
    ] = None,
    schema_id: Annotated[
        str | None,
        typer.Option("--schema-id", metavar="N", help="With --framing: the schema id; by default the declared one."),
    ] = None,
    base_uri: BaseUri = "",
    logins: LoginsOption = None,
) -> None:
    """Generate messages that match a definition, and print them as native records or send them to a target.

    Literals are set, templates are expanded, and other required values are generated for their type. Data is generated
    from the schema and validated against it; a warning is printed if it could not be validated.

    Example: xrouter emit --catalog catalog.xreg.json --message Moisture --context bed=7 --to mqtt://localhost
    """
    values = [*(context or []), *(text for text in more or [] if "=" in text)]
    sources = [*catalog, *(text for text in more or [] if "=" not in text)]
    loaded = usable_catalog(sources, fetcher(logins), base_uri=base_uri)
    message = xid_called(message, loaded.definitions, "message")
    if endpoint is not None:
        endpoint = xid_called(endpoint, loaded.endpoints, "endpoint")
    known = loaded.definitions[message]
    towards = protocol or (None if to is None else _towards(known, protocol_of(to)))
    if endpoint is None and known.group not in loaded.endpoints:
        endpoint = only_endpoint(loaded, message, towards)
    if known.protocol is None and endpoint is None:
        protocol = towards
    producer = MessageProducer(
        loaded,
        message,
        endpoint=endpoint,
        protocol=protocol,
        mode=mode,
        context=name_values(values, "--context"),
        seed=seed,
        schema_id=_schema_id(loaded, message, schema_id) if framing is not None else None,
    )
    if framing is None and schema_id is not None:
        raise EmitError("--schema-id has no effect without --framing", hint="add --framing confluent")
    shown = count >= _PROGRESS_FROM and sys.stderr.isatty() and (to is not None or not sys.stdout.isatty())
    with (
        Progress(console=terminal(err=True), disable=not shown) as bar,
        opened(to, sys.stdout.buffer, producer.endpoint) as target,
    ):
        task, doubted = bar.add_task("produced", total=count), False
        for number, record in enumerate(producer.records(count), 1):
            if number == 1:
                check_matches(loaded, producer, record)
            if producer.payload_doubt and not doubted:
                doubted = True
                warning = f"warning: the data of {message} is not known to fit: {producer.payload_doubt}"
                bar.console.print(warning, soft_wrap=True)
            target.send(record)
            bar.advance(task)


def _schema_id(catalog: Catalog, message: str, given: str | None) -> str:
    schema_id = given or declared_id(catalog, catalog.definitions[message])
    if schema_id is None:
        hint = "give it with --schema-id, or declare it by the label schemaid of the schema's version"
        raise EmitError(f"the schema id of {message} is unknown", hint=hint)
    return schema_id


def _towards(definition: Definition, protocol: str) -> str:
    """Return the protocol of a target as the definition has it: both versions of MQTT go to the same broker."""
    own = binding_of(definition.protocol or "")
    if own is not None and own.sending.family == BINDINGS[protocol].sending.family:
        return own.protocol
    return protocol
