"""``xrouter routes``: where each definition is routed, and when it last occurred."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from router.commands.arguments import OutputFormat, usable_catalog
from router.errors import RouterError
from router.evaluation.plan import Plan
from router.overview.picture import UNKNOWN, Aim, DefinitionFlow, RouteSurvey, survey
from router.settings import load_settings
from router.settings.catalogs import fetcher_of
from router.state.ledger import DefinitionAtEndpoint, Sighting, instant_of, sightings_in
from router.terminal import print_json_lines, print_row, terminal

NAMED: Final = 20
"""Definitions that a note names."""
_COLUMNS: Final = ("endpoint", "message", "route", "when", "to")
_OCCURRED: Final = "last record"
Row = tuple[str, ...]
Seen = Mapping[DefinitionAtEndpoint, Sighting]


def routes(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file.")],
    unseen: Annotated[bool, typer.Option("--unseen", help="Only definitions that never occurred.")] = (False),
    format: Annotated[
        OutputFormat, typer.Option("--format", help="`json` prints one object per line.")
    ] = OutputFormat.text,
) -> None:
    """Show the route and the destinations of each definition at each source.

    When the route depends on values of a record, the possible routes are listed in order, each with its condition;
    destinations show such values in braces. `-` is any source, or no source for a dead letter.

    If a router has run with these settings, the table also shows when each definition last occurred, or since when it
    is expected. A running router updates this once a minute.

    Example: xrouter routes router.yaml
    """
    settings = load_settings(config)
    read = settings.catalog
    loaded = usable_catalog(list(read.source), fetcher_of(settings), base_uri=read.base_uri)
    plan = Plan(loaded, settings)
    seen = sightings_in(Path(settings.state))
    surveyed = survey(plan)
    if unseen:
        surveyed = _unseen(surveyed, seen)
    if format is OutputFormat.json:
        print_json_lines(_objects(surveyed, seen or {}))
        return
    console = terminal(soft_wrap=True)
    rows = [*_events(surveyed, seen), *_letters(surveyed)]
    if console.is_terminal and rows:
        console.print(_table(rows, _COLUMNS if seen is None else (*_COLUMNS, _OCCURRED)))
    else:
        for row in rows:
            print_row(row)
    if unseen and not surveyed.flows:
        console.print("Every definition has occurred.")
    for note in (*_notes(surveyed), *_coverage(surveyed, seen)):
        console.print(note)


def _unseen(surveyed: RouteSurvey, seen: Seen | None) -> RouteSurvey:
    """Return the survey reduced to definitions that never occurred."""
    if seen is None:
        hint = "start a router with these settings; it stores occurrences in its state folder"
        raise RouterError("no router has run with these settings yet", hint=hint)
    flows = tuple(flow for flow in surveyed.flows if _last(flow, seen) is None)
    return replace(surveyed, flows=flows, letters=(), unreached=(), unrouted=(), left_over=(), unsettled=(), unheld=())


def _last(flow: DefinitionFlow, seen: Seen) -> int | None:
    sighting = seen.get(DefinitionAtEndpoint(flow.endpoint, flow.message))
    return None if sighting is None else sighting.last


def _objects(surveyed: RouteSurvey, seen: Seen) -> Iterator[dict[str, Any]]:
    """Yield the objects of the JSON output, whose form is stable."""
    for flow in surveyed.flows:
        ways = [{"route": way.route, "values": way.values, "sinks": _named(way.aims)} for way in flow.ways]
        sighting = seen.get(DefinitionAtEndpoint(flow.endpoint, flow.message))
        yield {
            "kind": "definition",
            "endpoint": flow.endpoint,
            "message": flow.message,
            "records": flow.records,
            "ways": ways,
            "since": None if sighting is None else instant_of(sighting.since),
            "last_record": None if sighting is None else instant_of(sighting.last),
        }
    for letters in surveyed.letters:
        yield {
            "kind": "dead-letters",
            "endpoints": letters.endpoints,
            "reasons": letters.reasons,
            "route": letters.route,
            "sinks": _named(letters.aims),
        }
    for number in surveyed.unreached:
        yield {"kind": "unreached-route", "route": number}
    by_kind = {
        "unrouted-definition": surveyed.unrouted,
        "left-over-definition": surveyed.left_over,
        "unsettled-definition": surveyed.unsettled,
        "unheld-schema": surveyed.unheld,
    }
    for kind, xids in by_kind.items():
        for xid in xids:
            yield {"kind": kind, "message": xid}
    for endpoint, sighting in _silent(surveyed, seen):
        yield {"kind": "silent-endpoint", "endpoint": endpoint, "since": instant_of(sighting.since)}


def _named(aims: Iterable[Aim]) -> list[dict[str, str]]:
    return [{"sink": aim.sink, "destination": aim.destination} for aim in aims]


def _silent(surveyed: RouteSurvey, seen: Seen) -> Iterator[tuple[str, Sighting]]:
    """Yield the endpoints that never received a record."""
    for endpoint in dict.fromkeys(flow.endpoint for flow in surveyed.flows):
        sighting = seen.get(DefinitionAtEndpoint(endpoint))
        if sighting is not None and sighting.last is None:
            yield endpoint, sighting


def _events(surveyed: RouteSurvey, seen: Seen | None) -> Iterator[Row]:
    for flow in surveyed.flows:
        occurred = () if seen is None else (_occurred(seen.get(DefinitionAtEndpoint(flow.endpoint, flow.message))),)
        kind = "" if flow.records == "all" else f" ({flow.records})"
        for place, way in enumerate(flow.ways):
            when = _condition(way.values) or ("else" if place else "always")
            yield flow.endpoint, flow.message + kind, str(way.route), when, _aims(way.aims), *occurred


def _occurred(sighting: Sighting | None) -> str:
    """Return when a definition last occurred, as text; `-` when no router has known it yet."""
    if sighting is None:
        return "-"
    return instant_of(sighting.last) or f"never since {instant_of(sighting.since)}"


def _letters(surveyed: RouteSurvey) -> Iterator[Row]:
    for each in surveyed.letters:
        endpoints = ", ".join("-" if xid == UNKNOWN else xid for xid in each.endpoints)
        route = "dead_letters" if each.route is None else str(each.route)
        yield endpoints, "dead letters", route, ", ".join(each.reasons), _aims(each.aims)


def _condition(values: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{name}={'|'.join(globs)}" for name, globs in values.items())


def _aims(aims: Iterable[Aim]) -> str:
    return ", ".join(f"{aim.sink}: {aim.destination}" for aim in aims)


def _notes(surveyed: RouteSurvey) -> Iterator[str]:
    if surveyed.unreached:
        yield f"Routes that no record reaches: {', '.join(map(str, surveyed.unreached))}"
    if surveyed.unrouted:
        yield f"Definitions that no source has: {_some(surveyed.unrouted)}"
    if surveyed.left_over:
        yield f"Definitions that only the last route matches: {_some(surveyed.left_over)}"
    if surveyed.unsettled:
        yield f"Definitions with records that go through the fallback topic: {_some(surveyed.unsettled)}"
    if surveyed.unheld:
        yield f"Definitions whose bodies are not validated against their schemas: {_some(surveyed.unheld)}"


def _coverage(surveyed: RouteSurvey, seen: Seen | None) -> Iterator[str]:
    if seen is None:
        return
    pairs = dict.fromkeys(DefinitionAtEndpoint(flow.endpoint, flow.message) for flow in surveyed.flows)
    known = {place: seen[place] for place in pairs if place in seen}
    never = list(dict.fromkeys(place.message for place, sighting in known.items() if sighting.last is None))
    if never:
        yield f"Definitions that never occurred: {_some(never)}"
    if silent := [endpoint for endpoint, _ in _silent(surveyed, seen)]:
        yield f"Sources that have received no record: {_some(silent)}"


def _some(xids: Sequence[str]) -> str:
    """Return the first xids as text; JSON has all of them."""
    more = f", and {len(xids) - NAMED} more" if len(xids) > NAMED else ""
    return ", ".join(xids[:NAMED]) + more


def _table(rows: Iterable[Row], columns: Iterable[str]) -> Table:
    """Return the rows as a table; cells repeated from the row above are empty."""
    table = Table()
    for name in columns:
        table.add_column(name, overflow="fold")
    above: Row | None = None
    for row in rows:
        same = above is not None and row[:2] == above[:2]
        table.add_row(*(("", "", *row[2:]) if same else row))
        above = row
    return table
