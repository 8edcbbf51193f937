"""Checks across settings: faults, which are errors, and cautions, which are warnings."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from bindings.protocols import sending_of
from bindings.sending import redact_address
from catalog.documents.connecting import ConnectionPolicy
from router.errors import hint_near
from router.settings.catalogs import (
    CatalogLogin,
    CatalogSettings,
    KafkaLogin,
    iter_catalog_login_faults,
    iter_cleartext_faults,
    iter_name_faults,
    iter_registry_faults,
    iter_telemetry_faults,
)
from router.settings.model import HttpAuthSettings, KafkaInboxSettings, Settings, SourceSettings, check_subscription
from router.settings.routes import REASONS, NumberedRoute, RouteConditions, dead_letter_routes, event_routes
from router.settings.sinks.contract import RemoteSink
from router.settings.spark import iter_client_faults
from router.settings.values import Options, is_secret_name, plain_options

if TYPE_CHECKING:
    from bindings.kafka.client import KafkaClient

# Sinks of events and of dead letters.


def event_sinks(settings: Settings) -> tuple[str, ...]:
    """Return the sinks of events, in the order of the routes."""
    return _unique_names(route.to for _, route in event_routes(settings.routes))


def dead_letter_sinks(settings: Settings) -> tuple[str, ...]:
    """Return the sinks of dead letters: those of routes, in order, then ``dead_letters.sinks``."""
    return _unique_names((*(route.to for _, route in dead_letter_routes(settings.routes)), settings.dead_letters.sinks))


def _unique_names(lists: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for names in lists for name in names))


# Request-reply pairs: their sink exists, is used for nothing else, and supports them.


def iter_relation_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for an unsuitable sink of request-reply pairs; a fault names the fix."""
    if settings.relations is None:
        return
    name = settings.relations.to
    sink = settings.sinks.get(name)
    if sink is None:
        yield "relations.to", f"sink {name!r} not found; {hint_near(name, settings.sinks)}"
        return
    if name in event_sinks(settings) or name in dead_letter_sinks(settings):
        yield "relations.to", f"{name} receives events or dead letters; use a separate sink for request-reply pairs"
    yield from (("relations.to", f"{name} {fault}") for fault in sink.pair_faults())
    if settings.is_real_time:
        yield "relations", "is not supported with trigger: realtime; remove it"


# Routes: each record has a destination, and sinks support what they receive.

_ATTRIBUTE: Final = re.compile(r"[a-z0-9]+")
_OF_DEFINITIONS: Final = ("message", "messagegroup", "context", "attributes")
_CATCH_ALL: Final = "matches every {}, so later routes are never reached; move it to the end"


