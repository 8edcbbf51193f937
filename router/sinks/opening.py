"""From the settings of a sink to the sink."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from bindings.kafka.addresses import Brokers, brokers_for
from bindings.parts import JSON_KIND, Part
from bindings.protocols import BINDINGS, Binding
from catalog.model import Catalog, Endpoint
from router.errors import SinkError
from router.settings.addresses import parse_address
from router.settings.model import AmqpSink, HttpSink, KafkaSink, MessageSink, MqttSink, NatsSink, Settings, Sink
from router.settings.model import JsonLinesSink as JsonLinesSettings
from router.settings.model import TableSink as TableSettings
from router.settings.places import is_url
from router.settings.targets import address_of, kind_of
from router.settings.values import revealed
from router.sinks.contract import ArrowSink
from router.sinks.forms import DEAD_LETTER, WIDE, dead_letter_to_json_line, wide_to_json_line
from router.sinks.jsonlines import JsonLinesSink, StandardOutputSink
from router.sinks.messages.connecting import connection_of, endpoint_of, kept
from router.sinks.messages.definitions import EndpointShape
from router.sinks.messages.passing import HeaderPassing
from router.sinks.messages.sink import ConfirmedSink, Shape, Target, TemplateShape
from router.sinks.messages.spread import kept_spread
from router.sinks.tables.definition_tables import DefinitionTablesSink, table_path
from router.sinks.tables.delta import DeltaSink
from router.sinks.tables.parquet import ParquetSink
from router.sinks.tables.unwrapping import Framings
from router.sinks.tables.upkeep import Upkeep, UpkeepRules
from router.sources.clusters import sink_client

Kind = Literal["events", "dead-letters"]
_KAFKA_SECONDS = 30.0


def open_sink(
    name: str, settings: Sink, kind: Kind, catalog: Catalog | None = None, framings: Framings | None = None
) -> ArrowSink:
    """Make the sink called *name* for events or dead letters. Touches neither disk nor network.

    *catalog* is for sinks that name an endpoint of it, *framings* of the sources for tables with typed payloads.

    Raises:
        SinkError: the endpoint is not in the catalog, or cannot be sent to as the settings say.
    """
    if isinstance(settings, MessageSink | KafkaSink):
        return _message_sink(name, settings, catalog or Catalog())
    if isinstance(settings, JsonLinesSettings):
        form = wide_to_json_line if kind == "events" else dead_letter_to_json_line
        if settings.path == "-":
            return StandardOutputSink(name, form)
        return JsonLinesSink(name, Path(settings.path), form)
    assert isinstance(settings, TableSettings)
    return _tables(name, settings, kind, catalog or Catalog(), framings)


def _tables(name: str, settings: TableSettings, kind: Kind, catalog: Catalog, framings: Framings | None) -> ArrowSink:
    rules = UpkeepRules(settings.compact_after, settings.file_bytes, settings.keep_replaced)
    upkeep = Upkeep(name, rules) if settings.format == "delta" else None

    def table(path: str, *, grows: bool = False) -> ArrowSink:
        if settings.format == "parquet":
            return ParquetSink(name, Path(path))
        schema = WIDE if kind == "events" else DEAD_LETTER
        return DeltaSink(name, path, schema, grows=grows, partition_by=settings.partition_by, upkeep=upkeep)

    if settings.layout == "wide" or kind == "dead-letters":
        # How ambiguous records were decided for has a column only while such are decided for.
        return table(settings.path, grows=kind == "events")
    return DefinitionTablesSink(
        name,
        settings.table,
        catalog,
        lambda place: table(table_path(settings.path, place, url=is_url(settings.path)), grows=True),
        framings,
    )


def check_endpoints(settings: Settings, catalog: Catalog) -> None:
    """Make sure that every sink which names an endpoint can send to it, as far as the catalog tells.

    Raises:
        SinkError: one cannot; names sink and endpoint.
    """
    for name, sink in settings.sinks.items():
        if isinstance(sink, MessageSink | KafkaSink) and sink.endpoint is not None:
            open_sink(name, sink, "events", catalog)


def shape_of(name: str, settings: MessageSink | KafkaSink, endpoint: Endpoint | None, catalog: Catalog) -> Shape:
    """Return what makes messages of events: the endpoint's definitions, or the template of the settings."""
    binding = binding_of_sink(settings, endpoint)
    kind = "kafka" if isinstance(settings, KafkaSink) else kind_of(settings)
    if endpoint is not None:
        return EndpointShape(
            catalog,
            endpoint,
            binding,
            kind,
            mode=None if isinstance(settings, KafkaSink) else settings.mode,
            lineage=settings.lineage,
            least_qos=settings.qos if isinstance(settings, MqttSink) else 1,
            passing=passing_of(settings, binding),
            # JetStream's own acknowledgement takes that place.
            uncarried=frozenset({"reply-to"} if isinstance(settings, NatsSink) and settings.jetstream else ()),
        )
    assert isinstance(settings, MessageSink)
    _, template = address_of(settings)
    mode = settings.mode or ("binary" if binding.binary else "structured")
    given: tuple[Part, ...] = ()
    if isinstance(settings, MqttSink):
        flags = {"qos": b"%d" % settings.qos, "retain": b"true" if settings.retain else b"false"}
        given = tuple(Part(member, text, JSON_KIND) for member, text in flags.items())
    return TemplateShape(
        parse_address(template or "", kind),
        binding,
        mode,
        strict=settings.missing == "reject",
        lineage=settings.lineage,
        given=given,
        passing=passing_of(settings, binding),
    )


