"""``xrouter registry import``: a document into a registry."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from catalog.documents.fetching import MAX_BYTES
from catalog.errors import DocumentError
from catalog.parsing.texts import parse_text
from registry.core.requests import Flags, Request
from router.commands.registry.opening import ConfigArgument, opened
from router.errors import CatalogUnavailable
from router.terminal import say


def import_document(
    config: ConfigArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="xRegistry 1.0 document, JSON or YAML.")],
) -> None:
    """Write all groups of a document into the registry, in one transaction; epochs in it do not count.

    Example: xrouter registry import registry.yaml catalog.xreg.json
    """
    tree = _read(file)
    with opened(config) as service:
        known = service.group_types()
        given = {name: each for name, each in tree.items() if name in known}
        if not given:
            hint = "`xrouter catalog convert` makes xRegistry 1.0 of other dialects"
            raise CatalogUnavailable(f"{file} has none of {', '.join(sorted(known))}", hint=hint)
        passed = sorted(name for name, each in tree.items() if isinstance(each, dict) and name not in known)
        if passed:
            say(f"not imported: {', '.join(passed)}", err=True)
        flags = Flags(ignore=("epoch,readonly",))
        answer = service.perform(
            Request("add", (), "/", "", flags, body=given, who="import", administrator=True, max_answer=2**40)
        )
        counts = {name: len(each) for name, each in (answer.body or {}).items()}
        say(f"imported {', '.join(f'{count} {name}' for name, count in counts.items()) or 'nothing'}")
        for finding in answer.findings:
            say(f"{finding['severity']}: {finding['place']}: {finding['message']}", err=True)


def _read(file: Path) -> dict[str, Any]:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise DocumentError(f"cannot read {file}: {error.strerror}", file=str(file), hint="check the path") from error
    if len(data) > MAX_BYTES:
        raise DocumentError(f"{file} is larger than {MAX_BYTES} bytes", file=str(file), hint="split the document")
    tree = parse_text(str(file), data).tree
    if not isinstance(tree, dict):
        raise DocumentError(f"{file} is no xRegistry document", file=str(file), hint="name one")
    return tree