def iter_route_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for each contradiction of routes and dead letters; a fault names the fix."""
    events, letters = event_routes(settings.routes), dead_letter_routes(settings.routes)
    remedy = "add `- {to: [...]}` as the last route"
    if not events:
        yield "routes", f"records have no destination; {remedy}"
    for number, route in (*events, *letters):
        for name in route.to:
            yield from _iter_unknown_sink(settings, f"routes.{number}.to", name)
        yield from _iter_condition_faults(f"routes.{number}.when", route.when)
        if route.when.letters and route.validation is not None:
            yield f"routes.{number}.validate", "has no effect with outcome: dead-letter; remove it"
    yield from _iter_order_faults(events, "record")
    yield from _iter_order_faults(letters, "dead letter")
    if events and not events[-1][1].when.is_catch_all:
        yield "routes", f"records that no route matches have no destination; {remedy}"
    yield from _iter_dead_letter_faults(settings, letters)


def _iter_order_faults(routes: list[NumberedRoute], what: str) -> Iterator[tuple[str, str]]:
    for number, route in routes[:-1]:
        if route.when.is_catch_all:
            yield f"routes.{number}", _CATCH_ALL.format(what)


def _iter_condition_faults(key: str, when: RouteConditions) -> Iterator[tuple[str, str]]:
    if when.letters:
        for name in _OF_DEFINITIONS:
            if getattr(when, name):
                yield f"{key}.{name}", "cannot match dead letters, which have no definition; use endpoint and reason"
    elif when.reason:
        yield f"{key}.reason", "is for dead letters; add outcome: dead-letter, or remove it"
    for glob in when.reason:
        if not any(fnmatchcase(reason, glob) for reason in REASONS):
            yield f"{key}.reason", f"{glob!r} matches no dead-letter reason; {hint_near(glob, REASONS)}"
    for name in when.attributes:
        if not _ATTRIBUTE.fullmatch(name):
            yield f"{key}.attributes", f"{name!r} is not a valid attribute name; use lower-case letters and digits"


def _iter_dead_letter_faults(settings: Settings, letters: list[NumberedRoute]) -> Iterator[tuple[str, str]]:
    events = event_sinks(settings)
    for name in settings.dead_letters.sinks:
        yield from _iter_unknown_sink(settings, "dead_letters.sinks", name)
    lists = {f"routes.{number}.to": route.to for number, route in letters}
    for key, names in {"dead_letters.sinks": settings.dead_letters.sinks, **lists}.items():
        for name in names:
            sink = settings.sinks.get(name)
            if sink is not None and sink.tabular and name in events:
                yield key, f"table {name} also receives events, whose columns differ; use a separate table"
            if sink is not None and sink.sends_messages:
                yield key, f"{name} supports events only; use a table, JSON lines or Kafka topic"


def _iter_unknown_sink(settings: Settings, key: str, name: str) -> Iterator[tuple[str, str]]:
    if name not in settings.sinks:
        yield key, f"sink {name!r} not found; {hint_near(name, settings.sinks)}"


# Settings that real-time mode does not support.

_MODE: Final = "with trigger: realtime"


def iter_real_time_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for each setting that real-time mode does not support; a fault names the fix."""
    if settings.is_real_time:
        if settings.realtime is None:
            yield (
                "realtime.rest",
                f"is required {_MODE}: the fallback topic, for records that only the matcher can decide; add it",
            )
        yield from _iter_sink_limits(settings)
        yield from _iter_route_limits(settings)
        yield from _iter_dead_letter_limits(settings)
    if settings.realtime is None:
        return
    for name, sink in settings.sinks.items():
        if sink.topics is not None and sink.topics.topic == settings.realtime.rest:
            yield "realtime.rest", f"is also the topic of sink {name}; use a topic that only the router uses"
    if settings.is_real_time or any(settings.sinks[name].topics for name in event_sinks(settings)):
        return
    yield ("realtime", "requires a Kafka sink of events, whose cluster has the fallback topic; remove it")


def _iter_sink_limits(settings: Settings) -> Iterator[tuple[str, str]]:
    clusters: dict[str, KafkaClient] = {}
    for name in event_sinks(settings):
        sink = settings.sinks[name].topics
        if sink is None:
            yield f"sinks.{name}", f"cannot receive events {_MODE}, which writes to Kafka topics only; use a Kafka sink"
            continue
        if sink.mode == "structured":
            yield f"sinks.{name}.mode", f"cannot be structured {_MODE}, which does not change bodies; use binary"
        if sink.framed is not None:
            yield f"sinks.{name}.framing", f"cannot be {sink.framing} {_MODE}, which does not change bodies; use none"
        clusters[name] = sink.cluster()
        first = next(iter(clusters))
        if clusters[name] != clusters[first]:
            fault = f"has another cluster or login than sink {first}; {_MODE} all sinks of events must share one"
            yield f"sinks.{name}.bootstrap_servers", fault


def _iter_route_limits(settings: Settings) -> Iterator[tuple[str, str]]:
    if settings.match.validation == "always":
        yield "match.validate", f"cannot be always {_MODE}, which does not read bodies; use ambiguous or never"
    for number, route in event_routes(settings.routes):
        if route.validation == "always":
            yield f"routes.{number}.validate", f"cannot be always {_MODE}, which does not read bodies; remove it"
        if len(set(route.to)) > 1:
            yield f"routes.{number}.to", f"names several sinks; {_MODE} each record goes to one"


def _iter_dead_letter_limits(settings: Settings) -> Iterator[tuple[str, str]]:
    if settings.dead_letters.max_ratio is not None:
        fault = f"cannot block records {_MODE}: they are sent before the ratio is known; remove it"
        yield "dead_letters.max_ratio", fault
    if settings.dead_letters.order == "park":
        yield (
            "dead_letters.order",
            f"cannot be park {_MODE}: records overtake those in the fallback topic; use continue",
        )


# Logins and certificates.


