"""The command group ``xrouter registry``."""

# Small: help is shown without loading the commands.

from __future__ import annotations

from typing import Final

import typer

from router.lazy_commands import lazy_group

COMMANDS: Final = {
    "serve": "router.commands.registry.serve:serve",
    "init": "router.commands.registry.serve:init",
    "import": "router.commands.registry.serve:import_document",
    "export": "router.commands.registry.serve:export_document",
    "history": "router.commands.registry.serve:history",
    "backup": "router.commands.registry.serve:backup",
    "restore": "router.commands.registry.serve:restore",
    "pull": "router.commands.registry.serve:pull",
    "push": "router.commands.registry.serve:push",
}
registry_app = typer.Typer(
    add_completion=False, cls=lazy_group(COMMANDS), help="Serve a registry of endpoints, messages and schemas."
)


@registry_app.callback()
def _registry() -> None:
    """Serve a registry of endpoints, messages and schemas."""
