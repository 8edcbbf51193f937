"""Find endpoint, route and topics of each row: once per definition and channel, by values only if needed."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.entries import number_distinct, replace_rows
from catalog.definitions.constraints import TYPED_LITERALS, Constraint
from router.matching.context import CORRELATION, attribute_column
from router.matching.index.classes import BoolArray, IntArray, KeyTable
from router.matching.mapping import Program
from router.matching.matcher import Matcher, MatchOutcomes
from router.matching.record_columns import RecordColumns
from router.matching.schema_validation import rejection_detail, schema_mismatches
from router.settings import (
    RouteConditions,
    RouteSettings,
    Settings,
    Validate,
    dead_letter_routes,
    dead_letter_sinks,
    event_routes,
    event_sinks,
)
from router.settings.routes import (
    ATTRIBUTE_PREFIX,
    CONTEXT_PREFIX,
    DEAD_LETTER_VARIABLES,
    EVENT_VARIABLES,
    NameTemplate,
    describe_missing,
    full_variable_name,
    make_dead_letter_values,
    make_event_values,
    parse_name,
)

# The routes of a plan (MATCHING.md#routes).
#
# Conditions on definition, group and endpoint are evaluated once per definition and channel, as are conditions on
# attributes that the definition fixes. Only other conditions need values of records. Dead letters are routed by
# endpoint and reason.

DEFAULT_DEAD_LETTER_ROUTE: Final = -1
"""The route of dead letters to ``dead_letters.sinks``. Lower numbers are other routes of dead letters."""
FixedValue = Callable[[str], str | None]
"""Returns the fixed value of ``context.NAME`` or ``attributes.NAME``: '' if never present, None if records differ."""


@dataclass(frozen=True, slots=True)
class RouteCondition:
    """A route's condition on one value. A missing value counts as empty."""

    name: str
    globs: tuple[str, ...]
    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class RouteRule:
    """The conditions of a route that depend on the record."""

    route: int
    conditions: tuple[RouteCondition, ...]

    def matches(self, values: Mapping[str, str]) -> bool:
        """Whether the route matches a record with these values."""
        return all(each.pattern.fullmatch(values.get(each.name, "")) for each in self.conditions)


