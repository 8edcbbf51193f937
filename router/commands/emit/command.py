"""``xrouter emit``: generate records that match a definition."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from difflib import get_close_matches
from typing import Annotated, BinaryIO, Final, Literal
from urllib.parse import quote, unquote, urlencode, urlsplit, urlunsplit

import typer
from rich.progress import Progress

from bindings.gateways import GatewayError
from bindings.parts import Part, first_part
from bindings.protocols import BINDINGS, Binding, binding_of
from bindings.sending import Outbound, Publisher, Unsettled, iter_headers
from catalog.definitions.constraints import match_candidate_of
from catalog.findings import escape_json_controls
from catalog.model import Catalog, Definition, Endpoint
from catalog.record import Record
from router.commands.arguments import BaseUri, CatalogOption, LoginsOption, load_usable, make_fetcher, parse_name_values
from router.commands.emit.producer import MODES, EmitError, MessageProducer, encode_record_line, require_match
from router.errors import BrokerUnreachable, RouterError, SinkError, hint_near
from router.logs import shorten_list
from router.schemaids.framing import declared_id
from router.settings.sinks.contract import RemoteSink
from router.settings.sinks.kafka import KafkaSink
from router.settings.sinks.messages import AmqpSink, HttpSink, MqttSink, NatsSink
from router.terminal import terminal

# Delivering produced records: to standard output, an HTTP target, a Kafka topic or another broker, each acknowledged.
#
# A record counts as delivered when the target confirms it with a 2xx response or an acknowledgement. Nothing is sent
# twice, except to an HTTP target that is unavailable, answers with an error of its own (5xx), or breaks the connection:
# it may have the record already.

CHUNK: Final = 100
"""Maximum records in flight, some of which may be accepted after one is rejected."""
_SECONDS: Final = 30.0
"""How long to wait for a target."""
_HINT: Final = "check the address and the login; records before the failure may have been accepted"
_PATH_CHARACTERS: Final = "/:@!$&'()*+,;=-._~%"
SCHEMES: Final = {
    **dict.fromkeys(("http", "https"), "HTTP"),
    "kafka": "KAFKA",
    **dict.fromkeys(("mqtt", "mqtts"), "MQTT/5.0"),
    **dict.fromkeys(("amqp", "amqps"), "AMQP/1.0"),
    **dict.fromkeys(("nats", "tls"), "NATS"),
}
"""Default protocol of definitions without one, by the scheme of the target."""


Send = Callable[[Record], object]
"""Sends one record, perhaps asynchronously; its error may be raised by a later call or on exit."""


class ServerTarget:
    """Sends records to a server of one protocol family with the client of a sink.

    The path of the URL overrides each record's own address; *endpoint* supplies the address of records that have none,
    such as an AMQP node.
    """

    def __init__(self, url: str, endpoint: Endpoint | None) -> None:
        parts = urlsplit(url)
        self._protocol = protocol_of_url(url)
        self._url = parts
        self._server = urlunsplit((parts.scheme, parts.netloc, "", "", ""))
        self._shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        if not parts.netloc or (self._protocol == "KAFKA" and "@" in parts.netloc):
            kind = "server" if self._protocol == "HTTP" else "broker"
            problem = f"names no {kind}" if not parts.netloc else "cannot have a login, which emit has not for Kafka"
            raise RouterError(f"the target {self._shown} {problem}", hint=f"write it as {parts.scheme}://HOST:PORT")
        path = unquote(parts.path.removeprefix("/"))
        # A topic of Kafka has no slash, unlike one of MQTT, where the last one is a level.
        self._address = path.rstrip("/") if self._protocol == "KAFKA" else path
        self._endpoint = endpoint
        self._publisher: Publisher | None = None
        self._waiting: list[Outbound] = []

    def send(self, record: Record) -> None:
        """Send a record, or buffer it."""
        binding = BINDINGS[record.protocol]
        if binding.sending.family != BINDINGS[self._protocol].sending.family:
            hint = f"choose a message of that protocol, or --protocol {self._protocol} for one that leaves it open"
            text = f"a record of protocol {record.protocol} cannot be sent to a target of {self._protocol}"
            raise RouterError(text, hint=hint)
        if self._publisher is None:
            self._publisher = self._make_publisher(binding)
        parts = binding.split(record.native)
        address = self._make_url(parts) if self._protocol == "HTTP" else self._address or self._find_own(binding, parts)
        if not address:
            hint = f"add it to the target, as in {self._shown}/NAME, or use an endpoint that has it"
            raise RouterError(f"the record has no destination at {self._shown}", hint=hint)
        own = tuple(
            part for part in parts if not binding.sending.address_key or part.key != binding.sending.address_key
        )
        self._waiting.append(Outbound(address, own, record.body, address, uuid.uuid4().hex))
        # A request is answered by itself; brokers confirm many at once.
        if self._protocol == "HTTP" or len(self._waiting) >= CHUNK:
            self.finish()

    def finish(self) -> None:
        """Wait until every record is confirmed.

        Raises:
            BrokerUnreachable: the server is unreachable or rejects the login.
            RouterError: the server rejected a record.
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

    def _find_own(self, binding: Binding, parts: list[Part]) -> str:
        """Return the address of a record at its endpoint, or in its own members."""
        if self._endpoint is not None:
            return binding.sending.build_address(parts, self._endpoint, True, str)
        return _part_text(parts, binding.sending.address_key or "properties.to")

    def _make_url(self, parts: list[Part]) -> str:
        """Return the URL of an HTTP record: a target without path takes each record's own."""
        path = self._url.path if self._url.path not in ("", "/") else _part_text(parts, "path") or "/"
        own = urlencode([(name, part.value or b"") for name, part in iter_headers(parts, "query.")])
        query = "&".join(filter(None, (self._url.query, own)))
        return f"{self._server}{quote(path, safe=_PATH_CHARACTERS)}" + (f"?{query}" if query else "")

    def _make_publisher(self, binding: Binding) -> Publisher:
        """Return the client of a protocol, which connects when it first sends; imports its library."""
        name, seconds = f"emit-{uuid.uuid4().hex[:12]}", timedelta(seconds=_SECONDS)
        sinks: dict[str, Callable[[], RemoteSink]] = {
            "http": lambda: HttpSink(type="http", url=self._server, timeout=seconds, in_flight=1),
            "kafka": lambda: KafkaSink(type="kafka", bootstrap_servers=self._url.netloc, topic="-"),
            "mqtt": lambda: MqttSink(type="mqtt", uri=(self._server,), timeout=seconds),
            "amqp": lambda: AmqpSink(type="amqp", uri=(self._server,), timeout=seconds),
            # Without JetStream, a message counts as delivered when the server has received it.
            "nats": lambda: NatsSink(type="nats", uri=(self._server,), timeout=seconds, jetstream=False),
        }
        try:
            return sinks[binding.sending.family]().publisher(name, binding, None)
        except (GatewayError, SinkError) as error:
            raise RouterError(f"{self._shown}: {error}", hint="correct --to") from error


