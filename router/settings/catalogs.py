"""Settings of the catalog and of what else is fetched: logins, certificates, schema registries, telemetry."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field, SecretStr

from bindings.gateways import Tls
from catalog.documents.connecting import Certificates, Logins, OriginLogin, Reach, TokenSource, origin_of
from catalog.documents.fetching import Fetcher
from router.settings.values import ENDPOINT, Duration, Options, Section, Texts, names_secret

if TYPE_CHECKING:
    from router.settings.model import Settings

# What the settings of several clients say about logging in: certificates, and the ways that Kafka knows.

Sasl = Literal["plain", "scram-sha-256", "scram-sha-512", "oauthbearer"]
PLAIN_TEXT: Final = "Whether secrets may be sent without TLS; else it is an error, for loopback addresses too."


class TlsSettings(Section):
    """Certificates of a connection; all PEM files."""

    ca: str | None = Field(None, description="Certificates of the authorities to trust; unset trusts the system's.")
    cert: str | None = Field(None, description="Our own certificate, for brokers that ask for one.")
    key: str | None = Field(None, description="The private key of `cert`.")


class KafkaLogin(Section):
    """Who we are to Kafka, or to another broker that a source names.

    The reference lists keys in the order of base classes, the last one first. So settings that have other keys before
    these inherit those from a class that follows this one.
    """

    username: str | None = Field(None, description="User name at the broker.")
    password: SecretStr | None = Field(None, description="Password, by reference: `${VAR}` or `file:/path`.")
    allow_plaintext_password: bool = Field(False, description=PLAIN_TEXT)
    tls: TlsSettings | None = Field(None, description="Certificates; `{}` is TLS with the system's authorities.")
    sasl: Sasl | None = Field(None, description="How to log in to Kafka; unset is plain where there is a username.")
    token_endpoint: str | None = Field(
        None,
        description="Kafka, sasl oauthbearer: URL that gives tokens for client id `username` and secret `password`.",
        pattern="^https?://",
    )
    token_scope: str | None = Field(None, description="Kafka, sasl oauthbearer: scope asked for.")
    token_ca: str | None = Field(
        None, description="Kafka, sasl oauthbearer: authorities of `token_endpoint`, PEM; unset trusts the system's."
    )


def tls_of(settings: TlsSettings | None) -> Tls | None:
    """Return the certificates of a connection."""
    if settings is None:
        return None
    return Tls(path_of(settings.ca), path_of(settings.cert), path_of(settings.key))


def path_of(text: str | None) -> Path | None:
    """Return a path of the settings, which are absolute by now."""
    return None if text is None else Path(text)


def login_faults(key: str, username: str | None, password: bool) -> Iterator[tuple[str, str]]:
    """Yield what is missing of a user name and its password."""
    if password and username is None:
        yield f"{key}.username", "is missing beside password; add it"
    if username is not None and not password:
        yield f"{key}.password", "is missing beside username; add it as ${VAR} or file:/path"


def clear_faults(key: str, uris: Sequence[str], tls: TlsSettings | None) -> Iterator[tuple[str, str]]:
    """Yield AMQP addresses whose scheme says no TLS where certificates say TLS."""
    for uri in uris:
        if tls is not None and uri.lower().startswith("amqp:"):
            yield key, "has an address without TLS, and tls is set; write amqps://, or leave out tls"


# The section of the catalog: where it is read from, how often, and who we are there.


class CatalogLogin(Section):
    """Who we are to one registry."""

    url: str = Field(
        description="Scheme, host and port of the registry; nothing else is shown the login.",
        pattern=r"^[Hh][Tt][Tt][Pp][Ss]?://[^\s/?#@\\]+/?$",
    )
    bearer: SecretStr | None = Field(None, description="Bearer token, by reference.")
    bearer_file: str | None = Field(None, description="File of the bearer token; a token that changes is taken anew.")
    username: str | None = Field(None, description="User name, or client id at `token_endpoint`.")
    password: SecretStr | None = Field(None, description="Password or client secret, by reference.")
    token_endpoint: str | None = Field(
        None,
        description="URL that gives tokens for `username` and `password` (OAuth 2 client credentials).",
        pattern=r"^https?://[^\s/?#@\\]+(?:/[^\s#]*)?$",
    )
    token_scope: str | None = Field(None, description="Scope asked for.")
    token_ca: str | None = Field(None, description="Authorities of `token_endpoint`, PEM; unset trusts the system's.")
    tls: TlsSettings | None = Field(None, description="Certificates of the connection.")


class CatalogSettings(Section):
    """Where the catalog is read from, and how often."""

    source: Texts = Field(
        ("./catalog.xreg.json",), description="File, folder or URL of the catalog, or a list of them."
    )
    base_uri: str = Field(
        "",
        description="Address of the registry that the catalog is of, where it names none; `dataschema` is below it.",
        pattern=r"^(?:https?://[^\s/?#]+[^\s?#]*)?$",
    )
    poll: Duration = Field(timedelta(seconds=5), description="How often changes are looked for; 0 is never.")
    events: str | None = Field(
        None,
        description="xid of the source whose messages say that the catalog changed: the router looks at once.",
        pattern=ENDPOINT,
    )
    on_incompatible: Literal["warn", "sources", "refuse"] = Field(
        "sources",
        description=(
            "What becomes of a changed catalog by which records would no longer reach their definition, or consumers "
            "miss something. `refuse`: it is refused, and the last good one stays. `sources`: it is refused when it "
            "leaves a source without any candidate, else it takes effect and the log says so. `warn`: it takes effect."
        ),
    )
    shadow: Texts = Field(
        (),
        description=(
            "File, folder or URL of a catalog that judges beside the active one and only counts what it would change, "
            "or a list of them."
        ),
    )
    shadow_share: float = Field(
        0.25,
        gt=0,
        le=10,
        description="Time of workers for the shadow, as a part of what judging takes there; 3 mostly covers all.",
    )
    network: bool = Field(True, description="Whether references and schemas may be fetched from other hosts.")
    max_shrink: float = Field(
        0.5,
        ge=0,
        le=1,
        description=(
            "Share of its definitions that the catalog, a document or an endpoint may lose before a second look; "
            "1 is all."
        ),
    )
    allow_addresses: Texts = Field(
        (), description="Hosts and networks that references may lead to though they are not public; `*` is all."
    )
    logins: tuple[CatalogLogin, ...] = Field((), description="Who we are to registries that ask.")
    allow_plaintext_password: bool = Field(False, description=PLAIN_TEXT)


def fetcher_of(settings: Settings) -> Fetcher:
    """Return what reads the catalog of the settings once.

    Raises:
        ValueError: an allowed address that looks like a network is none.
    """
    read = settings.catalog
    return Fetcher(network=read.network, reach=Reach(read.allow_addresses), logins=logins_of(settings))


def logins_of(settings: Settings) -> Logins:
    """Return the logins of a catalog, without a token as yet; its schemas may be in a schema registry."""
    return Logins(map(login_of, (*settings.catalog.logins, *settings.schema_registries.values())))


def catalog_login_faults(settings: CatalogSettings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for each contradiction in the logins; a fault names the remedy and no secret."""
    seen: set[str] = set()
    for index, login in enumerate(settings.logins):
        key = f"catalog.logins.{index}"
        try:
            origin = origin_of(login.url)
        except ValueError as error:
            yield f"{key}.url", f"is no address: {error}; correct it"
            continue
        if origin in seen:
            yield f"{key}.url", f"{origin} has a login already; keep one"
        seen.add(origin)
        yield from one_login_faults(key, login)
    for key, sources in (("catalog.source", settings.source), ("catalog.shadow", settings.shadow)):
        for source in sources:
            if "@" in source.partition("://")[2].partition("/")[0] and _origin(source) in seen:
                yield key, "has a user in its URL, and catalog.logins has a login for it; keep one"