class Routes:
    """The routes of a plan, numbered by their order in the settings.

    Routes of dead letters have negative numbers: -1 leads to ``dead_letters.sinks``, -(2 + n) is route n.
    """

    def __init__(self, settings: Settings) -> None:
        self.routes: Sequence[RouteSettings] = settings.routes
        self._mode = settings.match.validation
        events = event_routes(settings.routes)
        self._events = [(number, route, _compile_conditions(route.when)) for number, route in events]
        self._letters = dead_letter_routes(settings.routes)
        self._default = settings.dead_letters.sinks
        self._known_letters: dict[tuple[str, str], int] = {}
        self.topics = _topic_templates(settings, event_sinks(settings), EVENT_VARIABLES)
        self.dead_letter_topics = _topic_templates(settings, dead_letter_sinks(settings), DEAD_LETTER_VARIABLES)
        kafka = [(name, sink) for name in self.topics if (sink := settings.sinks[name].topics) is not None]
        self.strict_sinks = frozenset(name for name, sink in kafka if sink.missing == "reject")
        """Kafka sinks that reject events whose topic lacks a value."""
        self._keys = [parse_name(sink.key) for _, sink in kafka if sink.key is not None]

    @property
    def topic_fields(self) -> tuple[str, ...]:
        """Names of the output columns with topics: ``topic_SINK`` for events, ``letters_SINK`` for dead letters."""
        return (*(f"topic_{name}" for name in self.topics), *(f"letters_{name}" for name in self.dead_letter_topics))

    @property
    def used_attributes(self) -> tuple[str, ...]:
        """The CloudEvents attributes that conditions, topics and keys use, each once."""
        names = [each.name for _, _, conditions in self._events for each in conditions]
        names += [
            full_variable_name(name) for template in (*self.topics.values(), *self._keys) for name in template.variables
        ]
        attributes = (name.removeprefix(ATTRIBUTE_PREFIX) for name in names if name.startswith(ATTRIBUTE_PREFIX))
        return tuple(dict.fromkeys(attributes))

    @property
    def event_sinks(self) -> dict[str, tuple[int, ...]]:
        """The routes of events to each sink; sinks are in the order of the routes."""
        return _group_by_sink((number, route.to) for number, route, _ in self._events)

    @property
    def dead_letter_sinks(self) -> dict[str, tuple[int, ...]]:
        """The routes of dead letters to each sink; sinks are in the order of the routes, the default sinks last."""
        return _group_by_sink(
            [
                *((to_dead_letter_route(number), route.to) for number, route in self._letters),
                (DEFAULT_DEAD_LETTER_ROUTE, self._default),
            ]
        )

    def rules_for(self, message: str, endpoint: str, known: FixedValue) -> tuple[RouteRule, ...]:
        """Return the routes that may match records of this definition and endpoint, in order; the last always does."""
        groups = make_event_values(message, endpoint, "", {})["messagegroup"], message.rpartition("/messages/")[0]
        possible: list[RouteRule] = []
        for number, route, conditions in self._events:
            when = route.when
            in_group = any(_matches_any(when.messagegroup, group) for group in groups)
            if not (_matches_any(when.message, message) and in_group and _matches_any(when.endpoint, endpoint)):
                continue
            values = {each.name: known(each.name) for each in conditions}
            if not all(each.pattern.fullmatch(text) for each in conditions if (text := values[each.name]) is not None):
                continue
            possible.append(RouteRule(number, tuple(each for each in conditions if values[each.name] is None)))
            if not possible[-1].conditions:
                break
        return tuple(possible)

    def dead_letter_route(self, endpoint: str, reason: str) -> int:
        """Return the route of a dead letter."""
        known = self._known_letters.get((endpoint, reason))
        if known is None:
            matching = (
                to_dead_letter_route(number)
                for number, route in self._letters
                if _matches_any(route.when.endpoint, endpoint) and _matches_any(route.when.reason, reason)
            )
            known = self._known_letters[(endpoint, reason)] = next(matching, DEFAULT_DEAD_LETTER_ROUTE)
        return known

    def always_validates(self, route: int) -> bool:
        """Whether each body on this route must be valid against its definition's schema."""
        return (self.routes[route].validation or self._mode) == "always"

    @property
    def validates_uniformly(self) -> bool:
        """Whether all routes validate bodies as ``match.validate`` says; matching then does it."""
        return all(self.always_validates(number) == (self._mode == "always") for number, _, _ in self._events)

    @property
    def matching_validation(self) -> Validate:
        """How matching uses schemas: ``match.validate`` without validation by routes."""
        return self._mode if self.validates_uniformly or self._mode == "never" else "ambiguous"


def to_dead_letter_route(route: int) -> int:
    """Convert a route's number in the settings to its number for dead letters, or back."""
    return -2 - route


def _compile_conditions(when: RouteConditions) -> tuple[RouteCondition, ...]:
    conditions = [(CONTEXT_PREFIX + name, globs) for name, globs in when.context.items()]
    conditions += [(ATTRIBUTE_PREFIX + name, globs) for name, globs in when.attributes.items()]
    return tuple(RouteCondition(name, globs, _compile_globs(globs)) for name, globs in conditions if globs)


def _group_by_sink(routes: Iterable[tuple[int, Sequence[str]]]) -> dict[str, tuple[int, ...]]:
    routes_of: dict[str, list[int]] = {}
    for number, names in routes:
        for name in dict.fromkeys(names):
            routes_of.setdefault(name, []).append(number)
    return {name: tuple(numbers) for name, numbers in routes_of.items()}


def _topic_templates(settings: Settings, names: Iterable[str], variables: tuple[str, ...]) -> dict[str, NameTemplate]:
    topics = ((name, settings.sinks[name].topics) for name in sorted(names))
    return {name: parse_name(sink.topic, variables) for name, sink in topics if sink is not None}


def _matches_any(globs: Sequence[str], value: str) -> bool:
    return not globs or any(fnmatch.fnmatchcase(value, glob) for glob in globs)


def _compile_globs(globs: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(fnmatch.translate(glob) for glob in globs))


