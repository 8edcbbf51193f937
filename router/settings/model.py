"""The settings: one frozen model per section of the file (deploy/SETTINGS.md).

Every option is a field with a type, a default and one line of documentation; that page's table is generated from them.
:mod:`router.settings.load` builds these models from a file and the environment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, Field, PrivateAttr, SecretStr

from bindings.http.request import Access, ServerLimits
from bindings.private_files import Readers
from catalog.schemas.ids.client import Framing
from router.matching.tie_breaker import Ambiguous
from router.settings.catalogs import (
    CatalogSettings,
    HttpTlsSettings,
    KafkaLogin,
    NatsLogin,
    SchemaRegistrySettings,
    TelemetrySettings,
    TlsSettings,
)
from router.settings.routes import RouteSettings
from router.settings.sinks.kinds import Sink
from router.settings.spark import SparkSettings
from router.settings.values import (
    ENDPOINT,
    REAL_TIME,
    Duration,
    FilePath,
    Options,
    Secrets,
    Section,
    Size,
    Text,
    Texts,
    Trigger,
    plain_options,
)

# The HTTP gateway, the broker gateways and the inbox.


class HttpAuthSettings(Section):
    """HTTP clients that may send: each secret under its client's name, by reference."""

    bearer: Secrets = Field({}, description="Bearer tokens by client name, by reference.")
    basic: Secrets = Field({}, description="Passwords by user name, by reference.")
    api_keys: Secrets = Field({}, description="API keys by client name, by reference.")
    api_key_header: str = Field("X-API-Key", description="Header with the API key.", pattern="^[A-Za-z0-9-]+$")

    @property
    def client_names(self) -> tuple[str, ...]:
        """The names of all clients."""
        return tuple(dict.fromkeys((*self.bearer, *self.basic, *self.api_keys)))


class HttpSettings(Section):
    """The HTTP gateway."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    max_body: Size = Field(2**20, gt=0, description="Maximum size of a request body; larger ones get 413.")
    max_target: Size = Field(8 * 2**10, ge=64, description="Maximum size of path and query; longer ones get 414.")
    max_header: Size = Field(64 * 2**10, ge=1024, description="Maximum total size of headers; more gets 431.")
    max_headers: int = Field(200, ge=8, description="Maximum number of headers; more gets 431.")
    max_connections: int = Field(
        1000,
        ge=1,
        description="Maximum concurrent connections, lower if the limit on open files is; idle ones are closed first.",
    )
    max_connections_per_address: int = Field(
        256,
        ge=1,
        description="Maximum concurrent connections per client address (IPv6: per /64); raise it behind a proxy.",
    )
    max_in_flight: int = Field(1000, ge=1, description="Maximum messages that wait for the inbox; more get 503.")
    max_in_flight_bytes: Size = Field(
        256 * 2**20, gt=0, description="Maximum memory for bodies; above it, the oldest incomplete body is dropped."
    )
    header_timeout: Duration = Field(
        timedelta(seconds=10), gt=timedelta(0), description="Timeout for a TLS handshake, and for request headers."
    )
    request_timeout: Duration = Field(
        timedelta(seconds=30), gt=timedelta(0), description="Timeout for a body, and then for the inbox to store it."
    )
    idle_timeout: Duration = Field(
        timedelta(seconds=30), gt=timedelta(0), description="Time after which an idle connection is closed."
    )
    tls: HttpTlsSettings | None = Field(None, description="Certificates; set, the gateway accepts HTTPS only.")
    auth: HttpAuthSettings | None = Field(None, description="Clients that may send; unset, anyone may.")


class GatewaySettings(Section):
    """The gateways of MQTT, AMQP and NATS."""

    max_body: Size = Field(2**20, gt=0, description="Maximum size of a body; larger is dead-lettered as `oversized`.")
    max_in_flight: int = Field(1000, ge=1, description="Maximum messages per connection not on disk yet.")


class KafkaInboxSettings(KafkaLogin):
    """A Kafka topic as the inbox, written by processes of `xrouter gateway`."""

    bootstrap_servers: str = Field(description="Kafka brokers: HOST:PORT, separated by commas.", min_length=1)
    topic: str = Field(description="Topic; it must exist and retain messages until routed.", min_length=1)
    max_message_bytes: Size = Field(1_000_000, ge=65_536, description="Maximum message size of the brokers.")
    options: Options = Field({}, description="More Kafka client options, by their Kafka names.")

    @property
    def client_options(self) -> Mapping[str, SecretStr]:
        """Options of the Kafka client."""
        return self.options


class InboxSettings(Section):
    """The durable inbox of the push protocols: a folder below `state`, or a Kafka topic."""

    kafka: KafkaInboxSettings | None = Field(None, description="A Kafka topic as inbox; gateways then run separately.")

    partitions: int = Field(4, ge=1, description="Number of partitions; order is kept within each.")
    segment_bytes: Size = Field(64 * 2**20, gt=0, description="Maximum size of a segment file.")
    max_bytes: Size = Field(10 * 2**30, gt=0, description="Maximum size of the inbox; at it, gateways push back.")
    min_free_bytes: Size = Field(512 * 2**20, ge=0, description="Free disk space below which gateways push back.")


# Settings of HTTP as the server's objects.


def make_access(auth: HttpAuthSettings | None) -> Access | None:
    """Return which clients may send; None is everyone."""
    if auth is None:
        return None
    bearer, basic, keys = (plain_options(each) for each in (auth.bearer, auth.basic, auth.api_keys))
    return Access(bearer, basic, keys, auth.api_key_header)


def make_server_limits(chosen: HttpSettings) -> ServerLimits:
    """Return the limits of requests and connections."""
    return ServerLimits(
        max_target=chosen.max_target,
        max_header_bytes=chosen.max_header,
        max_headers=chosen.max_headers,
        max_connections=chosen.max_connections,
        max_per_address=chosen.max_connections_per_address,
        max_held_bytes=chosen.max_in_flight_bytes,
        header_timeout=chosen.header_timeout.total_seconds(),
        request_timeout=chosen.request_timeout.total_seconds(),
        idle_timeout=chosen.idle_timeout.total_seconds(),
    )


# The router's own certificates.


def find_certificates(settings: BaseModel) -> dict[str, Path]:
    """Return the files of the router's own certificates by settings key, such as ``sinks.bus.tls``."""
    return dict(_iter_certificates(settings, ""))


