"""Endpoint, route and topics of every row: decided once per definition and channel, and per value only if needed."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.texts import numbered
from catalog.definitions.constraints import TYPED_LITERALS, Constraint
from router.matching.conformance import mismatches, rejection_detail
from router.matching.context import CORRELATION, attribute_of
from router.matching.facts import Facts
from router.matching.index.classes import BoolArray, IntArray
from router.matching.mapping import Program
from router.matching.matcher import Matcher, MatchOutcomes
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
    dead_letter_values,
    event_values,
    missing_value,
    parse_name,
    value_name,
)

# Which route takes a record, and to which destinations (JUDGING.md#routes).
#
# What a condition asks of definition, group and endpoint holds for every record of one definition on one channel, so it
# is decided once for those; so are conditions on attributes whose values the definition settles
# (:mod:`router.routing`). Only what is left looks at values. Dead letters go by endpoint and reason alone.

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


# What brokers take by size: a record that a sink will never take must not hold the stream up.
#
# A routed record past the limit of a Kafka sink on its route becomes a dead letter, ``sink-rejected``. A dead letter
# past the limit of a Kafka sink of its own route is *spilled*: it refers to a file in ``state/spill`` that has it
# whole.

ROOM: Final = 32_768
"""Bytes left for headers, ours among them, below a sink's limit on whole records."""
NONE: Final = np.iinfo(np.int64).max


class SizeLimits:
    """The limits of one plan, in bytes of key and value."""

    def __init__(self, settings: Settings) -> None:
        self._routes = np.array([_least(settings, route.to) for route in settings.routes], np.int64)
        self._letters = LetterLimits(settings)

    def of(self, route: int) -> int:
        """Return the most bytes that the sinks of a route of events take."""
        return int(self._routes[route])

    def reject(self, outcomes: MatchOutcomes, sizes: IntArray, routes: np.ndarray[Any, np.dtype[np.int32]]) -> None:
        """Turn routed rows that their sinks will never take into dead letters."""
        routed = np.flatnonzero(routes != DEAD)
        for row in routed[sizes[routed] > self._routes[routes[routed]]].tolist():
            limit = int(self._routes[routes[row]])
            outcomes.reasons[row] = "sink-rejected"
            outcomes.details[row] = f"{int(sizes[row])} bytes of key and data; a sink of its route takes {limit}"
            outcomes.winners[row] = -1
            routes[row] = DEAD

    def spilled(self, outcomes: MatchOutcomes, sizes: IntArray, routes: pa.Array) -> list[int]:
        """Return the dead letters that a sink of their own route will never take whole."""
        numbers = routes.to_numpy(zero_copy_only=False)
        return [row for row in outcomes.reasons if sizes[row] > self._letters.of(int(numbers[row]))]


class LetterLimits:
    """The bytes of key and body above which a dead letter is spilled, by its route."""

    def __init__(self, settings: Settings) -> None:
        self._limits = {DEAD: _least(settings, settings.dead_letters.sinks)}
        for number, route in letter_routes(settings.routes):
            self._limits[letter_number(number)] = _least(settings, route.to)

    def of(self, route: int) -> int:
        """Return the limit for letters of a route, called as :class:`router.routing.Routes` does."""
        return self._limits[route]


def sizes_of(facts: Facts, sizes: IntArray) -> IntArray:
    """Return the bytes of each fact row from those of its input row; an event of a batch counts for itself."""
    own = sizes[facts.sources]
    for row, reading in facts.readings.items():
        if reading.place >= 0:
            own[row] = len(reading.body or b"")
    return own


def _least(settings: Settings, names: Iterable[str]) -> int:
    sinks = (settings.sinks[name] for name in names)
    limits = [max(1, limit - ROOM) for sink in sinks if (limit := sink.record_limit) is not None]
    return min(limits, default=int(NONE))


# Attributes and context attributes of routed rows as columns, for what looks at values: routes and topics.
#
# Attributes are those that the event leaves with (:mod:`router.matching.context`).


@dataclass(frozen=True, slots=True)
class Combinations:
    """Rows told apart by a code of their own and by some values.

    ``inverse`` gives the number of each row's combination, ``first`` a row (by its place) of each combination, and
    ``values`` its values by name; a value that a code does not ask for, or that is not there, is left out.
    """

    inverse: IntArray
    first: IntArray
    values: Sequence[dict[str, str]]