def iter_security_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for each contradiction; a fault names the fix and no secret."""
    try:
        ConnectionPolicy(settings.catalog.allow_addresses)
    except ValueError as error:
        yield "catalog.allow_addresses", f"is not a valid network: {error}; write one such as 10.0.0.0/8"
    yield from iter_catalog_login_faults(settings.catalog)
    for index, source in enumerate(settings.sources):
        yield from iter_client_faults(f"sources.{index}", source, "kafka", source.kafka, source.bootstrap_servers)
        yield from _iter_user_faults(f"sources.{index}.users", source, settings.http.auth)
        yield from iter_cleartext_faults(f"sources.{index}.uris", source.uris, source.tls)
    if (inbox := settings.inbox.kafka) is not None:
        yield from iter_client_faults("inbox.kafka", inbox, "options", inbox.options, inbox.bootstrap_servers)
    if settings.http.auth is not None:
        yield from _iter_auth_faults(settings.http.auth)


def iter_security_warnings(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, caution)`` for what works but exposes secrets."""
    http = settings.http
    if http.auth is not None and http.tls is None and not is_loopback(http.host):
        yield (
            "http.tls",
            f"is not set, and {http.host} is not a loopback address: clients send credentials over the network in "
            "plain text; set http.tls, unless a proxy in front of the router terminates TLS",
        )

    metrics = settings.metrics
    if metrics.token is not None and not is_loopback(metrics.host):
        yield (
            "metrics.token",
            f"is sent over the network in plain text: {metrics.host} is not a loopback address, and the status page "
            "has no TLS; put a proxy with TLS in front of it",
        )


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _iter_user_faults(key: str, source: SourceSettings, auth: HttpAuthSettings | None) -> Iterator[tuple[str, str]]:
    if source.users and auth is None:
        yield key, "requires http.auth; add it, or remove users"
        return
    for name in source.users:
        if auth is not None and name not in auth.client_names:
            yield key, f"{name!r} not found in http.auth; {hint_near(name, auth.client_names)}"


def _iter_auth_faults(auth: HttpAuthSettings) -> Iterator[tuple[str, str]]:
    if not auth.client_names:
        yield "http.auth", "lets no client in; add bearer, basic or api_keys, or remove it"
    for kind in ("bearer", "basic", "api_keys"):
        for name, secret in getattr(auth, kind).items():
            if not secret.get_secret_value():
                yield f"http.auth.{kind}.{name}", "is empty; set a value"
            if kind == "basic" and ":" in name:
                yield f"http.auth.{kind}.{name}", "a user name cannot contain a colon (RFC 7617); choose another"


def iter_retention_warnings(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, caution)`` for each sink of dead letters that retention does not apply to."""
    if not settings.dead_letters.retention.on:
        return
    for name in dead_letter_sinks(settings):
        if settings.sinks[name].topics is not None:
            yield (
                "dead_letters.retention",
                f"does not apply to Kafka (sink {name}), where topics have their own; set retention.ms there to match",
            )


def iter_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for each contradiction; a fault names the fix."""
    yield from iter_registry_faults(settings.schema_registries)
    yield from iter_route_faults(settings)
    yield from _iter_sink_faults(settings)
    yield from _iter_source_faults(settings)
    yield from iter_relation_faults(settings)
    yield from iter_security_faults(settings)


def _iter_sink_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    folders: dict[str, str] = {}
    events, letters = event_sinks(settings), dead_letter_sinks(settings)
    for name, sink in settings.sinks.items():
        key = f"sinks.{name}"
        if sink.folder and sink.folder in folders:
            yield f"{key}.path", f"is also the path of sink {folders[sink.folder]}; use a separate folder per sink"
        folders[sink.folder] = name
        yield from sink.faults(key, events=name in events, letters=name in letters)
        if (framed := sink.framed) is not None:
            yield from iter_name_faults(f"{key}.schema_registry", framed.schema_registry, settings.schema_registries)
            if not settings.schema_registries:
                yield f"{key}.framing", "requires a schema registry; add schema_registries"


