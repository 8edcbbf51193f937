"""What must hold between settings: routes and dead letters name sinks that exist and that fit what they get."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from router.names import DEAD_LETTER_VARIABLES, NameTemplateError, parse_name
from router.settings.model import JsonLinesSink, KafkaSink, MessageSink, Settings, TableSink
from router.settings.places import is_url
from router.settings.targets import kafka_faults, target_faults

_OURS = ("bootstrap.servers", "group.id", "enable.auto.commit", "client.id")
"""Kafka options that the router itself must set for its promises to hold."""


def faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for each contradiction; a fault names the remedy."""
    yield from _routes(settings)
    yield from _dead_letters(settings)
    yield from _sinks(settings)
    yield from _sources(settings)


def _routes(settings: Settings) -> Iterator[tuple[str, str]]:
    remedy = "add `- {to: [...]}` as the last line of routes"
    if not settings.routes:
        yield "routes", f"records would have nowhere to go; {remedy}"
        return
    for index, route in enumerate(settings.routes):
        for name in route.to:
            yield from _known(settings, f"routes.{index}.to", name)
        if route.when.always and index < len(settings.routes) - 1:
            yield f"routes.{index}", "takes every record, so that later lines are never reached; move it to the end"
    if not settings.routes[-1].when.always:
        yield "routes", f"records that no line takes would have nowhere to go; {remedy}"


def _dead_letters(settings: Settings) -> Iterator[tuple[str, str]]:
    used = {name for route in settings.routes for name in route.to}
    for name in settings.dead_letters.sinks:
        yield from _known(settings, "dead_letters.sinks", name)
        sink = settings.sinks.get(name)
        if isinstance(sink, TableSink) and name in used:
            yield (
                "dead_letters.sinks",
                f"table {name} also takes events, whose columns differ; give dead letters their own",
            )
        if isinstance(sink, MessageSink) or (isinstance(sink, KafkaSink) and sink.endpoint):
            yield "dead_letters.sinks", f"{name} sends events only; name a table, JSON lines or Kafka topic instead"
        elif isinstance(sink, KafkaSink):
            yield from _template(f"sinks.{name}.topic", sink.topic, DEAD_LETTER_VARIABLES)


def _known(settings: Settings, key: str, name: str) -> Iterator[tuple[str, str]]:
    if name in settings.sinks:
        return
    near = get_close_matches(name, settings.sinks, 1)
    hint = f"did you mean {near[0]}?" if near else f"sinks are {', '.join(settings.sinks) or 'none'}"
    yield key, f"no sink is named {name!r}; {hint}"


def _sinks(settings: Settings) -> Iterator[tuple[str, str]]:
    folders: dict[str, str] = {}
    dead = set(settings.dead_letters.sinks) - {name for route in settings.routes for name in route.to}
    for name, sink in settings.sinks.items():
        key = f"sinks.{name}"
        if isinstance(sink, MessageSink):
            yield from target_faults(key, sink)
            continue
        if isinstance(sink, KafkaSink):
            yield from kafka_faults(key, sink)
            if sink.topic and name not in dead:
                yield from _template(f"{key}.topic", sink.topic, None)
            yield from _options(f"{key}.options", sink.options)
            continue
        if sink.path != "-" and sink.path in folders:
            yield f"{key}.path", f"is also the path of sink {folders[sink.path]}; give each sink its own folder"
        folders[sink.path] = name
        if is_url(sink.path) and (isinstance(sink, JsonLinesSink) or sink.format == "parquet"):
            yield f"{key}.path", "must be a local folder; only delta tables can be at a URL"


def _template(key: str, template: str, allowed: tuple[str, ...] | None) -> Iterator[tuple[str, str]]:
    try:
        parse_name(template, allowed) if allowed else parse_name(template)
    except NameTemplateError as error:
        yield key, str(error)


def _sources(settings: Settings) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for index, source in enumerate(settings.sources):
        key = f"sources.{index}"
        if source.endpoint in seen:
            yield f"{key}.endpoint", f"{source.endpoint} is a source already; merge the two"
        seen.add(source.endpoint)
        yield from _login(key, source.username, source.password is not None)
        yield from _options(f"{key}.kafka", source.kafka)
    for name, sink in settings.sinks.items():
        if isinstance(sink, KafkaSink | MessageSink):
            yield from _login(f"sinks.{name}", sink.username, sink.password is not None)


def _login(key: str, username: str | None, password: bool) -> Iterator[tuple[str, str]]:
    if password and username is None:
        yield f"{key}.username", "is missing beside password; add it"
    if username is not None and not password:
        yield f"{key}.password", "is missing beside username; add it as ${VAR} or file:/path"


def _options(key: str, options: object) -> Iterator[tuple[str, str]]:
    for name in _OURS:
        if isinstance(options, dict) and name in options:
            yield f"{key}.{name}", "is set by the router; leave it out"
