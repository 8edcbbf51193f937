"""Settings of the catalog, logins, certificates, schema registries and telemetry."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field, SecretStr

from bindings.gateways import BrokerLogin, Tls
from catalog.documents.connecting import Certificates, ConnectionPolicy, Logins, OriginLogin, TokenSource, origin_of
from catalog.documents.fetching import Fetcher
from router.settings.values import ENDPOINT, Duration, FilePath, FilePaths, Options, Section, Texts, is_secret_name

if TYPE_CHECKING:
    from router.settings.model import Settings

# Logins and certificates that several clients share.

Sasl = Literal["plain", "scram-sha-256", "scram-sha-512", "oauthbearer"]
PLAIN_TEXT: Final = "Whether secrets may be sent without TLS; otherwise an error, even for loopback addresses."


class TlsSettings(Section):
    """Certificates of a connection; all PEM files."""

    ca: FilePath | None = Field(None, description="CA certificates to trust, a PEM file; unset trusts the system's.")
    cert: FilePath | None = Field(None, description="Client certificate (mutual TLS), a PEM file.")
    key: FilePath | None = Field(None, description="Private key of `cert`, a PEM file.")


class HttpTlsSettings(Section):
    """Certificates of the HTTP gateway; all PEM files."""

    cert: FilePath = Field(description="Server certificate with its intermediate certificates, a PEM file.")
    key: FilePath = Field(description="Private key of `cert`, a PEM file.")
    ca: FilePath | None = Field(
        None, description="CA certificates for clients (mutual TLS), a PEM file; unset, clients need no certificate."
    )


class ClientLogin(Section):
    """A login at a broker or another server, and the certificates of the connection."""

    username: str | None = Field(None, description="User name at the broker or server.")
    password: SecretStr | None = Field(None, description="Password, by reference: `${VAR}` or `file:/path`.")
    allow_plaintext_password: bool = Field(False, description=PLAIN_TEXT)
    tls: TlsSettings | None = Field(None, description="TLS; `{}` trusts the system's CAs.")

    @property
    def login(self) -> BrokerLogin:
        """The login."""
        return BrokerLogin(self.username, reveal(self.password))


class NatsLogin(ClientLogin):
    """A login at a NATS server, or at another one."""

    token: SecretStr | None = Field(None, description="NATS: token, by reference.")
    credentials: FilePath | None = Field(None, description="NATS: credentials file (`.creds`).")
    seed: FilePath | None = Field(None, description="NATS: nkey seed file.")

    @property
    def login(self) -> BrokerLogin:
        """The login, which may be by token or by file."""
        files = to_path(self.credentials), to_path(self.seed)
        return BrokerLogin(self.username, reveal(self.password), reveal(self.token), *files)


class KafkaLogin(ClientLogin):
    """A login at Kafka."""

    sasl: Sasl | None = Field(None, description="Kafka: SASL mechanism; unset is plain if `username` is set.")
    token_endpoint: str | None = Field(
        None,
        description="Kafka, sasl oauthbearer: token endpoint, for client id `username` and secret `password`.",
        pattern="^https?://",
    )
    token_scope: str | None = Field(None, description="Kafka, sasl oauthbearer: scope to request.")
    token_ca: FilePath | None = Field(
        None,
        description="Kafka, sasl oauthbearer: CA certificates for `token_endpoint`, a PEM file; unset trusts the "
        "system's.",
    )


def to_tls(settings: TlsSettings | HttpTlsSettings | None) -> Tls | None:
    """Return the certificates of a connection."""
    if settings is None:
        return None
    return Tls(to_path(settings.ca), to_path(settings.cert), to_path(settings.key))


def reveal(secret: SecretStr | None) -> str | None:
    """Return the text of a secret; only for the client that needs it."""
    return None if secret is None else secret.get_secret_value()


def to_path(text: str | None) -> Path | None:
    """Return a path of the settings, which are already absolute."""
    return None if text is None else Path(text)


def iter_login_faults(key: str, username: str | None, password: bool) -> Iterator[tuple[str, str]]:
    """Yield a fault for a username without password, or the reverse."""
    if password and username is None:
        yield f"{key}.username", "is required with password; add it"
    if username is not None and not password:
        yield f"{key}.password", "is required with username; add it as ${VAR} or file:/path"


def iter_login_choices(key: str, settings: Section, *ways: str) -> Iterator[tuple[str, str]]:
    """Yield a fault for several of these ways to log in."""
    chosen = [name for name in ways if getattr(settings, name) is not None]
    if len(chosen) > 1:
        yield f"{key}.{chosen[1]}", f"and {chosen[0]} are two ways to log in; keep one"


def iter_cleartext_faults(key: str, uris: Sequence[str], tls: TlsSettings | None) -> Iterator[tuple[str, str]]:
    """Yield AMQP addresses without TLS where tls is set."""
    for uri in uris:
        if tls is not None and uri.lower().startswith("amqp:"):
            yield key, "has an address without TLS, but tls is set; use amqps://, or remove tls"


# The section `catalog`.


class CatalogLogin(Section):
    """A login at one registry."""

    url: str = Field(
        description="Scheme, host and port of the registry; the login is sent to this origin only.",
        pattern=r"^[Hh][Tt][Tt][Pp][Ss]?://[^\s/?#@\\]+/?$",
    )
    bearer: SecretStr | None = Field(None, description="Bearer token, by reference.")
    bearer_file: FilePath | None = Field(
        None, description="File with the bearer token; it is read again when it changes."
    )
    username: str | None = Field(None, description="User name, or client id at `token_endpoint`.")
    password: SecretStr | None = Field(None, description="Password or client secret, by reference.")
    token_endpoint: str | None = Field(
        None,
        description="OAuth 2 token endpoint; `username` and `password` are the client credentials.",
        pattern=r"^https?://[^\s/?#@\\]+(?:/[^\s#]*)?$",
    )
    token_scope: str | None = Field(None, description="Scope to request.")
    token_ca: FilePath | None = Field(
        None, description="CAs of `token_endpoint`, a PEM file; unset trusts the system's."
    )
    tls: TlsSettings | None = Field(None, description="Certificates of the connection.")


class CatalogSettings(Section):
    """Where to read the catalog, and how often."""

    source: FilePaths = Field(
        ("./catalog.xreg.json",), description="File, folder or URL of the catalog, or a list of them."
    )
    base_uri: str = Field(
        "",
        description="Base URL for `dataschema`: the registry's address, if the catalog does not name it itself.",
        pattern=r"^(?:https?://[^\s/?#]+[^\s?#]*)?$",
    )
    poll: Duration = Field(timedelta(seconds=5), description="How often to check the catalog for changes; 0 is never.")
    events: str | None = Field(
        None,
        description="xid of a source whose messages announce catalog changes; each triggers a check at once.",
        pattern=ENDPOINT,
    )
    on_incompatible: Literal["warn", "sources", "refuse"] = Field(
        "sources",
        description=(
            "What to do with a changed catalog that is incompatible: records would no longer match their definition, "
            "or consumers would miss something. `refuse`: reject it and keep the last valid catalog. `sources`: reject "
            "it only if it leaves a source without candidates, else apply it and log a warning. `warn`: apply it."
        ),
    )
    shadow: FilePaths = Field(
        (),
        description=(
            "File, folder or URL of a shadow catalog, or a list of them. It evaluates the same records and only counts "
            "what it would change."
        ),
    )
    shadow_share: float = Field(
        0.25,
        gt=0,
        le=10,
        description="Worker time for the shadow catalog, relative to normal evaluation; 3 usually covers all records.",
    )
    network: bool = Field(True, description="Whether references and schemas may be fetched over the network.")
    max_shrink: float = Field(
        0.5,
        ge=0,
        le=1,
        description=(
            "Share of its definitions that a catalog, document or endpoint may lose before the change needs "
            "confirmation; 1 is all."
        ),
    )
    allow_addresses: Texts = Field(
        (), description="Private hosts and networks that references may point to; `*` is all."
    )
    logins: tuple[CatalogLogin, ...] = Field((), description="Logins at registries.")
    allow_plaintext_password: bool = Field(False, description=PLAIN_TEXT)


def make_catalog_fetcher(settings: Settings) -> Fetcher:
    """Return a fetcher for the catalog of the settings.

    Raises:
        ValueError: an allowed address looks like a network and is not valid.
    """
    read = settings.catalog
    return Fetcher(network=read.network, reach=ConnectionPolicy(read.allow_addresses), logins=make_logins(settings))


def make_logins(settings: Settings) -> Logins:
    """Return the logins at registries and schema registries, without tokens yet."""
    return Logins(map(make_origin_login, (*settings.catalog.logins, *settings.schema_registries.values())))


def iter_catalog_login_faults(settings: CatalogSettings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for each contradiction in the logins; a fault names the fix and no secret."""
    seen: set[str] = set()
    for index, login in enumerate(settings.logins):
        key = f"catalog.logins.{index}"
        try:
            origin = origin_of(login.url)
        except ValueError as error:
            yield f"{key}.url", f"is not a valid address: {error}; correct it"
            continue
        if origin in seen:
            yield f"{key}.url", f"{origin} already has a login; keep one"
        seen.add(origin)
        yield from iter_registry_login_faults(key, login)
    for key, sources in (("catalog.source", settings.source), ("catalog.shadow", settings.shadow)):
        for source in sources:
            if "@" in source.partition("://")[2].partition("/")[0] and _origin_or_empty(source) in seen:
                yield key, "has a user in its URL, and catalog.logins has a login for it, too; keep one"