def _iter_source_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    subscribed: set[str] = set()
    for index, source in enumerate(settings.sources):
        key = f"sources.{index}"
        if source.endpoint in seen:
            yield f"{key}.endpoint", f"{source.endpoint} is already a source; merge the two"
        seen.add(source.endpoint)
        yield from iter_name_faults(f"{key}.schema_registry", source.schema_registry, settings.schema_registries)
        if source.subscription is not None:
            plain = source.allow_plaintext_password
            yield from check_subscription(f"{key}.subscription", source.subscription, plain=plain)
            if source.subscription.sink in subscribed:
                yield f"{key}.subscription.sink", "is also the sink of another source; use a separate path for each"
            subscribed.add(source.subscription.sink)
    if settings.catalog.events is not None:
        if seen and settings.catalog.events not in seen:
            yield "catalog.events", f"{settings.catalog.events} is not a source; add it to sources"
        if not settings.catalog.poll:
            yield "catalog.poll", "cannot be 0 with catalog.events, which may miss changes; set it, such as 1m"


# What executors on other machines must reach: files, and the router itself.

_DEPLOY_MODE: Final = "spark.submit.deployMode"
_AUTHENTICATE: Final = "spark.authenticate"
_SHARED: Final = "add it to spark.shared_folders if executors share the same folder"


def iter_executor_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for what cannot work with a Spark cluster, and for unsafe ``spark.min_partitions``."""
    yield from _iter_partition_faults(settings)
    spark = settings.spark
    if spark.is_local:
        return
    if spark.host is None:
        yield "spark.driver_host", "is required for a cluster; set the address where executors reach this machine"
    if plain_options(spark.conf).get(_DEPLOY_MODE, "client") != "client":
        yield f"spark.conf.{_DEPLOY_MODE}", "must be client: the router is the driver; remove it"
    for name in sorted({*event_sinks(settings), *dead_letter_sinks(settings)}):
        sink = settings.sinks[name]
        if sink.staging_folder and not spark.reaches(sink.staging_folder):
            fault = "is a local folder, but executors write there; set an address that all of them reach, or "
            yield f"sinks.{name}.path", fault + _SHARED
        if (topics := sink.topics) is not None:
            yield from _iter_file_faults(f"sinks.{name}", "options", topics, topics.options, settings)
    for index, source in enumerate(settings.sources):
        yield from _iter_file_faults(f"sources.{index}", "kafka", source, source.kafka, settings)
    for name, registry in settings.schema_registries.items():
        if registry.bearer_file is not None and not spark.reaches(registry.bearer_file):
            fault = "is a local file, but executors read it to fetch schemas; "
            yield f"schema_registries.{name}.bearer_file", fault + _SHARED
    if (inbox := settings.inbox.kafka) is not None:
        yield from _iter_file_faults("inbox.kafka", "options", inbox, inbox.options, settings)


def iter_inbox_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield why executors cannot read the local inbox, if sources need one."""
    spark = settings.spark
    if spark.is_local or settings.inbox.kafka is not None:
        return
    if not spark.reaches(settings.state):
        fault = "is not set, and executors cannot read the inbox in the local folder `state`; set it, or for `state`, "
        yield "inbox.kafka", fault + _SHARED
    elif spark.python is not None and not spark.python.startswith("/"):
        fault = "must be an absolute path, since Spark reads the inbox in `state` on this machine, too; or set "
        yield "spark.python", fault + "inbox.kafka"


def iter_executor_warnings(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, caution)`` for what works with a cluster but exposes records or secrets."""
    spark = settings.spark
    if spark.is_local or spark.host is None or is_loopback(spark.host):
        return
    if plain_options(spark.conf).get(_AUTHENTICATE, "false").lower() != "true":
        yield (
            f"spark.conf.{_AUTHENTICATE}",
            "is not true: anyone who reaches driver_host can run code here and read what executors receive, including "
            "passwords of brokers; set it, and spark.network.crypto.enabled",
        )


def _iter_partition_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    if settings.spark.min_partitions is None:
        return
    taking = sorted({*event_sinks(settings), *dead_letter_sinks(settings)})
    if topics := [name for name in taking if settings.sinks[name].topics is not None]:
        yield (
            "spark.min_partitions",
            f"could reorder records of one partition on their way to {', '.join(topics)}; remove it, or add partitions "
            "to the source's topic",
        )


def _iter_file_faults(
    key: str, name: str, login: KafkaLogin, options: Options, settings: Settings
) -> Iterator[tuple[str, str]]:
    """Yield local files that Spark's Kafka client opens on executors; certificates of ``tls`` are sent to them."""
    files = {f"{name}.{each}": path for each, path in plain_options(options).items() if each.endswith(".location")}
    if login.token_ca is not None:
        files["token_ca"] = login.token_ca
    for each, path in files.items():
        if not settings.spark.reaches(path):
            yield f"{key}.{each}", f"is a local file, but executors open it; {_SHARED}"


