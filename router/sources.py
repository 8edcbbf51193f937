"""Sources: which endpoints of the catalog records are taken from, and where those are.

An endpoint's channel is what it shares with others on the same topic or path: ``kafka:TOPIC`` or ``http:PATH``.
Endpoints of one broker whose subscriptions overlap share a channel too, named by the first of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from bindings.gateways import EndpointSubscription, GatewayError, ReceivingBinding
from bindings.http.binding import path_of
from bindings.kafka.binding import Brokers, group_option, parse_brokers, resolve_brokers, start_option, topic_option
from bindings.kafka.client import KafkaClient
from bindings.protocols import BINDINGS
from catalog.findings import TemplateError
from catalog.model import Catalog, Endpoint
from catalog.parsing.nearest import Suggestions
from catalog.protocols.properties import find_refused_option, squash_name
from catalog.templates import parse_template
from router.errors import ConfigError
from router.settings import Settings, SourceSettings, event_sinks, plain_options
from router.settings.model import KafkaInboxSettings
from router.settings.spark import make_kafka_client

Start = Literal["earliest", "latest"]
INBOX: Final = "inbox"
MISSING_REMEDY: Final = "correct the xid, or add the endpoint to the catalog"
"""What to do about a source that the catalog lacks, where no other endpoint has a name like it."""
REST: Final = "rest"
"""The query that reads the rest topic of real-time mode."""


@dataclass(frozen=True, slots=True)
class Source:
    """One endpoint that records are taken from.

    ``topic``, ``servers``, the ``security`` protocol that their addresses ask for and the consumer ``group`` to show
    are given for Kafka, ``path`` and ``methods`` for HTTP; for other brokers ``uris``, ``addresses`` (topic filters,
    nodes, subjects) and the endpoint's ``options``. ``manager`` is where a subscription is asked for, empty where none
    is. ``kind`` is the family of the protocol: ``mqtt`` for both versions. ``query`` names the streaming query that
    reads it: one per Kafka cluster, lane and consumer group, and one for the inbox.
    """

    endpoint: str
    kind: str
    channel: str
    query: str
    settings: SourceSettings
    topic: str = ""
    servers: str = ""
    security: str = ""
    group: str = ""
    path: str = ""
    methods: tuple[str, ...] = ()
    context: Mapping[str, str] = field(default_factory=dict)
    protocol: str = ""
    uris: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    manager: str = ""

    @property
    def pushed(self) -> bool:
        """Whether records come by way of the inbox."""
        return self.query == INBOX

    @property
    def brokered(self) -> bool:
        """Whether a gateway connects to a broker for it."""
        return bool(self.uris)

    @property
    def served(self) -> bool:
        """Whether the HTTP gateway takes requests for it."""
        return bool(self.path)


def group_by_query(sources: Iterable[Source]) -> dict[str, tuple[Source, ...]]:
    """Group sources by the query that reads them, in their order."""
    grouped: dict[str, list[Source]] = {}
    for source in sources:
        grouped.setdefault(source.query, []).append(source)
    return {query: tuple(members) for query, members in grouped.items()}


def resolve_sources(catalog: Catalog, settings: Settings) -> tuple[Source, ...]:
    """Resolve the sources of the settings, or all consumer endpoints when the settings name none.

    An endpoint that the catalog lacks is left out: it may come with a later epoch. ``check`` and the log say so.

    Raises:
        ConfigError: a source whose protocol has no binding yet, or without topic or servers; names endpoint and key.
            Or two that one query cannot read together.
    """
    chosen = settings.sources or tuple(
        SourceSettings(endpoint=endpoint.xid)
        for endpoint in catalog.endpoints.values()
        if {"consumer", "subscriber"} & set(endpoint.usage) and endpoint.protocol in BINDINGS
    )
    # Where to begin is the operator's choice first, for all sources or for one, and the catalog's after that.
    start = settings.start if "start" in settings.model_fields_set else None
    resolved = (
        _resolve_source(catalog.endpoints[source.endpoint], source, catalog, start)
        for source in chosen
        if source.endpoint in catalog.endpoints
    )
    sources = _share_channels(list(resolved))
    _require_connections(sources)
    _require_one_isolation(sources)
    return tuple(sources)


def _require_one_isolation(sources: Iterable[Source]) -> None:
    """Make sure that one query reads all of its topics in one way: what is committed, or everything.

    Raises:
        ConfigError: the settings of two sources differ in it.
    """
    for members in group_by_query(source for source in sources if not source.pushed).values():
        levels = {
            plain_options(source.settings.kafka).get("isolation.level", "read_committed"): source.endpoint
            for source in members
        }
        if len(levels) > 1:
            text = f"sources {' and '.join(sorted(levels.values()))} are read together, with unlike isolation.level"
            raise ConfigError(text, key="sources", hint="give both the same under `kafka`, or one a `lane` of its own")


def find_missing_sources(catalog: Catalog, settings: Settings) -> dict[str, str]:
    """Return the endpoints that settings name and the catalog lacks, each with the remedy."""
    near = Suggestions(catalog.endpoints)
    return {
        source.endpoint: near.hint(source.endpoint, MISSING_REMEDY)
        for source in settings.sources
        if source.endpoint not in catalog.endpoints
    }


def _fault(endpoint: Endpoint, text: str, hint: str) -> ConfigError:
    return ConfigError(f"source {endpoint.xid}: {text}", key="sources", hint=hint)


def _resolve_source(endpoint: Endpoint, settings: SourceSettings, catalog: Catalog, start: Start | None) -> Source:
    binding = BINDINGS.get(endpoint.protocol or "")
    if binding is None:
        hint = f"sources are {', '.join(BINDINGS)}; remove the source"
        raise _fault(endpoint, f"protocol {endpoint.protocol or 'none'} cannot be a source in this version", hint)
    kind = binding.sending.family
    if settings.subscription is not None and kind != "http":
        hint = "leave out subscription: brokers are subscribed to by their own protocols"
        raise _fault(endpoint, f"a subscription delivers by HTTP, and its protocol is {binding.protocol}", hint)
    if (refused := find_refused_option(endpoint)) is not None:
        name, exemption = refused
        text = f"its option {name} decides which messages come, and is not honoured: {exemption.why}"
        raise _fault(endpoint, text, exemption.hint)
    if binding.receiving is not None:
        return _resolve_broker(endpoint, kind, binding.receiving, settings, catalog)
    return _resolve_kafka(endpoint, settings, start) if kind == "kafka" else _resolve_http(endpoint, settings)


def _resolve_kafka(endpoint: Endpoint, settings: SourceSettings, start: Start | None) -> Source:
    topic = topic_option(endpoint.options)
    if not topic:
        hint = "give the endpoint protocoloptions.options.topic in the catalog"
        raise _fault(endpoint, "the endpoint has no topic", hint)
    try:
        topic = parse_template(topic).expand(settings.context, encode=False)
    except TemplateError as error:
        hint = "set context of the source, with a value for each placeholder"
        text = f"its topic {topic!r} is a template, and a query reads topics by name: {error}"
        raise _fault(endpoint, text, hint) from error
    brokers, fault = resolve_brokers(
        [settings.bootstrap_servers] if settings.bootstrap_servers else endpoint.uris,
        tls=settings.tls is not None,
        login=settings.username is not None,
        options=plain_options(settings.kafka),
    )
    if fault:
        hint = "correct bootstrap_servers of the source, or its protocoloptions.endpoints in the catalog"
        raise _fault(endpoint, f"{fault}", hint)
    if not brokers.servers:
        hint = "set bootstrap_servers of the source, or protocoloptions.endpoints in the catalog"
        raise _fault(endpoint, "no Kafka brokers are known", hint)
    told = plain_options(settings.kafka)
    if told.get("isolation.level") == "read_uncommitted":
        # It was the default of older routers: who asks for it reads on where these were, and so does who leaves it.
        del told["isolation.level"]
    options = sorted(told.items())
    # As written, since the name of a query is also that of its checkpoint, however addresses are parsed.
    servers = settings.bootstrap_servers or brokers.servers
    client: tuple[object, ...] = (servers, settings.username, settings.tls, options)
    if brokers.tls and settings.tls is None:
        client = (*client, brokers.security)
    if settings.sasl is not None:
        # Only in this case: the name of a query is that of its checkpoint, and older settings have one already.
        client = (*client, settings.sasl, settings.token_endpoint)
    digest = hashlib.sha256(repr(client).encode()).hexdigest()[:8]
    group = group_option(endpoint.options)
    # A query shows one group to the brokers, so that each group is a lane; those of a cluster share their positions.
    lanes = (settings.lane, hashlib.sha256(group.encode()).hexdigest()[:8] if group else "")
    query = "-".join(filter(None, (f"kafka-{digest}", *lanes)))
    return Source(
        endpoint.xid,
        "kafka",
        f"kafka:{topic}",
        query,
        settings.model_copy(update={"start": settings.start or start or start_option(endpoint.options)}),
        topic=topic,
        servers=brokers.servers,
        security=brokers.security,
        group=group,
        context=settings.context,
    )


def _resolve_http(endpoint: Endpoint, settings: SourceSettings) -> Source:
    chosen = settings.subscription
    manager = "" if chosen is None else chosen.manager or next(iter(endpoint.uris), "")
    if chosen is not None and not manager:
        hint = "set subscription.manager of the source, or protocoloptions.endpoints in the catalog"
        raise _fault(endpoint, "no subscription manager is known", hint)
    own = path_of(endpoint.uris if chosen is None else (chosen.sink,))
    path = settings.path or endpoint.options.get("path") or own or f"/{endpoint.xid.split('/')[-1]}"
    method = str(endpoint.options.get("method") or "POST").upper()
    return Source(
        endpoint.xid,
        "http",
        f"http:{path}",
        INBOX,
        settings,
        path=path,
        methods=(method,),
        context=settings.context,
        manager=manager,
    )


def _resolve_broker(
    endpoint: Endpoint, kind: str, receiving: ReceivingBinding, settings: SourceSettings, catalog: Catalog
) -> Source:
    uris = settings.uris or endpoint.uris
    if not uris:
        hint = f"set uris of the source ({kind}://host:port), or protocoloptions.endpoints in the catalog"
        raise _fault(endpoint, "no broker is known", hint)
    try:
        addresses = settings.addresses or receiving.list_addresses(endpoint, catalog)
    except ValueError as error:
        hint = "set addresses of the source, or correct the endpoint's protocoloptions"
        raise _fault(endpoint, f"it cannot be subscribed to as the catalog says: {error}", hint) from error
    if not addresses:
        hint = "set addresses of the source, or topic, node or subject in the endpoint's protocoloptions.options"
        raise _fault(endpoint, "it is not said what to subscribe to", hint)
    return Source(
        endpoint.xid,
        kind,
        f"{kind}:{endpoint.xid}",
        INBOX,
        settings,
        context=settings.context,
        protocol=endpoint.protocol or "",
        uris=tuple(uris),
        addresses=tuple(addresses),
        options=endpoint.options,
    )


_OF_CONNECTIONS: Final = frozenset({"connectionproperties", "cleansession", "sessionexpiryinterval", "keepalive"})
"""Endpoint options that belong to a connection, so that endpoints which differ in them need one each."""


def pick_connection_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a connection is made with; other options of an endpoint must not count for others."""
    return {name: value for name, value in options.items() if squash_name(name) in _OF_CONNECTIONS}


