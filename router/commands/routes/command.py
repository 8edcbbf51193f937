"""``xrouter routes``: for settings and their catalog, which definition goes by which route to which destinations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from router.commands.arguments import OutputFormat, usable_catalog
from router.judging.plan import Plan
from router.overview.survey import UNKNOWN, Aim, RouteSurvey, survey
from router.settings import load_settings
from router.settings.catalogs import fetcher_of
from router.terminal import say_json_lines, say_row, terminal

NOTED: Final = 20
"""Definitions that a note names."""
_COLUMNS: Final = ("endpoint", "message", "route", "when", "to")
Row = tuple[str, str, str, str, str]


def routes(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings; their catalog is read.")],
    format: Annotated[OutputFormat, typer.Option("--format", help="`json` is one object a line.")] = OutputFormat.text,
) -> None:
    """Show who goes where: each definition at each source, by which route, to which destinations.

    Where values of a record decide, the routes that may take it stand in order, each with what it asks; in destinations
    such values stay in braces. `-` is an event from any source, or a dead letter of none.

    Example: xrouter routes router.yaml
    """
    settings = load_settings(config)
    read = settings.catalog
    loaded = usable_catalog(list(read.source), fetcher_of(read), base_uri=read.base_uri)
    plan = Plan(loaded, settings)
    surveyed = survey(plan)
    if format is OutputFormat.json:
        say_json_lines(_objects(surveyed))
        return
    console = terminal(soft_wrap=True)
    rows = [*_events(surveyed), *_letters(surveyed)]
    if console.is_terminal:
        console.print(_table(rows))
    else:
        for row in rows:
            say_row(row)
    for note in _notes(surveyed):
        console.print(note)


def _objects(surveyed: RouteSurvey) -> Iterator[dict[str, Any]]:
    """Yield what is found as the objects of the JSON form, which is stable."""
    for flow in surveyed.flows:
        ways = [{"route": way.route, "values": way.values, "sinks": _named(way.aims)} for way in flow.ways]
        yield {
            "kind": "definition",
            "endpoint": flow.endpoint,
            "message": flow.message,
            "records": flow.records,
            "ways": ways,
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


def _named(aims: Iterable[Aim]) -> list[dict[str, str]]:
    return [{"sink": aim.sink, "destination": aim.destination} for aim in aims]


def _events(surveyed: RouteSurvey) -> Iterator[Row]:
    for flow in surveyed.flows:
        kind = "" if flow.records == "all" else f" ({flow.records})"
        for place, way in enumerate(flow.ways):
            when = _asked(way.values) or ("else" if place else "always")
            yield flow.endpoint, flow.message + kind, str(way.route), when, _aims(way.aims)


def _letters(surveyed: RouteSurvey) -> Iterator[Row]:
    for each in surveyed.letters:
        endpoints = ", ".join("-" if xid == UNKNOWN else xid for xid in each.endpoints)
        route = "dead_letters" if each.route is None else str(each.route)
        yield endpoints, "dead letters", route, ", ".join(each.reasons), _aims(each.aims)


def _asked(values: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{name}={'|'.join(globs)}" for name, globs in values.items())


def _aims(aims: Iterable[Aim]) -> str:
    return ", ".join(f"{aim.sink}: {aim.destination}" for aim in aims)


def _notes(surveyed: RouteSurvey) -> Iterator[str]:
    if surveyed.unreached:
        yield f"Routes that nothing reaches: {', '.join(map(str, surveyed.unreached))}"
    if surveyed.unrouted:
        yield f"Definitions that no source expects: {_some(surveyed.unrouted)}"
    if surveyed.left_over:
        yield f"Definitions that only the last route takes: {_some(surveyed.left_over)}"
    if surveyed.unsettled:
        yield f"Definitions whose records, or some, go by the rest topic: {_some(surveyed.unsettled)}"
    if surveyed.unheld:
        yield f"Definitions whose schemas bodies need not keep to: {_some(surveyed.unheld)}"


def _some(xids: Sequence[str]) -> str:
    """Return the first of some xids; JSON has them all."""
    more = f", and {len(xids) - NOTED} more" if len(xids) > NOTED else ""
    return ", ".join(xids[:NOTED]) + more


def _table(rows: Iterable[Row]) -> Table:
    """Return the rows as a table; what is as in the row above is left out."""
    table = Table()
    for name in _COLUMNS:
        table.add_column(name, overflow="fold")
    above: Row | None = None
    for row in rows:
        same = above is not None and row[:2] == above[:2]
        table.add_row(*(("", "", *row[2:]) if same else row))
        above = row
    return table
