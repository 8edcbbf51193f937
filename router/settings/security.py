"""What must hold, and what should hold, for logins and certificates in the settings."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from difflib import get_close_matches

from catalog.documents.reach import Reach
from router.settings.catalogs import catalog_login_faults
from router.settings.clusters import broker_faults, kafka_login_faults
from router.settings.inward import HttpAuthSettings
from router.settings.logins import clear_faults, login_faults
from router.settings.model import Settings, SourceSettings
from router.settings.takers import letter_sinks


def security_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for each contradiction; a fault names the remedy and no secret."""
    try:
        Reach(settings.catalog.allow_addresses)
    except ValueError as error:
        yield "catalog.allow_addresses", f"names no network: {error}; write one such as 10.0.0.0/8"
    yield from catalog_login_faults(settings.catalog)
    for index, source in enumerate(settings.sources):
        yield from kafka_login_faults(f"sources.{index}", source, "kafka", source.kafka)
        yield from broker_faults(f"sources.{index}.bootstrap_servers", source.bootstrap_servers, source, source.kafka)
        yield from _users(f"sources.{index}.users", source, settings.http.auth)
        yield from clear_faults(f"sources.{index}.uris", source.uris, source.tls)
    for name, sink in settings.sinks.items():
        yield from sink.login_faults(f"sinks.{name}")
    if settings.inbox.kafka is not None:
        inbox = settings.inbox.kafka
        yield from login_faults("inbox.kafka", inbox.username, inbox.password is not None)
        yield from kafka_login_faults("inbox.kafka", inbox, "options", inbox.options)
        yield from broker_faults("inbox.kafka.bootstrap_servers", inbox.bootstrap_servers, inbox, inbox.options)
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

    watched = settings.metrics
    if watched.token is not None and not is_loopback(watched.host):
        yield (
            "metrics.token",
            f"crosses the network in plain text, since {watched.host} is no loopback address: the status page speaks "
            "no TLS; put something before it that does",
        )


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


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
        if settings.sinks[name].topics is not None:
            yield (
                "dead_letters.retention",
                f"letters in Kafka (sink {name}) go by the retention of their topics; set retention.ms there to match",
            )
