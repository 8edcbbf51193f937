"""``xrouter registry import``: a document into a registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from catalog.documents.documents import read_documents
from catalog.errors import DocumentError
from catalog.findings import Findings
from registry.core.requests import Answer, Flags, Request, Verb
from registry.core.service import Session
from router.commands.registry.opening import ConfigArgument, opened
from router.errors import CatalogUnavailable, RouterError
from router.terminal import say

_CONFIGURED: Final = ("modelsource", "model", "capabilities")
_SERVED: Final = (
    "$schema",
    "specversion",
    "registryid",
    "self",
    "shortself",
    "xid",
    "epoch",
    "createdat",
    "modifiedat",
)
"""What a registry says of itself, and what names the document's form: settings and the server give those."""


def import_document(
    config: ConfigArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="xRegistry 1.0 document, JSON or YAML.")],
    model: Annotated[
        bool | None,
        typer.Option("--model/--no-model", help="Take the document's model and capabilities, or leave ours."),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Keep its epochs and times; for a registry without groups.")
    ] = False,
) -> None:
    """Write a document into the registry, its own attributes too, in one transaction: all of it, or none.

    A document whose model or capabilities are not ours is refused unless an option says whose are to be in force.
    Epochs in it do not count, but with --exact.

    Example: xrouter registry import registry.yaml catalog.xreg.json
    """
    tree = _read(file)
    with opened(config) as service, service.session(writing=True) as session:
        if exact and any(next(session.reader.groups(f"/{plural}"), None) for plural in session.model.groups):
            hint = "import without --exact, or into a new registry"
            raise RouterError("epochs and times are kept in a registry without groups alone", hint=hint)
        configured = _configured(tree, session, file, model)
        known = {**session.model.groups, **_groups_of(configured)}
        given = {name: tree[name] for name in known if isinstance(tree.get(name), dict)}
        if not given:
            hint = "`xrouter catalog convert` makes xRegistry 1.0 of other dialects"
            raise CatalogUnavailable(f"{file} has none of {', '.join(sorted(known))}", hint=hint)
        own = _own(tree, known)
        if own or configured:
            _perform(session, "patch", {**own, **configured})
        answer = _perform(session, "add", given, tree if exact else None)
        counts = {name: len(each) for name, each in (answer.body or {}).items()}
    say(f"imported {', '.join(f'{count} {name}' for name, count in counts.items()) or 'nothing'}")
    for finding in answer.findings:
        say(f"{finding['severity']}: {finding['place']}: {finding['message']}", err=True)


def _perform(session: Session, verb: Verb, body: Any, exact: Mapping[str, Any] | None = None) -> Answer:
    flags = Flags(ignore=("epoch,readonly",))
    request = Request(verb, (), "/", "", flags, body=body, who="import", administrator=True, max_answer=2**40)
    return session.perform(replace(request, exact=exact))


def _configured(tree: Mapping[str, Any], session: Session, file: Path, model: bool | None) -> dict[str, Any]:
    """Return what of a document's model and capabilities is to be taken.

    Raises:
        RouterError: they are not ours, and nobody said whose count.
    """
    read = {
        name: session.perform(Request("read", (name,), f"/{name}", "")).body for name in _CONFIGURED if name in tree
    }
    other = {name: tree[name] for name, ours in read.items() if tree[name] is not None and tree[name] != ours}
    if "modelsource" in tree:
        other.pop("model", None)  # which follows from it
    elif "model" in other:
        other["modelsource"] = other.pop("model")
    if other and model is None:
        hint = "take those of the document with --model, or leave ours with --no-model"
        raise RouterError(f"{file} has other {' and '.join(sorted(other))} than this registry", hint=hint)
    return other if model else {}


def _groups_of(configured: Mapping[str, Any]) -> dict[str, Any]:
    source = configured.get("modelsource")
    groups = source.get("groups") if isinstance(source, Mapping) else None
    return dict(groups) if isinstance(groups, Mapping) else {}


def _own(tree: Mapping[str, Any], groups: Mapping[str, Any]) -> dict[str, Any]:
    """Return the registry's own attributes; names that the model does not have are refused when they are written."""
    shown = {f"{plural}{end}" for plural in groups for end in ("", "url", "count")}
    passed = {*_SERVED, *_CONFIGURED, *shown}
    return {name: value for name, value in tree.items() if name not in passed}


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
