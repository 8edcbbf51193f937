"""What brokers take by size: a record that a sink will never take must not hold the stream up.

A routed record past the limit of a Kafka sink on its route becomes a dead letter, ``sink-rejected``. A dead letter past
the limit of a Kafka sink of its own route is *spilled*: it refers to a file in ``state/spill`` that has it whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from router.matching.facts import Facts
from router.matching.index.columns import Int
from router.matching.matcher import Outcomes
from router.routing.routes import DEAD, letter_number
from router.settings import Settings, letter_routes

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

    def reject(self, outcomes: Outcomes, sizes: Int, routes: np.ndarray[Any, np.dtype[np.int32]]) -> None:
        """Turn routed rows that their sinks will never take into dead letters."""
        routed = np.flatnonzero(routes != DEAD)
        for row in routed[sizes[routed] > self._routes[routes[routed]]].tolist():
            limit = int(self._routes[routes[row]])
            outcomes.reasons[row] = "sink-rejected"
            outcomes.details[row] = f"{int(sizes[row])} bytes of key and data; a sink of its route takes {limit}"
            outcomes.winners[row] = -1
            routes[row] = DEAD

    def spilled(self, outcomes: Outcomes, sizes: Int, routes: pa.Array) -> list[int]:
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
        """Return the limit for letters of a route, called as :class:`router.routing.routes.Routes` does."""
        return self._limits[route]


def sizes_of(facts: Facts, sizes: Int) -> Int:
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
