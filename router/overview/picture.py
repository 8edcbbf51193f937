"""What flows from which endpoint to which definition and sink: nodes and links with their rates, for the page to draw.

:mod:`router.overview.survey` says what the plan in force sends where. There may be thousands of definitions:
the busiest are shown, and the rest is summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from router.judging.plan import Plan
from router.overview.figures import ACKNOWLEDGED, ARRIVED, DEFINITIONS, RECEIVED, WRITES, Figure, Reading
from router.overview.occurrences import Occurred
from router.overview.survey import survey
from router.settings.takers import event_sinks, letter_sinks
from router.watching.deliveries import SinkProblem

SHOWN: Final = 40
"""Endpoints, and definitions, that are shown by themselves."""
_NOTHING: Final = Figure(0, None)
_OUTCOMES: Final = ("routed", "dead_letters", "empty")
"""What :meth:`~router.overview.figures.Reading.outcomes` tells apart, as the page calls it."""


Problems = Callable[[str], SinkProblem | None]


@dataclass(frozen=True, slots=True)
class Ways:
    """Who goes where under one plan: for each endpoint the ``definitions`` that it may have records of, and for each
    definition the ``sinks`` that these may go to.
    """

    definitions: Mapping[str, tuple[str, ...]]
    sinks: Mapping[str, tuple[str, ...]]
    letters: Mapping[str, tuple[str, ...]]
    """For each endpoint, the sinks of its dead letters."""

    @classmethod
    def of(cls, plan: Plan) -> Ways:
        """Find out; it takes seconds for thousands of definitions."""
        surveyed = survey(plan)
        definitions: dict[str, dict[str, None]] = {}
        sinks: dict[str, dict[str, None]] = {}
        for flow in surveyed.flows:
            definitions.setdefault(flow.endpoint, {})[flow.message] = None
            taken = sinks.setdefault(flow.message, {})
            taken.update((aim.sink, None) for way in flow.ways for aim in way.aims)
        letters: dict[str, dict[str, None]] = {}
        endpoints = [source.endpoint for source in plan.sources]
        for each in surveyed.letters:
            for endpoint in endpoints if each.endpoints == ("*",) else each.endpoints:
                letters.setdefault(endpoint, {}).update((aim.sink, None) for aim in each.aims)
        return cls(*({name: tuple(each) for name, each in ways.items()} for ways in (definitions, sinks, letters)))


def picture(plan: Plan, ways: Ways, reading: Reading, occurred: Occurred, problems: Problems) -> dict[str, Any]:
    """Return endpoints, definitions, sinks and what leads from one to another, with figures, as JSON.

    *problems* gives the last error of a sink.
    """
    outcomes, definitions, arrived = reading.outcomes(), reading.by(DEFINITIONS, 0), reading.by(ARRIVED, 0)
    sources = {source.endpoint: source for source in plan.sources}
    routed = {xid: outcomes.get(xid, (_NOTHING,) * 3) for xid in (*sources, *outcomes)}
    shown = _busiest((xid, _added(both)) for xid, both in routed.items())
    messages = _busiest((xid, definitions.get(xid, _NOTHING)) for xid in dict.fromkeys((*ways.sinks, *definitions)))
    lacking = set(ways.sinks) - set(messages)
    links = [
        {"from": endpoint, "to": xid, "kind": "definition"}
        for endpoint in shown
        for xid in ways.definitions.get(endpoint, ())
        if xid in messages
    ]
    links += [
        {"from": xid, "to": sink, "kind": "sink", **_share(definitions.get(xid, _NOTHING), ways.sinks[xid])}
        for xid in messages
        for sink in ways.sinks.get(xid, ())
    ]
    links += [
        {"from": endpoint, "to": sink, "kind": "letters", **_share(routed[endpoint][1], ways.letters[endpoint])}
        for endpoint in shown
        for sink in ways.letters.get(endpoint, ())
    ]
    return {
        "window_seconds": round(reading.window, 1),
        "totals": {
            **{name: _shown(_added(each[place] for each in routed.values())) for place, name in enumerate(_OUTCOMES)},
            "arriving": _shown(_added(arrived.values())),
        },
        "endpoints": [
            {
                "endpoint": xid,
                "protocol": sources[xid].protocol or sources[xid].kind.upper() if xid in sources else None,
                "query": sources[xid].query if xid in sources else None,
                "topic": sources[xid].topic or None if xid in sources else None,
                "pushed": xid in sources and sources[xid].pushed,
                **{name: _shown(figure) for name, figure in zip(_OUTCOMES, routed[xid], strict=True)},
                "arriving": _shown(arrived.get(xid, _NOTHING)),
                "lag": _whole(reading.lag(xid)),
                "oldest_seconds": reading.oldest(xid),
                "received": _whole(reading.value(RECEIVED, xid)),
                "acknowledged": _whole(reading.value(ACKNOWLEDGED, xid)),
                **occurred.source(xid),
            }
            for xid in shown
        ],
        "definitions": [
            {
                "definition": xid,
                **_shown(definitions.get(xid, _NOTHING)),
                **occurred.definition(xid),
                "gone": xid not in ways.sinks,
            }
            for xid in messages
        ],
        "sinks": list(_sinks(plan, reading, problems)),
        "links": links,
        "left_out": {"endpoints": len(routed) - len(shown), "definitions": len(lacking)},
    }


def _sinks(plan: Plan, reading: Reading, problems: Problems) -> Iterable[dict[str, Any]]:
    events, letters = set(event_sinks(plan.settings)), set(letter_sinks(plan.settings))
    held: dict[str, list[str]] = {}
    for query, sink in reading.held():
        held.setdefault(sink, []).append(query)
    for name, chosen in plan.settings.sinks.items():
        if name in events | letters:
            problem = problems(name)
            writes = {result: reading.of(WRITES, name, result) for result in ("ok", "error", "rejected")}
            yield {
                "sink": name,
                "type": chosen.model_dump(include={"type"})["type"],
                "events": name in events,
                "letters": name in letters,
                "writes": {result: figure.count for result, figure in writes.items()},
                "error_rate": writes["error"].rate,
                "holds": held.get(name, []),
                "last_error": None if problem is None else {"at": _instant(problem.at), "text": problem.text},
            }


def _busiest(figures: Iterable[tuple[str, Figure]]) -> list[str]:
    """Return the names of the busiest: by rate, then by count, else in their order."""
    ranked = sorted(figures, key=lambda each: (-(each[1].rate or 0.0), -each[1].count))
    return [name for name, _ in ranked[:SHOWN]]


def _added(figures: Iterable[Figure]) -> Figure:
    several = list(figures)
    rates = [each.rate for each in several if each.rate is not None]
    return Figure(sum(each.count for each in several), round(sum(rates), 3) if rates else None)


def _shown(figure: Figure) -> dict[str, Any]:
    return {"records": figure.count, "rate": figure.rate}


def _share(figure: Figure, ways: tuple[str, ...]) -> dict[str, Any]:
    """Return the figures of one of several ways. Their shares are not counted, so of several only zeros are known."""
    return _shown(figure) if len(ways) == 1 or not figure.count else {"records": None, "rate": None}


def _instant(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