def combinations(
    outcomes: MatchOutcomes, rows: IntArray, codes: IntArray, wanted: Sequence[Iterable[str]]
) -> Combinations:
    """Return the combinations among *rows*; ``wanted[codes[i]]`` are the values that count for ``rows[i]``."""
    names = sorted({name for names in wanted for name in names})
    combined = codes
    columns: dict[str, tuple[IntArray, list[str]]] = {}
    for name in names:
        encoded = pc.dictionary_encode(column_of(outcomes, rows, name))
        places = pc.fill_null(encoded.indices.cast(pa.int64()), -1).to_numpy(zero_copy_only=False) + 1
        asks = np.array([name in each for each in wanted], bool)
        places = np.where(asks[codes], places, 0)
        texts = encoded.dictionary.to_pylist()
        columns[name] = places, texts
        # Numbered anew each time, so that any number of values fits into one integer.
        _, combined = np.unique(combined * (len(texts) + 1) + places, return_inverse=True)
    _, first, inverse = np.unique(combined, return_index=True, return_inverse=True)
    values = [
        {name: texts[at - 1] for name, (places, texts) in columns.items() if (at := int(places[row]))}
        for row in first.tolist()
    ]
    return Combinations(inverse, first, values)


def column_of(outcomes: MatchOutcomes, rows: IntArray, name: str) -> pa.StringArray:
    """Return a value (``context.NAME``, ``attributes.NAME``) of these routed rows; null where it is not there."""
    at = pa.array(rows)
    if name.startswith(CONTEXT_PREFIX):
        contexts = outcomes.contexts.take(at)
        return pc.map_lookup(contexts, name.removeprefix(CONTEXT_PREFIX), "first").cast(pa.string())
    return attribute_of(outcomes, name.removeprefix(ATTRIBUTE_PREFIX)).take(at)


# What is known of an event before any record is seen: values that its definition settles for all of its records.
#
# An attribute that a definition gives as a literal has that value in every event of it. A native record becomes an
# event by the definition alone, so of that much more is known. Context attributes come from placeholders, and
# ``correlation`` from a relation: one that the definition does not have is never there.

VERSION: Final = "specversion"


class FixedDestination:
    """What is settled for one target on one channel, for records that are events or for native ones.

    ``unmappable`` says why no native record of it ever becomes an event; it is empty where one may.
    """

    def __init__(self, matcher: Matcher, channel: int, target: int, *, event: bool) -> None:
        names = {slot.name for slot in matcher.chooser.slots(target, event=event)}
        self._names = frozenset((*names, CORRELATION) if matcher.correlations.has(target) else names)
        seen = matcher.targets[target]
        self.unmappable = ""
        if event:
            self._attributes = _of_events(seen.constraints(event=True) or ())
        else:
            program = matcher.mapper.programs[matcher.mapper.program(target, channel)]
            self.unmappable = program.unmappable
            self._attributes = _of_native(program)
        self._all = not event

    def __call__(self, name: str) -> str | None:
        """Return a value (``context.NAME``, ``attributes.NAME``): empty for never there, None where records decide."""
        if name.startswith(CONTEXT_PREFIX):
            return None if name.removeprefix(CONTEXT_PREFIX) in self._names else ""
        return self._attributes.get(name.removeprefix(ATTRIBUTE_PREFIX), "" if self._all else None)


def _of_events(constraints: tuple[tuple[str, Constraint], ...]) -> dict[str, str | None]:
    """Return the attributes that are literals, compared as texts; numbers and instants may be written otherwise."""
    values: dict[str, str | None] = {VERSION: "1.0"}
    for key, constraint in constraints:
        if key.startswith("e.") and constraint.kind == "literal" and constraint.type not in TYPED_LITERALS:
            values[key.removeprefix("e.")] = constraint.value or ""
    return values


def _of_native(program: Program) -> dict[str, str | None]:
    """Return all attributes of mapped records, with the values of those that are the same for each."""
    return {attribute.name: attribute.constant for attribute in program.attributes}


LISTED: Final = 1 << 20
"""Codes of pairs up to which their numbers are listed by code: four megabytes of them."""
REMEMBERED: Final = 50_000
"""Decisions for values met so far; past it the memory starts anew."""
RouteNumbers = np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True, slots=True)
class RouteDecision:
    """Where records go: the route, and topics in the order of :attr:`router.routing.Routes.fields`.

    ``fault`` says which value a sink of the route misses; such a record goes nowhere.
    """

    route: int
    topics: tuple[str | None, ...]
    fault: str = ""


