"""What must hold between settings: routes and dead letters name sinks that exist and that fit what they get."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from bindings.protocols import sending_of
from bindings.sending import shown
from catalog.documents.connecting import Reach
from router.settings.catalogs import (
    CatalogLogin,
    CatalogSettings,
    catalog_login_faults,
    clear_faults,
    login_faults,
    name_faults,
    schema_registry_faults,
    telemetry_faults,
)
from router.settings.model import HttpAuthSettings, KafkaInboxSettings, Settings, SourceSettings, subscription_faults
from router.settings.names import REASONS, Numbered, When, event_routes, letter_routes
from router.settings.sinks.contract import RemoteSink
from router.settings.spark import broker_faults, kafka_login_faults, option_faults
from router.settings.values import names_secret, revealed

if TYPE_CHECKING:
    from bindings.kafka.client import KafkaClient
    from router.settings.catalogs import KafkaLogin
    from router.settings.values import Options

# Which sinks take what: those of the routes of events, and those of dead letters.


def event_sinks(settings: Settings) -> tuple[str, ...]:
    """Return the sinks that take events, in the order of the routes."""
    return _names(route.to for _, route in event_routes(settings.routes))


def letter_sinks(settings: Settings) -> tuple[str, ...]:
    """Return the sinks that take dead letters: those of routes, in order, then ``dead_letters.sinks``."""
    return _names((*(route.to for _, route in letter_routes(settings.routes)), settings.dead_letters.sinks))


def _names(lists: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for names in lists for name in names))


# What must hold for pairs of messages: their sink exists, is theirs alone, and has a place for them.


def relation_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for a sink of pairs that is none; a fault names the remedy."""
    if settings.relations is None:
        return
    name = settings.relations.to
    sink = settings.sinks.get(name)
    if sink is None:
        near = get_close_matches(name, settings.sinks, 1)
        hint = f"did you mean {near[0]}?" if near else f"sinks are {', '.join(settings.sinks) or 'none'}"
        yield "relations.to", f"no sink is named {name!r}; {hint}"
        return
    if name in event_sinks(settings) or name in letter_sinks(settings):
        yield "relations.to", f"{name} takes events or dead letters; give pairs a sink of their own"
    yield from (("relations.to", f"{name} {fault}") for fault in sink.pair_faults())
    if settings.is_real_time:
        yield "relations", "cannot pair records with trigger: realtime, which sends them on one by one; leave it out"


# What must hold for routes: each record has somewhere to go, and sinks fit what they get.

_ATTRIBUTE: Final = re.compile(r"[a-z0-9]+")
_OF_DEFINITIONS: Final = ("message", "messagegroup", "context", "attributes")
_CATCH_ALL: Final = "takes every {}, so that later lines are never reached; move it to the end"