def _iter_certificates(value: object, key: str) -> Iterator[tuple[str, Path]]:
    if isinstance(value, TlsSettings | HttpTlsSettings):
        if value.cert is not None:
            yield key, Path(value.cert)
        return
    members: Iterator[tuple[object, object]] = iter(())
    if isinstance(value, BaseModel):
        members = ((name, getattr(value, name)) for name in type(value).model_fields)
    elif isinstance(value, dict):
        members = iter(value.items())
    elif isinstance(value, list | tuple):
        members = iter(enumerate(value))
    for name, member in members:
        yield from _iter_certificates(member, f"{key}.{name}" if key else str(name))


# Memory limits.


class MemorySettings(Section):
    """The memory budget (see OPERATIONS.md)."""

    heap: Size | None = Field(
        None,
        ge=512 * 2**20,
        description="Heap of Spark's JVM; unset is an eighth of the machine's memory, within 1 to 4 GiB if available.",
    )
    worker: Size | None = Field(
        None,
        ge=128 * 2**20,
        description="Memory of a Python worker besides the catalog; unset is 0.5 to 1 GiB, by machine and cores.",
    )


# Real-time mode.

MIN_CHECKPOINT: Final = timedelta(seconds=5)
"""The minimum that Spark accepts."""


class RealTimeSettings(Section):
    """Real-time mode (``trigger: realtime``): records that Spark expressions can decide are sent one by one."""

    rest: str = Field(
        description=(
            "Fallback topic, on the sinks' cluster, for records that only the matcher can decide. It must exist, be "
            "used by this router only, and retain records until they are routed; it is read whatever `trigger` is."
        ),
        min_length=1,
    )
    checkpoint: Duration = Field(
        timedelta(minutes=1),
        ge=MIN_CHECKPOINT,
        description="Interval between checkpoints; records since the last one are sent again after a crash.",
    )


# Request-reply pairs, which relations of definitions describe.


