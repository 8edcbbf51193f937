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
        bool, typer.Option("--once", help="Process the records available at startup, then exit; no HTTP listener.")
    ] = False,
) -> None:
    """Run the router. SIGTERM or Ctrl-C stops it after the current batch, with exit code 0.

    Example: xrouter run router.yaml --once
    """
    from router.running.service import run as serve  # imports Spark

    if not serve(config, once=once):
        # A normal exit would wait for the threads of the interrupted batch, long past the grace period.
        logging.shutdown()
        os._exit(0)


# ``xrouter gateway``: gateways in a separate process.


def gateway(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file, with `inbox.kafka`.")],
) -> None:
    """Run only the gateways: store received messages in the inbox topic until SIGTERM or Ctrl-C.

    Any number of gateways can run in parallel.

    Example: xrouter gateway router.yaml
    """
    from router.running.service import run_gateways

    run_gateways(config)
