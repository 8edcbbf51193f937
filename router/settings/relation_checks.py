"""What must hold for pairs of messages: their sink exists, is theirs alone, and has a place for them."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from router.settings.model import Settings
from router.settings.takers import event_sinks, letter_sinks


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
