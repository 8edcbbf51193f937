"""What the settings are: one frozen model for each section of the file (deploy/SETTINGS.md).

Every option is a field with type, default and one line of doc; that page's table is made from them. How a file and the
environment become these models is in :mod:`router.settings.load`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, Field, PrivateAttr, SecretStr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from bindings.http.request import Access, ServerLimits
from bindings.private import Readers
from catalog.schemas.ids.client import Framing
from router.matching.ties import Ambiguous
from router.settings.catalogs import CatalogSettings, KafkaLogin, SchemaRegistrySettings, TelemetrySettings, TlsSettings
from router.settings.names import RouteSettings
from router.settings.sinks.kinds import Sink
from router.settings.spark import SparkSettings
from router.settings.values import ENDPOINT, REAL_TIME, Duration, Options, Section, Size, Text, Texts, Trigger, revealed

# Settings of what takes pushed messages in: the HTTP gateway, the gateways of brokers, and the inbox.


class HttpTlsSettings(Section):
    """Certificates of the HTTP gateway; all PEM files."""

    cert: str = Field(description="Our certificate, with those between it and its authority.")
    key: str = Field(description="The private key of `cert`.")
    ca: str | None = Field(
        None, description="Authorities of clients; set, a client needs a certificate of theirs (mutual TLS)."
    )


class HttpAuthSettings(Section):
    """Who may send over HTTP; each secret under the name of its owner, by reference."""

    bearer: Options = Field({}, description="Bearer tokens by name, by reference.")
    basic: Options = Field({}, description="Passwords by user name, by reference.")
    api_keys: Options = Field({}, description="API keys by name, by reference.")
    api_key_header: str = Field("X-API-Key", description="Header of API keys.", pattern="^[A-Za-z0-9-]+$")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all who may send."""
        return tuple(dict.fromkeys((*self.bearer, *self.basic, *self.api_keys)))


class HttpSettings(Section):
    """The HTTP gateway."""

    host: str = Field("127.0.0.1", description="Address to listen at.")
    port: int = Field(8080, ge=0, le=65535, description="Port; 0 takes a free one.")
    max_body: Size = Field(2**20, gt=0, description="Largest request body; more is answered 413.")
    max_target: Size = Field(8 * 2**10, ge=64, description="Longest path and query; more is answered 414.")
    max_header: Size = Field(64 * 2**10, ge=1024, description="Most bytes of headers; more is answered 431.")
    max_headers: int = Field(200, ge=8, description="Most headers; more is answered 431.")
    max_connections: int = Field(
        1000,
        ge=1,
        description="Connections at a time, fewer if the limit on open files asks for it; idle ones make room.",
    )
    max_connections_per_address: int = Field(
        256,
        ge=1,
        description="Connections of one address (IPv6: of one /64) at a time, likewise; raise it behind a proxy.",
    )
    max_in_flight: int = Field(1000, ge=1, description="Messages that wait for the inbox; more is answered 503.")
    max_in_flight_bytes: Size = Field(
        256 * 2**20, gt=0, description="Bytes of bodies in memory; the oldest unfinished body makes room for more."
    )
    header_timeout: Duration = Field(
        timedelta(seconds=10), gt=timedelta(0), description="Time for a TLS handshake, and for the head of a request."
    )
    request_timeout: Duration = Field(
        timedelta(seconds=30), gt=timedelta(0), description="Time for a body, and then for the inbox to take it."
    )
    idle_timeout: Duration = Field(
        timedelta(seconds=30), gt=timedelta(0), description="Time between two requests before a connection is closed."
    )
    tls: HttpTlsSettings | None = Field(None, description="Certificates; with them it speaks HTTPS only.")
    auth: HttpAuthSettings | None = Field(None, description="Who may send; without it everybody who reaches the port.")


class GatewaySettings(Section):
    """The gateways of MQTT, AMQP and NATS."""

    max_body: Size = Field(2**20, gt=0, description="Largest body; a record with more is dead-lettered `oversized`.")
    max_in_flight: int = Field(1000, ge=1, description="Messages that one connection holds before they are on disk.")