class RelationSettings(Section):
    """Where request-reply pairs go, and how long a message waits for its counterpart."""

    to: str = Field(description="Sink for pairs: a Delta table or Kafka topic, used for nothing else.", min_length=1)
    wait: Duration = Field(
        timedelta(hours=1),
        ge=timedelta(seconds=1),
        description="How long a request waits for its reply, or a reply for its request, while the router runs; longer "
        "while records that arrived in that time are unread.",
    )
    most: int = Field(
        1_000_000,
        ge=1,
        description="Maximum number of pending messages; also of pairs that wait for the sink before batches wait too.",
    )


# Dead letters.


class RetentionSettings(Section):
    """How long dead letters are kept; with both limits off, forever.

    Age counts from when the dead letter was written. Size is disk space per sink. Only dead letters in tables and
    folders are removed; in Kafka, the topic's `retention.ms` applies. Replaced files of a Delta table stay for the
    sink's `keep_replaced`, for readers.
    """

    age: Duration = Field(
        timedelta(0), description="Age at which dead letters are removed; 0 keeps them forever. Not for Kafka sinks."
    )
    size: Size = Field(
        0, ge=0, description="Size per sink above which the oldest dead letters are removed; 0 is no limit."
    )

    @property
    def on(self) -> bool:
        """Whether any limit is set."""
        return bool(self.age or self.size)


def _reject_empty(names: tuple[str, ...]) -> tuple[str, ...]:
    """Reject empty names."""
    for name in names:
        if not name.strip() or name == "/":
            raise ValueError(f"{name!r} is empty; write a name such as email, x-*, or a JSON pointer such as /card")
    return names


Redacted = Annotated[Texts, AfterValidator(_reject_empty)]


class DeadLetterSettings(Section):
    """Where dead letters go, and how they are kept, shown and replayed."""

    sinks: Texts = Field(
        description="Names of the sinks for dead letters that no route matches; each gets all of them.", min_length=1
    )
    max_ratio: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Circuit breaker: share of dead letters in a batch above which the batch is blocked; unset is off.",
    )
    max_replays: int = Field(5, ge=1, description="Number of failed replays after which a dead letter is parked.")
    order: Literal["continue", "park"] = Field(
        "continue",
        description=(
            "Later records of a key that has a dead letter: `continue` sends them; `park` dead-letters them, too, "
            "until the first is replayed."
        ),
    )
    redact: Redacted = Field(
        (),
        description=(
            "Values that listings and logs show as `•••`: names of attributes, headers and properties (`*` matches "
            "any text), and JSON pointers into bodies (beginning with `/`)."
        ),
    )
    retention: RetentionSettings = Field(RetentionSettings(), description="How long dead letters are kept.")


# Subscriptions at an endpoint with usage subscriber.

_URL = r"^[Hh][Tt][Tt][Pp][Ss]?://[^\s/?#@\\]+(?:/[^\s#]*)?$"


class SubscriptionSettings(Section):
    """A subscription at a subscription manager, by the CloudEvents Subscriptions API."""

    sink: str = Field(
        description="URL of the HTTP gateway as the manager reaches it; the gateway listens on its path.", pattern=_URL
    )
    manager: str | None = Field(
        None, description="URL of the subscription manager; unset is the endpoint's own address.", pattern=_URL
    )
    source: str | None = Field(None, description="Subscribe to events of this CloudEvents `source` only.")
    types: Texts = Field((), description="Subscribe to events of these types only; empty is all.")
    exact: dict[str, Text] = Field({}, description="Filter: attributes that must equal these values.")
    prefix: dict[str, Text] = Field({}, description="Filter: attributes that must begin with these values.")
    suffix: dict[str, Text] = Field({}, description="Filter: attributes that must end with these values.")
    lasts: Duration = Field(
        timedelta(hours=1),
        description="Lifetime of the subscription, which is renewed after half of it; 0 never expires.",
    )
    keep: bool = Field(False, description="Whether the subscription stays when the router stops; else it is deleted.")
    token: SecretStr | None = Field(
        None, description="Bearer token that the manager sends to the gateway, by reference; requires `manager`."
    )