def protocol_of_url(target: str) -> str:
    """Return the protocol of a target's URL.

    Raises:
        RouterError: the scheme of the URL is unknown.
    """
    try:
        scheme = urlsplit(target).scheme.lower()
    except ValueError as error:
        raise RouterError(f"cannot send to {target!r}: {error}", hint="correct --to") from error
    if scheme not in SCHEMES:
        hint = f"write SCHEME://HOST:PORT, with a path to name topic, node or subject; schemes are {', '.join(SCHEMES)}"
        raise RouterError(f"cannot send to {target!r}: not a known kind of target", hint=hint)
    return SCHEMES[scheme]


@contextmanager
def open_destination(target: str | None, output: BinaryIO, endpoint: Endpoint | None = None) -> Iterator[Send]:
    """Open a target for the block, and yield what sends a record there; on exit, everything sent is acknowledged.

    *endpoint* supplies addresses if the target has none.

    Raises:
        BrokerUnreachable: the target is unreachable.
        RouterError: the target rejects a record or is of an unknown kind.
    """
    if target is None:
        yield lambda record: output.write(escape_json_controls(encode_record_line(record)))
        output.flush()
        return
    server = ServerTarget(target, endpoint)
    try:
        yield server.send
        server.finish()
    finally:
        server.close()


def _part_text(parts: list[Part], key: str) -> str:
    part = first_part(parts, key)
    return (part.text if part is not None else None) or ""


# Finding definitions and endpoints by xid, or by an unambiguous part of their name.