# Secrets that would be sent in plain text (OPERATIONS.md#security).
#
# Loopback is no exception: secrets without TLS require ``allow_plaintext_password``.

ClientSettings = SourceSettings | KafkaInboxSettings | RemoteSink
"""The settings of one client of an external server."""
_ALLOWED: Final = "catalog.allow_plaintext_password"
REMEDY: Final = "use an address with TLS, or set allow_plaintext_password if nobody can read this connection"


def sends_secret(client: ClientSettings) -> bool:
    """Whether a secret is sent; client keys, nkey seeds and NATS credentials never are."""
    if any(getattr(client, name, None) is not None for name in ("password", "token", "bearer", "api_key")):
        return True
    return any(is_secret_name(name) for name in client.client_options)


def holds_secret(client: ClientSettings) -> bool:
    """Whether the client logs in at all: then the server's identity matters."""
    files = any(getattr(client, name, None) is not None for name in ("credentials", "seed"))
    return sends_secret(client) or files or (client.tls is not None and client.tls.key is not None)


def first_plaintext_address(kind: str, addresses: Iterable[str], client: ClientSettings) -> str:
    """Return the first of *addresses* that would carry a secret of *client* in plain text; empty for none."""
    if client.allow_plaintext_password or not sends_secret(client):
        return ""
    tls, login = client.tls is not None, getattr(client, "username", None) is not None
    return sending_of(kind).find_plain_address(
        addresses, tls=tls, login=login, options=plain_options(client.client_options)
    )


def iter_plaintext_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for secrets sent without TLS to sinks, inbox, registries or token endpoints."""
    if not settings.catalog.allow_plaintext_password:
        yield from _iter_catalog_faults(settings.catalog)
    for name, registry in settings.schema_registries.items():
        if not registry.allow_plaintext_password:
            key = f"schema_registries.{name}.allow_plaintext_password"
            yield from ((key, fault) for fault in iter_plain_login_faults(registry))
    yield from iter_telemetry_faults(settings.telemetry, REMEDY)
    for name, sink in settings.sinks.items():
        if (remote := sink.remote) is not None:
            yield from iter_secret_faults(f"sinks.{name}", remote, remote.family, remote.own_addresses)
    for index, source in enumerate(settings.sources):
        yield from iter_secret_faults(f"sources.{index}", source)
    if (inbox := settings.inbox.kafka) is not None:
        yield from iter_secret_faults("inbox.kafka", inbox, "kafka", [inbox.bootstrap_servers])


def iter_secret_faults(
    key: str, client: ClientSettings, family: str = "", addresses: Iterable[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for secrets that the client at *key* would send without TLS, to *addresses* or for tokens.

    *family* is the protocol of the addresses.
    """
    if family and (address := first_plaintext_address(family, addresses, client)):
        yield f"{key}.allow_plaintext_password", f"{address} would receive a secret in plain text; {REMEDY}"
    fault = _find_token_fault(getattr(client, "token_endpoint", None))
    if fault and not client.allow_plaintext_password:
        yield f"{key}.token_endpoint", fault


def _find_token_fault(endpoint: str | None) -> str:
    """Return why a client secret must not be sent to this address; empty if it may."""
    if not (endpoint or "").lower().startswith("http://"):
        return ""
    return f"{redact_address(endpoint or '')} would receive the client secret in plain text; {REMEDY}"


def _iter_catalog_faults(catalog: CatalogSettings) -> Iterator[tuple[str, str]]:
    for source in (*catalog.source, *catalog.shadow):
        parts = urlsplit(source) if source.lower().startswith("http://") else None
        if parts is not None and parts.password is not None:
            yield _ALLOWED, f"{redact_address(source)} would receive its password in plain text; {REMEDY}"
    for login in catalog.logins:
        yield from ((_ALLOWED, fault) for fault in iter_plain_login_faults(login))


def iter_plain_login_faults(login: CatalogLogin) -> Iterator[str]:
    """Yield why a login at a registry would send a secret without TLS."""
    secret = (login.bearer, login.bearer_file, login.password, login.token_endpoint) != (None,) * 4
    if secret and login.url.lower().startswith("http://"):
        yield f"{redact_address(login.url)} would receive a secret in plain text; {REMEDY}"
    if fault := _find_token_fault(login.token_endpoint):
        yield fault
