"""``xrouter demo``: the whole router, seen working in a minute."""

# Small: help is shown without loading what the command needs.

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, Final

import typer

from router.terminal import terminal

_WIDTH: Final = 120
"""Columns where the output is no terminal, so that tables keep their form in a file."""


def demo(
    keep: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep settings, tables and log in this new folder.")
    ] = None,
) -> None:
    """Start a router with built-in settings, send it messages over HTTP, and show the results.

    Needs no broker. Exit codes: 0 if every record was routed or dead-lettered, else 1.

    Example: xrouter demo --keep demo
    """
    from router.commands.demo.run import run_demo

    # SIGTERM ends it as Ctrl-C does: by unwinding, which stops the router and removes the folder.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    raise typer.Exit(0 if run_demo(terminal(width=_WIDTH), keep) else 1)