def iter_registry_login_faults(key: str, login: CatalogLogin, *, needed: bool = True) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for each contradiction in one login; it may be empty unless *needed*."""
    ways = ("bearer", "bearer_file", "username")
    yield from iter_login_choices(key, login, *ways)
    if needed and login.tls is None and all(getattr(login, name) is None for name in ways):
        yield key, "has no credentials; add bearer, bearer_file, username or tls"
    yield from iter_login_faults(key, login.username, login.password is not None)
    if login.token_endpoint is None:
        for name in ("token_scope", "token_ca"):
            if getattr(login, name) is not None:
                yield f"{key}.{name}", "requires token_endpoint; add it, or remove this"
    elif login.username is None:
        yield f"{key}.username", "is required with token_endpoint; add the client id and its secret"
    if login.tls is not None and login.url.lower().startswith("http:"):
        yield f"{key}.tls", "has no effect with http://; use https:// or remove tls"
    if login.tls is not None and login.tls.key is not None and login.tls.cert is None:
        yield f"{key}.tls.cert", "is required with key; add it"


def _origin_or_empty(source: str) -> str:
    try:
        return origin_of(source)
    except ValueError:
        return ""


def make_origin_login(login: CatalogLogin) -> OriginLogin:
    """Return the login at one registry."""
    user = None if login.username is None else (login.username, reveal(login.password) or "")
    tokens = None
    if user is not None and login.token_endpoint is not None:
        authorities = Certificates(to_path(login.token_ca))
        tokens = TokenSource(login.token_endpoint, *user, login.token_scope or "", authorities)
    tls = login.tls or TlsSettings()
    return OriginLogin(
        origin_of(login.url),
        basic=user if tokens is None else None,
        bearer=reveal(login.bearer) or "",
        bearer_file=to_path(login.bearer_file),
        tokens=tokens,
        certificates=Certificates(to_path(tls.ca), to_path(tls.cert), to_path(tls.key)),
    )


# OpenTelemetry.


class OtlpSettings(Section):
    """An OpenTelemetry collector, over OTLP/HTTP. Requires the package's extra `telemetry`."""

    endpoint: str = Field(
        description="Collector URL without `/v1/traces` or `/v1/metrics`, such as https://otel.example.com:4318.",
        pattern=r"^https?://[^\s/?#@\\]+(?:/[^\s?#]*[^\s?#/])?$",
    )
    headers: Options = Field({}, description="Headers of each request, such as `authorization`, by reference.")
    allow_plaintext_password: bool = Field(False, description=PLAIN_TEXT)
    tls: TlsSettings | None = Field(None, description="Certificates of the connection.")
    traces: bool = Field(True, description="Whether to send a span for each batch, with a child span for each step.")
    metrics: bool = Field(True, description="Whether to send the metrics of /metrics.")
    interval: Duration = Field(timedelta(seconds=15), gt=timedelta(0), description="How often to send metrics.")
    service: str = Field("xrouter", description="Resource attribute `service.name`.", min_length=1)