# The size limits of sinks: a record that is too large must not block the stream.
#
# A routed record above the limit of a Kafka sink on its route becomes a dead letter, ``sink-rejected``. A dead letter
# above the limit of a Kafka sink on its route is *spilled*: it refers to a file in ``state/spill`` with all of it.

RouteNumbers = np.ndarray[Any, np.dtype[np.int32]]
HEADER_RESERVE: Final = 32_768
"""Bytes of a sink's limit on records that are reserved for headers."""
NO_LIMIT: Final = np.iinfo(np.int64).max


class SizeLimits:
    """The limits of one plan, in bytes of key and value."""

    def __init__(self, settings: Settings) -> None:
        self._routes = np.array([_smallest_limit(settings, route.to) for route in settings.routes], np.int64)
        self._default = _smallest_limit(settings, settings.dead_letters.sinks)

    def max_bytes(self, route: int) -> int:
        """Return the maximum bytes that all sinks of a route accept, with the numbers of :class:`Routes`."""
        if route == DEFAULT_DEAD_LETTER_ROUTE:
            return self._default
        return int(self._routes[route if route >= 0 else to_dead_letter_route(route)])

    def reject_oversized(self, outcomes: MatchOutcomes, sizes: IntArray, routes: RouteNumbers) -> None:
        """Turn routed rows that are too large for their sinks into dead letters."""
        routed = np.flatnonzero(routes != DEFAULT_DEAD_LETTER_ROUTE)
        for row in routed[sizes[routed] > self._routes[routes[routed]]].tolist():
            limit = int(self._routes[routes[row]])
            outcomes.reasons[row] = "sink-rejected"
            outcomes.details[row] = f"{int(sizes[row])} bytes of key and data; a sink of its route accepts {limit}"
            outcomes.winners[row] = -1
            routes[row] = DEFAULT_DEAD_LETTER_ROUTE

    def find_spilled(self, outcomes: MatchOutcomes, sizes: IntArray, routes: pa.Array) -> list[int]:
        """Return the dead letters that are too large for a sink of their route."""
        numbers = routes.to_numpy(zero_copy_only=False)
        return [row for row in outcomes.reasons if sizes[row] > self.max_bytes(int(numbers[row]))]


def row_sizes(facts: RecordColumns, sizes: IntArray) -> IntArray:
    """Return the bytes of each row: those of its input row, or of its event of a batch."""
    bytes_ = sizes[facts.sources]
    for row, reading in facts.readings.items():
        if reading.place >= 0:
            bytes_[row] = len(reading.body or b"")
    return bytes_


def _smallest_limit(settings: Settings, names: Iterable[str]) -> int:
    sinks = (settings.sinks[name] for name in names)
    limits = [max(1, limit - HEADER_RESERVE) for sink in sinks if (limit := sink.record_limit) is not None]
    return min(limits, default=int(NO_LIMIT))


# Attributes of routed events (:mod:`router.matching.context`) and context attributes as columns, for routes and topics.


@dataclass(frozen=True, slots=True)
class ValueCombinations:
    """Distinct combinations of a code and some values among rows.

    ``inverse`` has the combination of each row, ``first`` the first row of each combination, ``values`` its values by
    name, except missing ones and those that its code does not need.
    """

    inverse: IntArray
    first: IntArray
    values: Sequence[dict[str, str]]


def combine_values(
    outcomes: MatchOutcomes, rows: IntArray, codes: IntArray, needed: Sequence[Iterable[str]]
) -> ValueCombinations:
    """Return the combinations among *rows*; ``needed[codes[i]]`` are the values that ``rows[i]`` needs."""
    names = sorted({name for names in needed for name in names})
    combined = codes
    columns: dict[str, tuple[IntArray, list[str]]] = {}
    for name in names:
        encoded = pc.dictionary_encode(value_column(outcomes, rows, name))
        places = pc.fill_null(encoded.indices.cast(pa.int64()), -1).to_numpy(zero_copy_only=False) + 1
        is_needed = np.array([name in each for each in needed], bool)
        places = np.where(is_needed[codes], places, 0)
        texts = encoded.dictionary.to_pylist()
        columns[name] = places, texts
        # Renumbered after each value, so that all values fit into one integer.
        _, combined = np.unique(combined * (len(texts) + 1) + places, return_inverse=True)
    _, first, inverse = np.unique(combined, return_index=True, return_inverse=True)
    values = [
        {name: texts[at - 1] for name, (places, texts) in columns.items() if (at := int(places[row]))}
        for row in first.tolist()
    ]
    return ValueCombinations(inverse, first, values)