@dataclass(frozen=True, slots=True)
class DefinitionRoutes:
    """What holds for all records of one definition on one channel, of those that are events or of native ones.

    ``rules`` are the routes that may take them, in order. ``wanted`` are the values that decide the rest: with none,
    ``decision`` is for all records. ``target`` is the definition's place among the plan's targets, negative for none.
    """

    target: int
    endpoint: str | None
    rules: tuple[RouteRule, ...] = ()
    known: Mapping[str, str] | None = None
    wanted: frozenset[str] = frozenset()
    decision: RouteDecision | None = None


@dataclass(frozen=True, slots=True)
class PairColumns:
    """Pairs as columns: of each its target's place in the plan, and its endpoint's place among ``names``."""

    targets: IntArray
    endpoints: IntArray
    names: tuple[str, ...]

    @classmethod
    def of(cls, pairs: Sequence[DefinitionRoutes]) -> PairColumns:
        """Return pairs as columns; no endpoint is the empty name."""
        names = [pair.endpoint or "" for pair in pairs]
        places = {name: place for place, name in enumerate(dict.fromkeys(names))}
        targets = np.array([pair.target for pair in pairs], np.int64)
        return cls(targets, np.array([places[name] for name in names], np.int64), tuple(places))


@dataclass(slots=True)
class RowDestinations:
    """Per row: endpoint, route number, and topics by the fields of :attr:`router.routing.Routes.fields`.

    ``numbers`` tells the place of each row's pair among ``pairs``, whatever became of the row.
    """

    pairs: PairColumns
    numbers: IntArray
    endpoints: pa.StringArray
    routes: pa.Array
    topics: dict[str, pa.StringArray]

    def endpoint_names(self, rows: Sequence[int]) -> list[str]:
        """Return the endpoints of these rows; the empty name for none."""
        return [self.pairs.names[place] for place in self.pairs.endpoints[self.numbers[list(rows)]].tolist()]