def passing_of(settings: MessageSink | KafkaSink, binding: Binding) -> HeaderPassing | None:
    """Return what passes headers on; None where the settings want none of them."""
    if isinstance(settings, KafkaSink):
        return HeaderPassing(binding)
    if not settings.pass_headers:
        return None
    taken = set(settings.headers) if isinstance(settings, HttpSink) else set()
    if isinstance(settings, HttpSink) and settings.api_key is not None:
        taken.add(settings.api_key_header)
    return HeaderPassing(binding, frozenset(name.lower() for name in taken))


def binding_of_sink(settings: MessageSink | KafkaSink, endpoint: Endpoint | None) -> Binding:
    """Return the binding that a sink speaks; for MQTT the settings, the endpoint, else version 5 decide."""
    if isinstance(settings, MqttSink):
        named = f"MQTT/{settings.version}" if settings.version else endpoint.protocol if endpoint else None
        return BINDINGS[named or "MQTT/5.0"]
    if isinstance(settings, KafkaSink):
        return BINDINGS["KAFKA"]
    return BINDINGS[{"amqp": "AMQP/1.0", "nats": "NATS", "http": "HTTP"}[kind_of(settings)]]


def _message_sink(name: str, settings: MessageSink | KafkaSink, catalog: Catalog) -> ArrowSink:
    kind = "kafka" if isinstance(settings, KafkaSink) else kind_of(settings)
    endpoint = endpoint_of(name, settings, kind, catalog)
    if isinstance(settings, KafkaSink):
        _brokers(name, settings, endpoint)
    shape = shape_of(name, settings, endpoint, catalog)
    target = kept(name, settings, endpoint, lambda: _target(name, settings, endpoint))
    spread = kept_spread(spread_key(name, settings), settings.max_destinations)
    return ConfirmedSink(name, shape, target, None if isinstance(settings, KafkaSink) else settings.max_body, spread)


def spread_key(name: str, settings: MessageSink | KafkaSink) -> str:
    """Name what a sink's destinations are counted by: the sink, where it is connected to, and what makes them."""
    if isinstance(settings, KafkaSink):
        return repr((name, settings.bootstrap_servers, settings.endpoint, settings.topic))
    return repr((name, getattr(settings, "uri", ()), settings.endpoint, address_of(settings)))


def _target(name: str, settings: MessageSink | KafkaSink, endpoint: Endpoint | None) -> Target:
    """Make the client of a sink. Its library is imported here: a router without such a sink needs none."""
    if isinstance(settings, KafkaSink):
        return _kafka(name, settings, endpoint)
    seconds = settings.timeout.total_seconds()
    if isinstance(settings, HttpSink):
        from router.sinks.http import HttpTarget

        return HttpTarget(name, settings)
    if isinstance(settings, NatsSink):
        from router.sinks.nats import NatsTarget

        connection = connection_of(name, settings, endpoint)
        return NatsTarget(name, connection, jetstream=settings.jetstream, timeout=seconds)
    if isinstance(settings, MqttSink):
        from router.sinks.mqtt import MqttTarget

        old = binding_of_sink(settings, endpoint).protocol == "MQTT/3.1.1"
        connection = connection_of(name, settings, endpoint)
        return MqttTarget(name, connection, "MQTT/3.1.1" if old else "MQTT/5.0", timeout=seconds)
    from router.sinks.amqp import AmqpTarget

    assert isinstance(settings, AmqpSink)
    return AmqpTarget(name, connection_of(name, settings, endpoint), timeout=seconds)


def _brokers(name: str, settings: KafkaSink, endpoint: Endpoint | None) -> Brokers:
    """Return the brokers of the settings, else those of the endpoint.

    Raises:
        SinkError: there are none, or their addresses contradict each other or the settings.
    """
    catalogued = () if endpoint is None else endpoint.uris
    brokers, fault = brokers_for(
        [settings.bootstrap_servers] if settings.bootstrap_servers else catalogued,
        tls=settings.tls is not None,
        login=settings.username is not None,
        options=revealed(settings.options),
    )
    if not brokers.servers and not fault:
        fault = "no Kafka brokers are known"
    if fault:
        raise SinkError(name, fault, hint="set or correct bootstrap_servers of the sink")
    return brokers


def _kafka(name: str, settings: KafkaSink, endpoint: Endpoint | None) -> Target:
    from router.sinks.kafka import KafkaTarget

    client = sink_client(settings.model_copy(update={"bootstrap_servers": _brokers(name, settings, endpoint).text}))
    return KafkaTarget(client, max_message_bytes=settings.max_message_bytes, timeout=_KAFKA_SECONDS)