def route_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for each contradiction of routes and dead letters; a fault names the remedy."""
    events, letters = event_routes(settings.routes), letter_routes(settings.routes)
    remedy = "add `- {to: [...]}` as the last line of routes"
    if not events:
        yield "routes", f"records would have nowhere to go; {remedy}"
    for number, route in (*events, *letters):
        for name in route.to:
            yield from _known(settings, f"routes.{number}.to", name)
        yield from _conditions(f"routes.{number}.when", route.when)
        if route.when.letters and route.validation is not None:
            yield f"routes.{number}.validate", "has no meaning with outcome: dead-letter; leave it out"
    yield from _in_order(events, "record")
    yield from _in_order(letters, "dead letter")
    if events and not events[-1][1].when.always:
        yield "routes", f"records that no line takes would have nowhere to go; {remedy}"
    yield from _letters(settings, letters)


def _in_order(routes: list[Numbered], what: str) -> Iterator[tuple[str, str]]:
    for number, route in routes[:-1]:
        if route.when.always:
            yield f"routes.{number}", _CATCH_ALL.format(what)


def _conditions(key: str, when: When) -> Iterator[tuple[str, str]]:
    if when.letters:
        for name in _OF_DEFINITIONS:
            if getattr(when, name):
                fault = "has no meaning with outcome: dead-letter, since a letter has no definition and is no event"
                yield f"{key}.{name}", f"{fault}; use endpoint and reason"
    elif when.reason:
        yield f"{key}.reason", "is of dead letters; add outcome: dead-letter, or leave it out"
    for glob in when.reason:
        if not any(fnmatchcase(reason, glob) for reason in REASONS):
            near = get_close_matches(glob, REASONS, 1)
            hint = f"did you mean {near[0]}?" if near else f"reasons are {', '.join(REASONS)}"
            yield f"{key}.reason", f"no dead letter has the reason {glob!r}; {hint}"
    for name in when.attributes:
        if not _ATTRIBUTE.fullmatch(name):
            yield f"{key}.attributes", f"{name!r} is no attribute name; those are lower-case letters and digits"


def _letters(settings: Settings, letters: list[Numbered]) -> Iterator[tuple[str, str]]:
    events = event_sinks(settings)
    for name in settings.dead_letters.sinks:
        yield from _known(settings, "dead_letters.sinks", name)
    lists = {f"routes.{number}.to": route.to for number, route in letters}
    for key, names in {"dead_letters.sinks": settings.dead_letters.sinks, **lists}.items():
        for name in names:
            sink = settings.sinks.get(name)
            if sink is not None and sink.tabular and name in events:
                yield key, f"table {name} also takes events, whose columns differ; give dead letters their own"
            if sink is not None and sink.sends_messages:
                yield key, f"{name} sends events only; name a table, JSON lines or Kafka topic instead"


def _known(settings: Settings, key: str, name: str) -> Iterator[tuple[str, str]]:
    if name in settings.sinks:
        return
    near = get_close_matches(name, settings.sinks, 1)
    hint = f"did you mean {near[0]}?" if near else f"sinks are {', '.join(settings.sinks) or 'none'}"
    yield key, f"no sink is named {name!r}; {hint}"


# What real-time mode cannot do, by the names of the settings that ask for it.

_MODE: Final = "with trigger: realtime"


def real_time_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for what real-time mode is asked for and cannot do; a fault names the remedy."""
    if settings.is_real_time:
        if settings.realtime is None:
            yield "realtime.rest", f"is required {_MODE}: the topic for records that only the matcher decides; add it"
        yield from _sinks(settings)
        yield from _routes(settings)
        yield from _dead_letter_faults(settings)
    if settings.realtime is None:
        return
    for name, sink in settings.sinks.items():
        if sink.topics is not None and sink.topics.topic == settings.realtime.rest:
            yield "realtime.rest", f"is the topic of sink {name} as well; name one that is the router's alone"
    if settings.is_real_time or any(settings.sinks[name].topics for name in event_sinks(settings)):
        return
    yield (
        "realtime",
        "needs a Kafka sink of events, whose cluster has the rest topic; leave it out",
    )


def _sinks(settings: Settings) -> Iterator[tuple[str, str]]:
    clusters: dict[str, KafkaClient] = {}
    for name in event_sinks(settings):
        sink = settings.sinks[name].topics
        if sink is None:
            yield f"sinks.{name}", f"cannot take events {_MODE}, which writes to Kafka topics alone; use another sink"
            continue
        if sink.mode == "structured":
            yield f"sinks.{name}.mode", f"cannot be structured {_MODE}, which leaves bodies as they are; use binary"
        if sink.framed is not None:
            yield f"sinks.{name}.framing", f"cannot be {sink.framing} {_MODE}, which leaves bodies as they are"
        clusters[name] = sink.cluster()
        first = next(iter(clusters))
        if clusters[name] != clusters[first]:
            fault = f"is another cluster, or another login, than that of sink {first}; {_MODE} there is one"
            yield f"sinks.{name}.bootstrap_servers", fault


def _routes(settings: Settings) -> Iterator[tuple[str, str]]:
    if settings.match.validation == "always":
        yield "match.validate", f"cannot be always {_MODE}, which looks at no body; use ambiguous or never"
    for number, route in event_routes(settings.routes):
        if route.validation == "always":
            yield f"routes.{number}.validate", f"cannot be always {_MODE}, which looks at no body; leave it out"
        if len(set(route.to)) > 1:
            yield f"routes.{number}.to", f"names several sinks; {_MODE} each record goes to one"


def _dead_letter_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    if settings.dead_letters.max_ratio is not None:
        fault = f"cannot hold records back {_MODE}: they are sent on before a share is known; leave it out"
        yield "dead_letters.max_ratio", fault
    if settings.dead_letters.order == "park":
        yield "dead_letters.order", f"cannot be park {_MODE}: records overtake those of the rest topic; use continue"


# What must hold, and what should hold, for logins and certificates in the settings.


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


def faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for each contradiction; a fault names the remedy."""
    yield from schema_registry_faults(settings.schema_registries)
    yield from route_faults(settings)
    yield from _sink_faults(settings)
    yield from _sources(settings)
    yield from relation_faults(settings)
    yield from security_faults(settings)


def _sink_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    folders: dict[str, str] = {}
    events, letters = event_sinks(settings), letter_sinks(settings)
    for name, sink in settings.sinks.items():
        key = f"sinks.{name}"
        if sink.folder and sink.folder in folders:
            yield f"{key}.path", f"is also the path of sink {folders[sink.folder]}; give each sink its own folder"
        folders[sink.folder] = name
        yield from sink.faults(key, events=name in events, letters=name in letters)
        if (framed := sink.framed) is not None:
            yield from name_faults(f"{key}.schema_registry", framed.schema_registry, settings.schema_registries)
            if not settings.schema_registries:
                yield f"{key}.framing", "needs a schema registry, which knows ids; add schema_registries"


def _sources(settings: Settings) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    subscribed: set[str] = set()
    for index, source in enumerate(settings.sources):
        key = f"sources.{index}"
        if source.endpoint in seen:
            yield f"{key}.endpoint", f"{source.endpoint} is a source already; merge the two"
        seen.add(source.endpoint)
        yield from login_faults(key, source.username, source.password is not None)
        yield from option_faults(f"{key}.kafka", source.kafka)
        yield from name_faults(f"{key}.schema_registry", source.schema_registry, settings.schema_registries)
        if source.subscription is not None:
            plain = source.allow_plaintext_password
            yield from subscription_faults(f"{key}.subscription", source.subscription, plain=plain)
            if source.subscription.sink in subscribed:
                yield f"{key}.subscription.sink", "is that of another source, too; give each a path of its own"
            subscribed.add(source.subscription.sink)
    if settings.catalog.events is not None:
        if seen and settings.catalog.events not in seen:
            yield "catalog.events", f"{settings.catalog.events} is no source; add it to sources"
        if not settings.catalog.poll:
            yield "catalog.poll", "is the net below catalog.events; give it a time, such as 1m"
    if settings.inbox.kafka is not None:
        yield from option_faults("inbox.kafka.options", settings.inbox.kafka.options)
    for name, sink in settings.sinks.items():
        if (remote := sink.remote) is not None:
            yield from login_faults(f"sinks.{name}", remote.username, remote.password is not None)


# What executors on other machines cannot reach: places on the router's own disk, and the router itself.

_DEPLOY_MODE: Final = "spark.submit.deployMode"
_AUTHENTICATE: Final = "spark.authenticate"
_SHARED: Final = "name it in spark.shared_folders if it is the same folder there"


def executor_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for what cannot work with the Spark master of the settings; nothing for a local one."""
    yield from _partition_faults(settings)
    spark = settings.spark
    if spark.is_local:
        return
    if spark.host is None:
        yield "spark.driver_host", "is required for a cluster; set the address by which executors reach this machine"
    if revealed(spark.conf).get(_DEPLOY_MODE, "client") != "client":
        yield f"spark.conf.{_DEPLOY_MODE}", "must be client: the router is the driver; leave it out"
    for name in sorted({*event_sinks(settings), *letter_sinks(settings)}):
        sink = settings.sinks[name]
        if sink.staged_at and not spark.reaches(sink.staged_at):
            fault = "is a folder of this machine, and executors write there; set an address that all of them reach, or "
            yield f"sinks.{name}.path", fault + _SHARED
        if (topics := sink.topics) is not None:
            yield from _file_faults(f"sinks.{name}", "options", topics, topics.options, settings)
    for index, source in enumerate(settings.sources):
        yield from _file_faults(f"sources.{index}", "kafka", source, source.kafka, settings)
    for name, registry in settings.schema_registries.items():
        if registry.bearer_file is not None and not spark.reaches(registry.bearer_file):
            fault = "is a file of this machine, and executors read it when they ask for schemas; "
            yield f"schema_registries.{name}.bearer_file", fault + _SHARED
    if (inbox := settings.inbox.kafka) is not None:
        yield from _file_faults("inbox.kafka", "options", inbox, inbox.options, settings)


def inbox_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield why executors cannot read the local inbox, for a router whose sources need one."""
    spark = settings.spark
    if spark.is_local or settings.inbox.kafka is not None:
        return
    if not spark.reaches(settings.state):
        fault = "is not set, and executors cannot read the inbox in `state` of this machine; set it, or for `state` "
        yield "inbox.kafka", fault + _SHARED
    elif spark.python is not None and not spark.python.startswith("/"):
        fault = "must be an absolute path for an inbox in `state`, which Spark reads on this machine as well; or set "
        yield "spark.python", fault + "inbox.kafka"


def executor_cautions(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, caution)`` for what works with a cluster and lays records or secrets open."""
    spark = settings.spark
    if spark.is_local or spark.host is None or is_loopback(spark.host):
        return
    if revealed(spark.conf).get(_AUTHENTICATE, "false").lower() != "true":
        yield (
            f"spark.conf.{_AUTHENTICATE}",
            "is not true: whoever reaches driver_host can run code here and read what executors are sent, passwords of "
            "brokers among it; set it, and spark.network.crypto.enabled",
        )


def _partition_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    if settings.spark.min_partitions is None:
        return
    taking = sorted({*event_sinks(settings), *letter_sinks(settings)})
    if topics := [name for name in taking if settings.sinks[name].topics is not None]:
        yield (
            "spark.min_partitions",
            f"would let records of a partition overtake each other on their way to {', '.join(topics)}; leave it out, "
            "or give the source's topic more partitions",
        )


