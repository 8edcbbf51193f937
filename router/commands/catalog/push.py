"""``xrouter catalog push``: a checked catalog into a registry, after a look at what that changes."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Final
from urllib.parse import unquote

import msgspec
import typer

from catalog.comparing import compare
from catalog.convert import convert
from catalog.documents.documents import Document
from catalog.documents.fetching import Fetcher, is_url
from catalog.documents.sending import post
from catalog.findings import Declarations, Findings
from catalog.linting.attributes import refusing
from catalog.load import build, load
from catalog.model import Catalog
from router.commands.arguments import AllowAddresses, LoginsOption, fetcher
from router.commands.catalog.commands import write_difference
from router.commands.catalog.pull import named, standalone, whole
from router.errors import CatalogUnavailable, RouterError
from router.terminal import counted, say

# A catalog laid over what a registry has: what is sent to it, and what it has then.
#
# Entities of the catalog become what the catalog says, with all that it says; all others stay. A resource that the
# registry has already keeps the names of its versions: what the catalog gives without versions is its default version.

RESOURCES: Final[Mapping[str, str]] = {"endpoints": "messages", "messagegroups": "messages", "schemagroups": "schemas"}
"""Collections of a registry's groups, each with that of their resources."""
Tree = Mapping[str, Any]


def groups_of(catalog: Tree, registry: Tree) -> dict[str, Any]:
    """Return the groups of a *catalog*, which is an xRegistry 1.0 document, as they are sent to a *registry*."""
    overlay: dict[str, Any] = {}
    for plural, resources in RESOURCES.items():
        groups = {}
        for name, group in _members(catalog, plural):
            there = _member(registry, plural, name)
            sent = {each: _sent(body, _member(there, resources, each)) for each, body in _members(group, resources)}
            groups[name] = {**group, **({resources: sent} if sent else {})}
        if groups:
            overlay[plural] = groups
    return overlay


def laid_over(registry: Tree, groups: Tree) -> dict[str, Any]:
    """Return the document of a *registry* that has taken in *groups*."""
    tree = dict(registry)
    for plural, resources in RESOURCES.items():
        there = dict(_members(registry, plural))
        for name, group in _members(groups, plural):
            kept = {**dict(_members(there.get(name), resources)), **dict(_members(group, resources))}
            there[name] = {**group, **({resources: kept} if kept else {})}
        if there:
            tree[plural] = there
    return tree


def _sent(body: Tree, there: Tree) -> dict[str, Any]:
    versions = dict(_members(body, "versions"))
    meta = body.get("meta")
    # What refers to another has no version of its own.
    unnamed = there or (isinstance(meta, Mapping) and meta.get("xref") is not None)
    kept = {name: value for name, value in body.items() if name != "versionid" or not unnamed}
    if not versions:
        return kept
    known = there.get("versionid")
    sent = _chained(versions, {*dict(_members(there, "versions")), known}, known, body.get("versionid"))
    if known is not None and known not in versions:
        # The attributes beside ``versions`` would become those of the version that is the default one until now.
        sent[known] = dict(_member(there, "versions", known)) or _alone(there)
    return {**kept, "versions": sent}


def _alone(resource: Tree) -> dict[str, Any]:
    """Return the default version of a resource that is shown without its versions."""
    return {name: value for name, value in resource.items() if name not in ("meta", "versions", "xid", "self")}


def _chained(versions: Mapping[str, Any], there: Collection[Any], known: Any, default: Any) -> dict[str, Any]:
    """Let each new version descend from the one before it, unless the catalog says itself from which.

    *there* are the versions that the registry has, of which *known* is the default one. The default one of the catalog
    comes last, since what nothing descends from becomes the default one.
    """
    chained = dict(versions)
    if any("ancestorid" in each for each in versions.values()):
        return chained
    new = sorted((name for name in versions if name not in there), key=lambda name: (name == default, _number(name)))
    for name in new:
        chained[name] = {**versions[name], "ancestorid": known if known is not None else name}
        known = name
    return chained


def _number(name: str) -> int:
    return int(name) if name.isascii() and name.isdecimal() and len(name) < 19 else 0


def _members(holder: Any, plural: str) -> Iterator[tuple[str, Tree]]:
    collection = holder.get(plural) if isinstance(holder, Mapping) else None
    if isinstance(collection, Mapping):
        yield from ((name, each) for name, each in collection.items() if isinstance(each, Mapping))


def _member(holder: Any, plural: str, name: str) -> Tree:
    return next((each for one, each in _members(holder, plural) if one == name), {})


FLAGS: Final = "?ignore=epoch,readonly"
"""Epochs in a document are those of where it came from."""
NOTE: Final = "xRouter-Finding"