class Destinations:
    """Settles destinations for one plan."""

    def __init__(self, matcher: Matcher, routes: Routes, limits: SizeLimits) -> None:
        self._matcher = matcher
        self._routes = routes
        self._fields = routes.fields
        self._limits = limits
        self._nowhere = RouteDecision(DEAD, (None,) * len(self._fields))
        self._numbers: dict[int, int] = {}
        self._by_code: RouteNumbers = np.zeros(0, np.int32)
        self._pairs: list[DefinitionRoutes] = []
        self._laid: _Laid | None = None
        self._decided: dict[tuple[int, tuple[tuple[str, str], ...]], RouteDecision] = {}
        self._sinks = {number: frozenset(route.to) for number, route in enumerate(routes.routes)}
        self._always = np.array([not each.when.letters and routes.always(n) for n, each in enumerate(routes.routes)])

    def place(self, outcomes: MatchOutcomes, sizes: IntArray) -> RowDestinations:
        """Return the destinations of all rows of a batch.

        Rows become dead letters here whose route asks for a body by the schema, whose sinks miss a value for their
        destination, or which are too large for them.
        """
        width = len(self._matcher.targets) + 3
        events = np.where(outcomes.winners >= 0, outcomes.facts.events, 0)
        codes = ((outcomes.facts.channels + 1) * width + outcomes.winners + 2) * 2 + events
        numbers = self._pairs_of(codes, width)
        laid = self._layout()
        pairs, endpoints = laid.pairs, laid.endpoints.take(pa.array(numbers))
        decided, more = self._decide(outcomes, numbers, laid)
        laid = laid.with_more(more)
        routes = laid.routes[decided]
        self._hold(outcomes, routes)
        self._miss(outcomes, routes, laid, decided)
        self._limits.reject(outcomes, sizes, routes)
        at = pa.array(decided)
        topics = {name: column.take(at) for name, column in zip(self._fields, laid.topics, strict=True)}
        self._letters(outcomes, endpoints, routes, topics)
        return RowDestinations(pairs, numbers, endpoints, pa.array(routes), topics)

    def pair(self, channel: int, target: int, *, event: bool) -> DefinitionRoutes:
        """Return what holds for the records of a channel that this target wins."""
        message, endpoint = self._matcher.targets[target].xid, self._matcher.channels[channel].endpoint_of(target)
        settled = FixedDestination(self._matcher, channel, target, event=event)
        rules = self._routes.rules(message, endpoint or "", settled)
        asked = {each.name for rule in rules for each in rule.conditions}
        topics = {name: value_name(name) for rule in rules for name in self._variables(rule.route)}
        values = {name: text for name, of in topics.items() if (text := settled(of)) is not None}
        wanted = asked | {of for name, of in topics.items() if name not in values}
        fixed = {
            name: text for name, text in event_values(message, endpoint or "", "", {}).items() if name not in topics
        }
        pair = DefinitionRoutes(target, endpoint, rules, {**fixed, **values}, frozenset(wanted))
        return pair if wanted else replace(pair, decision=self._decision(pair, {}))

    def needs_bodies(self, channel: int) -> bool:
        """Tell whether a route holds bodies of that channel against schemas which matching itself does not look at."""
        if channel < 0 or self._routes.uniform:
            return False
        checks, bases = self._matcher.checks, self._matcher.chooser.ties.bases
        own = self._matcher.channels[channel].candidates
        return any(
            self._always[rule.route]
            for target in dict.fromkeys((*own, *(base for each in own for base in bases.get(each, ()))))
            if checks.has_schema(self._matcher.targets[target])
            for event in (False, True)
            if self._matcher.targets[target].constraints(event=event) is not None
            for rule in self.pair(channel, target, event=event).rules
        )

    def _variables(self, route: int) -> list[str]:
        """Return the variables of the route's topics whose values are not those of definition and endpoint."""
        used = (self._routes.topics[name] for name in self._sinks[route] if name in self._routes.topics)
        return [name for template in used for name in template.variables if "." in value_name(name)]

    def _pairs_of(self, codes: IntArray, width: int) -> IntArray:
        """Return the number of the pair of each row with such a code."""
        top = int(codes.max(initial=-1)) + 1
        if top > LISTED:
            distinct, inverse = numbered(codes)
            return np.array([self._number(code, width) for code in distinct.tolist()], np.int64)[inverse]
        if top > len(self._by_code):
            self._by_code = np.concatenate((self._by_code, np.full(top - len(self._by_code), -1, np.int32)))
        numbers = self._by_code[codes]
        fresh = np.unique(codes[numbers < 0])
        if len(fresh):
            self._by_code[fresh] = [self._number(code, width) for code in fresh.tolist()]
            numbers = self._by_code[codes]
        return numbers.astype(np.int64)

    def _number(self, code: int, width: int) -> int:
        """Return the number of the pair with that code, giving it one when it is new."""
        known = self._numbers.get(code)
        if known is None:
            rest, event = divmod(code, 2)
            channel, target = rest // width - 1, rest % width - 2
            if target >= 0:
                pair = self.pair(channel, target, event=bool(event))
            else:
                endpoint = self._matcher.channels[channel].endpoint_of(target) if channel >= 0 else None
                pair = DefinitionRoutes(-1, endpoint, decision=self._nowhere)
            known = self._numbers[code] = len(self._pairs)
            self._pairs.append(pair)
            self._laid = None
        return known

    def _layout(self) -> _Laid:
        if self._laid is None:
            settled = _Laid.of([pair.decision or self._nowhere for pair in self._pairs], len(self._fields))
            settled.endpoints = pa.array([pair.endpoint for pair in self._pairs], pa.string())
            settled.pairs = PairColumns.of(self._pairs)
            settled.open = np.array([pair.decision is None for pair in self._pairs], bool)
            self._laid = settled
        return self._laid

    def _decision(self, pair: DefinitionRoutes, values: Mapping[str, str]) -> RouteDecision:
        """Decide for records of a pair with these values, by ``context.NAME`` and ``attributes.NAME``."""
        route = next(rule.route for rule in pair.rules if rule.takes(values))
        sinks = self._sinks[route]
        known = dict(pair.known or {})
        for name in self._variables(route):
            known.setdefault(name, values.get(value_name(name), ""))
        faults: list[str] = []
        topics: dict[str, str] = {}
        for name, template in self._routes.topics.items():
            if name not in sinks:
                continue
            missing = template.missing(known) if name in self._routes.strict else ()
            if missing:
                faults.append(missing_value(missing, f"the topic of sink {name}"))
            topics[f"topic_{name}"] = template.expand(known, escape="_")
        return RouteDecision(route, tuple(map(topics.get, self._fields)), "; ".join(faults))

    def _decide(self, outcomes: MatchOutcomes, numbers: IntArray, laid: _Laid) -> tuple[IntArray, list[RouteDecision]]:
        """Return the number of each row's decision: that of its pair, or behind those of all pairs one of these."""
        rows = np.flatnonzero(laid.open[numbers])
        if not len(rows):
            return numbers, []
        pairs, own = numbered(numbers[rows])
        combined = combinations(outcomes, rows, own, [self._pairs[number].wanted for number in pairs.tolist()])
        decided = numbers.copy()
        decided[rows] = len(laid.routes) + combined.inverse
        firsts = zip(rows[combined.first].tolist(), combined.values, strict=True)
        return decided, [self._remembered(int(numbers[row]), values) for row, values in firsts]

    def _remembered(self, number: int, values: Mapping[str, str]) -> RouteDecision:
        key = (number, tuple(values.items()))
        known = self._decided.get(key)
        if known is None:
            if len(self._decided) >= REMEMBERED:
                self._decided.clear()
            known = self._decided[key] = self._decision(self._pairs[number], values)
        return known

    def _hold(self, outcomes: MatchOutcomes, routes: RouteNumbers) -> None:
        """Make dead letters of rows whose route asks for conforming bodies, where matching did not."""
        if self._routes.uniform:
            return
        rows = np.flatnonzero(np.where(routes >= 0, self._always[routes], False))
        for row, faults in self._matcher.checks.violations(outcomes.facts, rows, outcomes.winners).items():
            outcomes.nearest[row] = mismatches(faults, self._matcher.targets)
            _bury(outcomes, routes, row, "schema-violation", rejection_detail(faults))

    def _miss(self, outcomes: MatchOutcomes, routes: RouteNumbers, laid: _Laid, decided: IntArray) -> None:
        """Make dead letters of rows for which a sink of the route has no destination."""
        if not laid.faults:
            return
        faulty = np.zeros(len(laid.routes), bool)
        faulty[list(laid.faults)] = True
        for row in np.flatnonzero(faulty[decided] & (routes >= 0)).tolist():
            _bury(outcomes, routes, row, "sink-rejected", laid.faults[int(decided[row])])

    def _letters(
        self,
        outcomes: MatchOutcomes,
        endpoints: pa.StringArray,
        routes: RouteNumbers,
        topics: dict[str, pa.StringArray],
    ) -> None:
        """Say where dead letters go."""
        rows = list(outcomes.reasons)
        keys = [(endpoints[row].as_py() or "", outcomes.reasons[row]) for row in rows]
        taking = {each: self._routes.letters(*each) for each in dict.fromkeys(keys)}
        routes[rows] = [taking[each] for each in keys]
        for name, numbers in self._routes.letter_sinks.items():
            template = self._routes.letter_topics.get(name)
            if template is not None:
                its_keys = (each for each, route in taking.items() if route in numbers)
                names = {each: template.expand(dead_letter_values(*each), escape="_") for each in its_keys}
                topics[f"letters_{name}"] = _placed(topics[f"letters_{name}"], rows, [*map(names.get, keys)])


