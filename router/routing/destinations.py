"""Endpoint, route and topics of every row: once per definition and channel, per value only where values decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from router.matching.conformance import mismatches, rejection_detail
from router.matching.index.columns import Int
from router.matching.matcher import Matcher, Outcomes
from router.routing.limits import SizeLimits
from router.routing.routes import DEAD, RouteRule, Routes
from router.routing.row_values import combinations
from router.routing.settled import Settled
from router.settings.names import dead_letter_values, event_values, missing_value, value_name

REMEMBERED: Final = 50_000
"""Decisions for values met so far; past it the memory starts anew."""
RouteNumbers = np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True, slots=True)
class Decision:
    """Where records go: the route, and topics in the order of :attr:`router.routing.routes.Routes.fields`.

    ``fault`` says which value a sink of the route misses; such a record goes nowhere.
    """

    route: int
    topics: tuple[str | None, ...]
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    """What holds for all records of one definition on one channel, of those that are events or of native ones.

    ``rules`` are the routes that may take them, in order. ``wanted`` are the values that decide the rest: with none,
    ``decision`` is for all records.
    """

    message: str | None
    endpoint: str | None
    rules: tuple[RouteRule, ...] = ()
    known: Mapping[str, str] | None = None
    wanted: frozenset[str] = frozenset()
    decision: Decision | None = None


@dataclass(slots=True)
class Placed:
    """Per row: endpoint, route number, and topics by the fields of :attr:`router.routing.routes.Routes.fields`."""

    endpoints: pa.StringArray
    routes: pa.Array
    topics: dict[str, pa.StringArray]


class Destinations:
    """Settles destinations for one plan."""

    def __init__(self, matcher: Matcher, routes: Routes, limits: SizeLimits) -> None:
        self._matcher = matcher
        self._routes = routes
        self._fields = routes.fields
        self._limits = limits
        self._nowhere = Decision(DEAD, (None,) * len(self._fields))
        self._pairs: dict[int, Pair] = {}
        self._decided: dict[tuple[int, tuple[tuple[str, str], ...]], Decision] = {}
        self._sinks = {number: frozenset(route.to) for number, route in enumerate(routes.routes)}
        self._always = np.array([not each.when.letters and routes.always(n) for n, each in enumerate(routes.routes)])

    def place(self, outcomes: Outcomes, sizes: Int) -> Placed:
        """Return the destinations of all rows of a batch.

        Rows become dead letters here whose route asks for a body by the schema, whose sinks miss a value for their
        destination, or which are too large for them.
        """
        width = len(self._matcher.targets) + 3
        events = np.where(outcomes.winners >= 0, outcomes.facts.events, 0)
        codes = ((outcomes.facts.channels + 1) * width + outcomes.winners + 2) * 2 + events
        distinct, inverse = np.unique(codes, return_inverse=True)
        pairs = [self._pair(code, width) for code in distinct.tolist()]
        endpoints = pa.array([pair.endpoint for pair in pairs], pa.string()).take(pa.array(inverse))
        decisions, numbers = self._decide(outcomes, distinct, inverse, pairs)
        routes = np.array([each.route for each in decisions], np.int32)[numbers]
        self._hold(outcomes, routes)
        self._miss(outcomes, routes, decisions, numbers)
        self._limits.reject(outcomes, sizes, routes)
        at = pa.array(numbers)
        topics = {
            name: pa.array([each.topics[place] for each in decisions], pa.string()).take(at)
            for place, name in enumerate(self._fields)
        }
        self._letters(outcomes, endpoints, routes, topics)
        return Placed(endpoints, pa.array(routes), topics)

    def pair(self, channel: int, target: int, *, event: bool) -> Pair:
        """Return what holds for the records of a channel that this target wins."""
        message, endpoint = self._matcher.targets[target].xid, self._matcher.channels[channel].endpoint_of(target)
        settled = Settled(self._matcher, channel, target, event=event)
        rules = self._routes.rules(message, endpoint or "", settled)
        asked = {each.name for rule in rules for each in rule.conditions}
        topics = {name: value_name(name) for rule in rules for name in self._variables(rule.route)}
        values = {name: text for name, of in topics.items() if (text := settled(of)) is not None}
        wanted = asked | {of for name, of in topics.items() if name not in values}
        fixed = {
            name: text for name, text in event_values(message, endpoint or "", "", {}).items() if name not in topics
        }
        pair = Pair(message, endpoint, rules, {**fixed, **values}, frozenset(wanted))
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

    def _pair(self, code: int, width: int) -> Pair:
        known = self._pairs.get(code)
        if known is None:
            rest, event = divmod(code, 2)
            channel, target = rest // width - 1, rest % width - 2
            if target >= 0:
                known = self.pair(channel, target, event=bool(event))
            else:
                endpoint = self._matcher.channels[channel].endpoint_of(target) if channel >= 0 else None
                known = Pair(None, endpoint, decision=self._nowhere)
            self._pairs[code] = known
        return known

    def _decision(self, pair: Pair, values: Mapping[str, str]) -> Decision:
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
        return Decision(route, tuple(map(topics.get, self._fields)), "; ".join(faults))

    def _decide(self, outcomes: Outcomes, codes: Int, inverse: Int, pairs: list[Pair]) -> tuple[list[Decision], Int]:
        """Return decisions, and the number of each row's."""
        decisions = [pair.decision or self._nowhere for pair in pairs]
        undecided = np.array([pair.decision is None for pair in pairs], bool)[inverse]
        rows = np.flatnonzero(undecided)
        if not len(rows):
            return decisions, inverse
        combined = combinations(outcomes, rows, inverse[rows], [pair.wanted for pair in pairs])
        numbers = inverse.copy()
        numbers[rows] = len(decisions) + combined.inverse
        for row, values in zip(rows[combined.first].tolist(), combined.values, strict=True):
            number = int(inverse[row])
            decisions.append(self._remembered(int(codes[number]), pairs[number], values))
        return decisions, numbers

    def _remembered(self, code: int, pair: Pair, values: Mapping[str, str]) -> Decision:
        key = (code, tuple(values.items()))
        known = self._decided.get(key)
        if known is None:
            if len(self._decided) >= REMEMBERED:
                self._decided.clear()
            known = self._decided[key] = self._decision(pair, values)
        return known

    def _hold(self, outcomes: Outcomes, routes: RouteNumbers) -> None:
        """Make dead letters of rows whose route asks for conforming bodies, where matching did not."""
        if self._routes.uniform:
            return
        rows = np.flatnonzero(np.where(routes >= 0, self._always[routes], False))
        for row, faults in self._matcher.checks.violations(outcomes.facts, rows, outcomes.winners).items():
            outcomes.nearest[row] = mismatches(faults, self._matcher.targets)
            _bury(outcomes, routes, row, "schema-violation", rejection_detail(faults))

    def _miss(self, outcomes: Outcomes, routes: RouteNumbers, decisions: list[Decision], numbers: Int) -> None:
        """Make dead letters of rows for which a sink of the route has no destination."""
        faulty = np.array([bool(each.fault) for each in decisions], bool)
        if not faulty.any():
            return
        for row in np.flatnonzero(faulty[numbers] & (routes >= 0)).tolist():
            _bury(outcomes, routes, row, "sink-rejected", decisions[int(numbers[row])].fault)

    def _letters(
        self, outcomes: Outcomes, endpoints: pa.StringArray, routes: RouteNumbers, topics: dict[str, pa.StringArray]
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


def _bury(outcomes: Outcomes, routes: RouteNumbers, row: int, reason: str, detail: str) -> None:
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