def one_login_faults(key: str, login: CatalogLogin, *, needed: bool = True) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for each contradiction in one login, which may show nothing unless it is *needed*."""
    ways = [name for name in ("bearer", "bearer_file", "username") if getattr(login, name) is not None]
    if len(ways) > 1:
        yield f"{key}.{ways[1]}", f"and {ways[0]} are two ways to log in; keep one"
    if needed and not ways and login.tls is None:
        yield key, "shows nothing; give it bearer, bearer_file, username or tls"
    yield from login_faults(key, login.username, login.password is not None)
    if login.token_endpoint is None:
        for name in ("token_scope", "token_ca"):
            if getattr(login, name) is not None:
                yield f"{key}.{name}", "has no use without token_endpoint; add it, or leave this out"
    elif login.username is None:
        yield f"{key}.username", "is missing beside token_endpoint; give the client id and its secret"
    if login.tls is not None and login.url.lower().startswith("http:"):
        yield f"{key}.tls", "has no use with http://; write https:// or leave out tls"
    if login.tls is not None and login.tls.key is not None and login.tls.cert is None:
        yield f"{key}.tls.cert", "is missing beside key; add it"


def _origin(source: str) -> str:
    try:
        return origin_of(source)
    except ValueError:
        return ""


def login_of(login: CatalogLogin) -> OriginLogin:
    """Return who we are to one registry."""
    secret = login.password.get_secret_value() if login.password is not None else ""
    user = None if login.username is None else (login.username, secret)
    tokens = None
    if user is not None and login.token_endpoint is not None:
        authorities = Certificates(path_of(login.token_ca))
        tokens = TokenSource(login.token_endpoint, *user, login.token_scope or "", authorities)
    tls = login.tls or TlsSettings()
    return OriginLogin(
        origin_of(login.url),
        basic=user if tokens is None else None,
        bearer=login.bearer.get_secret_value() if login.bearer is not None else "",
        bearer_file=path_of(login.bearer_file),
        tokens=tokens,
        certificates=Certificates(path_of(tls.ca), path_of(tls.cert), path_of(tls.key)),
    )


# Settings of what is sent to OpenTelemetry.


class OtlpSettings(Section):
    """A collector of OpenTelemetry, over OTLP/HTTP. It needs the extra `telemetry` of the package."""

    endpoint: str = Field(
        description="URL of the collector, such as https://otel.example.com:4318; `/v1/traces`, `/v1/metrics` follow.",
        pattern=r"^https?://[^\s/?#@\\]+(?:/[^\s?#]*[^\s?#/])?$",
    )
    headers: Options = Field({}, description="Headers of each request, such as `authorization`, by reference.")
    allow_plaintext_password: bool = Field(False, description=PLAIN_TEXT)
    tls: TlsSettings | None = Field(None, description="Certificates of the connection.")
    traces: bool = Field(True, description="Whether each batch is sent as a span, with one for each of its steps.")
    metrics: bool = Field(True, description="Whether all that /metrics has is sent.")
    interval: Duration = Field(timedelta(seconds=15), gt=timedelta(0), description="How often metrics are sent.")
    service: str = Field("xrouter", description="Name of the service (`service.name`).", min_length=1)


class TelemetrySettings(Section):
    """What is sent to others, besides what /metrics has for those who ask."""

    otlp: OtlpSettings | None = Field(None, description="A collector of OpenTelemetry; unset, nothing is sent.")


def telemetry_faults(telemetry: TelemetrySettings, remedy: str) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for secrets in headers that would be sent without TLS, and for half a certificate."""
    otlp = telemetry.otlp
    if otlp is None:
        return
    secure = otlp.endpoint.startswith("https://")
    if any(map(names_secret, otlp.headers)) and not secure and not otlp.allow_plaintext_password:
        yield "telemetry.otlp.headers", f"would be sent to {otlp.endpoint} in plain text; {remedy}"
    if otlp.tls is not None and not secure:
        yield "telemetry.otlp.tls", f"has no use for {otlp.endpoint}; write https://, or leave it out"
    if otlp.tls is not None and (otlp.tls.cert is None) != (otlp.tls.key is None):
        yield "telemetry.otlp.tls", "needs cert and key together"


