"""``xrouter catalog pull``: a registry's catalog as one file, which means what the registry means."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from catalog.documents.documents import Document
from catalog.documents.fetching import is_url
from catalog.findings import Findings
from catalog.load import build
from catalog.model import Catalog
from router.commands.arguments import AllowAddresses
from router.commands.catalog.standalone import standalone
from router.commands.catalog.whole import named, whole
from router.commands.documents import Form, check_free, form_of, text_of, write_text
from router.commands.registries import LoginsOption, fetcher
from router.errors import RouterError
from router.terminal import say


def pull(
    url: Annotated[str, typer.Argument(metavar="URL", help="A registry, a part of one, or a message catalog's API.")],
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Where to write; without it, standard output.")
    ] = None,
    to: Annotated[Form | None, typer.Option("--to", help="By default what the name of FILE says, else json.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    allow: AllowAddresses = None,
    logins: LoginsOption = None,
) -> None:
    """Take a catalog out of a registry: all of it, as the registry has it, in one document.

    Pages, definitions and schemas that the registry shows elsewhere are in it, too. When something of it cannot be
    read, nothing is written. A warning names definitions that mean something else in the file than in the registry,
    since they refer to something by a relative address.

    Example: xrouter catalog pull https://registry.example/ catalog.xreg.json
    """
    if not is_url(url):
        hint = f"`xrouter catalog convert {url}` writes files anew"
        raise RouterError(f"{url} is no http or https address of a registry", hint=hint)
    check_free(file, force=force)
    by = fetcher(logins, allow or ())
    document = whole(url, by)
    pulled = standalone(document, by)
    write_text(text_of(pulled, form_of(to, file)), file)
    _compare(
        build([document], Findings(), fetcher=by),
        build([Document(str(file or "-"), pulled)], Findings(), fetcher=by),
    )


def _compare(registry: Catalog, file: Catalog) -> None:
    """Warn when the file means something else; schemas that only the file has, unreferenced, do not count."""
    before, after = registry.definitions, file.definitions
    other = [xid for xid in {**before, **after} if before.get(xid) != after.get(xid)]
    rest = (registry.groups, registry.endpoints) != (file.groups, file.endpoints)
    if not other and not rest and all(file.schemas.get(key) == held for key, held in registry.schemas.items()):
        return
    text = f"the file means something else than the registry: {named(other) or 'its endpoints or schemas'}"
    say(f"xrouter: warning: {text}; relative references lead elsewhere from there", err=True)
