"""``xrouter routes``: where each definition is routed, and when it last occurred."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from router.commands.arguments import ConfigArgument, JsonLines, load_catalog_of
from router.errors import RouterError
from router.evaluation.plan import Plan
from router.logs import shorten_list
from router.overview.picture import UNKNOWN, DefinitionFlow, RouteSurvey, RouteTarget, survey_routes
from router.settings import load_settings
from router.state.ledger import DefinitionAtEndpoint, Sighting, instant_of, sightings_in
from router.terminal import MAX_LISTED, print_json_lines, print_row, terminal

_COLUMNS: Final = ("endpoint", "message", "route", "when", "to")
_OCCURRED: Final = "last record"
_NOTES: Final = {
    "unreached": "Routes that no record reaches",
    "unrouted": "Definitions that no source has",
    "last_only": "Definitions that only the last route matches",
    "batch_only": "Definitions with records that go through the fallback topic",
    "unvalidated": "Definitions whose bodies are not validated against their schemas",
}
"""What is said of members of a survey."""
Row = tuple[str, ...]
Seen = Mapping[DefinitionAtEndpoint, Sighting]


def routes(
    config: ConfigArgument,
    unseen: Annotated[bool, typer.Option("--unseen", help="Only definitions that never occurred.")] = (False),
    format: JsonLines = "text",
) -> None:
    """Show the route and the destinations of each definition at each source.

    When the route depends on values of a record, the possible routes are listed in order, each with its condition;
    destinations show such values in braces. `-` is any source, or no source for a dead letter.

    If a router has run with these settings, the table also shows when each definition last occurred, or since when it
    is expected. A running router updates this once a minute.

    Example: xrouter routes router.yaml
    """
    settings = load_settings(config)
    plan = Plan(load_catalog_of(settings), settings)
    seen = sightings_in(Path(settings.state))
    surveyed = survey_routes(plan)
    if unseen:
        surveyed = _keep_unseen(surveyed, seen)
    if format == "json":
        print_json_lines(_iter_json_objects(surveyed, seen or {}))
        return
    console = terminal(soft_wrap=True)
    rows = [*_iter_event_rows(surveyed, seen), *_iter_letter_rows(surveyed)]
    if console.is_terminal and rows:
        console.print(_make_table(rows, _COLUMNS if seen is None else (*_COLUMNS, _OCCURRED)))
    else:
        for row in rows:
            print_row(row)
    if unseen and not surveyed.flows:
        console.print("Every definition has occurred.")
    for note in (*_iter_notes(surveyed), *_iter_coverage_notes(surveyed, seen)):
        console.print(note)


def _keep_unseen(surveyed: RouteSurvey, seen: Seen | None) -> RouteSurvey:
    """Return the survey reduced to definitions that never occurred."""
    if seen is None:
        hint = "start a router with these settings; it stores occurrences in its state folder"
        raise RouterError("no router has run with these settings yet", hint=hint)
    flows = tuple(flow for flow in surveyed.flows if _last_seen(flow, seen) is None)
    return replace(
        surveyed, flows=flows, letters=(), unreached=(), unrouted=(), last_only=(), batch_only=(), unvalidated=()
    )


def _last_seen(flow: DefinitionFlow, seen: Seen) -> int | None:
    sighting = seen.get(DefinitionAtEndpoint(flow.endpoint, flow.message))
    return None if sighting is None else sighting.last


def _iter_json_objects(surveyed: RouteSurvey, seen: Seen) -> Iterator[dict[str, Any]]:
    """Yield the objects of the JSON output, whose form is stable."""
    for flow in surveyed.flows:
        ways = [{"route": way.route, "values": way.values, "sinks": _targets_to_json(way.targets)} for way in flow.ways]
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
            "sinks": _targets_to_json(letters.targets),
        }
    for number in surveyed.unreached:
        yield {"kind": "unreached-route", "route": number}
    by_kind = {
        "unrouted-definition": surveyed.unrouted,
        "left-over-definition": surveyed.last_only,
        "unsettled-definition": surveyed.batch_only,
        "unheld-schema": surveyed.unvalidated,
    }
    for kind, xids in by_kind.items():
        for xid in xids:
            yield {"kind": kind, "message": xid}
    for endpoint, sighting in _iter_silent_endpoints(surveyed, seen):
        yield {"kind": "silent-endpoint", "endpoint": endpoint, "since": instant_of(sighting.since)}


def _targets_to_json(targets: Iterable[RouteTarget]) -> list[dict[str, str]]:
    return [{"sink": target.sink, "destination": target.destination} for target in targets]


def _iter_silent_endpoints(surveyed: RouteSurvey, seen: Seen) -> Iterator[tuple[str, Sighting]]:
    """Yield the endpoints that never received a record."""
    for endpoint in dict.fromkeys(flow.endpoint for flow in surveyed.flows):
        sighting = seen.get(DefinitionAtEndpoint(endpoint))
        if sighting is not None and sighting.last is None:
            yield endpoint, sighting


def _iter_event_rows(surveyed: RouteSurvey, seen: Seen | None) -> Iterator[Row]:
    for flow in surveyed.flows:
        occurred = () if seen is None else (_format_seen(seen.get(DefinitionAtEndpoint(flow.endpoint, flow.message))),)
        kind = "" if flow.records == "all" else f" ({flow.records})"
        for place, way in enumerate(flow.ways):
            values = ", ".join(f"{name}={'|'.join(globs)}" for name, globs in way.values.items())
            when = values or ("else" if place else "always")
            yield flow.endpoint, flow.message + kind, str(way.route), when, _format_targets(way.targets), *occurred


def _format_seen(sighting: Sighting | None) -> str:
    """Return when a definition last occurred, as text; `-` when no router has known it yet."""
    if sighting is None:
        return "-"
    return instant_of(sighting.last) or f"never since {instant_of(sighting.since)}"


def _iter_letter_rows(surveyed: RouteSurvey) -> Iterator[Row]:
    for each in surveyed.letters:
        endpoints = ", ".join("-" if xid == UNKNOWN else xid for xid in each.endpoints)
        route = "dead_letters" if each.route is None else str(each.route)
        yield endpoints, "dead letters", route, ", ".join(each.reasons), _format_targets(each.targets)


def _format_targets(targets: Iterable[RouteTarget]) -> str:
    return ", ".join(f"{target.sink}: {target.destination}" for target in targets)


def _iter_notes(surveyed: RouteSurvey) -> Iterator[str]:
    for name, text in _NOTES.items():
        if which := getattr(surveyed, name):
            yield f"{text}: {shorten_list([*map(str, which)], MAX_LISTED)}"


def _iter_coverage_notes(surveyed: RouteSurvey, seen: Seen | None) -> Iterator[str]:
    if seen is None:
        return
    pairs = dict.fromkeys(DefinitionAtEndpoint(flow.endpoint, flow.message) for flow in surveyed.flows)
    known = {place: seen[place] for place in pairs if place in seen}
    never = list(dict.fromkeys(place.message for place, sighting in known.items() if sighting.last is None))
    if never:
        yield f"Definitions that never occurred: {shorten_list(never, MAX_LISTED)}"
    if silent := [endpoint for endpoint, _ in _iter_silent_endpoints(surveyed, seen)]:
        yield f"Sources that have received no record: {shorten_list(silent, MAX_LISTED)}"


def _make_table(rows: Iterable[Row], columns: Iterable[str]) -> Table:
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
