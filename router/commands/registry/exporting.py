"""``xrouter registry export``: a registry as one document."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from registry.core.requests import Flags, Request
from registry.model.domains import model_source
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

    It has the model and the capabilities where they are not those that every registry begins with. History and
    subscriptions are in a `backup` alone.

    Example: xrouter registry export registry.yaml catalog.xreg.json
    """
    check_free(file, force=force)
    with opened(config, lint=False) as service, service.session(writing=False) as session:
        registry = session.registry
        inline = ["*"]
        inline += ["modelsource"] if registry.modelsource != model_source() else []
        inline += ["capabilities"] if registry.capabilities else []
        flags = Flags(doc=True, inline=inline)
        answer = session.perform(Request("read", (), "/", "", flags, details=True, max_answer=2**40))
    text = msgspec.json.format(msgspec.json.encode(answer.body), indent=2).decode("utf-8")
    write_text(f"{text}\n", file)
