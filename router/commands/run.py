"""``xrouter run``: the service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file.")],
    once: Annotated[
        bool, typer.Option("--once", help="Take what is there at the start, then end; HTTP is not listened to.")
    ] = False,
) -> None:
    """Route records until SIGTERM or Ctrl-C, then finish the batch in hand and end with 0."""
    from router.service import run as serve  # brings Spark along, which no other command needs

    serve(config, once=once)
