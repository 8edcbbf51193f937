"""What must hold between settings: routes and dead letters name sinks that exist and that fit what they get."""

from __future__ import annotations

from collections.abc import Iterator

from router.settings.model import KafkaSink, MessageSink, Settings, TableSink
from router.settings.names import NameTemplateError, parse_name
from router.settings.places import is_url
from router.settings.route_checks import letter_topic_faults, route_faults
from router.settings.security import login_faults, security_faults
from router.settings.tables import table_faults
from router.settings.takers import event_sinks, letter_sinks
from router.settings.targets import kafka_faults, target_faults

_OURS = ("bootstrap.servers", "group.id", "enable.auto.commit", "client.id")
"""Kafka options that the router itself must set for its promises to hold."""


def faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for each contradiction; a fault names the remedy."""
    yield from route_faults(settings)
    yield from _sinks(settings)
    yield from _sources(settings)
    yield from security_faults(settings)


def _sinks(settings: Settings) -> Iterator[tuple[str, str]]:
    folders: dict[str, str] = {}
    events, letters = event_sinks(settings), letter_sinks(settings)
    for name, sink in settings.sinks.items():
        key = f"sinks.{name}"
        if isinstance(sink, MessageSink):
            yield from target_faults(key, sink)
            continue
        if isinstance(sink, KafkaSink):
            yield from kafka_faults(key, sink)
            if sink.topic and (name in events or name not in letters):
                yield from _template(f"{key}.topic", sink.topic)
            if not sink.endpoint and name in letters:
                yield from letter_topic_faults(f"{key}.topic", sink.topic)
            if sink.key:
                yield from _template(f"{key}.key", sink.key)
            yield from _options(f"{key}.options", sink.options)
            continue
        if sink.path != "-" and sink.path in folders:
            yield f"{key}.path", f"is also the path of sink {folders[sink.path]}; give each sink its own folder"
        folders[sink.path] = name
        if isinstance(sink, TableSink):
            yield from table_faults(key, sink, letters=name in letters)
        elif is_url(sink.path):
            yield f"{key}.path", "must be a local folder; only delta tables can be at a URL"


def _template(key: str, template: str) -> Iterator[tuple[str, str]]:
    try:
        parse_name(template)
    except NameTemplateError as error:
        yield key, str(error)


def _sources(settings: Settings) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for index, source in enumerate(settings.sources):
        key = f"sources.{index}"
        if source.endpoint in seen:
            yield f"{key}.endpoint", f"{source.endpoint} is a source already; merge the two"
        seen.add(source.endpoint)
        yield from login_faults(key, source.username, source.password is not None)
        yield from _options(f"{key}.kafka", source.kafka)
    if settings.inbox.kafka is not None:
        yield from _options("inbox.kafka.options", settings.inbox.kafka.options)
    for name, sink in settings.sinks.items():
        if isinstance(sink, KafkaSink | MessageSink):
            yield from login_faults(f"sinks.{name}", sink.username, sink.password is not None)


def _options(key: str, options: object) -> Iterator[tuple[str, str]]:
    for name in _OURS:
        if isinstance(options, dict) and name in options:
            yield f"{key}.{name}", "is set by the router; leave it out"