def push(
    path: Annotated[str, typer.Argument(metavar="PATH", help="File, folder or URL of the catalog, of any dialect.")],
    url: Annotated[str, typer.Argument(metavar="URL", help="The root of an xRegistry 1.0 registry.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before the registry is changed.")] = False,
    allow: AllowAddresses = None,
    logins: LoginsOption = None,
) -> None:
    """Put a catalog into a registry: all of it by one request, so that the registry takes all or nothing.

    The catalog may have no errors of lint. What changes for consumers is shown first, as by `catalog diff`. Groups,
    messages and schemas of the catalog become what it says; what only the registry has stays. Afterwards the registry
    is read again, and a warning names definitions that mean something else there.

    Example: xrouter catalog push catalog.xreg.json https://registry.example/ --dry-run
    """
    if not is_url(url):
        hint = f"`xrouter catalog convert {path}` writes files"
        raise RouterError(f"{url} is no http or https address of a registry", hint=hint)
    by = fetcher(logins, allow or ())
    catalog, document = _checked(path, by)
    registry = whole(url, by)
    tree = standalone(registry, by)
    groups = groups_of(document, tree)
    before, after = (_built(Document(registry.file, each), by) for each in (tree, laid_over(tree, groups)))
    write_difference(compare(before, after))
    if dry_run:
        return
    _ask(url, yes=yes)
    _send(url, groups, by)
    # Another fetcher: this one remembers what the registry was.
    _compare(catalog, load([url], fetcher=fetcher(logins, allow or ())))


def _compare(catalog: Catalog, registry: Catalog) -> None:
    """Warn when definitions mean something else in the registry, but for where their schemas are."""
    there = registry.definitions
    other = [
        xid
        for xid, each in catalog.definitions.items()
        if xid not in there or replace(each, schemauri=None) != replace(there[xid], schemauri=None)
    ]
    if other:
        text = f"the registry means something else than the catalog: {named(other)}"
        say(f"xrouter: warning: {text}; relative references lead elsewhere from there", err=True)


def _checked(path: str, by: Fetcher) -> tuple[Catalog, Mapping[str, Any]]:
    """Return a catalog, and the same as an xRegistry 1.0 document.

    Raises:
        CatalogUnavailable: it has errors, or nothing to push.
        DocumentError: it cannot be read.
    """
    declarations = Declarations()
    catalog = load([path], fetcher=by, declarations=declarations)
    errors = refusing(catalog.findings)
    for each in errors:
        say(f"error: {each.file}{each.pointer}: {each.message}", err=True)
    hint = f"`xrouter check {path}` shows more"
    if errors:
        raise CatalogUnavailable(f"{path} has {counted(len(errors), 'error')} and is not pushed", hint=hint)
    if not (declarations.messages or declarations.endpoints or declarations.schemas or declarations.groups):
        raise CatalogUnavailable(f"{path} holds nothing to push", hint=hint)
    return catalog, convert(catalog, declarations).document


def _built(document: Document, by: Fetcher) -> Catalog:
    return build([document], Findings(), fetcher=by)


def _ask(url: str, *, yes: bool) -> None:
    """Go on only when the user says so.

    Raises:
        RouterError: there is nobody to ask.
        typer.Abort: the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise RouterError("there is nobody to ask", hint="give --yes to push, or --dry-run only to look")
    typer.confirm(f"push this to {url}?", abort=True, err=True)


def _send(url: str, groups: Mapping[str, Any], by: Fetcher) -> None:
    """Write all groups by one request.

    Raises:
        RouterError: the registry refuses it.
        DocumentError: it is not known what came of it.
    """
    receipt = post(url.partition("?")[0].rstrip("/") + "/" + FLAGS, msgspec.json.encode(groups), by, note=NOTE)
    if not 200 <= receipt.status < 300:
        raise _refused(by.address(url), receipt.status, receipt.data)
    for note in receipt.notes:
        say(f"the registry notes: {unquote(note)}", err=True)
    numbers = ", ".join(counted(len(each), plural.removesuffix("s")) for plural, each in groups.items())
    say(f"pushed {numbers}")


def _refused(url: str, status: int, data: bytes) -> RouterError:
    try:
        problem = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.MsgspecError:
        problem = {}
    title = str(problem.get("title") or f"it answers {status}")
    detail = str(problem.get("detail") or "")
    hint = {
        401: "show it a login (catalog.logins in the settings that --logins names)",
        403: "show it the login of somebody who may write there (catalog.logins)",
        404: "give the root of an xRegistry 1.0 registry",
        405: "give the root of an xRegistry 1.0 registry that takes writes",
        413: "push the catalog in parts, a file at a time",
    }.get(status, "")
    if status >= 500:
        return RouterError(f"{url} could not take the catalog: {title}", hint="see what it has now, and try again")
    return RouterError(f"{url} refuses the catalog, and has changed nothing: {title}", hint=detail or hint)
