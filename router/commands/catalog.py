"""``xrouter catalog``: its definitions as a list; each of the other commands has a module of its own."""

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
from router.commands.catalog_convert import convert_catalog
from router.commands.catalog_diff import diff
from router.commands.catalog_show import show

catalog_app = typer.Typer(help="Look into catalogs.", no_args_is_help=False)


@catalog_app.callback()
def _catalog() -> None:
    """Look into catalogs."""


@catalog_app.command("list")
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


catalog_app.command("show")(show)
catalog_app.command("convert")(convert_catalog)
catalog_app.command("diff")(diff)


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