# The section of schema registries: where they are, who we are there, and which one is asked.

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


class SchemaRegistrySettings(CatalogLogin):
    """A schema registry of Confluent's API, and who we are to it; see `catalog.logins` for the login."""

    url: str = Field(
        description="URL before `/schemas` and `/subjects`; of Apicurio it ends with /apis/ccompat/v7.",
        pattern=r"^https?://[^\s/?#@\\]+(?:/[^\s?#]*)?$",
    )
    default: bool = Field(False, description="Whether sources that name no schema registry use this one of several.")
    timeout: Duration = Field(timedelta(seconds=10), gt=timedelta(0), description="Longest wait for one answer.")
    allow_plaintext_password: bool = Field(False, description=PLAIN_TEXT)


def schema_registry_faults(registries: Mapping[str, SchemaRegistrySettings]) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for each contradiction; a fault names the remedy."""
    for name, registry in registries.items():
        key = f"schema_registries.{name}"
        if not _NAME.fullmatch(name):
            yield key, "is no name of a folder; use letters, digits, - and _, at most 63"
        yield from one_login_faults(key, registry, needed=False)
    chosen = [name for name, registry in registries.items() if registry.default]
    if len(chosen) > 1:
        yield f"schema_registries.{chosen[1]}.default", f"{chosen[0]} is the default as well; keep one"
    elif len(registries) > 1 and not chosen:
        yield "schema_registries", f"has several and none with default: true; add it to one of {', '.join(registries)}"


def name_faults(
    key: str, name: str | None, registries: Mapping[str, SchemaRegistrySettings]
) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for the name of a schema registry that the settings do not have."""
    if name is not None and name not in registries:
        known = f"known are {', '.join(registries)}" if registries else "there are none; add schema_registries"
        yield key, f"{name} is no schema registry; {known}"


def default_registry(registries: Mapping[str, SchemaRegistrySettings]) -> str | None:
    """Return the name of the schema registry that is used where none is named; None where there is none."""
    if len(registries) == 1:
        return next(iter(registries))
    return next((name for name, registry in registries.items() if registry.default), None)
