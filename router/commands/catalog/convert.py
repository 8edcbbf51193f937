"""``xrouter catalog convert``: any dialect to one xRegistry 1.0-rc4 document."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from catalog.convert import Converted, convert
from catalog.declared import Declarations
from catalog.load import load
from router.commands.arguments import Sources
from router.commands.documents import Form, check_free, form_of, text_of, write_text
from router.commands.registries import LoginsOption, fetcher
from router.errors import CatalogUnavailable
from router.terminal import say


def convert_catalog(
    sources: Sources,
    to: Annotated[
        Form | None, typer.Option("--to", help="By default what the name of --output says, else json.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Where to write; without it, standard output.")
    ] = None,
    flatten: Annotated[
        bool, typer.Option("--flatten", help="Write effective messages without bases; ties with a base are lost.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    logins: LoginsOption = None,
) -> None:
    """Write catalogs of any dialect as one xRegistry 1.0-rc4 document that means the same.

    Relative references stay as they are written: put the document beside the first source, or they lead elsewhere.
    What has an error is left out and named on standard error; `xrouter check` says why.

    Example: xrouter catalog convert catalog.cereg --output catalog.xreg.json
    """
    check_free(output, force=force)
    declarations = Declarations()
    catalog = load(sources, fetcher=fetcher(logins), declarations=declarations)
    if not (declarations.messages or declarations.endpoints or declarations.schemas or declarations.groups):
        hint = f"`xrouter check {sources[0]}` shows what it is"
        raise CatalogUnavailable(f"{', '.join(sources)} holds nothing to convert", hint=hint)
    done = convert(catalog, declarations, flatten=flatten)
    write_text(text_of(done.document, form_of(to, output)), output)
    _warn(done)


def _warn(done: Converted) -> None:
    for xid in done.left_out:
        say(f"xrouter: warning: {xid} has an error and is left out", err=True)
    for xid in done.not_flat:
        say(f"xrouter: warning: {xid} keeps its base, whose group gives its protocol", err=True)
