"""What real-time mode cannot do, by the names of the settings that ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from router.settings.routes import event_routes
from router.settings.takers import event_sinks

if TYPE_CHECKING:
    from bindings.kafka.client import KafkaClient
    from router.settings.model import Settings

_MODE: Final = "with trigger: realtime"


def real_time_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for what real-time mode is asked for and cannot do; a fault names the remedy."""
    if settings.is_real_time:
        if settings.realtime is None:
            yield "realtime.rest", f"is required {_MODE}: the topic for records that only the matcher decides; add it"
        yield from _sinks(settings)
        yield from _routes(settings)
        yield from _letters(settings)
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


def _letters(settings: Settings) -> Iterator[tuple[str, str]]:
    if settings.dead_letters.max_ratio is not None:
        fault = f"cannot hold records back {_MODE}: they are sent on before a share is known; leave it out"
        yield "dead_letters.max_ratio", fault
    if settings.dead_letters.order == "park":
        yield "dead_letters.order", f"cannot be park {_MODE}: records overtake those of the rest topic; use continue"
