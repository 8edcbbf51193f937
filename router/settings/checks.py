"""What must hold between settings: routes and dead letters name sinks that exist and that fit what they get."""

from __future__ import annotations

from collections.abc import Iterator

from router.settings.clusters import option_faults
from router.settings.logins import login_faults
from router.settings.model import Settings
from router.settings.relation_checks import relation_faults
from router.settings.route_checks import route_faults
from router.settings.schema_registries import name_faults, schema_registry_faults
from router.settings.security import security_faults
from router.settings.subscriptions import subscription_faults
from router.settings.takers import event_sinks, letter_sinks


def faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for each contradiction; a fault names the remedy."""
    yield from schema_registry_faults(settings.schema_registries)
    yield from route_faults(settings)
    yield from _sinks(settings)
    yield from _sources(settings)
    yield from relation_faults(settings)
    yield from security_faults(settings)


def _sinks(settings: Settings) -> Iterator[tuple[str, str]]:
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
