"""``xrouter catalog pull``: a registry's catalog as one file, which means what the registry means."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from catalog.dialects import detect
from catalog.documents.connecting import origin_of
from catalog.documents.documents import Document, read_documents
from catalog.documents.fetching import Fetcher, is_url
from catalog.documents.registry_api import NESTED
from catalog.errors import DocumentError
from catalog.findings import Findings
from catalog.load import build
from catalog.model import Catalog
from catalog.parsing.texts import parse_text
from catalog.references import Following
from router.commands.arguments import (
    AllowAddresses,
    DocumentFormat,
    LoginsOption,
    check_free,
    fetcher,
    form_of,
    text_of,
    write_text,
)
from router.errors import CatalogUnavailable, RouterError
from router.terminal import say

# A registry read whole, as one document that stands by itself.

NAMED: Final = 5
"""Definitions that a warning names."""


def whole(url: str, by: Fetcher) -> Document:
    """Read a registry with all that it names by address.

    Raises:
        CatalogUnavailable: something of it cannot be read, or nothing of it is a catalog.
        DocumentError: the registry itself cannot be read.
    """
    findings = Findings()
    (read,) = read_documents([url], findings, fetcher=by)
    following = Following(by, findings)
    document = following.completed(read)
    for finding in findings.sorted():
        if finding.severity == "error" or (finding.rule, finding.severity) == ("unreadable-document", "warning"):
            raise CatalogUnavailable(f"{url} is not read whole: {finding.message}", hint=finding.hint)
    if following.pending:
        away = ", ".join(following.pending)
        raise CatalogUnavailable(f"{url} is not read whole: {away} cannot be reached now", hint="try again")
    if not isinstance(document.tree, dict) or detect(document.tree) is None:
        hint = "give the address of a registry, of a part of one, or of a message catalog's API"
        raise CatalogUnavailable(f"{url} holds no catalog", hint=hint)
    return document


def named(xids: Sequence[str]) -> str:
    """Name the first definitions of many in a warning."""
    return ", ".join(xids[:NAMED]) + (f" and {len(xids) - NAMED} more" if len(xids) > NAMED else "")


# A document that was read from a registry, made to stand by itself: nothing in it has to be fetched there again.

_ENDS: Final = ("url", "count")
_SCHEMA_GROUPS: Final = "schemagroups"
_HELD: Final = ("schema", "schemabase64")
_ELSEWHERE: Final = ("schemaurl", "schemauri")


def standalone(document: Document, fetcher: Fetcher) -> dict[str, Any]:
    """Return the tree of a *document* whose collections are all shown, with the schemas of its registry in it.

    Addresses and counts of collections that it shows are left out, since they are the registry's to say.

    Raises:
        DocumentError: a schema of the registry cannot be read.
    """
    origin = origin_of(document.file)
    tree = _plain(document.tree)
    for name, groups in tree.items():
        if name.lower() == _SCHEMA_GROUPS and isinstance(groups, dict):
            for group in groups.values():
                for schema in _members(group, "schemas"):
                    for holder in (schema, *_members(schema, "versions")):
                        _embed(holder, origin, fetcher)
    return tree


def _plain(entity: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """Copy an entity; its collections are at even depths, and a registry has no more than three levels of them."""
    shown = {key.lower() for key, value in entity.items() if key.lower() in NESTED and isinstance(value, dict)}
    plain: dict[str, Any] = {}
    for key, value in entity.items():
        lower = key.lower()
        if any(lower.endswith(end) and lower.removesuffix(end) in shown for end in _ENDS):
            continue
        if lower in shown and depth < 3:
            value = {name: _plain(each, depth + 1) if isinstance(each, dict) else each for name, each in value.items()}
        plain[key] = value
    return plain


def _members(holder: Any, name: str) -> list[dict[str, Any]]:
    collection = holder.get(name) if isinstance(holder, dict) else None
    return [each for each in collection.values() if isinstance(each, dict)] if isinstance(collection, dict) else []


def _embed(holder: dict[str, Any], origin: str, fetcher: Fetcher) -> None:
    """Put the document of a schema in the place of its address, when that is the registry's own."""
    named = next((name for name in _ELSEWHERE if isinstance(holder.get(name), str)), None)
    if named is None or any(holder.get(name) is not None for name in _HELD):
        return
    address = holder[named]
    if not is_url(address) or "#" in address or origin_of(address) != origin:
        return
    data = fetcher.fetch(address)
    del holder[named]
    try:
        holder["schema"] = parse_text("", data).tree if data.lstrip()[:1] in (b"{", b"[") else data.decode("utf-8")
    except (DocumentError, UnicodeDecodeError):
        holder["schemabase64"] = base64.b64encode(data).decode("ascii")


def pull(
    url: Annotated[str, typer.Argument(metavar="URL", help="A registry, a part of one, or a message catalog's API.")],
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Where to write; without it, standard output.")
    ] = None,
    to: Annotated[
        DocumentFormat | None, typer.Option("--to", help="By default what the name of FILE says, else json.")
    ] = None,
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
