"""``xrouter dead-letters``: what became no event, and what to do about it; each command has a module of its own."""

from __future__ import annotations

from typing import Final

import typer

from router.commands.dead_letters_list import list_letters
from router.commands.dead_letters_purge import purge_letters
from router.commands.dead_letters_replay import replay
from router.commands.dead_letters_show import show
from router.commands.dead_letters_suggest import suggest

_HELP: Final = "List, show, replay and remove dead letters, or draft definitions for them."
dead_letters_app = typer.Typer(help=_HELP, no_args_is_help=False)


@dead_letters_app.callback()
def _dead_letters() -> None:
    """List, show, replay and remove dead letters, or draft definitions for them."""


dead_letters_app.command("list")(list_letters)
dead_letters_app.command("show")(show)
dead_letters_app.command("replay")(replay)
dead_letters_app.command("suggest")(suggest)
dead_letters_app.command("purge")(purge_letters)
