"""``xrouter routes``: where each definition is routed, and when it last occurred."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table

from router.commands.arguments import ConfigArgument, JsonLines, load_catalog_of
from router.errors import RouterError
from router.evaluation.plan import Plan
from router.logs import shorten_list
from router.overview.picture import UNKNOWN, Form, survey_routes
from router.settings import load_settings
from router.state.ledger import DefinitionAtEndpoint, Sighting, instant_of, sightings_in
from router.terminal import MAX_LISTED, print_json_lines, print_row, terminal

_COLUMNS: Final = ("endpoint", "message", "route", "when", "to")
_NOTES: Final = {
    "unreached-route": "Routes that no record reaches",
    "unrouted-definition": "Definitions that no source has",
    "left-over-definition": "Definitions that only the last route matches",
    "unsettled-definition": "Definitions with records that go through the fallback topic",
    "unheld-schema": "Definitions whose bodies are not validated against their schemas",
    "never": "Definitions that never occurred",
    "silent-endpoint": "Sources that have received no record",
}
"""What is said of objects of a kind, below the table."""
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
    if unseen and seen is None:
        hint = "start a router with these settings; it stores occurrences in its state folder"
        raise RouterError("no router has run with these settings yet", hint=hint)
    forms = list(_iter_forms(survey_routes(plan), seen or {}))
    if unseen:
        # Neither has ever occurred.
        forms = [form for form in forms if "since" in form and form.get("last_record") is None]
    if format == "json":
        print_json_lines(forms)
        return
    console = terminal(soft_wrap=True)
    rows = [row for form in forms for row in _iter_rows(form, occurred=seen is not None)]
    if console.is_terminal and rows:
        console.print(_make_table(rows, _COLUMNS if seen is None else (*_COLUMNS, "last record")))
    else:
        for row in rows:
            print_row(row)
    if unseen and not rows:
        console.print("Every definition has occurred.")
    named: dict[str, dict[str, None]] = {kind: {} for kind in _NOTES}
    for form in forms:
        never = form["kind"] == "definition" and form["since"] is not None and form["last_record"] is None
        kind = "never" if never else form["kind"]
        if kind in named:
            named[kind][str(form.get("message", form.get("route", form.get("endpoint"))))] = None
    for kind, text in _NOTES.items():
        if named[kind]:
            console.print(f"{text}: {shorten_list(list(named[kind]), MAX_LISTED)}")


def _iter_forms(surveyed: Iterable[Form], seen: Seen) -> Iterator[Form]:
    """Yield the objects of the JSON output, whose form is stable."""
    endpoints: dict[str, None] = {}
    for form in surveyed:
        if form["kind"] == "definition":
            endpoints[form["endpoint"]] = None
            sighting = seen.get(DefinitionAtEndpoint(form["endpoint"], form["message"]))
            since, last = (None, None) if sighting is None else (sighting.since, sighting.last)
            form |= {"since": instant_of(since), "last_record": instant_of(last)}
        yield form
    for endpoint in endpoints:
        sighting = seen.get(DefinitionAtEndpoint(endpoint))
        if sighting is not None and sighting.last is None:
            yield {"kind": "silent-endpoint", "endpoint": endpoint, "since": instant_of(sighting.since)}


def _iter_rows(form: Form, *, occurred: bool) -> Iterator[Row]:
    """Yield the rows of a definition or of dead letters; with *occurred* when a definition last occurred."""
    if form["kind"] == "definition":
        never = f"never since {form['since']}" if form["since"] else "-"
        last = (form["last_record"] or never,) if occurred else ()
        kind = "" if form["records"] == "all" else f" ({form['records']})"
        for place, way in enumerate(form["ways"]):
            values = ", ".join(f"{name}={'|'.join(globs)}" for name, globs in way["values"].items())
            when = values or ("else" if place else "always")
            yield (
                form["endpoint"],
                form["message"] + kind,
                str(way["route"]),
                when,
                _format_targets(way["sinks"]),
                *last,
            )
    elif form["kind"] == "dead-letters":
        endpoints = ", ".join("-" if xid == UNKNOWN else xid for xid in form["endpoints"])
        route = "dead_letters" if form["route"] is None else str(form["route"])
        yield endpoints, "dead letters", route, ", ".join(form["reasons"]), _format_targets(form["sinks"])


def _format_targets(sinks: Iterable[Mapping[str, str]]) -> str:
    return ", ".join(f"{each['sink']}: {each['destination']}" for each in sinks)


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
