"""Settings of sinks of type ``amqp``, ``http``, ``mqtt``, ``nats``, ``table`` and ``jsonl``."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, ClassVar, Final, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr

from bindings.gateways import GatewayError
from bindings.parts import JSON_KIND, Part
from bindings.protocols import BINDINGS, Binding
from bindings.sending import Publisher
from catalog.model import Endpoint
from router.errors import SinkError
from router.settings.catalogs import (
    NatsLogin,
    iter_cleartext_faults,
    iter_login_choices,
    iter_login_faults,
    to_tls,
)
from router.settings.routes import (
    TABLE_VARIABLES,
    NameTemplateError,
    escape_value,
    parse_address,
    parse_name,
)
from router.settings.sinks.contract import Fault, MessageForm, RemoteSink, SinkSettings, TemplateFiller
from router.settings.values import (
    Duration,
    FilePath,
    Options,
    Size,
    Texts,
    is_url,
    plain_options,
    to_text,
)

EXCLUDES_ENDPOINT: Final = "and endpoint exclude each other; remove one"


class MessageSink(RemoteSink):
    """A sink of any message protocol except Kafka: at least once, each message confirmed."""

    mode: Literal["binary", "structured"] | None = Field(
        None, description="CloudEvents content mode; unset is the definition's or endpoint's, else binary."
    )
    pass_headers: bool = Field(
        True,
        description="Whether to pass on headers of the record that are not attributes, if the protocol has headers.",
    )
    timeout: Duration = Field(timedelta(seconds=30), gt=timedelta(0), description="Timeout for a confirmation.")
    max_body: Size | None = Field(
        None,
        ge=1,
        description="Maximum size of a body, for targets that do not announce theirs; larger ones become dead letters "
        "(`sink-rejected`).",
    )

    schemes: ClassVar[tuple[str, ...]]
    """URI schemes of addresses."""

    @property
    def message_form(self) -> MessageForm:
        """The mode and the limit of the settings, and whether headers are passed on."""
        return MessageForm(
            self.mode, reserved_headers=frozenset() if self.pass_headers else None, max_body=self.max_body
        )

    @property
    def seconds(self) -> float:
        """The timeout for a confirmation, in seconds."""
        return self.timeout.total_seconds()

    def faults(self, key: str, *, events: bool, letters: bool) -> Iterator[Fault]:
        """Yield what is wrong with destination, login and addresses."""
        field = f"{key}.{self.template_field}"
        if not self.has_template and self.endpoint is None:
            yield field, "is required; add it, or set endpoint"
        if self.has_template and self.endpoint is not None:
            yield field, EXCLUDES_ENDPOINT
        if self.has_template:
            try:
                parse_address(self.template, self.sending)
            except NameTemplateError as error:
                yield field, str(error)
        yield from iter_login_faults(key, self.username, self.password is not None)
        yield from self.address_faults(key)

    def address_faults(self, key: str) -> Iterator[Fault]:
        """Yield what is wrong with the addresses of the server."""
        if not self.own_addresses and self.endpoint is None:
            yield f"{key}.uri", "is required; add the broker's address, or set endpoint"
        for uri in self.own_addresses:
            yield from iter_uri_faults(f"{key}.uri", uri, self.schemes)

    @property
    def has_template(self) -> bool:
        """Whether the settings have a destination."""
        return getattr(self, self.template_field) is not None


def iter_uri_faults(key: str, uri: str, schemes: tuple[str, ...]) -> Iterator[Fault]:
    """Yield what is wrong with one address."""
    try:
        parts = urlsplit(uri)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        yield key, f"is not a valid address: {error}"
        return
    if parts.scheme.lower() not in schemes or not host:
        yield key, f"must be {' or '.join(f'{scheme}://' for scheme in schemes)} and a host"
    if parts.password is not None:
        yield key, "contains a password; set username and password of the sink instead"


# Sinks of type ``amqp``.


class AmqpSink(MessageSink):
    """Nodes of an AMQP 1.0 broker, which accepts each message."""

    family = "amqp"
    template_field = "node"
    schemes = ("amqp", "amqps")

    type: Literal["amqp"] = Field(description="`amqp`.")
    uri: Texts = Field(
        (), description="Broker URI such as amqp://host:5672 or amqps://host; several are tried in turn."
    )
    node: str | None = Field(None, description="Node (queue, topic), or a template such as events/{messagegroup}.")

    def address_faults(self, key: str) -> Iterator[Fault]:
        """Yield what is wrong with addresses, also those without TLS where tls is set."""
        yield from super().address_faults(key)
        yield from iter_cleartext_faults(f"{key}.uri", self.uri, self.tls)

    def publisher(self, name: str, binding: Binding, endpoint: Endpoint | None) -> Publisher:
        """Return a client that sends durable messages and waits for ``accepted``."""
        from bindings.amqp.publisher import AmqpSender

        ours = f"xrouter-{name}-{os.getpid()}"
        return AmqpSender(self.connection(name, endpoint), container_id=ours, timeout=self.seconds)


# Sinks of type ``http``.


class HttpSink(MessageSink):
    """HTTP targets; a 2xx response confirms each message."""

    family = "http"
    address_field = "url"
    template_field = "url"
    schemes = ("http", "https")

    type: Literal["http"] = Field(description="`http`.")
    url: str | None = Field(None, description="URL, or a template such as https://host/events/{messagegroup}/{type}.")
    method: str = Field("POST", description="Method, unless endpoint or definition has one.", pattern="^[A-Z]+$")
    headers: Options = Field({}, description="More request headers, by name; secret ones by reference.")
    bearer: SecretStr | None = Field(None, description="Bearer token, by reference.")
    api_key: SecretStr | None = Field(None, description="API key, by reference, sent in the header `api_key_header`.")
    api_key_header: str = Field("X-API-Key", description="Header of `api_key`.", pattern="^[A-Za-z0-9-]+$")
    version: Annotated[Literal["1.1", "2"], BeforeValidator(to_text)] | None = Field(
        None, description="HTTP version; unset negotiates HTTP/2 by TLS (ALPN); 2 without TLS uses prior knowledge."
    )
    in_flight: int = Field(
        8, ge=1, le=256, description="Maximum number of concurrent requests; those of one partition keep their order."
    )
    webhook_origin: str | None = Field(
        None, description="`WebHook-Request-Origin` for the webhook validation handshake; no handshake if unset."
    )

    @property
    def client_options(self) -> Mapping[str, SecretStr]:
        """Headers of every request."""
        return self.headers

    @property
    def message_form(self) -> MessageForm:
        """As for other protocols; headers of the settings are not passed on."""
        form = super().message_form
        key = [] if self.api_key is None else [self.api_key_header]
        taken = frozenset(name.lower() for name in (*self.headers, *key))
        return replace(form, reserved_headers=taken) if self.pass_headers else form

    def address_faults(self, key: str) -> Iterator[Fault]:
        """Yield what is wrong with the URL, and headers that events set."""
        if self.username is not None and self.bearer is not None:
            yield f"{key}.bearer", "and username both make an Authorization header; keep one"
        if self.url is not None:
            yield from iter_uri_faults(f"{key}.url", self.url.partition("{")[0], self.schemes)
            if self.tls is not None and self.url.lower().startswith("http:"):
                yield f"{key}.tls", "has no effect with http://; use https:// or remove tls"
        for name in self.headers:
            if name.lower().startswith("ce-") or name.lower() in ("content-type", "content-length", "host"):
                yield f"{key}.headers.{name}", "is set from each event; remove it"

    def publisher(self, name: str, binding: Binding, endpoint: Endpoint | None) -> Publisher:
        """Return a client; a 2xx response confirms a message."""
        from bindings.http.publisher import HttpPoster

        login = self.login
        named = login.username is not None and login.password is not None
        try:
            return HttpPoster(
                method=self.method,
                headers=self.own_headers(),
                basic=(login.username or "", login.password or "") if named else None,
                tls=to_tls(self.tls),
                timeout=self.seconds,
                in_flight=self.in_flight,
                version=self.version,
                origin=self.webhook_origin,
            )
        except GatewayError as error:
            raise SinkError(name, f"cannot use its certificates: {error}", hint="correct tls of the sink") from error

    def own_headers(self) -> list[tuple[str, str]]:
        """Return the headers of every request; some are secrets."""
        headers = list(plain_options(self.headers).items())
        if self.bearer is not None:
            headers.append(("Authorization", f"Bearer {self.bearer.get_secret_value()}"))
        if self.api_key is not None:
            headers.append((self.api_key_header, self.api_key.get_secret_value()))
        return headers


# Sinks of type ``mqtt``.


class MqttSink(MessageSink):
    """Topics of an MQTT broker, which acknowledges each message."""

    family = "mqtt"
    template_field = "topic"
    schemes = ("mqtt", "mqtts", "tcp", "ssl")

    type: Literal["mqtt"] = Field(description="`mqtt`.")
    uri: Texts = Field(
        (), description="Broker URI such as mqtt://host:1883 or mqtts://host; several are tried in turn."
    )
    topic: str | None = Field(None, description="Topic, or a template such as events/{messagegroup}/{type}.")
    qos: int = Field(1, ge=0, le=1, description="Minimum QoS; the broker does not acknowledge QoS 0.")
    retain: bool = Field(False, description="Whether to set the retain flag.")
    version: Annotated[Literal["5.0", "3.1.1"], BeforeValidator(to_text)] | None = Field(
        None, description="MQTT version; unset is the endpoint's, else 5.0. 3.1.1 has structured mode only."
    )

    @property
    def message_form(self) -> MessageForm:
        """As for other protocols, with QoS and retain flag."""
        retain = b"true" if self.retain else b"false"
        given = (Part("qos", b"%d" % self.qos, JSON_KIND), Part("retain", retain, JSON_KIND))
        return replace(super().message_form, least={"qos": self.qos}, given=given)

    def binding(self, endpoint: Endpoint | None) -> Binding:
        """Return the binding of the settings' version, else the endpoint's, else MQTT 5."""
        named = f"MQTT/{self.version}" if self.version else endpoint.protocol if endpoint else None
        return BINDINGS[named or "MQTT/5.0"]

    def address_faults(self, key: str) -> Iterator[Fault]:
        """Yield what is wrong with addresses, and a mode that the version lacks."""
        yield from super().address_faults(key)
        if self.version == "3.1.1" and self.mode == "binary":
            yield f"{key}.mode", "binary needs properties, which MQTT 3.1.1 lacks; use structured, or version 5.0"

    def publisher(self, name: str, binding: Binding, endpoint: Endpoint | None) -> Publisher:
        """Return a client; with QoS 0 a message is confirmed once it is written."""
        from bindings.mqtt.publisher import MqttPublisher

        # Each process has its own client id: two clients with the same id would disconnect each other forever.
        ours = f"xrouter-{name}-{uuid.uuid4().hex[:12]}"
        version: Literal["MQTT/5.0", "MQTT/3.1.1"] = "MQTT/5.0" if binding.binary else "MQTT/3.1.1"
        return MqttPublisher(self.connection(name, endpoint), protocol=version, client_id=ours, timeout=self.seconds)


# Sinks of type ``nats``: core or JetStream.


class NatsSink(MessageSink, NatsLogin):
    """Subjects of a NATS server; with JetStream, a stream stores each message."""

    family = "nats"
    template_field = "subject"
    schemes = ("nats", "tls")

    type: Literal["nats"] = Field(description="`nats`.")
    uri: Texts = Field((), description="Server URI such as nats://host:4222 or tls://host; several are tried in turn.")
    subject: str | None = Field(None, description="Subject, or a template such as events.{messagegroup}.{type}.")
    jetstream: bool = Field(
        True, description="Whether a JetStream stream must confirm each message; false is core NATS: at most once."
    )

    @property
    def message_form(self) -> MessageForm:
        """As for other protocols, without ``reply-to``, which JetStream uses for its acknowledgement."""
        return replace(super().message_form, uncarried=frozenset({"reply-to"} if self.jetstream else ()))

    def address_faults(self, key: str) -> Iterator[Fault]:
        """Yield what is wrong with addresses, and ways to log in that exclude each other."""
        yield from super().address_faults(key)
        yield from iter_login_choices(key, self, "username", "token", "credentials", "seed")

    def publisher(self, name: str, binding: Binding, endpoint: Endpoint | None) -> Publisher:
        """Return a client; JetStream drops a duplicate within its window."""
        from bindings.nats.publisher import NatsPublisher

        return NatsPublisher(self.connection(name, endpoint), sink=name, timeout=self.seconds, stream=self.jetstream)


# Sinks of type ``table``: a Delta table or Parquet files, for all events or one table per definition.

_TIMES: Final = ("day", "hour")
EVENT_PARTITIONS: Final = (*_TIMES, "message", "endpoint", "epoch", "protocol", "type", "source")
LETTER_PARTITIONS: Final = (*_TIMES, "reason", "endpoint", "epoch", "protocol")
"""Columns with few enough values to partition a table by, for events and for dead letters."""
_OF_DELTA: Final = ("partition_by", "compact_after", "file_bytes", "keep_replaced")


class TableSink(SinkSettings):
    """A table on disk or in an object store: one append per batch, exactly once."""

    opener = "router.sinks.tables.opening:open_tables"
    letters = "router.dead_letters.stores:open_table_letters"
    pairs = "router.sinks.pairs:open_pair_table"
    tabular = True

    type: Literal["table"] = Field(description="`table`.")
    format: Literal["delta", "parquet"] = Field("delta", description="Table format; parquet writes one file per batch.")
    path: FilePath = Field(description="Folder of the table, or of all tables; for delta, also a URL.", min_length=1)
    layout: Literal["wide", "definition"] = Field(
        "wide",
        description=(
            "`wide`: one table for all records. `definition`: one table per definition, with typed columns for the "
            "payload."
        ),
    )
    table: str = Field(
        "{messagegroup}/{messageid}",
        description="With `layout: definition`, template of a table's path below `path`.",
        min_length=1,
    )
    partition_by: Texts = Field(
        (), description="Delta: columns to partition by: `day` or `hour` (of `received`), or text columns of the table."
    )
    compact_after: int = Field(
        100, ge=0, description="Delta: number of batches after which small files are compacted; 0 is never."
    )
    file_bytes: Size = Field(64 * 2**20, ge=2**20, description="Delta: target size of compacted files.")
    keep_replaced: Duration = Field(
        timedelta(days=1),
        ge=timedelta(hours=1),
        description="Delta: how long replaced files and old log entries are kept for readers.",
    )

    @property
    def folder(self) -> str:
        """The folder of the table, or of all tables."""
        return self.path

    @property
    def staging_folder(self) -> str:
        """The path of a Delta table on disk; the router itself writes files in an object store."""
        return "" if self.format == "parquet" or is_url(self.path.removeprefix("file://")) else self.path

    @property
    def typed(self) -> bool:
        """Whether tables have typed columns for payloads."""
        return self.layout == "definition"

    @property
    def unknown_commit_reason(self) -> str:
        """Why it cannot tell whether it has a batch: tables of definitions know only their own."""
        return "each of its tables knows only its own batches" if self.layout == "definition" else ""

    def faults(self, key: str, *, events: bool, letters: bool) -> Iterator[Fault]:
        """Yield each contradiction in the table at *key*."""
        if self.format == "parquet":
            if is_url(self.path):
                yield f"{key}.path", "must be a local folder; only delta tables can be at a URL"
            for name in _OF_DELTA:
                if name in self.model_fields_set:
                    yield f"{key}.{name}", "is for delta tables; remove it, or set format: delta"
        known = LETTER_PARTITIONS if letters else EVENT_PARTITIONS
        for name in self.partition_by:
            if name not in known:
                yield f"{key}.partition_by", f"cannot partition by {name!r}; use {', '.join(known)}"
        if self.layout == "wide":
            if "table" in self.model_fields_set:
                yield f"{key}.table", "is for layout: definition; remove it, or set that"
            return
        if letters:
            yield f"{key}.layout", "dead letters have no definition; use layout: wide"
        for part in self.table.split("/"):
            try:
                parse_name(part, TABLE_VARIABLES)
            except NameTemplateError as error:
                yield f"{key}.table", str(error)

    def pair_faults(self) -> Iterator[str]:
        """Yield why it cannot accept request-reply pairs."""
        if self.format != "delta" or self.layout != "wide" or self.partition_by:
            yield "cannot accept request-reply pairs; use format: delta and layout: wide, without partition_by"

    def destination(self, filled: TemplateFiller, *, letters: bool) -> str:
        """Return the folder of the table."""
        if letters or self.layout == "wide":
            return self.path
        parts = [filled(parse_name(part, TABLE_VARIABLES), escape_value) for part in self.table.split("/")]
        return "/".join((self.path.rstrip("/"), *parts))


# Sinks of type ``jsonl``: files of JSON lines, or standard output.


class JsonLinesSink(SinkSettings):
    """JSON lines: one file per batch in a folder, or standard output (at least once)."""

    opener = "router.sinks.jsonlines:open_json_lines"
    letters = "router.dead_letters.stores:LineLetters"

    type: Literal["jsonl"] = Field(description="`jsonl`.")
    path: FilePath = Field("-", description="Folder of the files; `-` is standard output.", min_length=1)

    @property
    def is_stdout(self) -> bool:
        """Whether lines go to standard output, where nothing can be read back."""
        return self.path == "-"

    @property
    def readable(self) -> bool:
        """Whether dead letters can be read back: only from a folder."""
        return not self.is_stdout

    @property
    def folder(self) -> str:
        """The folder of the files."""
        return "" if self.is_stdout else self.path

    def faults(self, key: str, *, events: bool, letters: bool) -> Iterator[Fault]:
        """Yield what is wrong with the folder."""
        if is_url(self.path):
            yield f"{key}.path", "must be a local folder; only delta tables can be at a URL"

    def destination(self, filled: TemplateFiller, *, letters: bool) -> str:
        """Return the folder."""
        return "standard output" if self.is_stdout else self.path