class TelemetrySettings(Section):
    """Telemetry that the router pushes, besides /metrics."""

    otlp: OtlpSettings | None = Field(None, description="An OpenTelemetry collector; unset, nothing is sent.")


def iter_telemetry_faults(telemetry: TelemetrySettings, remedy: str) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for secret headers without TLS, and for cert without key or the reverse."""
    otlp = telemetry.otlp
    if otlp is None:
        return
    secure = otlp.endpoint.startswith("https://")
    if any(map(is_secret_name, otlp.headers)) and not secure and not otlp.allow_plaintext_password:
        yield "telemetry.otlp.headers", f"would be sent to {otlp.endpoint} in plain text; {remedy}"
    if otlp.tls is not None and not secure:
        yield "telemetry.otlp.tls", f"has no effect for {otlp.endpoint}; use https://, or remove it"
    if otlp.tls is not None and (otlp.tls.cert is None) != (otlp.tls.key is None):
        yield "telemetry.otlp.tls", "needs cert and key together"


# The section `schema_registries`.

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


class SchemaRegistrySettings(CatalogLogin):
    """A schema registry with Confluent's API, and the login there (as in `catalog.logins`)."""

    url: str = Field(
        description="Base URL, without `/schemas` or `/subjects`; for Apicurio it ends with /apis/ccompat/v7.",
        pattern=r"^https?://[^\s/?#@\\]+(?:/[^\s?#]*)?$",
    )
    default: bool = Field(False, description="Whether sources without `schema_registry` use this one.")
    timeout: Duration = Field(timedelta(seconds=10), gt=timedelta(0), description="Timeout of one request.")
    allow_plaintext_password: bool = Field(False, description=PLAIN_TEXT)