@dataclass(slots=True)
class _Laid:
    """Decisions as columns: of all pairs that were met, and behind those further ones of a batch.

    ``topics`` are in the order of the fields, ``faults`` by number. ``open`` tells the pairs for which values decide.
    """

    routes: RouteNumbers
    topics: list[pa.StringArray]
    faults: dict[int, str]
    endpoints: pa.StringArray = field(default_factory=lambda: pa.array([], pa.string()))
    pairs: PairColumns = field(default_factory=lambda: PairColumns.of(()))
    open: BoolArray = field(default_factory=lambda: np.zeros(0, bool))

    @classmethod
    def of(cls, decisions: Sequence[RouteDecision], fields: int) -> _Laid:
        """Return decisions as columns."""
        topics = [pa.array([each.topics[place] for each in decisions], pa.string()) for place in range(fields)]
        faults = {number: each.fault for number, each in enumerate(decisions) if each.fault}
        return cls(np.array([each.route for each in decisions], np.int32), topics, faults)

    def with_more(self, decisions: Sequence[RouteDecision]) -> _Laid:
        """Return these decisions and further ones behind them."""
        if not decisions:
            return self
        more = _Laid.of(decisions, len(self.topics))
        faults = {len(self.routes) + number: fault for number, fault in more.faults.items()}
        topics = [pa.concat_arrays(both) for both in zip(self.topics, more.topics, strict=True)]
        return _Laid(np.concatenate((self.routes, more.routes)), topics, self.faults | faults)


def _bury(outcomes: MatchOutcomes, routes: RouteNumbers, row: int, reason: str, detail: str) -> None:
    """Turn a routed row into a dead letter."""
    outcomes.reasons[row] = reason
    outcomes.details[row] = detail
    outcomes.winners[row] = -1
    routes[row] = DEAD


def _placed(column: pa.StringArray, rows: list[int], texts: list[str | None]) -> pa.StringArray:
    """Return the column with these texts in these rows."""
    if not rows:
        return column
    indices = np.arange(len(column))
    indices[rows] = len(column) + np.arange(len(rows))
    return pa.concat_arrays([column, pa.array(texts, pa.string())]).take(pa.array(indices))
