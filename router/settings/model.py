"""What the settings are: one frozen model for each section of the file (deploy/SETTINGS.md).

Every option is a field with type, default and one line of doc; that page's table is made from them. How a file and the
environment become these models is in :mod:`router.settings.load`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, Literal

from pydantic import Field, PrivateAttr, SecretStr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from bindings.private import Readers
from catalog.schemas.ids.contract import Framing
from router.matching.ties import Ambiguous
from router.settings.catalogs import CatalogSettings as CatalogSettings
from router.settings.dead_letters import DeadLetterSettings as DeadLetterSettings
from router.settings.inward import GatewaySettings, HttpSettings, InboxSettings
from router.settings.logins import KafkaLogin
from router.settings.logins import TlsSettings as TlsSettings
from router.settings.memory import MemorySettings
from router.settings.realtime import RealTimeSettings
from router.settings.relations import RelationSettings
from router.settings.routes import RouteSettings
from router.settings.schema_registries import SchemaRegistrySettings
from router.settings.section import Section
from router.settings.sinks.kinds import Sink
from router.settings.spark import SparkSettings as SparkSettings
from router.settings.subscriptions import SubscriptionSettings
from router.settings.telemetry import TelemetrySettings
from router.settings.values import ENDPOINT, REAL_TIME, Duration, Options, Size, Text, Texts, Trigger

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