class _InboxTopic(Section):
    """The topic, and what it takes."""

    bootstrap_servers: str = Field(description="Kafka brokers, HOST:PORT with commas.", min_length=1)
    topic: str = Field(description="The topic; it must exist and keep messages until they are routed.", min_length=1)
    max_message_bytes: Size = Field(1_000_000, ge=65_536, description="Largest message the brokers take.")


class KafkaInboxSettings(KafkaLogin, _InboxTopic):
    """A Kafka topic as the inbox, written by processes of `xrouter gateway`."""

    options: Options = Field({}, description="More options of the Kafka client, by their own names.")

    @property
    def client_options(self) -> Mapping[str, SecretStr]:
        """Options of the Kafka client."""
        return self.options


class InboxSettings(Section):
    """The durable inbox of the push protocols: a folder of the state, or a Kafka topic."""

    kafka: KafkaInboxSettings | None = Field(None, description="A Kafka topic as the inbox; gateways run apart then.")

    partitions: int = Field(4, ge=1, description="Partitions; order holds inside each.")
    segment_bytes: Size = Field(64 * 2**20, gt=0, description="Size at which a segment closes.")
    max_bytes: Size = Field(10 * 2**30, gt=0, description="Size at which gateways push back.")
    min_free_bytes: Size = Field(512 * 2**20, ge=0, description="Free disk space below which gateways push back.")


# What settings of HTTP mean to a server: who may send, and within which limits.


def access_of(auth: HttpAuthSettings | None) -> Access | None:
    """Return who may send; None is everybody."""
    if auth is None:
        return None
    bearer, basic, keys = (revealed(each) for each in (auth.bearer, auth.basic, auth.api_keys))
    return Access(bearer, basic, keys, auth.api_key_header)


def limits_of(chosen: HttpSettings) -> ServerLimits:
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


# Which certificates of our own the settings name.


def certificates(settings: BaseModel) -> dict[str, Path]:
    """Return the files of our own certificates, by the keys that they stand under, such as ``sinks.bus.tls``."""
    return dict(_below(settings, ""))


def _below(value: object, key: str) -> Iterator[tuple[str, Path]]:
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
        yield from _below(member, f"{key}.{name}" if key else str(name))


# Settings of what may be taken of the machine's memory.


class MemorySettings(Section):
    """How the machine's memory is divided (see OPERATIONS.md)."""

    heap: Size | None = Field(
        None,
        ge=512 * 2**20,
        description="Heap of Spark's JVM; unset is an eighth of the machine's memory, 1 to 4 GiB if it has that.",
    )
    worker: Size | None = Field(
        None,
        ge=128 * 2**20,
        description="What a Python worker may take besides the catalog; unset is by machine and cores, 0.5 to 1 GiB.",
    )


# Real-time mode: its settings.

LEAST_CHECKPOINT: Final = timedelta(seconds=5)
"""Spark takes no less."""


class RealTimeSettings(Section):
    """Real-time mode (``trigger: realtime``): what expressions of the JVM settle is sent on record by record."""

    rest: str = Field(
        description=(
            "Topic, on the cluster of the sinks, for records that only the matcher decides. It must exist, be the "
            "router's alone, and keep records until they are routed; it is read whatever `trigger` says."
        ),
        min_length=1,
    )
    checkpoint: Duration = Field(
        timedelta(minutes=1),
        ge=LEAST_CHECKPOINT,
        description="Time between two notes of how far it is: so much is sent again after a crash.",
    )


# Settings of pairs of messages, which relations of definitions describe.


class RelationSettings(Section):
    """Where pairs of answers and what they answer go, and how long one waits for the other."""

    to: str = Field(description="Sink of the pairs: a Delta table or a Kafka topic of their own.", min_length=1)
    wait: Duration = Field(
        timedelta(hours=1),
        ge=timedelta(seconds=1),
        description="How long a message waits for its answer, or an answer for what it answers, while the router runs; "
        "longer while records wait to be read that arrived in that time.",
    )
    most: int = Field(
        1_000_000, ge=1, description="Most messages that wait; and most pairs that wait for the sink before batches do."
    )


# Settings of dead letters: where they go, how long they stay, what of them is shown, how often they are replayed.