def check_subscription(key: str, chosen: SubscriptionSettings, *, plain: bool) -> Iterator[tuple[str, str]]:
    """Yield contradictions in a subscription; with *plain* secrets may be sent without TLS."""
    if timedelta(0) < chosen.lasts < timedelta(seconds=2):
        yield f"{key}.lasts", "is too short to be renewed in time; give it two seconds or more, or 0"
    if chosen.token is None:
        return
    if chosen.manager is None:
        yield f"{key}.manager", "is required with token: a changed catalog could send the token elsewhere; add it"
    for name in ("manager", "sink"):
        url = getattr(chosen, name) or ""
        if url.lower().startswith("http:") and not plain:
            fault = "would send the token without TLS; use https://, or set allow_plaintext_password"
            yield f"{key}.{name}", fault


DEFAULT_TRIGGER: Final = timedelta(milliseconds=500)


class SourceSettings(KafkaLogin, NatsLogin):
    """One endpoint of the catalog whose records are consumed."""

    endpoint: str = Field(description="The endpoint's xid, such as /endpoints/plant.", pattern=ENDPOINT)
    lane: str | None = Field(
        None,
        description=(
            "Kafka: name of a separate query for this source, so that it cannot delay others; sources with the same "
            "name share one."
        ),
    )
    start: Literal["earliest", "latest"] | None = Field(
        None, description="Where the first run begins; unset is the global `start`, the endpoint's own, else earliest."
    )
    context: dict[str, Text] = Field({}, description="Context attributes to add to each record of this source.")
    bootstrap_servers: str | None = Field(None, description="Kafka brokers, instead of the endpoint's addresses.")
    framing: Framing = Field(
        "auto",
        description=(
            "Kafka: wire format of the schema id that bodies begin with: Confluent's, Apicurio's (eight-byte id), AWS "
            "Glue's, or none; `auto` detects Confluent's."
        ),
    )
    schema_registry: str | None = Field(
        None, description="Kafka: name in `schema_registries` that resolves schema ids; unset is the default one."
    )
    framing_ids: Literal["auto", "require"] = Field(
        "auto",
        description=(
            "Kafka: bodies with a schema id where neither a schema registry nor declared ids are configured: `auto` "
            "reads them with the definition's schema, `require` dead-letters them as `undecodable`."
        ),
    )
    uris: Texts = Field((), description="MQTT, AMQP, NATS: broker URIs, instead of the endpoint's.")
    addresses: Texts = Field(
        (), description="MQTT, AMQP, NATS: topic filters, nodes or subjects, instead of the catalog's."
    )
    client_id: str | None = Field(None, description="MQTT, AMQP, NATS: client id; unset generates and keeps one.")
    kafka: Options = Field(
        {}, description="More Kafka client options, by their Kafka names. `isolation.level` defaults to read_committed."
    )
    commit_offsets_to: Text | None = Field(
        None,
        description="Kafka: consumer group to commit the offsets of finished batches to, so that Kafka tools show the "
        "lag. The router never reads them; use a group that nothing else uses.",
    )
    path: str | None = Field(None, description="HTTP: path to listen on, instead of the endpoint's.", pattern="^/")
    subscription: SubscriptionSettings | None = Field(
        None, description="HTTP: subscribe at the endpoint, whose address is a CloudEvents subscription manager."
    )
    users: Texts = Field((), description="HTTP: names in `http.auth` that may send here; empty is all of them.")

    @property
    def client_options(self) -> Mapping[str, SecretStr]:
        """Options of the Kafka client."""
        return self.kafka


class MatchSettings(Section):
    """How records are matched."""

    validation: Literal["never", "ambiguous", "always"] = Field(
        "ambiguous",
        alias="validate",
        description=(
            "When bodies are validated against their schemas: `never`, to decide between several matching definitions "
            "(`ambiguous`), or `always`."
        ),
    )
    hop_by_hop: bool = Field(False, description="Whether properties that change hop by hop must match.")
    ambiguous: Ambiguous = Field(
        "dead-letter",
        description=(
            "What a record that several definitions match equally well becomes: a dead letter, an event of the "
            "`first` of them in catalog order, or of their nearest common `base`."
        ),
    )


