"""Settings of what takes pushed messages in: the HTTP gateway, the gateways of brokers, and the inbox."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel, Field, SecretStr

from bindings.http.request import ServerLimits
from bindings.http.routing import Access
from router.settings.catalogs import KafkaLogin, TlsSettings
from router.settings.values import Duration, Options, Section, Size, revealed


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
