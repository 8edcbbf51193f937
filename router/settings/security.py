"""What must hold, and what had better hold, of logins and certificates in the settings."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Final

from bindings.kafka.addresses import brokers_of, contradiction
from catalog.documents.reach import Reach
from router.settings.inward import HttpAuthSettings, KafkaInboxSettings
from router.settings.logins import TlsSettings
from router.settings.model import AmqpSink, KafkaSink, Settings, SourceSettings
from router.settings.takers import letter_sinks
from router.settings.values import Options, revealed

KafkaLogin = SourceSettings | KafkaSink | KafkaInboxSettings
_HOST_CHECK: Final = "ssl.endpoint.identification.algorithm"
_MECHANISM: Final = ("sasl.mechanism", "sasl.mechanisms")


def security_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for each contradiction; a fault names the remedy and no secret."""
    try:
        Reach(settings.catalog.allow_addresses)
    except ValueError as error:
        yield "catalog.allow_addresses", f"names no network: {error}; write one such as 10.0.0.0/8"
    for index, source in enumerate(settings.sources):
        yield from _kafka(f"sources.{index}", source, "kafka", source.kafka)
        yield from _brokers(f"sources.{index}.bootstrap_servers", source.bootstrap_servers, source, source.kafka)
        yield from _users(f"sources.{index}.users", source, settings.http.auth)
        yield from _clear(f"sources.{index}.uris", source.uris, source.tls)
    for name, sink in settings.sinks.items():
        if isinstance(sink, KafkaSink):
            yield from _kafka(f"sinks.{name}", sink, "options", sink.options)
            yield from _brokers(f"sinks.{name}.bootstrap_servers", sink.bootstrap_servers, sink, sink.options)
        if isinstance(sink, AmqpSink):
            yield from _clear(f"sinks.{name}.uri", sink.uri, sink.tls)
    if settings.inbox.kafka is not None:
        inbox = settings.inbox.kafka
        yield from login_faults("inbox.kafka", inbox.username, inbox.password is not None)
        yield from _kafka("inbox.kafka", inbox, "options", inbox.options)
        yield from _brokers("inbox.kafka.bootstrap_servers", inbox.bootstrap_servers, inbox, inbox.options)
    if settings.http.auth is not None:
        yield from _auth("http.auth", settings.http.auth)


def cautions(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, caution)`` for what works and lays secrets open."""
    http = settings.http
    if http.auth is not None and http.tls is None and not is_loopback(http.host):
        yield (
            "http.tls",
            f"is not set, and {http.host} is no loopback address: credentials of senders cross the network in plain "
            "text; set http.tls, unless something before the router speaks TLS",
        )


def login_faults(key: str, username: str | None, password: bool) -> Iterator[tuple[str, str]]:
    """Yield what is missing of a user name and its password."""
    if password and username is None:
        yield f"{key}.username", "is missing beside password; add it"
    if username is not None and not password:
        yield f"{key}.password", "is missing beside username; add it as ${VAR} or file:/path"


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _kafka(key: str, login: KafkaLogin, name: str, options: object) -> Iterator[tuple[str, str]]:
    if login.sasl is not None and login.username is None:
        yield f"{key}.sasl", "needs username and password; add them, or leave it out"
    if login.sasl == "oauthbearer" and login.token_endpoint is None:
        yield f"{key}.token_endpoint", "is missing beside sasl: oauthbearer; add the URL that gives tokens"
    if login.sasl != "oauthbearer":
        for field in ("token_endpoint", "token_scope", "token_ca"):
            if getattr(login, field) is not None:
                yield f"{key}.{field}", "is for sasl: oauthbearer only; leave it out"
    if not isinstance(options, dict):
        return
    for option in _MECHANISM:
        if option in options and login.username is not None:
            yield f"{key}.{name}.{option}", "is only known to one of the two clients; set sasl instead"
    if _HOST_CHECK in options:
        yield f"{key}.{name}.{_HOST_CHECK}", "host names are always checked; leave it out, and mend the certificate"


def _brokers(key: str, servers: str | None, login: KafkaLogin, options: Options) -> Iterator[tuple[str, str]]:
    """Yield how the addresses of Kafka brokers contradict each other or what is set beside them."""
    try:
        security = brokers_of([servers or ""]).security
    except ValueError as error:
        yield key, str(error)
        return
    tls, named = login.tls is not None, login.username is not None
    fault = contradiction(security, tls=tls, login=named, options=revealed(options))
    if fault:
        yield key, fault


def _clear(key: str, uris: Sequence[str], tls: TlsSettings | None) -> Iterator[tuple[str, str]]:
    """Yield AMQP addresses whose scheme says no TLS where certificates say TLS."""
    for uri in uris:
        if tls is not None and uri.lower().startswith("amqp:"):
            yield key, "has an address without TLS, and tls is set; write amqps://, or leave out tls"


def _users(key: str, source: SourceSettings, auth: HttpAuthSettings | None) -> Iterator[tuple[str, str]]:
    if source.users and auth is None:
        yield key, "has no use without http.auth; add it, or leave out users"
        return
    for name in source.users:
        if auth is not None and name not in auth.names:
            near = get_close_matches(name, auth.names, 1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(auth.names) or 'none'}"
            yield key, f"http.auth has nobody named {name!r}; {hint}"


def _auth(key: str, auth: HttpAuthSettings) -> Iterator[tuple[str, str]]:
    if not auth.names:
        yield key, "lets nobody in; add bearer, basic or api_keys, or leave it out"
    for kind in ("bearer", "basic", "api_keys"):
        for name, secret in getattr(auth, kind).items():
            if not secret.get_secret_value():
                yield f"{key}.{kind}.{name}", "is empty; give it a value"
            if kind == "basic" and ":" in name:
                yield f"{key}.{kind}.{name}", "a user name cannot have a colon (RFC 7617); choose another"


def retention_cautions(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, caution)`` for each sink of dead letters that retention cannot remove letters from."""
    if not settings.dead_letters.retention.on:
        return
    for name in letter_sinks(settings):
        if settings.sinks[name].type == "kafka":
            yield (
                "dead_letters.retention",
                f"letters in Kafka (sink {name}) go by the retention of their topics; set retention.ms there to match",
            )