class MetricsSettings(Section):
    """The address of /metrics, /healthz and /readyz."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(9464, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")


class WatchSettings(MetricsSettings):
    """The address of /metrics, /healthz and /readyz, and of the status page beside them."""

    token: SecretStr | None = Field(
        None,
        min_length=16,
        description=(
            "Token, by reference, that lets users of the status page see records and replay dead letters. Unset, the "
            "page cannot replay, and shows records only if `metrics.host` is a loopback address."
        ),
    )


class LogSettings(Section):
    """What is logged to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Minimum severity; `debug` also logs each batch and each poll of the catalog."
    )
    format: Literal["text", "json"] = Field("text", description="Format of log lines.")


class Settings(Section):
    """All settings, resolved, with absolute paths.

    Built by :func:`router.settings.load_settings`, which applies the environment before references are resolved.
    """

    catalog: CatalogSettings = Field(CatalogSettings(), description="The catalog.")
    schema_registries: dict[str, SchemaRegistrySettings] = Field({}, description="Schema registries by name.")
    sources: tuple[SourceSettings, ...] = Field((), description="Sources; empty consumes all consumer endpoints.")
    sinks: dict[str, Sink] = Field({}, description="Sinks by name.")
    routes: tuple[RouteSettings, ...] = Field((), description="Routes, in order.")
    dead_letters: DeadLetterSettings = Field(description="Dead letters.")
    state: FilePath = Field(
        "./state", description="Folder for checkpoints, plans and inbox; only one router may use it.", min_length=1
    )
    readable_by: Readers = Field(
        "group",
        description="Who may read files of local sinks, subject to the umask; `state` is always readable by its owner "
        "only.",
    )
    trigger: Trigger = Field(
        DEFAULT_TRIGGER,
        description="Minimum interval between batch starts; or `realtime`, which requires `realtime.rest`.",
    )
    realtime: RealTimeSettings | None = Field(None, description="Real-time mode.")
    relations: RelationSettings | None = Field(None, description="Request-reply pairs, by relations of the catalog.")
    max_records_per_batch: int = Field(100_000, ge=1, description="Maximum number of records per batch.")
    max_bytes_per_batch: Size | None = Field(
        None,
        ge=2**20,
        description="Maximum size of a batch; unset is a sixteenth of `memory.heap`, within 16 to 128 MiB.",
    )
    batch_limit: Duration = Field(
        timedelta(minutes=5),
        description="Timeout for one attempt to write a batch; it is then canceled and retried in smaller parts; 0 is "
        "no limit.",
    )
    worker_timeout: Duration = Field(
        timedelta(minutes=1),
        description="Timeout for an unresponsive Python worker of Spark; it is then killed and the batch split; 0 is "
        "no limit.",
    )
    start: Literal["earliest", "latest"] = Field("earliest", description="Where the first run begins.")
    on_data_loss: Literal["stop", "continue"] = Field(
        "stop", description="What to do if records were deleted at the broker before they were read."
    )
    match: MatchSettings = Field(MatchSettings(), description="Matching.")
    metrics: WatchSettings = Field(WatchSettings(), description="Metrics, health and the status page.")
    http: HttpSettings = Field(HttpSettings(), description="The HTTP gateway.")
    gateways: GatewaySettings = Field(GatewaySettings(), description="The gateways of MQTT, AMQP and NATS.")
    inbox: InboxSettings = Field(InboxSettings(), description="The inbox.")
    telemetry: TelemetrySettings = Field(TelemetrySettings(), description="What is sent to OpenTelemetry.")
    drain_grace: Duration = Field(timedelta(seconds=30), description="Maximum wait for a batch when stopping.")
    log: LogSettings = Field(LogSettings(), description="Logging.")
    memory: MemorySettings = Field(MemorySettings(), description="Memory.")
    spark: SparkSettings = Field(SparkSettings(), description="Spark.")
    _unresolved: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def is_real_time(self) -> bool:
        """Whether records that Spark expressions can decide are sent one by one."""
        return self.trigger == REAL_TIME

    @property
    def between_batches(self) -> timedelta:
        """The minimum interval between batch starts; in real-time mode, for the fallback topic."""
        return self.trigger if isinstance(self.trigger, timedelta) else DEFAULT_TRIGGER

    @property
    def unresolved(self) -> dict[str, Any]:
        """The settings as written, environment included, with references instead of secrets; plans store them."""
        return self._unresolved
