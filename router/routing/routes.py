"""Which route takes a record, and to which destinations (JUDGING.md#routes).

What a condition asks of definition, group and endpoint holds for every record of one definition on one channel, so it
is decided once for those; so are conditions on attributes whose values the definition settles
(:mod:`router.routing.destinations`). Only what is left looks at values. Dead letters go by endpoint and reason alone.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from router.settings import (
    RouteSettings,
    Settings,
    Validate,
    When,
    event_routes,
    event_sinks,
    letter_routes,
    letter_sinks,
)
from router.settings.names import (
    ATTRIBUTE_PREFIX,
    CONTEXT_PREFIX,
    DEAD_LETTER_VARIABLES,
    EVENT_VARIABLES,
    NameTemplate,
    event_values,
    parse_name,
    value_name,
)

DEAD: Final = -1
"""The route of a dead letter that goes to ``dead_letters.sinks``. Those of others are below, events' above."""
Known = Callable[[str], str | None]
"""What a value (``context.NAME``, ``attributes.NAME``) is for every record: empty for never there, None where it
depends on the record.
"""


@dataclass(frozen=True, slots=True)
class RouteCondition:
    """What a route asks of one value. A value that a record does not have counts as empty."""

    name: str
    globs: tuple[str, ...]
    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class RouteRule:
    """What is left of a route's conditions where the rest is known to hold."""

    route: int
    conditions: tuple[RouteCondition, ...]

    def takes(self, values: Mapping[str, str]) -> bool:
        """Tell whether a record with these values is taken."""
        return all(each.pattern.fullmatch(values.get(each.name, "")) for each in self.conditions)


class Routes:
    """The routes of a plan, called by their place in the settings.

    Dead letters have negative ones: -1 goes to ``dead_letters.sinks``, -(2 + n) by route n.
    """

    def __init__(self, settings: Settings) -> None:
        self.routes: Sequence[RouteSettings] = settings.routes
        self._mode = settings.match.validation
        self._events = [(number, route, _conditions(route.when)) for number, route in event_routes(settings.routes)]
        self._letters = letter_routes(settings.routes)
        self._default = settings.dead_letters.sinks
        self._known_letters: dict[tuple[str, str], int] = {}
        self.topics = _templates(settings, event_sinks(settings), EVENT_VARIABLES)
        self.letter_topics = _templates(settings, letter_sinks(settings), DEAD_LETTER_VARIABLES)
        kafka = [(name, sink) for name in self.topics if (sink := settings.sinks[name].topics) is not None]
        self.strict = frozenset(name for name, sink in kafka if sink.missing == "reject")
        """Kafka sinks that take no event whose topic misses a value."""
        self._keys = [parse_name(sink.key) for _, sink in kafka if sink.key is not None]

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the output columns with topics: ``topic_SINK`` for events, ``letters_SINK`` for dead letters."""
        return (*(f"topic_{name}" for name in self.topics), *(f"letters_{name}" for name in self.letter_topics))

    @property
    def attributes(self) -> tuple[str, ...]:
        """The CloudEvents attributes that conditions, topics and keys may look at, each once."""
        names = [each.name for _, _, conditions in self._events for each in conditions]
        names += [value_name(name) for template in (*self.topics.values(), *self._keys) for name in template.variables]
        attributes = (name.removeprefix(ATTRIBUTE_PREFIX) for name in names if name.startswith(ATTRIBUTE_PREFIX))
        return tuple(dict.fromkeys(attributes))

    @property
    def event_sinks(self) -> dict[str, tuple[int, ...]]:
        """Per sink the routes that lead events there, sinks in the order of the routes."""
        return _by_sink((number, route.to) for number, route, _ in self._events)

    @property
    def letter_sinks(self) -> dict[str, tuple[int, ...]]:
        """Per sink the routes that lead dead letters there, sinks in the order of the routes, the default's last."""
        return _by_sink(
            [*((letter_number(number), route.to) for number, route in self._letters), (DEAD, self._default)]
        )

    def rules(self, message: str, endpoint: str, known: Known) -> tuple[RouteRule, ...]:
        """Return the routes that can take records of this definition and endpoint, in order; the last always does."""
        group = event_values(message, endpoint, "", {})["messagegroup"]
        left: list[RouteRule] = []
        for number, route, conditions in self._events:
            when = route.when
            in_group = _any(when.messagegroup, group) or _any(when.messagegroup, message.rpartition("/messages/")[0])
            if not (_any(when.message, message) and in_group and _any(when.endpoint, endpoint)):
                continue
            values = {each.name: known(each.name) for each in conditions}
            if not all(each.pattern.fullmatch(text) for each in conditions if (text := values[each.name]) is not None):
                continue
            left.append(RouteRule(number, tuple(each for each in conditions if values[each.name] is None)))
            if not left[-1].conditions:
                break
        return tuple(left)

    def letters(self, endpoint: str, reason: str) -> int:
        """Return the route of a dead letter."""
        known = self._known_letters.get((endpoint, reason))
        if known is None:
            takes = (
                letter_number(number)
                for number, route in self._letters
                if _any(route.when.endpoint, endpoint) and _any(route.when.reason, reason)
            )
            known = self._known_letters[(endpoint, reason)] = next(takes, DEAD)
        return known

    def always(self, route: int) -> bool:
        """Tell whether each body that this route takes must conform to its definition's schema."""
        return (self.routes[route].validation or self._mode) == "always"

    @property
    def uniform(self) -> bool:
        """Whether all routes hold bodies against schemas as ``match.validate`` says, so that matching does it."""
        return all(self.always(number) == (self._mode == "always") for number, _, _ in self._events)

    @property
    def telling_apart(self) -> Validate:
        """What matching does with schemas: ``match.validate``, less what only the routes decide."""
        return self._mode if self.uniform or self._mode == "never" else "ambiguous"


def letter_number(route: int) -> int:
    """Return what the route of dead letters at this place of the settings is called in outcomes, and the reverse."""
    return -2 - route


def _conditions(when: When) -> tuple[RouteCondition, ...]:
    conditions = [(CONTEXT_PREFIX + name, globs) for name, globs in when.context.items()]
    conditions += [(ATTRIBUTE_PREFIX + name, globs) for name, globs in when.attributes.items()]
    return tuple(RouteCondition(name, globs, _pattern(globs)) for name, globs in conditions if globs)


def _by_sink(routes: Iterable[tuple[int, Sequence[str]]]) -> dict[str, tuple[int, ...]]:
    routes_of: dict[str, list[int]] = {}
    for number, names in routes:
        for name in dict.fromkeys(names):
            routes_of.setdefault(name, []).append(number)
    return {name: tuple(numbers) for name, numbers in routes_of.items()}


def _templates(settings: Settings, names: Iterable[str], variables: tuple[str, ...]) -> dict[str, NameTemplate]:
    topics = ((name, settings.sinks[name].topics) for name in sorted(names))
    return {name: parse_name(sink.topic, variables) for name, sink in topics if sink is not None}


def _any(globs: Sequence[str], value: str) -> bool:
    return not globs or any(fnmatch.fnmatchcase(value, glob) for glob in globs)


def _pattern(globs: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(fnmatch.translate(glob) for glob in globs))
