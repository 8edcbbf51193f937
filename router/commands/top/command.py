"""``xrouter top``: the figures of the status page, live in a terminal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live

from router.commands.arguments import OutputFormat
from router.commands.top.client import Answer, StatusClient, status_client
from router.commands.top.view import lines, screen
from router.errors import RouterError
from router.settings import load_settings
from router.terminal import Terminal, say_row, terminal, write_document


def top(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings of the router that runs on this machine.")],
    every: Annotated[float, typer.Option("--every", min=0.5, max=3600, metavar="SECONDS", help="Between looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, as where the output is no terminal.")] = False,
    format: Annotated[OutputFormat, typer.Option("--format", help="`json` is /status.json as it is.")] = (
        OutputFormat.text
    ),
) -> None:
    """Show what flows in a running router, what waits and why, until Ctrl-C.

    Asks the port of `metrics` (deploy/STATUS.md), as the status page does. Where the output is no terminal, one look is
    written as rows, the kind of each first.

    Example: xrouter top router.yaml
    """
    with status_client(load_settings(config)) as client:
        console = terminal()
        answer = client.ask()
        if format is OutputFormat.json:
            write_document(answer.document)
        elif once or not console.is_terminal:
            for row in lines(answer.status):
                say_row(row)
        else:
            _watch(client, console, answer, every)


def _watch(client: StatusClient, console: Terminal, answer: Answer, every: float) -> None:
    """Show what the router says, again and again; while it does not answer, what it last said, and that."""
    problem = ""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen(answer.status, client.address, console.size, problem), refresh=True)
            try:
                time.sleep(every)
            except KeyboardInterrupt:
                return
            try:
                answer, problem = client.ask(), ""
            except KeyboardInterrupt:
                return
            except RouterError as error:
                problem = f"{error.message}; what follows is what it said before"