def find_xid(name: str, xids: Iterable[str], what: str) -> str:
    """Return the xid that a name refers to: an xid, an id, ``GROUP/ID``, or the end of an id after a dot.

    Raises:
        RouterError: none or several entities match; the message names them *what*.
    """
    known = tuple(xids)
    if name in known:
        return name
    ends: dict[str, list[str]] = {}
    for xid in known:
        parts = xid.strip("/").split("/")
        words = parts[-1].split(".")
        for end in (f"{parts[1]}/{parts[-1]}", *(".".join(words[start:]) for start in range(len(words)))):
            ends.setdefault(end, []).append(xid)

    def find_by_end(end: str) -> list[str]:
        found = ends.get(end, [])
        return [xid for xid in found if xid.endswith(f"/{end}")] or found

    called = find_by_end(name)
    if len(called) == 1:
        return called[0]
    if called:
        text = f"several {what}s are called {name}: {shorten_list(called)}"
        raise RouterError(text, hint="give more of the name, or the xid")
    similar = get_close_matches(name, ends, 1)
    hint = f"did you mean {find_by_end(similar[0])[0]}?" if similar else "`xrouter catalog list` shows what there is"
    raise RouterError(f"the catalog has no {what} {name}", hint=hint_near(name, known, hint))


def find_only_endpoint(catalog: Catalog, xid: str, protocol: str | None) -> str | None:
    """Return the only endpoint of a definition; None for none or several.

    *protocol* restricts the endpoints, None is any. Endpoints where the definition can never match do not count.
    """
    definition = catalog.definitions[xid]

    def has_protocol(spoken: str | None) -> bool:
        if protocol is None:
            return binding_of(spoken or "") is not None
        return binding_of(spoken or definition.protocol or "") is binding_of(protocol)

    endpoints = [
        endpoint.xid
        for endpoint in catalog.endpoints.values()
        if xid in endpoint.candidates and has_protocol(endpoint.protocol)
        if match_candidate_of(definition, endpoint) is not None
    ]
    return endpoints[0] if len(endpoints) == 1 else None


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
        typer.Option(metavar="NAME", help="The endpoint whose defaults and address apply; by default the only one."),
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
        Literal["confluent"] | None,
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
    loaded = load_usable(sources, make_fetcher(logins), base_uri=base_uri)
    message = find_xid(message, loaded.definitions, "message")
    if endpoint is not None:
        endpoint = find_xid(endpoint, loaded.endpoints, "endpoint")
    known = loaded.definitions[message]
    target_protocol = protocol or (None if to is None else _align_protocol(known, protocol_of_url(to)))
    if endpoint is None and known.group not in loaded.endpoints:
        endpoint = find_only_endpoint(loaded, message, target_protocol)
    if known.protocol is None and endpoint is None:
        protocol = target_protocol
    if framing is None and schema_id is not None:
        raise EmitError("--schema-id has no effect without --framing", hint="add --framing confluent")
    if framing is not None:
        schema_id = schema_id or declared_id(loaded, known)
        if schema_id is None:
            hint = "give it with --schema-id, or declare it by the label schemaid of the schema's version"
            raise EmitError(f"the schema id of {message} is unknown", hint=hint)
    producer = MessageProducer(
        loaded,
        message,
        endpoint=endpoint,
        protocol=protocol,
        mode=mode,
        context=parse_name_values(values, "--context"),
        seed=seed,
        schema_id=schema_id,
    )
    shown = count >= CHUNK and sys.stderr.isatty() and (to is not None or not sys.stdout.isatty())
    with (
        Progress(console=terminal(err=True), disable=not shown) as bar,
        open_destination(to, sys.stdout.buffer, producer.endpoint) as send,
    ):
        task, has_warned = bar.add_task("produced", total=count), False
        for number, record in enumerate(producer.iter_records(count)):
            if number == 0:
                require_match(loaded, producer, record)
            if producer.payload_doubt and not has_warned:
                has_warned = True
                warning = f"warning: the data of {message} is not known to fit: {producer.payload_doubt}"
                bar.console.print(warning, soft_wrap=True)
            send(record)
            bar.advance(task)


def _align_protocol(definition: Definition, protocol: str) -> str:
    """Return the definition's protocol if the target supports it (both versions of MQTT), else the target's."""
    own = binding_of(definition.protocol or "")
    if own is not None and own.sending.family == BINDINGS[protocol].sending.family:
        return own.protocol
    return protocol
