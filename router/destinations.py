"""Endpoint, route and topics of every row: once per definition and channel, per row only where values decide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from router.limits import SizeLimits
from router.matcher import Matcher, Outcomes
from router.matching.columns import Int
from router.names import CONTEXT_PREFIX, NameTemplate, dead_letter_values, event_values
from router.routing import DEAD, Routes

TYPE_VARIABLE: Final = "type"


@dataclass(frozen=True, slots=True)
class Pair:
    """What holds for all records of one definition on one channel.

    ``route`` and ``topics`` (in the order of :attr:`router.routing.Routes.fields`) are None where values decide.
    """

    message: str | None
    endpoint: str | None
    route: int | None
    topics: tuple[str | None, ...]


@dataclass(slots=True)
class Placed:
    """Per row: endpoint, route number, and topics by the fields of :attr:`router.routing.Routes.fields`."""

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
        self._templates = {f"topic_{name}": template for name, template in routes.topics.items()}
        self._pairs: dict[int, int] = {}
        self._known: list[Pair] = []

    def place(self, outcomes: Outcomes, sizes: Int) -> Placed:
        """Return the destinations of all rows of a batch; rows too large for their sinks become dead letters."""
        width = len(self._matcher.targets) + 3
        codes = (outcomes.facts.channels + 1) * width + outcomes.winners + 2
        distinct, inverse = np.unique(codes, return_inverse=True)
        numbers = np.array([self._pair(code, width) for code in distinct.tolist()], np.int64)[inverse]
        at = pa.array(numbers)
        endpoints = pa.array([pair.endpoint for pair in self._known], pa.string()).take(at)
        routes = np.array([DEAD if pair.route is None else pair.route for pair in self._known], np.int32)[numbers]
        topics = {
            name: pa.array([pair.topics[place] for pair in self._known], pa.string()).take(at)
            for place, name in enumerate(self._fields)
        }
        self._by_value(outcomes, numbers, routes, topics)
        self._limits.reject(outcomes, sizes, routes)
        self._letters(outcomes, endpoints, topics)
        return Placed(endpoints, pa.array(routes), topics)

    def _pair(self, code: int, width: int) -> int:
        known = self._pairs.get(code)
        if known is None:
            channel, target = divmod(code, width)
            known = self._pairs[code] = len(self._known)
            self._known.append(self._settle(channel - 1, target - 2))
        return known

    def _settle(self, channel: int, target: int) -> Pair:
        endpoint = self._matcher.channels[channel].endpoint_of(target) if channel >= 0 else None
        if target < 0:
            return Pair(None, endpoint, DEAD, (None,) * len(self._fields))
        message = self._matcher.targets[target].xid
        route = None
        if not self._routes.needs_context(message, endpoint or ""):
            route = self._routes.route(message, endpoint or "", {})
        values = event_values(message, endpoint or "", "", {})
        topics = tuple(
            template.expand(values, escape="_") if template is not None and not _by_value(template) else None
            for template in map(self._templates.get, self._fields)
        )
        return Pair(message, endpoint, route, topics)

    def _by_value(self, outcomes: Outcomes, numbers: Int, routes: Any, topics: dict[str, pa.StringArray]) -> None:
        """Fill in, row by row, what depends on context attributes or on the event's type."""
        dynamic = [name for name, template in self._templates.items() if _by_value(template)]
        open_pairs = [n for n, pair in enumerate(self._known) if pair.message and (pair.route is None or dynamic)]
        rows = np.flatnonzero(np.isin(numbers, open_pairs)).tolist()
        made: dict[str, list[str]] = {name: [] for name in dynamic}
        for row in rows:
            pair = self._known[int(numbers[row])]
            context = dict(outcomes.contexts[row].as_py())
            if pair.route is None:
                routes[row] = self._routes.route(pair.message or "", pair.endpoint or "", context)
            values = event_values(pair.message or "", pair.endpoint or "", outcomes.event_type(row), context)
            for name in dynamic:
                made[name].append(self._templates[name].expand(values, escape="_"))
        for name, texts in made.items():
            topics[name] = _placed(topics[name], rows, texts)

    def _letters(self, outcomes: Outcomes, endpoints: pa.StringArray, topics: dict[str, pa.StringArray]) -> None:
        rows = list(outcomes.reasons)
        for name, template in self._routes.letter_topics.items():
            texts = [
                template.expand(dead_letter_values(endpoints[row].as_py() or "", outcomes.reasons[row]), escape="_")
                for row in rows
            ]
            topics[f"letters_{name}"] = _placed(topics[f"letters_{name}"], rows, texts)


def _by_value(template: NameTemplate) -> bool:
    return any(name == TYPE_VARIABLE or name.startswith(CONTEXT_PREFIX) for name in template.variables)


def _placed(column: pa.StringArray, rows: list[int], texts: list[str]) -> pa.StringArray:
    """Return the column with these texts in these rows."""
    if not rows:
        return column
    indices = np.arange(len(column))
    indices[rows] = len(column) + np.arange(len(rows))
    return pa.concat_arrays([column, pa.array(texts, pa.string())]).take(pa.array(indices))
