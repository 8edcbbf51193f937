"""``xrouter schemas``: the command group."""

# Small: help is shown without loading what the commands need.

from __future__ import annotations

from typing import Final

import typer

from router.lazy_commands import lazy_group

COMMANDS: Final = {"pull": "router.commands.schemas.pull:pull"}
schemas_app = typer.Typer(
    add_completion=False, cls=lazy_group(COMMANDS), help="Copy schemas of schema registries to disk."
)


@schemas_app.callback()
def _schemas() -> None:
    """Copy schemas of schema registries to disk."""
