"""Sinks of type ``kafka``: topics by template, written by Spark, or messages in the form of a producer endpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field, SecretStr

from bindings.kafka.binding import parse_brokers, resolve_brokers
from bindings.protocols import Binding
from bindings.sending import Publisher
from catalog.model import Endpoint
from router.errors import SinkError
from router.settings.catalogs import KafkaLogin
from router.settings.routes import (
    DEAD_LETTER_VARIABLES,
    EVENT_VARIABLES,
    NameTemplateError,
    escape_value,
    parse_name,
)
from router.settings.sinks.contract import Fault, RemoteSink, TemplateFiller
from router.settings.sinks.messages import EXCLUDES_ENDPOINT
from router.settings.spark import iter_client_faults, make_kafka_client
from router.settings.values import Options, Section, Size, plain_options

if TYPE_CHECKING:
    from bindings.kafka.client import KafkaClient

_SECONDS: Final = 30.0
_FRAME_BYTES: Final = 64
"""Bytes reserved for a frame: its schema id, and Protobuf's message indexes."""


class NewTopics(Section):
    """How to create missing topics."""

    partitions: int | None = Field(None, ge=1, description="Partitions per topic; unset is the brokers' default.")
    replication: int | None = Field(
        None, ge=1, le=32767, description="Replication factor; unset is the brokers' default."
    )
    config: dict[str, str | int | bool] = Field({}, description="Topic configs, by their Kafka names.")

    @property
    def options(self) -> dict[str, str]:
        """The options as brokers read them."""
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in self.config.items()
        }


class KafkaSink(KafkaLogin, RemoteSink):
    """Topics of a Kafka cluster, at least once."""

    letters = "router.dead_letters.stores:TopicLetters"
    needs_connector = True
    pairs = "router.sinks.pairs:open_pair_topic"
    family = "kafka"
    address_field = "bootstrap_servers"
    template_field = "topic"

    type: Literal["kafka"] = Field(description="`kafka`.")
    bootstrap_servers: str = Field(
        "",
        description="Kafka brokers: HOST:PORT, separated by commas; required unless `endpoint` has them.",
        min_length=1,
    )
    topic: str = Field(
        "",
        description="Topic, or a template such as events.{messagegroup}; required unless `endpoint` is set.",
        min_length=1,
    )
    mode: Literal["binary", "structured"] = Field(
        "binary", description="CloudEvents content mode; with `endpoint`, its definitions decide."
    )
    key: str | None = Field(None, description="Template of the record key, if neither event nor source record has one.")
    max_message_bytes: Size = Field(
        1_000_000,
        ge=65_536,
        description="Maximum size of a record, as configured at the brokers; larger ones become dead letters "
        "(`sink-rejected`).",
    )
    framing: Literal["none", "confluent"] = Field(
        "none",
        description="Wire format for bodies: `confluent` prepends the schema id of their definition, unless they begin "
        "with one already.",
    )
    schema_registry: str | None = Field(
        None, description="Name in `schema_registries` that assigns schema ids; unset is the default one."
    )
    subject_names: Literal["topic", "record", "topic-record"] = Field(
        "topic",
        description="Subject name strategy of the schema registry: TOPIC-value, the schema's full name, or TOPIC-NAME.",
    )
    register_schemas: bool = Field(False, description="Whether to register schemas that their subject lacks.")
    create_topics: NewTopics | None = Field(
        None, description="Create missing topics (`{}` uses the brokers' defaults); unset creates none."
    )
    options: Options = Field(
        {},
        description="More Kafka producer options, by their Kafka names. `compression.type` defaults to lz4, "
        "`linger.ms` to 5.",
    )

    @property
    def topics(self) -> KafkaSink | None:
        """The sink itself, unless an endpoint defines its messages."""
        return None if self.endpoint else self

    @property
    def framed(self) -> KafkaSink | None:
        """The sink itself if it prepends schema ids, else None."""
        return None if self.framing == "none" else self

    @property
    def record_limit(self) -> int:
        """The brokers' limit."""
        return self.max_message_bytes - (0 if self.framing == "none" else _FRAME_BYTES)

    @property
    def client_options(self) -> Mapping[str, SecretStr]:
        """Options of the producer."""
        return self.options

    def faults(self, key: str, *, events: bool, letters: bool) -> Iterator[Fault]:
        """Yield missing and superfluous keys, invalid templates, and what is wrong with login, options and brokers."""
        missing = () if self.endpoint is not None else ("bootstrap_servers", "topic")
        yield from ((f"{key}.{name}", "is required; add it") for name in missing if not getattr(self, name))
        surplus = () if self.endpoint is None else ("topic", "key")
        yield from ((f"{key}.{name}", EXCLUDES_ENDPOINT) for name in surplus if getattr(self, name))
        if self.topic and (events or not letters):
            yield from _iter_name_faults(f"{key}.topic", self.topic)
        if not self.endpoint and letters:
            yield from _iter_name_faults(f"{key}.topic", self.topic, DEAD_LETTER_VARIABLES)
        if self.key:
            yield from _iter_name_faults(f"{key}.key", self.key)
        if self.endpoint and self.create_topics is not None:
            yield f"{key}.create_topics", "has no effect with endpoint; set brokers and a topic, or remove it"
        if self.framing == "none":
            chosen = [name for name in ("schema_registry", "register_schemas") if getattr(self, name)]
            yield from ((f"{key}.{name}", "requires framing: confluent; add it") for name in chosen)
        elif self.mode == "structured":
            yield f"{key}.framing", "requires mode: binary; use that, or framing: none"
        yield from iter_client_faults(key, self, "options", self.options, self.bootstrap_servers)

    def pair_faults(self) -> Iterator[str]:
        """Yield why it cannot accept request-reply pairs: variables need an event."""
        if self.endpoint or "{" in self.topic:
            yield "cannot accept request-reply pairs; set brokers, and a topic without placeholders"

    def publisher(self, name: str, binding: Binding, endpoint: Endpoint | None) -> Publisher:
        """Return a producer."""
        from bindings.kafka.publisher import KafkaPublisher

        client = self.cluster_at(name, endpoint)
        return KafkaPublisher(client, max_message_bytes=self.max_message_bytes, timeout=_SECONDS)

    def destination(self, filled: TemplateFiller, *, letters: bool) -> str:
        """Return the topic, with the known variables filled in."""
        return filled(parse_name(self.topic, DEAD_LETTER_VARIABLES if letters else EVENT_VARIABLES), escape_value)

    def cluster(self) -> KafkaClient:
        """Return the cluster of the settings, which must have brokers."""
        return make_kafka_client(parse_brokers([self.bootstrap_servers]), self, self.options)

    def cluster_at(self, name: str, endpoint: Endpoint | None) -> KafkaClient:
        """Return the cluster of the settings, else of the endpoint."""
        brokers, fault = resolve_brokers(
            self.own_addresses or (() if endpoint is None else endpoint.uris),
            tls=self.tls is not None,
            login=self.username is not None,
            options=plain_options(self.options),
        )
        if not brokers.servers and not fault:
            fault = "has no Kafka brokers"
        if fault:
            raise SinkError(name, fault, hint="set or correct bootstrap_servers of the sink")
        return make_kafka_client(brokers, self, self.options)


def _iter_name_faults(key: str, template: str, variables: tuple[str, ...] = EVENT_VARIABLES) -> Iterator[Fault]:
    try:
        parse_name(template, variables)
    except NameTemplateError as error:
        yield key, str(error)
