"""Which sinks take what: those of the routes of events, and those of dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from router.settings.model import Settings
from router.settings.routes import event_routes, letter_routes


def event_sinks(settings: Settings) -> tuple[str, ...]:
    """Return the sinks that take events, in the order of the routes."""
    return _names(route.to for _, route in event_routes(settings.routes))


def letter_sinks(settings: Settings) -> tuple[str, ...]:
    """Return the sinks that take dead letters: those of routes, in order, then ``dead_letters.sinks``."""
    return _names((*(route.to for _, route in letter_routes(settings.routes)), settings.dead_letters.sinks))


def _names(lists: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for names in lists for name in names))