def value_column(outcomes: MatchOutcomes, rows: IntArray, name: str) -> pa.StringArray:
    """Return the value ``context.NAME`` or ``attributes.NAME`` of routed rows; null if missing."""
    at = pa.array(rows)
    if name.startswith(CONTEXT_PREFIX):
        contexts = outcomes.contexts.take(at)
        return pc.map_lookup(contexts, name.removeprefix(CONTEXT_PREFIX), "first").cast(pa.string())
    return attribute_column(outcomes, name.removeprefix(ATTRIBUTE_PREFIX)).take(at)


# Values that a definition fixes for all of its records.
#
# An attribute with a literal in the definition has that value in each event. Of native records the definition fixes
# more, since it alone maps them to events. Context attributes come from placeholders, and ``correlation`` from a
# relation: if the definition has none, they are never present.

VERSION: Final = "specversion"


class FixedValues:
    """The fixed values of one target on one channel, for events or for native records.

    ``unmappable`` is the reason why its native records cannot become events; '' if they can.
    """

    def __init__(self, matcher: Matcher, channel: int, target: int, *, event: bool) -> None:
        names = {slot.name for slot in matcher.chooser.slots(target, event=event)}
        self._names = frozenset((*names, CORRELATION) if matcher.correlations.has(target) else names)
        candidate = matcher.targets[target]
        self.unmappable = ""
        if event:
            self._attributes = _fixed_by_constraints(candidate.constraints(event=True) or ())
        else:
            program = matcher.mapper.programs[matcher.mapper.program_number(target, channel)]
            self.unmappable = program.unmappable
            self._attributes = _fixed_by_mapping(program)
        self._all = not event

    def __call__(self, name: str) -> str | None:
        """Return ``context.NAME`` or ``attributes.NAME``: '' if never present, None if records differ."""
        if name.startswith(CONTEXT_PREFIX):
            return None if name.removeprefix(CONTEXT_PREFIX) in self._names else ""
        return self._attributes.get(name.removeprefix(ATTRIBUTE_PREFIX), "" if self._all else None)


def _fixed_by_constraints(constraints: tuple[tuple[str, Constraint], ...]) -> dict[str, str | None]:
    """Return the string attributes with literals; numbers and times have several notations."""
    values: dict[str, str | None] = {VERSION: "1.0"}
    for key, constraint in constraints:
        if key.startswith("e.") and constraint.kind == "literal" and constraint.type not in TYPED_LITERALS:
            values[key.removeprefix("e.")] = constraint.value or ""
    return values


def _fixed_by_mapping(program: Program) -> dict[str, str | None]:
    """Return all attributes of mapped records, with the value if it is the same in all."""
    return {attribute.name: attribute.constant for attribute in program.attributes}


MAX_CACHED_DECISIONS: Final = 50_000
"""Maximum number of cached decisions, by pair and by values; above it a cache is cleared."""


@dataclass(frozen=True, slots=True)
class RouteDecision:
    """A route, and topics in the order of :attr:`router.routing.Routes.topic_fields`.

    ``fault`` names the values that a sink of the route needs and the record lacks.
    """

    route: int
    topics: tuple[str | None, ...]
    fault: str = ""


@dataclass(frozen=True, slots=True)
class DefinitionRoutes:
    """The routes of all events, or all native records, of one definition on one channel.

    ``rules`` are the possible routes, in order. ``needed_values`` are the values that decide between them: without any,
    ``decision`` is for all records. ``target`` is the definition's number among the plan's targets, negative for none.
    """

    target: int
    endpoint: str | None
    rules: tuple[RouteRule, ...] = ()
    fixed_values: Mapping[str, str] | None = None
    needed_values: frozenset[str] = frozenset()
    decision: RouteDecision | None = None