def iter_registry_faults(registries: Mapping[str, SchemaRegistrySettings]) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for each contradiction; a fault names the fix."""
    for name, registry in registries.items():
        key = f"schema_registries.{name}"
        if not _NAME.fullmatch(name):
            yield key, "is not a valid name; use at most 63 letters, digits, - and _"
        yield from iter_registry_login_faults(key, registry, needed=False)
    chosen = [name for name, registry in registries.items() if registry.default]
    if len(chosen) > 1:
        yield f"schema_registries.{chosen[1]}.default", f"{chosen[0]} is the default, too; keep one"
    elif len(registries) > 1 and not chosen:
        yield "schema_registries", f"none of several has default: true; add it to one of {', '.join(registries)}"


def iter_name_faults(
    key: str, name: str | None, registries: Mapping[str, SchemaRegistrySettings]
) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for an unknown schema registry."""
    if name is not None and name not in registries:
        known = f"known: {', '.join(registries)}" if registries else "none are configured; add schema_registries"
        yield key, f"schema registry {name} not found; {known}"


def find_default_registry(registries: Mapping[str, SchemaRegistrySettings]) -> str | None:
    """Return the name of the default schema registry, if any."""
    if len(registries) == 1:
        return next(iter(registries))
    return next((name for name, registry in registries.items() if registry.default), None)
