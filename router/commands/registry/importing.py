"""``xrouter registry import``: a document into a registry."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from catalog.documents.documents import read_documents
from catalog.errors import DocumentError
from catalog.findings import Findings
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
    """Return the document of a file, or of a folder that is one."""
    findings = Findings()
    documents = read_documents([file], findings)
    if len(documents) > 1:
        raise DocumentError(f"{file} holds several documents", file=str(file), hint="import one after the other")
    for each in findings.sorted():
        if each.severity == "error":
            raise DocumentError(each.message, file=str(file), hint=each.hint or "correct it; nothing was imported")
        say(f"{each.severity}: {each.message}", err=True)
    tree: dict[str, Any] = documents[0].tree
    return tree