@dataclass(frozen=True, slots=True)
class PairColumns:
    """Pairs as columns: each with its target's number in the plan, and its endpoint's index in ``endpoint_names``."""

    targets: IntArray
    endpoints: IntArray
    endpoint_names: tuple[str, ...]

    @classmethod
    def from_pairs(cls, pairs: Sequence[DefinitionRoutes]) -> PairColumns:
        """Convert pairs to columns; without an endpoint it is ''."""
        names = [pair.endpoint or "" for pair in pairs]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        targets = np.array([pair.target for pair in pairs], np.int64)
        return cls(targets, np.array([numbers[name] for name in names], np.int64), tuple(numbers))


@dataclass(slots=True)
class RowDestinations:
    """Endpoint, route number, and topics (:attr:`router.routing.Routes.topic_fields`) of each row.

    ``pair_numbers`` has the index of each row's pair in ``pairs``, also for dead letters.
    """

    pairs: PairColumns
    pair_numbers: IntArray
    endpoints: pa.StringArray
    routes: pa.Array
    topics: dict[str, pa.StringArray]

    def endpoints_of(self, rows: Sequence[int]) -> list[str]:
        """Return the endpoints of these rows; '' for none."""
        numbers = self.pairs.endpoints[self.pair_numbers[list(rows)]]
        return [self.pairs.endpoint_names[number] for number in numbers.tolist()]