def _file_faults(
    key: str, name: str, login: KafkaLogin, options: Options, settings: Settings
) -> Iterator[tuple[str, str]]:
    """Yield files that Spark's Kafka client opens on executors; certificates of ``tls`` are sent to them."""
    files = {f"{name}.{each}": path for each, path in revealed(options).items() if each.endswith(".location")}
    if login.token_ca is not None:
        files["token_ca"] = login.token_ca
    for each, path in files.items():
        if not settings.spark.reaches(path):
            yield f"{key}.{each}", f"is a file of this machine, and executors open it; {_SHARED}"


# Which settings hold secrets of ours, and which addresses would carry them in plain text (OPERATIONS.md#security).
#
# There is no exception, not even for loopback: whoever wants no TLS has to set ``allow_plaintext_password``.

Party = SourceSettings | KafkaInboxSettings | RemoteSink
"""The settings of one client of somebody else's server."""
_ALLOWED: Final = "catalog.allow_plaintext_password"
REMEDY: Final = "use an address with TLS, or set allow_plaintext_password if this connection may be read on its way"


def sends_secret(party: Party) -> bool:
    """Tell whether a secret crosses the connection; a client key, an nkey seed or a NATS user's seed never does."""
    if any(getattr(party, name, None) is not None for name in ("password", "token", "bearer", "api_key")):
        return True
    return any(names_secret(name) for name in party.client_options)


def holds_secret(party: Party) -> bool:
    """Return whether we show who we are in any way: then it matters who is at the other end."""
    files = any(getattr(party, name, None) is not None for name in ("credentials", "seed"))
    return sends_secret(party) or files or (party.tls is not None and party.tls.key is not None)


def exposed(kind: str, addresses: Iterable[str], party: Party) -> str:
    """Return the first of *addresses* that would carry a secret of *party* in plain text; empty when none does."""
    if party.allow_plaintext_password or not sends_secret(party):
        return ""
    tls, login = party.tls is not None, getattr(party, "username", None) is not None
    return sending_of(kind).exposed(addresses, tls=tls, login=login, options=revealed(party.client_options))


def plaintext_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for secrets that the settings themselves send without TLS: sinks, inbox, registries."""
    if not settings.catalog.allow_plaintext_password:
        yield from _registries(settings.catalog)
    for name, registry in settings.schema_registries.items():
        if not registry.allow_plaintext_password:
            key = f"schema_registries.{name}.allow_plaintext_password"
            yield from ((key, fault) for fault in _login_faults(registry))
    yield from telemetry_faults(settings.telemetry, REMEDY)
    for name, sink in settings.sinks.items():
        if (remote := sink.remote) is not None:
            yield from remote_faults(f"sinks.{name}", remote)
    for index, source_settings in enumerate(settings.sources):
        yield from _tokens(f"sources.{index}", source_settings)
    if settings.inbox.kafka is not None:
        yield from _faults("inbox.kafka", "kafka", [settings.inbox.kafka.bootstrap_servers], settings.inbox.kafka)


def remote_faults(key: str, remote: RemoteSink) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for secrets that the sink at *key* would send without TLS."""
    yield from _faults(key, remote.family, remote.own_addresses, remote)


def _registries(catalog: CatalogSettings) -> Iterator[tuple[str, str]]:
    for source in (*catalog.source, *catalog.shadow):
        parts = urlsplit(source) if source.lower().startswith("http://") else None
        if parts is not None and parts.password is not None:
            yield _ALLOWED, f"{shown(source)} would get its password in plain text; {REMEDY}"
    for login in catalog.logins:
        yield from ((_ALLOWED, fault) for fault in _login_faults(login))


def _login_faults(login: CatalogLogin) -> Iterator[str]:
    secret = (login.bearer, login.bearer_file, login.password, login.token_endpoint) != (None,) * 4
    if secret and login.url.lower().startswith("http://"):
        yield f"{shown(login.url)} would get a secret in plain text; {REMEDY}"
    if (login.token_endpoint or "").lower().startswith("http://"):
        yield f"{shown(login.token_endpoint or '')} would get the client secret in plain text; {REMEDY}"


def _faults(key: str, kind: str, addresses: Iterable[str], party: Party) -> Iterator[tuple[str, str]]:
    address = exposed(kind, addresses, party)
    if address:
        yield f"{key}.allow_plaintext_password", f"{address} would get a secret in plain text; {REMEDY}"
    yield from _tokens(key, party)


def _tokens(key: str, party: Party) -> Iterator[tuple[str, str]]:
    endpoint = getattr(party, "token_endpoint", None) or ""
    if endpoint.lower().startswith("http://") and not party.allow_plaintext_password:
        yield f"{key}.token_endpoint", f"{shown(endpoint)} would get the client secret in plain text; {REMEDY}"
