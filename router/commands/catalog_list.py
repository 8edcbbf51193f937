"""``xrouter catalog list``: the effective definitions."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from catalog.listing import listing
from catalog.load import load
from catalog.model import Catalog
from router.commands.arguments import Format, Sources


def list_definitions(
    sources: Sources,
    format: Annotated[Format, typer.Option("--format", help="`json` is one object a line.")] = Format.text,
) -> None:
    """List the effective message definitions, after inheritance."""
    catalog = load(sources, network=True)
    if format is Format.json:
        for definition in catalog.definitions.values():
            sys.stdout.buffer.write(msgspec.json.encode(listing(definition, catalog)) + b"\n")
        sys.stdout.buffer.flush()
    elif sys.stdout.isatty():
        Console().print(_table(catalog))
    else:
        for xid, row in _rows(catalog).items():
            typer.echo("\t".join((xid, *row)))


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
