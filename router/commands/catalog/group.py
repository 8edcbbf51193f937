"""``xrouter catalog``: looking into catalogs; each command has a module of its own."""

from __future__ import annotations

from typing import Final

import typer

from router.lazy import lazy_group

COMMANDS: Final = {
    "list": "router.commands.catalog.list:list_definitions",
    "show": "router.commands.catalog.show:show",
    "convert": "router.commands.catalog.convert:convert_catalog",
    "pull": "router.commands.catalog.pull:pull",
    "push": "router.commands.catalog.push:push",
    "diff": "router.commands.catalog.diff:diff",
}
catalog_app = typer.Typer(add_completion=False, cls=lazy_group(COMMANDS), help="Look into catalogs.")


@catalog_app.callback()
def _catalog() -> None:
    """Look into catalogs."""
