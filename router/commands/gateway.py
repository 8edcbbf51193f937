"""``xrouter gateway``: gateways in a process of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def gateway(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file, with `inbox.kafka`.")],
) -> None:
    """Take messages into the inbox topic until SIGTERM or Ctrl-C; any number of these run side by side.

    Example: xrouter gateway router.yaml
    """
    from router.running.gateways_only import serve

    serve(config)
