"""Endpoint, route and topics of every row: decided once per definition and channel, and per value only if needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bindings.entries import numbered
from router.matching.conformance import mismatches, rejection_detail
from router.matching.index.columns import Bool, Int
from router.matching.matcher import Matcher, Outcomes
from router.routing.limits import SizeLimits
from router.routing.routes import DEAD, RouteRule, Routes
from router.routing.row_values import combinations
from router.routing.settled import Settled
from router.settings.names import dead_letter_values, event_values, missing_value, value_name

LISTED: Final = 1 << 20
"""Codes of pairs up to which their numbers are listed by code: four megabytes of them."""
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
    ``decision`` is for all records. ``target`` is the definition's place among the plan's targets, negative for none.
    """

    target: int
    endpoint: str | None
    rules: tuple[RouteRule, ...] = ()
    known: Mapping[str, str] | None = None
    wanted: frozenset[str] = frozenset()
    decision: Decision | None = None


@dataclass(frozen=True, slots=True)
class PairColumns:
    """Pairs as columns: of each its target's place in the plan, and its endpoint's place among ``names``."""

    targets: Int
    endpoints: Int
    names: tuple[str, ...]

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> PairColumns:
        """Return pairs as columns; no endpoint is the empty name."""
        names = [pair.endpoint or "" for pair in pairs]
        places = {name: place for place, name in enumerate(dict.fromkeys(names))}
        targets = np.array([pair.target for pair in pairs], np.int64)
        return cls(targets, np.array([places[name] for name in names], np.int64), tuple(places))


@dataclass(slots=True)
class Placed:
    """Per row: endpoint, route number, and topics by the fields of :attr:`router.routing.routes.Routes.fields`.

    ``numbers`` tells the place of each row's pair among ``pairs``, whatever became of the row.
    """

    pairs: PairColumns
    numbers: Int
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
        self._nowhere = Decision(DEAD, (None,) * len(self._fields))
        self._numbers: dict[int, int] = {}
        self._by_code: RouteNumbers = np.zeros(0, np.int32)
        self._pairs: list[Pair] = []
        self._laid: _Laid | None = None
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
        return Placed(pairs, numbers, endpoints, pa.array(routes), topics)

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
        pair = Pair(target, endpoint, rules, {**fixed, **values}, frozenset(wanted))
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

    def _pairs_of(self, codes: Int, width: int) -> Int:
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
                pair = Pair(-1, endpoint, decision=self._nowhere)
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

    def _decide(self, outcomes: Outcomes, numbers: Int, laid: _Laid) -> tuple[Int, list[Decision]]:
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

    def _remembered(self, number: int, values: Mapping[str, str]) -> Decision:
        key = (number, tuple(values.items()))
        known = self._decided.get(key)
        if known is None:
            if len(self._decided) >= REMEMBERED:
                self._decided.clear()
            known = self._decided[key] = self._decision(self._pairs[number], values)
        return known

    def _hold(self, outcomes: Outcomes, routes: RouteNumbers) -> None:
        """Make dead letters of rows whose route asks for conforming bodies, where matching did not."""
        if self._routes.uniform:
            return
        rows = np.flatnonzero(np.where(routes >= 0, self._always[routes], False))
        for row, faults in self._matcher.checks.violations(outcomes.facts, rows, outcomes.winners).items():
            outcomes.nearest[row] = mismatches(faults, self._matcher.targets)
            _bury(outcomes, routes, row, "schema-violation", rejection_detail(faults))

    def _miss(self, outcomes: Outcomes, routes: RouteNumbers, laid: _Laid, decided: Int) -> None:
        """Make dead letters of rows for which a sink of the route has no destination."""
        if not laid.faults:
            return
        faulty = np.zeros(len(laid.routes), bool)
        faulty[list(laid.faults)] = True
        for row in np.flatnonzero(faulty[decided] & (routes >= 0)).tolist():
            _bury(outcomes, routes, row, "sink-rejected", laid.faults[int(decided[row])])

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
    open: Bool = field(default_factory=lambda: np.zeros(0, bool))

    @classmethod
    def of(cls, decisions: Sequence[Decision], fields: int) -> _Laid:
        """Return decisions as columns."""
        topics = [pa.array([each.topics[place] for each in decisions], pa.string()) for place in range(fields)]
        faults = {number: each.fault for number, each in enumerate(decisions) if each.fault}
        return cls(np.array([each.route for each in decisions], np.int32), topics, faults)

    def with_more(self, decisions: Sequence[Decision]) -> _Laid:
        """Return these decisions and further ones behind them."""
        if not decisions:
            return self
        more = _Laid.of(decisions, len(self.topics))
        faults = {len(self.routes) + number: fault for number, fault in more.faults.items()}
        topics = [pa.concat_arrays(both) for both in zip(self.topics, more.topics, strict=True)]
        return _Laid(np.concatenate((self.routes, more.routes)), topics, self.faults | faults)


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
