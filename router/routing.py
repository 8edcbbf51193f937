"""Which route takes a routed record, and to which destinations (architecture.md sections 3 and 9).

Conditions on definition, group and endpoint hold for every record of one definition on one channel, so they are
decided once for that pair; only conditions on context attributes look at values.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from router.names import DEAD_LETTER_VARIABLES, EVENT_VARIABLES, NameTemplate, event_values, parse_name
from router.settings import KafkaSink, RouteSettings, Settings

DEAD = -1
"""The route of a dead letter."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """What is left of a route's condition for one definition and endpoint: patterns on context attributes."""

    route: int
    context: tuple[tuple[str, re.Pattern[str]], ...]


class Routes:
    """The routes of a plan."""

    def __init__(self, settings: Settings) -> None:
        self.routes: Sequence[RouteSettings] = settings.routes
        self._rules: dict[tuple[str, str], tuple[_Rule, ...]] = {}
        used = {name for route in settings.routes for name in route.to}
        self.topics = _templates(settings, used, EVENT_VARIABLES)
        self.letter_topics = _templates(settings, settings.dead_letters.sinks, DEAD_LETTER_VARIABLES)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the output columns with topics: ``topic_SINK`` for events, ``letters_SINK`` for dead letters."""
        return (*(f"topic_{name}" for name in self.topics), *(f"letters_{name}" for name in self.letter_topics))

    def rules(self, message: str, endpoint: str) -> tuple[_Rule, ...]:
        """Return the routes that can take records of this definition and endpoint, in order."""
        known = self._rules.get((message, endpoint))
        if known is None:
            known = self._rules[(message, endpoint)] = tuple(self._reduce(message, endpoint))
        return known

    def route(self, message: str, endpoint: str, context: Mapping[str, str]) -> int:
        """Return the number of the first route that takes the record; the settings make sure that one does."""
        for rule in self.rules(message, endpoint):
            if all(pattern.fullmatch(context.get(name, "")) for name, pattern in rule.context):
                return rule.route
        return len(self.routes) - 1

    def needs_context(self, message: str, endpoint: str) -> bool:
        """Whether the route depends on context values for this definition and endpoint."""
        rules = self.rules(message, endpoint)
        return bool(rules and rules[0].context)

    def _reduce(self, message: str, endpoint: str) -> list[_Rule]:
        group = event_values(message, endpoint, "", {})["messagegroup"]
        left: list[_Rule] = []
        for number, route in enumerate(self.routes):
            when = route.when
            in_group = _any(when.messagegroup, group) or _any(when.messagegroup, message.rpartition("/messages/")[0])
            if not (_any(when.message, message) and in_group and _any(when.endpoint, endpoint)):
                continue
            context = tuple((name, _pattern(globs)) for name, globs in when.context.items())
            left.append(_Rule(number, context))
            if not context:
                break
        return left


def _templates(settings: Settings, names: Iterable[str], variables: tuple[str, ...]) -> dict[str, NameTemplate]:
    kafka = ((name, settings.sinks[name]) for name in sorted(names))
    return {
        name: parse_name(sink.topic, variables)
        for name, sink in kafka
        if isinstance(sink, KafkaSink) and not sink.endpoint
    }


def _any(globs: Sequence[str], value: str) -> bool:
    return not globs or any(fnmatch.fnmatchcase(value, glob) for glob in globs)


def _pattern(globs: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(fnmatch.translate(glob) for glob in globs))