def group_by_connection(sources: Iterable[Source]) -> dict[str, list[Source]]:
    """Group the sources that gateways connect for by a key that is equal for those that share a connection."""
    groups: dict[str, list[Source]] = {}
    for source in sources:
        if source.brokered:
            chosen, has_token = source.settings, source.settings.token is not None
            who = (chosen.username, chosen.client_id, chosen.credentials, chosen.seed, has_token, chosen.tls)
            options = sorted((name, repr(value)) for name, value in pick_connection_options(source.options).items())
            told = repr((source.protocol, source.uris, who, options)).encode()
            groups.setdefault(hashlib.sha256(told).hexdigest()[:12], []).append(source)
    return groups


def list_subscriptions(sources: Iterable[Source]) -> tuple[EndpointSubscription, ...]:
    """Return what is subscribed to for these sources."""
    return tuple(
        EndpointSubscription(each.endpoint, address, each.options) for each in sources for address in each.addresses
    )


def _require_connections(sources: Sequence[Source]) -> None:
    """Make sure that what one connection subscribes to can be had as the catalog says, and together.

    Raises:
        ConfigError: it cannot.
    """
    for members in group_by_connection(sources).values():
        receiving = BINDINGS[members[0].protocol].receiving
        assert receiving is not None
        try:
            receiving.check_subscriptions(list_subscriptions(members))
        except GatewayError as error:
            hint = "correct the endpoint's protocoloptions, or addresses of the source"
            raise ConfigError(f"source {error}", key="sources", hint=hint) from error


