"""What must hold for routes: each record has somewhere to go, and sinks fit what they get."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Final

from router.settings.model import Settings
from router.settings.routes import REASONS, Numbered, When, event_routes, letter_routes
from router.settings.takers import event_sinks

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
