"""``xrouter catalog list``: the effective definitions."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.table import Table

from catalog.listing import listing
from catalog.load import load
from catalog.model import Catalog
from router.commands.arguments import OutputFormat, Sources
from router.commands.registries import LoginsOption, fetcher
from router.terminal import say_json_lines, say_row, terminal


def list_definitions(
    sources: Sources,
    format: Annotated[OutputFormat, typer.Option("--format", help="`json` is one object a line.")] = OutputFormat.text,
    logins: LoginsOption = None,
) -> None:
    """List the effective message definitions, after inheritance.

    Example: xrouter catalog list catalog.xreg.json --format json
    """
    catalog = load(sources, fetcher=fetcher(logins))
    if format is OutputFormat.json:
        say_json_lines(listing(definition, catalog) for definition in catalog.definitions.values())
    elif sys.stdout.isatty():
        terminal().print(_table(catalog))
    else:
        for xid, row in _rows(catalog).items():
            say_row((xid, *row))


def _rows(catalog: Catalog) -> dict[str, tuple[str, str, str]]:
    rows = {}
    for xid, definition in catalog.definitions.items():
        endpoints = [each.xid for each in catalog.endpoints.values() if xid in each.candidates]
        rows[xid] = (definition.envelope or "-", definition.protocol or "-", ", ".join(endpoints) or "-")
    return rows


def _table(catalog: Catalog) -> Table:
    table = Table("message", "envelope", "protocol", "endpoints", title=f"{len(catalog.definitions)} definitions")
    for xid, row in _rows(catalog).items():
        table.add_row(xid, *row)
    return table