class Destinations:
    """Assigns routes and topics to rows, for one plan."""

    def __init__(self, matcher: Matcher, routes: Routes, limits: SizeLimits) -> None:
        self._matcher = matcher
        self._routes = routes
        self._fields = routes.topic_fields
        self._limits = limits
        self._nowhere = RouteDecision(DEFAULT_DEAD_LETTER_ROUTE, (None,) * len(self._fields))
        self._pair_by_code: dict[int, int] = {}
        self._pair_numbers = KeyTable(MAX_CACHED_DECISIONS)
        self._pairs: list[DefinitionRoutes] = []
        self._pair_decisions: _DecisionColumns | None = None
        self._decision_cache: dict[tuple[int, tuple[tuple[str, str], ...]], RouteDecision] = {}
        self._sinks = {number: frozenset(route.to) for number, route in enumerate(routes.routes)}
        always = routes.always_validates
        self._always = np.array([not each.when.letters and always(n) for n, each in enumerate(routes.routes)])

    def assign_rows(self, outcomes: MatchOutcomes, sizes: IntArray) -> RowDestinations:
        """Assign the destinations of all rows of a batch.

        A row becomes a dead letter here if its route rejects an invalid body, if a value of its destination is missing,
        or if it is too large for a sink.
        """
        width = len(self._matcher.targets) + 3
        events = np.where(outcomes.winners >= 0, outcomes.facts.events, 0)
        codes = ((outcomes.facts.channels + 1) * width + outcomes.winners + 2) * 2 + events
        numbers = self._pair_numbers.look_up(codes, lambda code, _: self._pair_number(code, width))
        known = self._known_decisions()
        pairs, endpoints = known.pairs, known.endpoints.take(pa.array(numbers))
        decided, more = self._decide_rows(outcomes, numbers, known)
        known = known.append(more)
        routes = known.routes[decided]
        self._reject_invalid(outcomes, routes)
        self._reject_missing(outcomes, routes, known, decided)
        self._limits.reject_oversized(outcomes, sizes, routes)
        at = pa.array(decided)
        topics = {name: column.take(at) for name, column in zip(self._fields, known.topics, strict=True)}
        self._route_dead_letters(outcomes, endpoints, routes, topics)
        return RowDestinations(pairs, numbers, endpoints, pa.array(routes), topics)

    def routes_of_target(self, channel: int, target: int, *, event: bool) -> DefinitionRoutes:
        """Return the routes of a channel's records that match this target."""
        message, endpoint = self._matcher.targets[target].xid, self._matcher.channels[channel].endpoint_of(target)
        fixed_value = FixedValues(self._matcher, channel, target, event=event)
        rules = self._routes.rules_for(message, endpoint or "", fixed_value)
        conditional = {each.name for rule in rules for each in rule.conditions}
        topics = {name: full_variable_name(name) for rule in rules for name in self._topic_variables(rule.route)}
        values = {name: text for name, of in topics.items() if (text := fixed_value(of)) is not None}
        needed = conditional | {of for name, of in topics.items() if name not in values}
        fixed = {
            name: text
            for name, text in make_event_values(message, endpoint or "", "", {}).items()
            if name not in topics
        }
        pair = DefinitionRoutes(target, endpoint, rules, {**fixed, **values}, frozenset(needed))
        return pair if needed else replace(pair, decision=self._make_decision(pair, {}))

    def _topic_variables(self, route: int) -> list[str]:
        """Return the variables of the route's topics that depend on the record."""
        used = (self._routes.topics[name] for name in self._sinks[route] if name in self._routes.topics)
        return [name for template in used for name in template.variables if "." in full_variable_name(name)]

    def _pair_number(self, code: int, width: int) -> int:
        """Return the pair number of a code, adding the pair if it is new."""
        known = self._pair_by_code.get(code)
        if known is None:
            rest, event = divmod(code, 2)
            channel, target = rest // width - 1, rest % width - 2
            if target >= 0:
                pair = self.routes_of_target(channel, target, event=bool(event))
            else:
                endpoint = self._matcher.channels[channel].endpoint_of(target) if channel >= 0 else None
                pair = DefinitionRoutes(-1, endpoint, decision=self._nowhere)
            known = self._pair_by_code[code] = len(self._pairs)
            self._pairs.append(pair)
            self._pair_decisions = None
        return known

    def _known_decisions(self) -> _DecisionColumns:
        if self._pair_decisions is None:
            decisions = [pair.decision or self._nowhere for pair in self._pairs]
            columns = _DecisionColumns.from_decisions(decisions, len(self._fields))
            columns.endpoints = pa.array([pair.endpoint for pair in self._pairs], pa.string())
            columns.pairs = PairColumns.from_pairs(self._pairs)
            columns.is_open = np.array([pair.decision is None for pair in self._pairs], bool)
            self._pair_decisions = columns
        return self._pair_decisions

    def _make_decision(self, pair: DefinitionRoutes, values: Mapping[str, str]) -> RouteDecision:
        """Return the decision for records of a pair with these values (``context.NAME``, ``attributes.NAME``)."""
        route = next(rule.route for rule in pair.rules if rule.matches(values))
        sinks = self._sinks[route]
        known = dict(pair.fixed_values or {})
        for name in self._topic_variables(route):
            known.setdefault(name, values.get(full_variable_name(name), ""))
        faults: list[str] = []
        topics: dict[str, str] = {}
        for name, template in self._routes.topics.items():
            if name not in sinks:
                continue
            missing = template.missing(known) if name in self._routes.strict_sinks else ()
            if missing:
                faults.append(describe_missing(missing, f"the topic of sink {name}"))
            topics[f"topic_{name}"] = template.expand(known, escape="_")
        return RouteDecision(route, tuple(map(topics.get, self._fields)), "; ".join(faults))

    def _decide_rows(
        self, outcomes: MatchOutcomes, numbers: IntArray, known: _DecisionColumns
    ) -> tuple[IntArray, list[RouteDecision]]:
        """Return each row's decision number, its pair's or one after all pairs, and the decisions of the latter."""
        rows = np.flatnonzero(known.is_open[numbers])
        if not len(rows):
            return numbers, []
        pairs, codes = number_distinct(numbers[rows])
        needed = [self._pairs[number].needed_values for number in pairs.tolist()]
        combined = combine_values(outcomes, rows, codes, needed)
        decided = numbers.copy()
        decided[rows] = len(known.routes) + combined.inverse
        firsts = zip(rows[combined.first].tolist(), combined.values, strict=True)
        return decided, [self._cached_decision(int(numbers[row]), values) for row, values in firsts]

    def _cached_decision(self, number: int, values: Mapping[str, str]) -> RouteDecision:
        key = (number, tuple(values.items()))
        known = self._decision_cache.get(key)
        if known is None:
            if len(self._decision_cache) >= MAX_CACHED_DECISIONS:
                self._decision_cache.clear()
            known = self._decision_cache[key] = self._make_decision(self._pairs[number], values)
        return known

    def _reject_invalid(self, outcomes: MatchOutcomes, routes: RouteNumbers) -> None:
        """Turn rows with invalid bodies into dead letters, if their route validates them and matching did not."""
        if self._routes.validates_uniformly:
            return
        rows = np.flatnonzero(np.where(routes >= 0, self._always[routes], False))
        for row, faults in self._matcher.checks.violations(outcomes.facts, rows, outcomes.winners).items():
            outcomes.nearest[row] = schema_mismatches(faults, self._matcher.targets)
            _make_dead_letter(outcomes, routes, row, "schema-violation", rejection_detail(faults))

    def _reject_missing(
        self, outcomes: MatchOutcomes, routes: RouteNumbers, known: _DecisionColumns, decided: IntArray
    ) -> None:
        """Turn rows into dead letters if a sink of their route has no destination for them."""
        if not known.faults:
            return
        faulty = np.zeros(len(known.routes), bool)
        faulty[list(known.faults)] = True
        for row in np.flatnonzero(faulty[decided] & (routes >= 0)).tolist():
            _make_dead_letter(outcomes, routes, row, "sink-rejected", known.faults[int(decided[row])])

    def _route_dead_letters(
        self,
        outcomes: MatchOutcomes,
        endpoints: pa.StringArray,
        routes: RouteNumbers,
        topics: dict[str, pa.StringArray],
    ) -> None:
        """Set the routes and topics of dead letters."""
        rows = list(outcomes.reasons)
        keys = [(endpoints[row].as_py() or "", outcomes.reasons[row]) for row in rows]
        route_of = {each: self._routes.dead_letter_route(*each) for each in dict.fromkeys(keys)}
        routes[rows] = [route_of[each] for each in keys]
        for name, numbers in self._routes.dead_letter_sinks.items():
            template = self._routes.dead_letter_topics.get(name)
            if template is not None:
                sink_keys = (each for each, route in route_of.items() if route in numbers)
                names = {each: template.expand(make_dead_letter_values(*each), escape="_") for each in sink_keys}
                texts = pa.array([*map(names.get, keys)], pa.string())
                topics[f"letters_{name}"] = replace_rows(topics[f"letters_{name}"], np.array(rows, np.int64), texts)