class RetentionSettings(Section):
    """How long dead letters are kept; both limits off keep them for ever.

    Age is that of the letter, from when it was written. Size is what the letters of one sink take on its disk. Only
    letters in tables and folders are removed; those in Kafka go by the topic's own `retention.ms`. The files of a Delta
    table that held what was removed stay for `keep_replaced` of the sink, for those who read them.
    """

    age: Duration = Field(timedelta(0), description="Age at which letters are removed; 0 keeps them for ever.")
    size: Size = Field(
        0, ge=0, description="Bytes of one sink's letters above which the oldest are removed; 0 is no limit."
    )

    @property
    def on(self) -> bool:
        """Whether anything is ever removed."""
        return bool(self.age or self.size)


def _patterns(names: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse what can name nothing."""
    for name in names:
        if not name.strip() or name == "/":
            raise ValueError(
                f"{name!r} names nothing; write a name such as email, x-*, or a JSON pointer such as /card"
            )
    return names


Redacted = Annotated[Texts, AfterValidator(_patterns)]


class DeadLetterSettings(Section):
    """Where records go that no definition takes, and what becomes of them there."""

    sinks: Texts = Field(description="Names of the sinks that each get every dead letter.", min_length=1)
    max_ratio: float | None = Field(
        None, gt=0, le=1, description="Circuit breaker: the share of a batch above which it is held; unset is off."
    )
    max_replays: int = Field(5, ge=1, description="Failed replays after which a dead letter is parked.")
    order: Literal["continue", "park"] = Field(
        "continue",
        description=(
            "What becomes of later records of a key that has a dead letter: `continue` sends them, `park` makes dead "
            "letters of them, which wait until the first is replayed."
        ),
    )
    redact: Redacted = Field(
        (),
        description=(
            "What listings and logs show as `•••`: names of attributes, headers and properties, with `*`, "
            "and JSON pointers into bodies, which begin with `/`."
        ),
    )
    retention: RetentionSettings = Field(RetentionSettings(), description="How long dead letters are kept.")


# Subscriptions at an endpoint with usage subscriber: whom to ask, for what, and where it is to be delivered.

_URL = r"^[Hh][Tt][Tt][Pp][Ss]?://[^\s/?#@\\]+(?:/[^\s#]*)?$"


class SubscriptionSettings(Section):
    """What is asked of a subscription manager, by the CloudEvents Subscriptions API."""

    sink: str = Field(
        description="Address at which the manager reaches the HTTP gateway; its path is listened at.", pattern=_URL
    )
    manager: str | None = Field(
        None,
        description="URL that subscriptions are posted to, instead of the endpoint's own address.",
        pattern=_URL,
    )
    source: str | None = Field(None, description="Source of the events that are asked for.")
    types: Texts = Field((), description="Types of the events; none is all.")
    exact: dict[str, Text] = Field({}, description="Filter: attributes that are equal to these values.")
    prefix: dict[str, Text] = Field({}, description="Filter: attributes that begin with these values.")
    suffix: dict[str, Text] = Field({}, description="Filter: attributes that end with these values.")
    lasts: Duration = Field(
        timedelta(hours=1), description="How long it is asked for; it is renewed after half of that. 0 names no end."
    )
    keep: bool = Field(False, description="Whether it stays when the router is stopped; else it is deleted.")
    token: SecretStr | None = Field(
        None, description="Bearer token that the manager is to show to the gateway; `manager` is required beside it."
    )


def subscription_faults(key: str, chosen: SubscriptionSettings, *, plain: bool) -> Iterator[tuple[str, str]]:
    """Yield what contradicts itself in a subscription; with *plain* secrets may be sent without TLS."""
    if timedelta(0) < chosen.lasts < timedelta(seconds=2):
        yield f"{key}.lasts", "is too short to be renewed in time; give it two seconds or more, or 0"
    if chosen.token is None:
        return
    if chosen.manager is None:
        yield f"{key}.manager", "is missing beside token: a changed catalog could send the token elsewhere; add it"
    for name in ("manager", "sink"):
        url = getattr(chosen, name) or ""
        if url.lower().startswith("http:") and not plain:
            fault = "would carry the token without TLS; write https://, or set allow_plaintext_password"
            yield f"{key}.{name}", fault


BETWEEN_BATCHES: Final = timedelta(milliseconds=500)


class _SourceEndpoint(Section):
    """Which endpoint, where its records are, and where reading begins."""

    endpoint: str = Field(description="The endpoint's xid, such as /endpoints/plant.", pattern=ENDPOINT)
    lane: str | None = Field(
        None, description="Gives a Kafka source a query of its own, so that it cannot hold others up."
    )
    start: Literal["earliest", "latest"] | None = Field(
        None, description="Where a first start begins; unset is the global `start`, the endpoint's own, else earliest."
    )
    context: dict[str, Text] = Field({}, description="Context attributes added to each record of this source.")
    bootstrap_servers: str | None = Field(None, description="Kafka brokers, instead of the endpoint's own addresses.")
    framing: Framing = Field(
        "auto",
        description=(
            "Kafka: the frame with a schema's id that bodies begin with: that of Confluent's serializers, Apicurio's "
            "(eight bytes of id), AWS Glue's, or none; `auto` looks for Confluent's."
        ),
    )
    schema_registry: str | None = Field(
        None, description="Kafka: which of `schema_registries` knows the ids of frames; unset is the default one."
    )
    framing_ids: Literal["auto", "require"] = Field(
        "auto",
        description=(
            "Kafka: framed bodies for which neither a schema registry nor declared ids are known are read with the "
            "definition's own schema, or with `require` refused as `undecodable`."
        ),
    )
    uris: Texts = Field((), description="MQTT, AMQP, NATS: addresses of the broker, instead of the endpoint's own.")
    addresses: Texts = Field(
        (), description="MQTT, AMQP, NATS: topic filters, nodes or subjects, instead of what the catalog says."
    )
    client_id: str | None = Field(None, description="MQTT, AMQP, NATS: our name there; unset makes a lasting one.")
    token: SecretStr | None = Field(None, description="NATS: token, by reference.")
    credentials: str | None = Field(None, description="NATS: file of credentials.")
    seed: str | None = Field(None, description="NATS: file with the seed of an nkey.")


class SourceSettings(KafkaLogin, _SourceEndpoint):
    """One endpoint of the catalog that records are taken from."""

    kafka: Options = Field(
        {},
        description="More options of the Kafka client, by their own names. Records of transactions are read once "
        "committed, unless `isolation.level` is read_uncommitted.",
    )
    commit_offsets_to: Text | None = Field(
        None,
        description="Kafka: a consumer group that gets the offsets of finished batches, so that Kafka's own tools show "
        "the lag. The router never reads them; name a group that nobody else uses.",
    )
    path: str | None = Field(
        None, description="HTTP: the path to listen at, instead of the endpoint's own.", pattern="^/"
    )
    subscription: SubscriptionSettings | None = Field(
        None, description="HTTP: subscribe at the endpoint, whose address is that of a subscription manager."
    )
    users: Texts = Field((), description="HTTP: names of `http.auth` that may send here; none is all of them.")

    @property
    def client_options(self) -> Mapping[str, SecretStr]:
        """Options of the Kafka client."""
        return self.kafka


class MatchSettings(Section):
    """How records are matched."""

    validation: Literal["never", "ambiguous", "always"] = Field(
        "ambiguous", alias="validate", description="When bodies are held against their schemas."
    )
    hop_by_hop: bool = Field(False, description="Whether properties that change hop by hop filter as well.")
    ambiguous: Ambiguous = Field(
        "dead-letter",
        description=(
            "What takes a record that several definitions match equally well: the dead letters, the `first` of them in "
            "the catalog's documents, or the nearest `base` they have in common."
        ),
    )


class MetricsSettings(Section):
    """The address of /metrics, /healthz and /readyz."""

    host: str = Field("127.0.0.1", description="Address to listen at.")
    port: int = Field(9464, ge=0, le=65535, description="Port; 0 takes a free one.")


class WatchSettings(MetricsSettings):
    """The address of /metrics, /healthz and /readyz, and of the status page beside them."""

    token: SecretStr | None = Field(
        None,
        min_length=16,
        description=(
            "Opens records on the status page, and lets it replay dead letters, by reference. Unset, nothing can be "
            "replayed there, and records are shown only where `metrics.host` is a loopback address."
        ),
    )


class LogSettings(Section):
    """What is logged to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severity that is written; `debug` tells of each batch and each look at the catalog."
    )
    format: Literal["text", "json"] = Field("text", description="Lines for people or for machines.")


