"""``xrouter registry``: each command has a module of its own."""

from __future__ import annotations

from typing import Final

import typer

from router.lazy import lazy_group

COMMANDS: Final = {
    "serve": "router.commands.registry.serve:serve",
    "init": "router.commands.registry.init:init",
    "import": "router.commands.registry.importing:import_document",
    "export": "router.commands.registry.exporting:export_document",
    "history": "router.commands.registry.history:history",
    "backup": "router.commands.registry.copying:backup",
    "restore": "router.commands.registry.copying:restore",
    "pull": "router.commands.registry.replicating:pull",
    "push": "router.commands.registry.replicating:push",
}
registry_app = typer.Typer(
    add_completion=False, cls=lazy_group(COMMANDS), help="Serve a registry of endpoints, messages and schemas."
)


@registry_app.callback()
def _registry() -> None:
    """Serve a registry of endpoints, messages and schemas."""
