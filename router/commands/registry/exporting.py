"""``xrouter registry export``: a registry as one document."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from registry.core.requests import Flags, Request
from router.commands.documents import check_free, write_text
from router.commands.registry.opening import ConfigArgument, opened


def export_document(
    config: ConfigArgument,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="File to write; without it, standard output.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write the whole registry as one xRegistry document, such as `import` and the router take.

    Example: xrouter registry export registry.yaml catalog.xreg.json
    """
    check_free(file, force=force)
    with opened(config, lint=False) as service:
        flags = Flags(doc=True, inline=("*",))
        answer = service.perform(Request("read", (), "/", "", flags, details=True, max_answer=2**40))
    text = msgspec.json.format(msgspec.json.encode(answer.body), indent=2).decode("utf-8")
    write_text(f"{text}\n", file)