class Settings(BaseSettings):
    """All settings, resolved, with absolute paths.

    Built by :func:`router.settings.load_settings`; sources of pydantic-settings other than the values handed in are
    off, since the environment is laid over the file before references are resolved and with sink names as written.
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    catalog: CatalogSettings = Field(CatalogSettings(), description="The catalog.")
    schema_registries: dict[str, SchemaRegistrySettings] = Field({}, description="Schema registries by name.")
    sources: tuple[SourceSettings, ...] = Field((), description="Sources; none takes every consumer endpoint as it is.")
    sinks: dict[str, Sink] = Field({}, description="Sinks by name.")
    routes: tuple[RouteSettings, ...] = Field((), description="Routes in order.")
    dead_letters: DeadLetterSettings = Field(description="Dead letters.")
    state: str = Field(
        "./state", description="Folder of checkpoints, plans and inbox; one router at a time.", min_length=1
    )
    readable_by: Readers = Field(
        "group", description="Who may read files of local sinks, the umask permitting; state is its owner's alone."
    )
    trigger: Trigger = Field(
        BETWEEN_BATCHES,
        description="Least time between the starts of batches; or `realtime`, for which `realtime.rest` is required.",
    )
    realtime: RealTimeSettings | None = Field(None, description="Real-time mode.")
    relations: RelationSettings | None = Field(None, description="Pairs of messages by relations of the catalog.")
    max_records_per_batch: int = Field(100_000, ge=1, description="Most records that one batch takes.")
    max_bytes_per_batch: Size | None = Field(
        None,
        ge=2**20,
        description="Most bytes that one batch takes; unset is a sixteenth of `memory.heap`, 16 to 128 MiB.",
    )
    batch_limit: Duration = Field(
        timedelta(minutes=5),
        description="A try of a batch that takes longer is logged, ended, and written in smaller parts; 0 is no limit.",
    )
    worker_timeout: Duration = Field(
        timedelta(minutes=1),
        description="A Python worker of Spark that gives no answer for so long is ended, the batch cut; 0 is no limit.",
    )
    start: Literal["earliest", "latest"] = Field("earliest", description="Where a first start begins.")
    on_data_loss: Literal["stop", "continue"] = Field(
        "stop", description="What to do when a broker lost unread records."
    )
    match: MatchSettings = Field(MatchSettings(), description="Matching.")
    metrics: WatchSettings = Field(WatchSettings(), description="Metrics, health and the status page.")
    http: HttpSettings = Field(HttpSettings(), description="The HTTP gateway.")
    gateways: GatewaySettings = Field(GatewaySettings(), description="The gateways of brokers.")
    inbox: InboxSettings = Field(InboxSettings(), description="The inbox.")
    telemetry: TelemetrySettings = Field(TelemetrySettings(), description="What is sent to OpenTelemetry.")
    drain_grace: Duration = Field(timedelta(seconds=30), description="Longest wait for a batch when stopping.")
    log: LogSettings = Field(LogSettings(), description="Logging.")
    memory: MemorySettings = Field(MemorySettings(), description="Memory.")
    spark: SparkSettings = Field(SparkSettings(), description="Spark.")
    _unresolved: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def is_real_time(self) -> bool:
        """Whether records are sent on one by one, where expressions settle them."""
        return self.trigger == REAL_TIME

    @property
    def between_batches(self) -> timedelta:
        """The least time between the starts of batches: in real-time mode, of those of the rest topic."""
        return self.trigger if isinstance(self.trigger, timedelta) else BETWEEN_BATCHES

    @property
    def unresolved(self) -> dict[str, Any]:
        """The settings as written, environment included, with references instead of secrets: what a plan keeps."""
        return self._unresolved

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take only what the loader hands in."""
        return (init_settings,)
