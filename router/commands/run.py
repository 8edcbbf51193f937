"""``xrouter run``: the service."""

# Small: help is shown without loading what the commands need.

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

import typer


def run(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file.")],
    once: Annotated[
        bool, typer.Option("--once", help="Take what is there at the start, then end; HTTP is not listened to.")
    ] = False,
) -> None:
    """Route records until SIGTERM or Ctrl-C, then finish the batch in hand and end with 0.

    Example: xrouter run router.yaml --once
    """
    from router.replay.replay import SingleReplays  # these bring Spark along, which no other command needs
    from router.running.service import run as serve

    if not serve(config, SingleReplays(config.resolve().parent), once=once):
        # The interpreter would wait for the threads of the batch that was cut off, long past the grace limit.
        logging.shutdown()
        os._exit(0)


# ``xrouter gateway``: gateways in a process of their own.


def gateway(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file, with `inbox.kafka`.")],
) -> None:
    """Take messages into the inbox topic until SIGTERM or Ctrl-C; any number of these run side by side.

    Example: xrouter gateway router.yaml
    """
    from router.running.service import serve

    serve(config)