def _share_channels(sources: list[Source]) -> list[Source]:
    """Give sources of one broker whose subscriptions overlap the channel of the first of them."""
    channels = {source.channel: source.channel for source in sources}
    for at, source in enumerate(sources):
        for earlier in sources[:at]:
            if source.brokered and _can_share_message(source, earlier):
                old, new = channels[source.channel], channels[earlier.channel]
                channels |= {name: new for name, known in channels.items() if known == old}
    return [replace(source, channel=channels[source.channel]) for source in sources]


def _can_share_message(one: Source, other: Source) -> bool:
    """Return whether one message may belong to both."""
    receiving = BINDINGS[one.protocol].receiving
    return (
        receiving is not None
        and (one.protocol, set(one.uris)) == (other.protocol, set(other.uris))
        and any(receiving.addresses_overlap(here, there) for here in one.addresses for there in other.addresses)
    )


# Kafka clusters of the settings.


def make_source_client(source: Source) -> KafkaClient:
    """Return how to reach the cluster of a Kafka source."""
    client = make_kafka_client(Brokers(source.servers, source.security), source.settings, source.settings.kafka)
    # Spark assigns partitions and commits nothing, so that queries and tasks of one group do not disturb each other.
    return replace(client, options={**client.options, "group.id": source.group}) if source.group else client


def make_inbox_client(inbox: KafkaInboxSettings) -> KafkaClient:
    """Return how to reach the cluster of an inbox topic."""
    return make_kafka_client(parse_brokers([inbox.bootstrap_servers]), inbox, inbox.options)


def make_rest_client(settings: Settings) -> KafkaClient:
    """Return how to reach the cluster that has the rest topic: that of the first Kafka sink of events.

    The settings have a rest topic, and so were refused without such a sink.
    """
    sinks = (settings.sinks[name].topics for name in event_sinks(settings))
    return next(sink.cluster() for sink in sinks if sink is not None)


def make_query_client(settings: Settings, query: str, sources: Sequence[Source]) -> KafkaClient | None:
    """Return how to reach the cluster that a query reads; without *sources* it is that of the inbox or the rest topic.

    None for the local inbox.
    """
    if query == REST:
        return make_rest_client(settings)
    if sources:
        return make_source_client(sources[0])
    return None if settings.inbox.kafka is None else make_inbox_client(settings.inbox.kafka)