@dataclass(slots=True)
class _DecisionColumns:
    """Decisions as columns: those of all known pairs, followed by those of a batch that depend on values.

    ``topics`` are in the order of the fields, ``faults`` by number. ``is_open`` marks pairs that depend on values.
    """

    routes: RouteNumbers
    topics: list[pa.StringArray]
    faults: dict[int, str]
    endpoints: pa.StringArray = field(default_factory=lambda: pa.array([], pa.string()))
    pairs: PairColumns = field(default_factory=lambda: PairColumns.from_pairs(()))
    is_open: BoolArray = field(default_factory=lambda: np.zeros(0, bool))

    @classmethod
    def from_decisions(cls, decisions: Sequence[RouteDecision], fields: int) -> _DecisionColumns:
        """Convert decisions to columns."""
        topics = [pa.array([each.topics[field] for each in decisions], pa.string()) for field in range(fields)]
        faults = {number: each.fault for number, each in enumerate(decisions) if each.fault}
        return cls(np.array([each.route for each in decisions], np.int32), topics, faults)

    def append(self, decisions: Sequence[RouteDecision]) -> _DecisionColumns:
        """Return these decisions followed by *decisions*."""
        if not decisions:
            return self
        more = _DecisionColumns.from_decisions(decisions, len(self.topics))
        faults = {len(self.routes) + number: fault for number, fault in more.faults.items()}
        topics = [pa.concat_arrays(both) for both in zip(self.topics, more.topics, strict=True)]
        return _DecisionColumns(np.concatenate((self.routes, more.routes)), topics, self.faults | faults)


def _make_dead_letter(outcomes: MatchOutcomes, routes: RouteNumbers, row: int, reason: str, detail: str) -> None:
    """Turn a routed row into a dead letter."""
    outcomes.reasons[row] = reason
    outcomes.details[row] = detail
    outcomes.winners[row] = -1
    routes[row] = DEFAULT_DEAD_LETTER_ROUTE
