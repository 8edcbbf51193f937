"""``xrouter dead-letters``: what became no event, and what to do about it; each command has a module of its own."""

from __future__ import annotations

from typing import Final

import typer

from router.lazy import lazy_group

COMMANDS: Final = {
    "list": "router.commands.dead_letters.list:list_letters",
    "show": "router.commands.dead_letters.show:show",
    "replay": "router.commands.dead_letters.replay:replay",
    "release": "router.commands.dead_letters.release:release",
    "suggest": "router.commands.dead_letters.suggest:suggest",
    "purge": "router.commands.dead_letters.purge:purge_letters",
}
_HELP: Final = "List, show, replay and remove dead letters, or draft definitions for them."
dead_letters_app = typer.Typer(add_completion=False, cls=lazy_group(COMMANDS), help=_HELP)


@dead_letters_app.callback()
def _dead_letters() -> None:
    """List, show, replay and remove dead letters, or draft definitions for them."""
